#include <errno.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "locks/held.h"
#include "locks/line.h"
#include "locks/pulse.h"

namespace gpu_owner::bindings {
namespace {

Napi::Value number(const Napi::CallbackInfo& info, double value) { return Napi::Number::New(info.Env(), value); }

// lineJoin(descriptor) -> place or -errno
Napi::Value join_line(const Napi::CallbackInfo& info) {
  const int64_t place = locks::join_line(integer(info[0]));
  if (place >= 0) locks::note_held(integer(info[0]));
  return number(info, static_cast<double>(place));
}

// linePlaces(descriptor, from, to) -> the places that are taken, in order; to = 0: to the end. null: too many for a line of waiters
Napi::Value line_places(const Napi::CallbackInfo& info) {
  std::vector<int64_t> places;
  if (locks::places_taken(integer(info[0]), long_integer(info[1]), long_integer(info[2]), places) == E2BIG) {
    return info.Env().Null();
  }
  auto array = Napi::Array::New(info.Env(), places.size());
  for (size_t i = 0; i < places.size(); i++) array.Set(i, number(info, static_cast<double>(places[i])));
  return array;
}

// lineAlive(descriptor, offset, lifeless) -> whether the pulse there is younger than so many milliseconds
Napi::Value line_alive(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(),
                            locks::is_alive(integer(info[0]), long_integer(info[1]), long_integer(info[2])));
}

// A pulse, and the watch on those of others, told to JavaScript through a thread-safe function.
class Pulse : public Napi::ObjectWrap<Pulse> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Pulse", {InstanceMethod<&Pulse::watch>("watch"), InstanceMethod<&Pulse::stop>("end")});
  }

  // new Pulse(descriptor, offset, period, lifeless, told(unlocked: boolean)). Keeps the event loop alive until end().
  explicit Pulse(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Pulse>(info), env_(info.Env()) {
    function_ = Napi::ThreadSafeFunction::New(info.Env(), info[4].As<Napi::Function>(), "gpu-owner pulse", 0, 1);
    pulse_ = locks::Pulse::start(integer(info[0]), long_integer(info[1]), long_integer(info[2]), long_integer(info[3]),
                                 tell, this);
    if (pulse_ == nullptr) {
      function_.Release();
      return;
    }
    Ref();  // until the end
    // Added after the function's own hook, so it runs before that one: the thread is gone when the function goes.
    napi_add_env_cleanup_hook(env_, clean_up, this);
  }

 private:
  // On the pulse's thread.
  static void tell(void* context, locks::Pulse::News news) {
    auto* self = static_cast<Pulse*>(context);
    const bool unlocked = news == locks::Pulse::News::unlocked;
    self->function_.NonBlockingCall([unlocked](Napi::Env env, Napi::Function told) {
      told.Call({Napi::Boolean::New(env, unlocked)});
    });
  }

  static void clean_up(void* context) {
    auto* self = static_cast<Pulse*>(context);
    self->pulse_->end();
    self->pulse_ = nullptr;
  }

  // watch(places, leases, quiet): offsets, descriptors (closed by the pulse), milliseconds
  Napi::Value watch(const Napi::CallbackInfo& info) {
    locks::Pulse::Watch watch;
    const auto places = info[0].As<Napi::Array>();
    for (uint32_t i = 0; i < places.Length(); i++) watch.places.push_back(long_integer(places.Get(i)));
    for (const int lease : integers(info[1])) watch.leases.push_back(lease);
    watch.quiet = long_integer(info[2]);
    if (pulse_ != nullptr) {
      pulse_->watch(std::move(watch));
    } else {
      for (const int lease : watch.leases) close(lease);
    }
    return info.Env().Undefined();
  }

  Napi::Value stop(const Napi::CallbackInfo& info) {
    if (pulse_ != nullptr) {
      napi_remove_env_cleanup_hook(env_, clean_up, this);
      pulse_->end();
      pulse_ = nullptr;
      function_.Release();
      Unref();
    }
    return info.Env().Undefined();
  }

  napi_env env_;
  Napi::ThreadSafeFunction function_;
  locks::Pulse* pulse_ = nullptr;
};

}  // namespace

void add_line(Napi::Env env, Napi::Object exports) {
  exports.Set("lineJoin", Napi::Function::New<join_line>(env));
  exports.Set("linePlaces", Napi::Function::New<line_places>(env));
  exports.Set("lineAlive", Napi::Function::New<line_alive>(env));
  exports.Set("Pulse", Pulse::define(env));
}

}  // namespace gpu_owner::bindings
