// Questions to the system at the start of a program. Node.js can do all this; but its functions are compiled when they
// are first called, and the first lstat costs a program a third of a millisecond. These cost microseconds.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bindings/bindings.h"
#include "process/unique_fd.h"

namespace gpu_owner::bindings {
namespace {

// fileStatus(path or descriptor, follow, numbers) -> 0 or -errno. Written are, in this order: mode, uid, gid, device,
// inode, when it was last changed, in seconds and nanoseconds, its size, and how many names it has.
Napi::Value status(const Napi::CallbackInfo& info) {
  struct stat found;
  const bool follow = info[1].As<Napi::Boolean>();
  const auto look = [&] {
    if (info[0].IsNumber()) return fstat(integer(info[0]), &found);
    const std::string path = text(info[0]);
    return follow ? stat(path.c_str(), &found) : lstat(path.c_str(), &found);
  };
  if (look() != 0) return Napi::Number::New(info.Env(), -errno);
  auto numbers = info[2].As<Napi::Float64Array>();
  const double values[] = {static_cast<double>(found.st_mode),         static_cast<double>(found.st_uid),
                           static_cast<double>(found.st_gid),          static_cast<double>(found.st_dev),
                           static_cast<double>(found.st_ino),          static_cast<double>(found.st_ctim.tv_sec),
                           static_cast<double>(found.st_ctim.tv_nsec), static_cast<double>(found.st_size),
                           static_cast<double>(found.st_nlink)};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) numbers[i] = values[i];
  return Napi::Number::New(info.Env(), 0);
}

// fileText(path) -> what stands in it, for small files; null where it can't be read
Napi::Value file_text(const Napi::CallbackInfo& info) {
  const process::UniqueFd file(::open(text(info[0]).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) return info.Env().Null();
  std::string contents;
  char block[4096];
  ssize_t length;
  while ((length = ::read(file.get(), block, sizeof block)) > 0 || (length < 0 && errno == EINTR)) {
    if (length > 0) contents.append(block, static_cast<size_t>(length));
  }
  if (length < 0) return info.Env().Null();
  return Napi::String::New(info.Env(), contents);
}

// fileLink(path) -> where it leads; null where it is no link, or can't be read
Napi::Value link_target(const Napi::CallbackInfo& info) {
  char target[4096];
  const ssize_t length = readlink(text(info[0]).c_str(), target, sizeof target);
  if (length < 0) return info.Env().Null();
  return Napi::String::New(info.Env(), target, static_cast<size_t>(length));
}

}  // namespace

void add_system(Napi::Env env, Napi::Object exports) {
  exports.Set("fileStatus", Napi::Function::New<status>(env));
  exports.Set("fileText", Napi::Function::New<file_text>(env));
  exports.Set("fileLink", Napi::Function::New<link_target>(env));
}

}  // namespace gpu_owner::bindings
