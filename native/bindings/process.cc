#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "locks/held.h"
#include "process/exec.h"
#include "process/holder.h"
#include "process/interrupt.h"
#include "process/secret.h"

namespace gpu_owner::bindings {
namespace {

// processExec(path, arguments, own, inherited, dropped) -> -errno; doesn't return on success
Napi::Value exec(const Napi::CallbackInfo& info) {
  const int error = process::exec(text(info[0]), texts(info[1]), static_cast<size_t>(long_integer(info[2])),
                                  integers(info[3]), static_cast<size_t>(long_integer(info[4])));
  return Napi::Number::New(info.Env(), error);
}

// processExecInChild(path, arguments, own, inherited, dropped) -> -errno; doesn't return on success, but ends as the
// program ends
Napi::Value exec_in_child(const Napi::CallbackInfo& info) {
  const int child = process::exec_in_child(text(info[0]), texts(info[1]), static_cast<size_t>(long_integer(info[2])),
                                           integers(info[3]), static_cast<size_t>(long_integer(info[4])));
  if (child < 0) return Napi::Number::New(info.Env(), child);
  locks::abandon_held();  // they are the child's
  process::proxy_child(child);
}

// processInheritable(descriptor) -> a duplicate numbered 200 or higher without close-on-exec, or -errno
Napi::Value inheritable(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), process::inheritable_duplicate(integer(info[0])));
}

// processCloseOnExec(descriptor) -> 0 or -errno. Node.js marks low ones only.
Napi::Value close_on_exec(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), fcntl(integer(info[0]), F_SETFD, FD_CLOEXEC) == 0 ? 0 : -errno);
}

// processSpawn(path, arguments, environment?) -> { error, pid, input, output }
Napi::Value spawn(const Napi::CallbackInfo& info) {
  std::vector<std::string> environment;
  if (info[2].IsArray()) environment = texts(info[2]);
  const process::Spawned spawned =
      process::spawn(text(info[0]), texts(info[1]), info[2].IsArray() ? &environment : nullptr);
  auto result = Napi::Object::New(info.Env());
  result.Set("error", spawned.error);
  result.Set("pid", spawned.pid);
  result.Set("input", spawned.input);
  result.Set("output", spawned.output);
  return result;
}

// processStart(path, arguments, changes, dropped, output, first, descriptors) -> { error, pid, control }
// `changes` are of this process's environment: `NAME=value` sets a variable, `NAME` removes it.
Napi::Value start(const Napi::CallbackInfo& info) {
  const std::vector<std::string> variables =
      process::environment(static_cast<size_t>(long_integer(info[3])), texts(info[2]));
  const process::Started started =
      process::start(text(info[0]), texts(info[1]), variables, integer(info[4]), integer(info[5]), integers(info[6]));
  auto result = Napi::Object::New(info.Env());
  result.Set("error", started.error);
  result.Set("pid", started.pid);
  result.Set("control", started.control);
  return result;
}

// Strings that each end with a NUL, of a Uint8Array: those of others can't be trusted to be UTF-8.
std::vector<std::string> texts_of_bytes(const Napi::Value& value) {
  const auto bytes = value.As<Napi::Uint8Array>();
  std::vector<std::string> result;
  const auto* begin = reinterpret_cast<const char*>(bytes.Data());
  const char* const end = begin + bytes.ByteLength();
  while (begin < end) {
    const char* const next = std::find(begin, end, '\0');
    result.emplace_back(begin, next);
    begin = next == end ? end : next + 1;
  }
  return result;
}

// processStartDetached(path, arguments, more, environment, output, first, descriptors) -> { error, pid }
// `more` arguments and the environment are bytes, each entry ended by a NUL.
Napi::Value start_detached(const Napi::CallbackInfo& info) {
  std::vector<std::string> arguments = texts(info[1]);
  for (std::string& argument : texts_of_bytes(info[2])) arguments.push_back(std::move(argument));
  const process::Detached detached = process::start_detached(text(info[0]), arguments, texts_of_bytes(info[3]),
                                                             integer(info[4]), integer(info[5]), integers(info[6]));
  auto result = Napi::Object::New(info.Env());
  result.Set("error", detached.error);
  result.Set("pid", detached.pid);
  return result;
}

