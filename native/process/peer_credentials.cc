#include "process/peer_credentials.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "process/unique_fd.h"

namespace gpu_owner::process {
namespace {

// 0, or an errno.
int read_address(const std::string& text, int& family, __be32 (&words)[4], uint32_t& interface) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(text.c_str(), nullptr, &hints, &found) != 0) return EINVAL;
  family = found->ai_family;
  if (family == AF_INET) {
    memcpy(words, &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr, sizeof(in_addr));
  } else {
    const auto* address = reinterpret_cast<sockaddr_in6*>(found->ai_addr);
    memcpy(words, &address->sin6_addr, sizeof(in6_addr));
    interface = address->sin6_scope_id;
  }
  freeaddrinfo(found);
  return 0;
}

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

PeerCredentials ask(int descriptor, const Question& question) {
  sockaddr_nl kernel = {};
  kernel.nl_family = AF_NETLINK;
  if (sendto(descriptor, &question, sizeof question, 0, reinterpret_cast<sockaddr*>(&kernel), sizeof kernel) < 0) {
    return {errno, 0};
  }
  alignas(nlmsghdr) char answer[4096];
  const ssize_t length = recv(descriptor, answer, sizeof answer, 0);
  if (length < 0) return {errno, 0};
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (static_cast<size_t>(length) < sizeof *header || header->nlmsg_len > static_cast<size_t>(length))
    return {EPROTO, 0};
  if (header->nlmsg_type == NLMSG_ERROR && header->nlmsg_len >= NLMSG_LENGTH(sizeof(nlmsgerr))) {
    return {-reinterpret_cast<const nlmsgerr*>(NLMSG_DATA(header))->error, 0};
  }
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) {
    return {EPROTO, 0};
  }
  const auto* found = reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(header));
  // The kernel also takes a socket that listens there for an answer.
  const bool is_it =
      found->id.idiag_sport == question.body.id.idiag_sport && found->id.idiag_dport == question.body.id.idiag_dport;
  // A socket that no process has open any more has no inode, and is shown as root's.
  if (!is_it || found->idiag_inode == 0) return {ESRCH, 0};
  return {0, found->idiag_uid};
}

}  // namespace

PeerCredentials peer_of(const std::string& local_address, uint16_t local_port, const std::string& remote_address,
                        uint16_t remote_port) {
  Question question = {};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0U;
  inet_diag_sockid& id = question.body.id;
  // From the peer's side.
  int remote_family = 0;
  int local_family = 0;
  if (read_address(remote_address, remote_family, id.idiag_src, id.idiag_if) != 0 ||
      read_address(local_address, local_family, id.idiag_dst, id.idiag_if) != 0 || remote_family != local_family) {
    return {EINVAL, 0};
  }
  question.body.sdiag_family = static_cast<__u8>(remote_family);
  id.idiag_sport = htons(remote_port);
  id.idiag_dport = htons(local_port);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  const UniqueFd descriptor(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!descriptor) return {errno, 0};
  // The kernel answers at once.
  const timeval timeout = {1, 0};
  setsockopt(descriptor.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  PeerCredentials peer = ask(descriptor.get(), question);
  if (peer.error == ENOENT) {
    // No such socket, or the kernel lacks the part that answers: then it doesn't know of this end either.
    std::swap(id.idiag_src, id.idiag_dst);
    std::swap(id.idiag_sport, id.idiag_dport);
    peer.error = ask(descriptor.get(), question).error == 0 ? ESRCH : ENOSYS;
  }
  return peer;
}

}  // namespace gpu_owner::process
