#include "support/refuse.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>

#include "test.h"

namespace tests {

void refuse(long system_call, int error, int argument, uint32_t mask, uint32_t value) {
  const auto number = static_cast<uint32_t>(system_call);
  // The lower half of an argument comes first on the machines that we build for.
  const auto low =
      static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * static_cast<size_t>(argument < 0 ? 0 : argument));
  const auto number_at = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  const uint32_t refusal = SECCOMP_RET_ERRNO | static_cast<uint32_t>(error);
  const bool any = argument < 0;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number_at),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, any ? 0 : mask),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, any ? 0 : value, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, refusal),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof program / sizeof program[0], program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    skip(std::string("no system call filters here: ") + strerror(errno));
  }
}

}  // namespace tests