// processRun(path, arguments, more, environment, first, descriptors) -> exit code, or -errno
// `more` arguments and the environment are bytes, each entry ended by a NUL.
Napi::Value run(const Napi::CallbackInfo& info) {
  std::vector<std::string> arguments = texts(info[1]);
  for (std::string& argument : texts_of_bytes(info[2])) arguments.push_back(std::move(argument));
  return Napi::Number::New(
      info.Env(), process::run(text(info[0]), arguments, texts_of_bytes(info[3]), integer(info[4]), integers(info[5])));
}

// processDetach(output, kept, foreign) -> 0 or errno
Napi::Value detach(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), process::detach(integer(info[0]), integers(info[1]), integers(info[2])));
}

// processSignal(pid, device, inode, byte, signal, value) -> 0 or -errno
Napi::Value signal_holder(const Napi::CallbackInfo& info) {
  const process::LockedByte lock = {info[1].As<Napi::Number>().DoubleValue(), info[2].As<Napi::Number>().DoubleValue(),
                                    long_integer(info[3])};
  const int error = process::signal_holder(integer(info[0]), lock, integer(info[4]), integer(info[5]));
  return Napi::Number::New(info.Env(), error);
}

// processHold(pid) -> a descriptor that means this process and no later one of its number, or -errno
Napi::Value hold_process(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), process::hold_process(integer(info[0])));
}

// processSignalHeld(descriptor, signal) -> 0 or -errno
Napi::Value signal_held(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), process::signal_held(integer(info[0]), integer(info[1])));
}

// processNamespaceMaker(pid) -> the uid of the user who made its user namespace, or -errno; -ENOENT: it is in this one
Napi::Value namespace_maker(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(process::namespace_maker(integer(info[0]))));
}

// processCollect(pid) -> whether it is gone: it has ended, and is collected by this; or it is no child of this process
Napi::Value collect(const Napi::CallbackInfo& info) {
  const pid_t pid = integer(info[0]);
  const pid_t collected = waitpid(pid, nullptr, WNOHANG);
  return Napi::Boolean::New(info.Env(), collected == pid || (collected < 0 && errno == ECHILD));
}

// processAdopt() -> whether descendants whose parents have ended become children of this process from now on
Napi::Value adopt(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
}

// processHangUpWithParent(): SIGHUP comes when the parent of this process ends
void hang_up_with_parent(const Napi::CallbackInfo&) {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGHUP);
  if (getppid() != parent) raise(SIGHUP);
}

// processReadLine(descriptor, milliseconds) -> the first line that a helper writes, or ''
Napi::Value read_line(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), process::read_line(integer(info[0]), integer(info[1])));
}

// While a claim runs on the main thread, no signal may get lost between two of its waits.
std::vector<std::unique_ptr<process::Interrupt>>& watches() {
  static auto* watches = new std::vector<std::unique_ptr<process::Interrupt>>;
  return *watches;
}

// processWatchSignals(): from now on waits on the main thread end for a signal that has come since.
void watch_signals(const Napi::CallbackInfo&) {
  if (process::is_main_thread()) watches().push_back(std::make_unique<process::Interrupt>());
}

// processUnwatchSignals()
void unwatch_signals(const Napi::CallbackInfo&) {
  if (process::is_main_thread()) watches().pop_back();
}

// processSleep(milliseconds) -> false when a handled signal came first
Napi::Value sleep(const Napi::CallbackInfo& info) {
  const auto nanoseconds = static_cast<int64_t>(info[0].As<Napi::Number>().DoubleValue() * 1e6);
  return Napi::Boolean::New(info.Env(), process::interruptible_sleep(nanoseconds));
}

// processBootMilliseconds() -> how long the machine has been running, sleep included
Napi::Value boot_milliseconds(const Napi::CallbackInfo& info) {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return Napi::Number::New(info.Env(), static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6);
}

