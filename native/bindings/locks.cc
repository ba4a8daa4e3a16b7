#include <errno.h>
#include <unistd.h>

#include <vector>

#include "bindings/bindings.h"
#include "locks/files.h"
#include "locks/held.h"
#include "locks/locks.h"
#include "locks/units.h"
#include "locks/wait.h"
#include "process/futex.h"
#include "process/interrupt.h"

namespace gpu_owner::bindings {
namespace {

using locks::Kind;
using locks::Mode;
using locks::Range;
using locks::Waiter;

// The first five arguments of all lock functions: descriptor, 'flock' | 'ofd' as 0 | 1, shared | exclusive as 0 | 1,
// start, length.
struct Lock {
  int descriptor;
  Kind kind;
  Mode mode;
  Range range;
};

Lock lock_of(const Napi::CallbackInfo& info) {
  return {integer(info[0]),
          integer(info[1]) == 0 ? Kind::flock : Kind::ofd,
          integer(info[2]) == 0 ? Mode::shared : Mode::exclusive,
          {long_integer(info[3]), long_integer(info[4])}};
}

// The result of taking a lock, which is noted where it was taken.
int taken(int descriptor, int error) {
  if (error == 0) locks::note_held(descriptor);
  return error;
}

// lockTry(lock…) -> 0 or errno
Napi::Value try_lock(const Napi::CallbackInfo& info) {
  const Lock lock = lock_of(info);
  return number(info, taken(lock.descriptor, locks::try_lock(lock.descriptor, lock.kind, lock.mode, lock.range)));
}

// lockProbe(lock…) -> start of the lock in the way, -1 if none, or -1 - errno
Napi::Value probe(const Napi::CallbackInfo& info) {
  const Lock lock = lock_of(info);
  locks::Conflict conflict;
  const int error = locks::probe(lock.descriptor, lock.mode, lock.range, conflict);
  if (error != 0) return number(info, -1 - error);
  return number(info, conflict.exists ? static_cast<double>(conflict.range.start) : -1);
}

// lockHolder(lock…) -> PID of the process whose lock is in the way; 0 if none is, or its process isn't known
Napi::Value holder(const Napi::CallbackInfo& info) {
  const Lock lock = lock_of(info);
  locks::Conflict conflict;
  const int error = locks::probe(lock.descriptor, lock.mode, lock.range, conflict);
  return number(info, error == 0 && conflict.exists && conflict.pid > 0 ? conflict.pid : 0);
}

// lockWaitSync(lock…, milliseconds) -> 0, EAGAIN when the time is up, EINTR when a handled signal came, or errno
Napi::Value wait_sync(const Napi::CallbackInfo& info) {
  const Lock lock = lock_of(info);
  int error = locks::try_lock(lock.descriptor, lock.kind, lock.mode, lock.range);
  if (error != EAGAIN) return number(info, taken(lock.descriptor, error));
  const int64_t end = process::monotonic_nanoseconds() + long_integer(info[5]) * 1000000;
  int result = EAGAIN;
  const auto done = [](void* context, int outcome) { *static_cast<int*>(context) = outcome; };
  Waiter* waiter = Waiter::start(lock.descriptor, lock.kind, lock.mode, lock.range, done, &result);
  if (waiter == nullptr) return number(info, errno);
  bool interrupted = false;
  {
    const process::Interrupt interrupt;
    while (!waiter->over()) {
      const int64_t left = end - process::monotonic_nanoseconds();
      interrupted = interrupt.signal() != 0;
      if (left <= 0 || interrupted) break;
      waiter->sleep(left < process::kMaxSleep ? left : process::kMaxSleep);
    }
  }
  waiter->cancel();
  waiter->join_and_delete();
  if (result != ECANCELED) return number(info, taken(lock.descriptor, result));
  return number(info, interrupted ? EINTR : EAGAIN);
}

// A wait on its own thread, told to JavaScript through a thread-safe function.
class Wait : public Napi::ObjectWrap<Wait> {
 public:
  static Napi::Function define(Napi::Env env) {
    return DefineClass(env, "Wait",
                       {InstanceMethod<&Wait::cancel>("cancel"), InstanceMethod<&Wait::begin_cancel>("beginCancel")});
  }

