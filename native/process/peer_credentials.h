// The user at the other end of a TCP connection on this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gpu_owner::process {

struct PeerCredentials {
  int error;  // 0, or ESRCH: no process has such a socket open, or another errno: the kernel doesn't say
  uid_t uid;
};

// Asks the kernel (sock_diag(7)) for one connection, in microseconds however many sockets there are. Addresses are
// numeric, as the caller's end sees them; an IPv6 one may have a zone.
PeerCredentials peer_of(const std::string& local_address, uint16_t local_port, const std::string& remote_address,
                        uint16_t remote_port);

}  // namespace gpu_owner::process
