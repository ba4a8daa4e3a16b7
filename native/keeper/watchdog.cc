#include "keeper/watchdog.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/channel.h"
#include "keeper/descendants.h"
#include "keeper/descriptors.h"
#include "keeper/signals.h"
#include "keeper/text.h"

namespace keeper {

namespace {

// Whether the other end of a socket is closed. Takes nothing that has arrived: that is for the process that obeys.
bool is_closed(int socket) {
  pollfd hangup = {socket, POLLRDHUP, 0};
  return poll(&hangup, 1, 0) > 0;
}

}  // namespace

int Watchdog::run() {
  prctl(PR_SET_NAME, "gpu-owner-guard");
  adopt_descendants();
  worker_ = getppid();
  void* shared = mmap(nullptr, sizeof *shared_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || !(shared_ = static_cast<SharedState*>(shared), start_keeper())) {
    Channel channel(options_.control);
    Buffer<128> line;
    line.add("{\"event\":\"failed\",\"errno\":%d,\"code\":71,\"text\":\"no process can be started\"}", errno);
    channel.send(line.c_str());
    channel.send("{\"event\":\"released\"}");
    return 0;
  }
  const int signals = options_.signals;
  setsid();
  redirect_to_null(STDIN_FILENO, STDERR_FILENO);
  close_others(options_, Keep::leases, options_.control, signals);
  return watch(signals);
}

bool Watchdog::start_keeper() {
  const pid_t watchdog = getpid();
  keeper_ = fork();
  if (keeper_ < 0) return false;
  if (keeper_ == 0) _exit(keep_task(options_, shared_, worker_, watchdog));
  return true;
}

int Watchdog::watch(int signals) {
  while (!collect_keeper()) {
    pollfd ready = {signals, POLLIN, 0};
    poll(&ready, 1, -1);
    signalfd_siginfo info;
    while (next_signal(signals, &info)) {
      if (info.ssi_signo == SIGTERM) kill(keeper_, SIGTERM);
    }
  }
  if (__atomic_load_n(&shared_->released, __ATOMIC_ACQUIRE)) return 0;
  return finish_task(options_, shared_, worker_, signals, is_closed(options_.control));
}

bool Watchdog::collect_keeper() {
  int status = 0;
  while (waitpid(keeper_, &status, WNOHANG | WUNTRACED) == keeper_) {
    if (!WIFSTOPPED(status)) return true;
    // The command's end wouldn't be noticed.
    kill(keeper_, SIGCONT);
  }
  return false;
}

}  // namespace keeper
