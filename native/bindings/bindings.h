// Thin bindings: they convert arguments and results and decide nothing. Arguments are validated in TypeScript.
#pragma once

#include <napi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dl/library.h"

namespace gpu_owner::bindings {

void add_cuda(Napi::Env env, Napi::Object exports);
void add_directory(Napi::Env env, Napi::Object exports);
void add_driver(Napi::Env env, Napi::Object exports);
void add_wait_queue(Napi::Env env, Napi::Object exports);
void add_locks(Napi::Env env, Napi::Object exports);
void add_process(Napi::Env env, Napi::Object exports);
void add_system(Napi::Env env, Napi::Object exports);

// No conversions: they are refused in an environment that is being ended, while these always work. TypeScript sees to
// types.
inline std::string text(const Napi::Value& value) { return value.As<Napi::String>().Utf8Value(); }
inline int integer(const Napi::Value& value) { return value.As<Napi::Number>().Int32Value(); }
inline int64_t long_integer(const Napi::Value& value) { return value.As<Napi::Number>().Int64Value(); }

inline Napi::Value number(const Napi::CallbackInfo& info, double value) { return Napi::Number::New(info.Env(), value); }

inline std::vector<std::string> texts(const Napi::Value& value) {
  const auto array = value.As<Napi::Array>();
  std::vector<std::string> result;
  for (uint32_t i = 0; i < array.Length(); i++) result.push_back(text(array.Get(i)));
  return result;
}

inline std::vector<int> integers(const Napi::Value& value) {
  const auto array = value.As<Napi::Array>();
  std::vector<int> result;
  for (uint32_t i = 0; i < array.Length(); i++) result.push_back(integer(array.Get(i)));
  return result;
}

inline Napi::Array attempts(Napi::Env env, const std::vector<dl::Attempt>& list) {
  auto array = Napi::Array::New(env, list.size());
  for (uint32_t i = 0; i < list.size(); i++) {
    auto attempt = Napi::Object::New(env);
    attempt.Set("path", list[i].path);
    attempt.Set("error", list[i].error);
    array.Set(i, attempt);
  }
  return array;
}

}  // namespace gpu_owner::bindings
