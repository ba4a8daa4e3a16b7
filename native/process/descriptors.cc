#include "process/descriptors.h"

#include <errno.h>
#include <fcntl.h>

namespace gpu_owner::process {

int inheritable_duplicate(int descriptor) {
  const int duplicate = fcntl(descriptor, F_DUPFD, 200);
  return duplicate >= 0 ? duplicate : -errno;
}

}  // namespace gpu_owner::process