// processSecret() -> hexadecimal digits, '' where the system gives none
Napi::Value new_secret(const Napi::CallbackInfo& info) { return Napi::String::New(info.Env(), process::new_secret()); }

// processSecretNumber(secret) -> the number that proves it
Napi::Value secret_number(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(process::number_of_secret(text(info[0]))));
}

// processColumns(descriptor) -> the width of the terminal there, 0 where there is none. Node.js only tells after it has
// made the terminal non-blocking for everybody.
Napi::Value columns(const Napi::CallbackInfo& info) {
  winsize size = {};
  if (ioctl(integer(info[0]), TIOCGWINSZ, &size) != 0) size.ws_col = 0;
  return Napi::Number::New(info.Env(), size.ws_col);
}

// processIsTerminal(descriptor) -> whether a terminal is there. Node.js would load all of its streams to tell.
Napi::Value is_terminal(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), isatty(integer(info[0])) == 1);
}

// processVariable(name) -> the variable as programs of this process and libraries in it see it, or null
Napi::Value variable(const Napi::CallbackInfo& info) {
  const char* value = getenv(text(info[0]).c_str());
  if (value == nullptr) return info.Env().Null();
  return Napi::String::New(info.Env(), value);
}

// processSetVariable(name, value or null) -> 0 or -errno
Napi::Value set_variable(const Napi::CallbackInfo& info) {
  const std::string name = text(info[0]);
  const int result = info[1].IsNull() ? unsetenv(name.c_str()) : setenv(name.c_str(), text(info[1]).c_str(), 1);
  return Napi::Number::New(info.Env(), result == 0 ? 0 : -errno);
}

}  // namespace

void add_process(Napi::Env env, Napi::Object exports) {
  exports.Set("processExec", Napi::Function::New<exec>(env));
  exports.Set("processExecInChild", Napi::Function::New<exec_in_child>(env));
  exports.Set("processInheritable", Napi::Function::New<inheritable>(env));
  exports.Set("processCloseOnExec", Napi::Function::New<close_on_exec>(env));
  exports.Set("processReadLine", Napi::Function::New<read_line>(env));
  exports.Set("processWatchSignals", Napi::Function::New<watch_signals>(env));
  exports.Set("processUnwatchSignals", Napi::Function::New<unwatch_signals>(env));
  exports.Set("processSpawn", Napi::Function::New<spawn>(env));
  exports.Set("processStart", Napi::Function::New<start>(env));
  exports.Set("processStartDetached", Napi::Function::New<start_detached>(env));
  exports.Set("processRun", Napi::Function::New<run>(env));
  exports.Set("processDetach", Napi::Function::New<detach>(env));
  exports.Set("processSignal", Napi::Function::New<signal_holder>(env));
  exports.Set("processHold", Napi::Function::New<hold_process>(env));
  exports.Set("processSignalHeld", Napi::Function::New<signal_held>(env));
  exports.Set("processNamespaceMaker", Napi::Function::New<namespace_maker>(env));
  exports.Set("processCollect", Napi::Function::New<collect>(env));
  exports.Set("processAdopt", Napi::Function::New<adopt>(env));
  exports.Set("processHangUpWithParent", Napi::Function::New<hang_up_with_parent>(env));
  exports.Set("processSleep", Napi::Function::New<sleep>(env));
  exports.Set("processBootMilliseconds", Napi::Function::New<boot_milliseconds>(env));
  exports.Set("processSecret", Napi::Function::New<new_secret>(env));
  exports.Set("processSecretNumber", Napi::Function::New<secret_number>(env));
  exports.Set("processColumns", Napi::Function::New<columns>(env));
  exports.Set("processIsTerminal", Napi::Function::New<is_terminal>(env));
  exports.Set("processVariable", Napi::Function::New<variable>(env));
  exports.Set("processSetVariable", Napi::Function::New<set_variable>(env));
}

}  // namespace gpu_owner::bindings
