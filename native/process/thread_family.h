// Threads that call the driver, in a descriptor table of their own.
//
// A driver call on a sick GPU can block in the kernel for good. Were the descriptors of locks in the table of such a
// thread, the kernel could not close them when the process is killed, and the lease would outlive its owner. NVML's own
// descriptors in turn are only valid in the table that they were opened in, so all calls to NVML come from this family.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

namespace gpu_owner::process {

class ThreadFamily {
 public:
  // Starts a detached thread of the family with all signals blocked. False when no thread can be had; when none can be had
  // just now, it starts later.
  bool run(void (*function)(void*), void* argument);

 private:
  struct Order {
    void (*function)(void*);
    void* argument;
  };
  static void* parent(void* self);
  static void* child(void* order);

  std::mutex mutex_;
  std::vector<Order> orders_;
  std::atomic<uint32_t> ordered_{0};
  bool started_ = false;
};

}  // namespace gpu_owner::process
