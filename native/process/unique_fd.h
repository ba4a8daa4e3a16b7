#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gpu_owner::process {

// A descriptor that is closed with its owner.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // Leaves it to the caller.
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

  void reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Two ends, both close-on-exec; errno tells why there are none.
struct FdPair {
  UniqueFd first, second;

  // `first` is for reading, `second` for writing.
  static FdPair pipe() {
    int ends[2];
    return pipe2(ends, O_CLOEXEC) == 0 ? FdPair{UniqueFd(ends[0]), UniqueFd(ends[1])} : FdPair{};
  }

  static FdPair sockets() {
    int ends[2];
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0 ? FdPair{UniqueFd(ends[0]), UniqueFd(ends[1])}
                                                                         : FdPair{};
  }

  explicit operator bool() const { return static_cast<bool>(first); }
};

}  // namespace gpu_owner::process
