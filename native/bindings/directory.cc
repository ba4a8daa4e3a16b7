#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "locks/directory.h"

namespace gpu_owner::bindings {
namespace {

// A directory that stays open as long as this object lives.
class Directory : public Napi::ObjectWrap<Directory> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(
        env, "Directory",
        {InstanceMethod<&Directory::error>("error"), InstanceMethod<&Directory::descriptor>("descriptor"),
         InstanceMethod<&Directory::open_shared>("openShared"),
         InstanceMethod<&Directory::open_for_probe>("openForProbe"),
         InstanceMethod<&Directory::open_to_share>("openToShare"),
         InstanceMethod<&Directory::open_itself>("openItself"), InstanceMethod<&Directory::itself>("itself"),
         InstanceMethod<&Directory::create>("create"), InstanceMethod<&Directory::remove>("remove"),
         InstanceMethod<&Directory::access>("access"), InstanceMethod<&Directory::names>("names")});
  }

  // new Directory(path, mode?): with a mode, it is made if it is missing
  explicit Directory(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Directory>(info) {
    const std::string path = text(info[0]);
    error_ =
        info[1].IsNumber() ? directory_.make(path, static_cast<unsigned>(integer(info[1]))) : directory_.open(path);
  }

 private:
  // error() -> 0, or -errno where it isn't open
  Napi::Value error(const Napi::CallbackInfo& info) { return number(info, error_); }

  // descriptor() -> of the directory, which stays its own
  Napi::Value descriptor(const Napi::CallbackInfo& info) { return number(info, directory_.descriptor()); }

  // openShared(name, size, mode) -> descriptor or -errno
  Napi::Value open_shared(const Napi::CallbackInfo& info) {
    return number(info, directory_.open_shared(text(info[0]).c_str(), long_integer(info[1]),
                                               static_cast<unsigned>(integer(info[2]))));
  }

  // openForProbe(name) -> descriptor or -errno
  Napi::Value open_for_probe(const Napi::CallbackInfo& info) {
    return number(info, directory_.open_for_probe(text(info[0]).c_str()));
  }

  // openToShare(name) -> descriptor or -errno
  Napi::Value open_to_share(const Napi::CallbackInfo& info) {
    return number(info, directory_.open_to_share(text(info[0]).c_str()));
  }

  // openItself() -> descriptor or -errno
  Napi::Value open_itself(const Napi::CallbackInfo& info) { return number(info, directory_.open_itself()); }

  // itself() -> descriptor, which stays its own, or -errno
  Napi::Value itself(const Napi::CallbackInfo& info) { return number(info, directory_.itself()); }

  // create(name, bytes, mode, locked) -> descriptor or -errno
  Napi::Value create(const Napi::CallbackInfo& info) {
    const auto bytes = info[1].As<Napi::Uint8Array>();
    return number(info, directory_.create(text(info[0]).c_str(), reinterpret_cast<const char*>(bytes.Data()),
                                          static_cast<int64_t>(bytes.ByteLength()),
                                          static_cast<unsigned>(integer(info[2])), info[3].As<Napi::Boolean>()));
  }

  // remove(name, descriptor) -> 0 or -errno
  Napi::Value remove(const Napi::CallbackInfo& info) {
    return number(info, directory_.remove(text(info[0]).c_str(), integer(info[1])));
  }

  // access(name, mode) -> 0 or -errno
  Napi::Value access(const Napi::CallbackInfo& info) {
    return number(info, directory_.access(text(info[0]).c_str(), integer(info[1])));
  }

  // names() -> of all that is in it
  Napi::Value names(const Napi::CallbackInfo& info) {
    const std::vector<std::string> names = directory_.names();
    auto array = Napi::Array::New(info.Env(), names.size());
    for (uint32_t i = 0; i < names.size(); i++) array.Set(i, names[i]);
    return array;
  }

  locks::Directory directory_;
  int error_ = 0;
};

}  // namespace

void add_directory(Napi::Env env, Napi::Object exports) { exports.Set("Directory", Directory::define(env)); }

}  // namespace gpu_owner::bindings
