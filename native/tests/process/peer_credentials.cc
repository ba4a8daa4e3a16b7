// The user at the other end of a connection: one's own, one that is closed, and none.
#include "process/peer_credentials.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"

using gpu_owner::process::peer_of;

namespace {

struct Connection {
  int listener;
  int server;
  int client;
  uint16_t server_port;
  uint16_t client_port;
};

uint16_t port_of(int descriptor) {
  sockaddr_in6 address = {};
  socklen_t size = sizeof address;
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin6_port);  // at the same place in an IPv4 one
}

Connection connect_to(const char* text) {
  sockaddr_in6 address6 = {};
  sockaddr_in address4 = {};
  const bool is_6 = inet_pton(AF_INET6, text, &address6.sin6_addr) == 1;
  address6.sin6_family = AF_INET6;
  if (!is_6) inet_pton(AF_INET, text, &address4.sin_addr);
  address4.sin_family = AF_INET;
  auto* address = is_6 ? reinterpret_cast<sockaddr*>(&address6) : reinterpret_cast<sockaddr*>(&address4);
  socklen_t size = is_6 ? sizeof address6 : sizeof address4;
  Connection made = {};
  made.listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(made.listener, address, size) != 0) tests::skip("there is no such address here");
  REQUIRE(listen(made.listener, 1) == 0);
  made.server_port = port_of(made.listener);
  (is_6 ? address6.sin6_port : address4.sin_port) = htons(made.server_port);
  made.client = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(connect(made.client, address, size) == 0);
  made.client_port = port_of(made.client);
  made.server = accept(made.listener, nullptr, nullptr);
  REQUIRE(made.server >= 0);
  return made;
}

void check_with(const char* address) {
  const Connection made = connect_to(address);
  const auto peer = [&] { return peer_of(address, made.server_port, address, made.client_port); };
  if (peer().error == ENOSYS) tests::skip("this kernel doesn't tell");
  CHECK_EQUAL(peer().error, 0);
  CHECK_EQUAL(peer().uid, getuid());
  // As the client sees it: the server's end.
  CHECK_EQUAL(peer_of(address, made.client_port, address, made.server_port).error, 0);
  close(made.client);
  CHECK_EQUAL(peer().error, ESRCH);
  close(made.server);
  // There is no such connection; the socket that listens is none either.
  const uint16_t nobody = made.client_port == 1 ? 2 : 1;
  CHECK(peer_of(address, nobody, address, made.server_port).error != 0);
}

}  // namespace

TEST("of IPv4") { check_with("127.0.0.1"); }
TEST("of IPv6") { check_with("::1"); }
TEST("of IPv4 on a socket for both") { check_with("::ffff:127.0.0.1"); }

TEST("what is no address") {
  CHECK_EQUAL(peer_of("localhost", 1, "127.0.0.1", 2).error, EINVAL);
  CHECK_EQUAL(peer_of("127.0.0.1", 1, "::1", 2).error, EINVAL);
  CHECK_EQUAL(peer_of("", 1, "", 2).error, EINVAL);
}
