// Makes the kernel refuse a system call, as old kernels, other file systems and containers do (seccomp).
#pragma once

#include <cstdint>

namespace tests {

// From now on, in this thread and its children, the call fails with this errno value. With an argument: only where its
// bits in `mask` are `value`. The test is skipped where this kernel can't do it. System calls that don't exist here are
// ignored.
void refuse(long system_call, int error, int argument = -1, uint32_t mask = 0, uint32_t value = 0);

}  // namespace tests