  // new Wait(lock…, done(error)): error is 0, ECANCELED or an errno value. Keeps the event loop alive until then.
  explicit Wait(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Wait>(info), env_(info.Env()) {
    const Lock lock = lock_of(info);
    descriptor_ = lock.descriptor;
    function_ = Napi::ThreadSafeFunction::New(info.Env(), info[5].As<Napi::Function>(), "gpu-owner wait", 0, 1);
    waiter_ = Waiter::start(lock.descriptor, lock.kind, lock.mode, lock.range, over, this);
    if (waiter_ == nullptr) {
      error_ = errno;
      Ref();
      function_.NonBlockingCall(this, deliver_unstarted);
      function_.Release();
      return;
    }
    Ref();  // until the callback has run
    // Added after the function's own hook, so it runs before that one: the thread is gone when the function goes.
    napi_add_env_cleanup_hook(env_, end, this);
  }

 private:
  // On the waiter's thread.
  static void over(void* context, int error) {
    auto* self = static_cast<Wait*>(context);
    self->error_ = error;
    if (self->function_.NonBlockingCall(self, deliver) == napi_ok) self->function_.Release();
  }

  static void deliver(Napi::Env env, Napi::Function done, Wait* self) {
    napi_remove_env_cleanup_hook(self->env_, end, self);
    self->waiter_->join_and_delete();
    self->waiter_ = nullptr;
    done.Call({Napi::Number::New(env, taken(self->descriptor_, self->error_))});
    self->Unref();
  }

  static void deliver_unstarted(Napi::Env env, Napi::Function done, Wait* self) {
    done.Call({Napi::Number::New(env, self->error_)});
    self->Unref();
  }

  static void end(void* context) {
    auto* self = static_cast<Wait*>(context);
    self->waiter_->cancel();
    self->waiter_->join_and_delete();
    self->waiter_ = nullptr;
  }

  Napi::Value cancel(const Napi::CallbackInfo& info) {
    if (waiter_ != nullptr) waiter_->cancel();
    return info.Env().Undefined();
  }

  // Without waiting for the thread; cancel() must follow.
  Napi::Value begin_cancel(const Napi::CallbackInfo& info) {
    if (waiter_ != nullptr) waiter_->begin_cancel();
    return info.Env().Undefined();
  }

  napi_env env_;
  Napi::ThreadSafeFunction function_;
  Waiter* waiter_ = nullptr;
  int descriptor_ = -1;
  int error_ = 0;
};

// unitsTake(descriptor, start, length, wanted) -> the lowest of the units that it has now, or -errno; -EAGAIN: there
// aren't so many
Napi::Value take_units(const Napi::CallbackInfo& info) {
  const int descriptor = integer(info[0]);
  const int64_t lowest =
      locks::take_units(descriptor, {long_integer(info[1]), long_integer(info[2])}, long_integer(info[3]));
  taken(descriptor, lowest < 0 ? static_cast<int>(-lowest) : 0);
  return number(info, static_cast<double>(lowest));
}

// unitsTaken(descriptor, start, length) -> start and length of each lock there, in their order; null: too many
Napi::Value taken_units(const Napi::CallbackInfo& info) {
  std::vector<Range> ranges;
  if (locks::taken_units(integer(info[0]), {long_integer(info[1]), long_integer(info[2])}, ranges) != 0)
    return info.Env().Null();
  auto list = Napi::Array::New(info.Env(), 2 * ranges.size());
  uint32_t at = 0;
  for (const Range& each : ranges) {
    list.Set(at++, number(info, static_cast<double>(each.start)));
    list.Set(at++, number(info, static_cast<double>(each.length)));
  }
  return list;
}

// lockAbandonAll(): closes all descriptors of locks that this process holds. Does nothing in a worker thread: they
// aren't its own.
void abandon_all(const Napi::CallbackInfo&) {
  if (process::is_main_thread()) locks::abandon_held();
}

// fileOpenForProbe(path) -> descriptor or -errno
Napi::Value open_for_probe(const Napi::CallbackInfo& info) {
  return number(info, locks::open_for_probe(text(info[0]).c_str()));
}

// fileClose(descriptor), of one that was opened here: in a worker thread, Node.js warns of those that it hasn't opened
// itself.
void close_file(const Napi::CallbackInfo& info) { close(integer(info[0])); }

// fileIsNamed(descriptor, path) -> boolean
Napi::Value is_named(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), locks::names_same_file(integer(info[0]), text(info[1]).c_str()) == 1);
}

// fileSystemType(path) -> magic number or -errno
Napi::Value system_type(const Napi::CallbackInfo& info) {
  return number(info, static_cast<double>(locks::file_system_type(text(info[0]).c_str())));
}

// fileWriteBlock(descriptor, bytes, offset = 0) -> 0 or -errno
Napi::Value write_block(const Napi::CallbackInfo& info) {
  const auto bytes = info[1].As<Napi::Uint8Array>();
  return number(info, locks::write_block(integer(info[0]), reinterpret_cast<const char*>(bytes.Data()),
                                         static_cast<int64_t>(bytes.ByteLength()),
                                         info[2].IsNumber() ? long_integer(info[2]) : 0));
}

// fileAppend(descriptor, bytes) -> the offset at which they stand, or -errno
Napi::Value append(const Napi::CallbackInfo& info) {
  const auto bytes = info[1].As<Napi::Uint8Array>();
  const int64_t offset = locks::append(integer(info[0]), reinterpret_cast<const char*>(bytes.Data()),
                                       static_cast<int64_t>(bytes.ByteLength()));
  return number(info, static_cast<double>(offset));
}

// fileNextData(descriptor, offset) -> the offset of the first byte from there on that is not in a hole, or -errno
Napi::Value next_data(const Napi::CallbackInfo& info) {
  const off_t offset = lseek(integer(info[0]), static_cast<off_t>(long_integer(info[1])), SEEK_DATA);
  return Napi::Number::New(info.Env(), offset < 0 ? -errno : static_cast<double>(offset));
}

}  // namespace

void add_locks(Napi::Env env, Napi::Object exports) {
  exports.Set("lockTry", Napi::Function::New<try_lock>(env));
  exports.Set("lockProbe", Napi::Function::New<probe>(env));
  exports.Set("lockHolder", Napi::Function::New<holder>(env));
  exports.Set("lockWaitSync", Napi::Function::New<wait_sync>(env));
  exports.Set("unitsTake", Napi::Function::New<take_units>(env));
  exports.Set("unitsTaken", Napi::Function::New<taken_units>(env));
  exports.Set("lockAbandonAll", Napi::Function::New<abandon_all>(env));
  exports.Set("Wait", Wait::define(env));
  exports.Set("fileOpenForProbe", Napi::Function::New<open_for_probe>(env));
  exports.Set("fileClose", Napi::Function::New<close_file>(env));
  exports.Set("fileIsNamed", Napi::Function::New<is_named>(env));
  exports.Set("fileNextData", Napi::Function::New<next_data>(env));
  exports.Set("fileSystemType", Napi::Function::New<system_type>(env));
  exports.Set("fileAppend", Napi::Function::New<append>(env));
  exports.Set("fileWriteBlock", Napi::Function::New<write_block>(env));
}

}  // namespace gpu_owner::bindings
