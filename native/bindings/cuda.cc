#include <atomic>
#include <map>

#include "bindings/bindings.h"
#include "cuda/placeholder.h"
#include "process/futex.h"
#include "process/thread.h"

namespace gpu_owner::bindings {
namespace {

// CUDA belongs to the process; so do the placeholders in it. Main thread only (TypeScript refuses workers).
cuda::Library& library() {
  static auto* library = new cuda::Library;
  return *library;
}

std::map<int, cuda::Placeholder>& placeholders() {
  static auto* placeholders = new std::map<int, cuda::Placeholder>;
  return *placeholders;
}

// cudaState(path) -> 'not-loaded' | 'loaded' | 'initialized'
Napi::Value state(const Napi::CallbackInfo& info) {
  const char* names[] = {"not-loaded", "loaded", "initialized"};
  return Napi::String::New(info.Env(), names[static_cast<int>(cuda::state(text(info[0])))]);
}

// cudaLibrary(path) -> { path, missing, version, attempts }: loads the library, to tell which one that is. The
// library stays loaded, CUDA isn't initialised. path: the file, '' where none was found; missing: a symbol that it
// lacks, or ''.
Napi::Value describe_cuda(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const bool usable = library().load(text(info[0]));
  auto result = Napi::Object::New(env);
  result.Set("path", library().file());
  result.Set("missing", library().missing());
  result.Set("version", usable ? library().supported_version() : 0);
  result.Set("attempts", attempts(env, library().attempts()));
  return result;
}

// cudaTake(path, uuids, bytes) -> number (the placeholder) | { code, stage, uuid, text }
Napi::Value take(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  auto failed = Napi::Object::New(env);
  if (!library().load(text(info[0]))) {
    failed.Set("code", static_cast<int>(cuda::ERROR_NOT_FOUND));
    failed.Set("stage", "load");
    failed.Set("uuid", "");
    const std::string& missing = library().missing();
    failed.Set("text", missing.empty() ? dl::explain(library().attempts()) : library().path() + " lacks " + missing);
    return failed;
  }
  cuda::Placeholder placeholder;
  const auto failure = placeholder.take(library(), texts(info[1]), static_cast<size_t>(long_integer(info[2])));
  if (failure.code == cuda::SUCCESS) {
    static int last = 0;
    placeholders()[++last] = placeholder;
    return Napi::Number::New(env, last);
  }
  failed.Set("code", failure.code);
  failed.Set("stage", failure.stage);
  failed.Set("uuid", failure.uuid);
  failed.Set("text", "");
  return failed;
}

// cudaHidden(placeholder) -> how many MIG instances CUDA doesn't show this process
Napi::Value hidden(const Napi::CallbackInfo& info) {
  const auto found = placeholders().find(integer(info[0]));
  return Napi::Number::New(info.Env(), found == placeholders().end() ? 0 : found->second.hidden());
}

// How long a placeholder may take to go, of one GPU or several.
constexpr int64_t kReleaseTimeout = 5'000'000'000;  // ns
constexpr size_t kReleaseStack = 1024 * 1024;

// A placeholder that goes. The thread and who waits for it share it.
struct Release {
  cuda::Placeholder placeholder;
  std::atomic<uint32_t> over{0};
  std::atomic<int> references{2};

  void drop() {
    if (references.fetch_sub(1) == 1) delete this;
  }
};

std::atomic<int> releases_out{0};

// cudaHasCallOut() -> whether CUDA hasn't let go of a placeholder that was released
Napi::Value cuda_has_call_out(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), releases_out.load() > 0);
}

void* release_in_thread(void* pointer) {
  auto* release = static_cast<Release*>(pointer);
  releases_out.fetch_add(1);
  release->placeholder.release(library());
  releases_out.fetch_sub(1);
  release->over.store(1);
  process::futex_wake(release->over);
  release->drop();
  return nullptr;
}

// cudaRelease(placeholder): gives up on a GPU that hangs, so that its lease can end, and that of the others.
void release(const Napi::CallbackInfo& info) {
  const auto found = placeholders().find(integer(info[0]));
  if (found == placeholders().end()) return;
  auto* release = new Release{found->second};
  placeholders().erase(found);
  if (process::start_detached(kReleaseStack, release_in_thread, release) != 0) release_in_thread(release);
  const int64_t end = process::monotonic_nanoseconds() + kReleaseTimeout;
  while (release->over.load() == 0) {
    const int64_t left = end - process::monotonic_nanoseconds();
    if (left <= 0) break;
    process::futex_wait(release->over, 0, left);
  }
  release->drop();
}

}  // namespace

void add_cuda(Napi::Env env, Napi::Object exports) {
  exports.Set("cudaState", Napi::Function::New<state>(env));
  exports.Set("cudaLibrary", Napi::Function::New<describe_cuda>(env));
  exports.Set("cudaTake", Napi::Function::New<take>(env));
  exports.Set("cudaHidden", Napi::Function::New<hidden>(env));
  exports.Set("cudaHasCallOut", Napi::Function::New<cuda_has_call_out>(env));
  exports.Set("cudaRelease", Napi::Function::New<release>(env));
}

}  // namespace gpu_owner::bindings
