// The CUDA driver library as loaded. Only what a placeholder and the self-test need. Names and codes: cuda.h 13.0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dl/library.h"

namespace gpu_owner::cuda {

using Context = struct OpaqueContext*;
using Device = int;
using Pointer = uint64_t;

enum Code : int {
  SUCCESS = 0,
  ERROR_OUT_OF_MEMORY = 2,
  ERROR_NOT_INITIALIZED = 3,
  ERROR_STUB_LIBRARY = 34,  // of CUDA's toolkit, to link against
  ERROR_DEVICE_UNAVAILABLE = 46,
  ERROR_NO_DEVICE = 100,
  ERROR_INVALID_DEVICE = 101,
  ERROR_NOT_FOUND = 500,  // also: a function that the library lacks
  ERROR_UNKNOWN = 999,
};

struct Uuid {
  unsigned char bytes[16];
};

class Library {
 public:
  // Loads the library (once): `path` alone if not empty, else the usual places. Doesn't initialise CUDA.
  bool load(const std::string& path);
  const std::vector<dl::Attempt>& attempts() const { return opened_.attempts; }
  const std::string& path() const { return opened_.path; }
  const std::string& missing() const { return missing_; }
  // The file that the linker took for it.
  std::string file() const { return dl::loaded_from(opened_.handle); }
  // The newest CUDA that the driver supports, 1000 * major + 10 * minor; 0 where it doesn't tell. Initialises nothing.
  int supported_version() const;

  Code init() const;  // latches CUDA_VISIBLE_DEVICES for the life of the process
  Code device_count(int& count) const;
  Code device(int ordinal, Device& device) const;
  // Since R396.
  bool has_uuids() const { return uuid_ != nullptr; }
  // Lower-case hex digits with dashes, without "GPU-".
  Code uuid(Device device, std::string& text) const;
  Code retain_primary(Device device, Context& context) const;
  Code release_primary(Device device) const;
  Code allocate(Context context, size_t bytes, Pointer& pointer) const;
  Code free(Context context, Pointer pointer) const;

 private:
  template <typename... Arguments>
  using Call = int (*)(Arguments...);

  // Calls `use` while the context is current, and restores the caller's current context.
  template <typename Use>
  Code with_current(Context context, Use use) const;

  dl::Opened opened_;
  std::string missing_;
  Call<unsigned> init_ = nullptr;
  Call<int*> version_ = nullptr;
  Call<int*> count_ = nullptr;
  Call<Device*, int> device_ = nullptr;
  Call<Uuid*, Device> uuid_ = nullptr;
  Call<Context*, Device> retain_ = nullptr;
  Call<Device> release_ = nullptr;
  Call<Context> push_ = nullptr;
  Call<Context*> pop_ = nullptr;
  Call<Pointer*, size_t> allocate_ = nullptr;
  Call<Pointer> free_ = nullptr;
};

// Whether CUDA has been initialised in this process, by whomever. Loads nothing and initialises nothing.
enum class State { not_loaded, loaded, initialized };
State state(const std::string& path);

}  // namespace gpu_owner::cuda
