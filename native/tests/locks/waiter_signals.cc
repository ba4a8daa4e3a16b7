// Waits and the signals of the program that they are part of.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "locks/wait.h"
#include "support/directory.h"
#include "support/kinds.h"
#include "support/outcome.h"
#include "support/processes.h"
#include "test.h"

using namespace gpu_owner::locks;
using tests::Outcome;

namespace {

constexpr Range kSignalByte = {0, 1};

std::atomic<int> handled{0};
std::atomic<bool> elsewhere{false};
pthread_t main_thread;

void count(int) {
  handled.fetch_add(1);
  if (!pthread_equal(pthread_self(), main_thread)) elsewhere = true;
}

void handle(int signal) {
  struct sigaction action = {};
  action.sa_handler = count;
  action.sa_flags = SA_RESTART;
  main_thread = pthread_self();
  sigaction(signal, &action, nullptr);
}

// A wait for a lock that another process holds.
struct Blocked {
  int holder = tests::open_file(tests::path_of("lock"));
  int file = tests::open_file(tests::path_of("lock"));
  Kind kind = tests::waitable_kinds().back();
  Outcome outcome;
  Waiter* waiter;

  Blocked() {
    try_lock(holder, kind, Mode::exclusive, kSignalByte);
    waiter = Waiter::start(file, kind, Mode::exclusive, kSignalByte, Outcome::note, &outcome);
    REQUIRE(waiter != nullptr);
    tests::sleep_milliseconds(20);
  }
  void end() {
    waiter->cancel();
    waiter->join_and_delete();
    CHECK_EQUAL(outcome.error(), ECANCELED);
  }
};

}  // namespace

TEST("the program's signals are handled on its own threads and don't end the wait") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGRTMIN + 1}) handle(signal);
  Blocked blocked;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGRTMIN + 1}) kill(getpid(), signal);
  CHECK(tests::eventually([] { return handled.load() == 5; }));
  CHECK(!elsewhere);
  CHECK(!blocked.outcome.known());
  blocked.end();
  CHECK_EQUAL(handled.load(), 5);
}

TEST("a wait changes neither the handlers nor the mask of the program") {
  handle(SIGUSR1);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR2);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  Blocked blocked;
  blocked.end();
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; signal++) CHECK_EQUAL(sigismember(&after, signal), signal == SIGUSR2 ? 1 : 0);
  for (int signal = 1; signal < 32; signal++) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || signal == SIGUSR1) continue;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these have handlers of their own
    CHECK(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN);
#endif
  }
  kill(getpid(), SIGUSR1);
  CHECK(tests::eventually([] { return handled.load() == 1; }));
}

TEST("a real-time signal that the program handles is not taken from it") {
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++) {
    if (signal != SIGRTMAX - 5) handle(signal);
  }
  Blocked blocked;
  blocked.end();
  CHECK_EQUAL(handled.load(), 0);
}

TEST("where the program handles every real-time signal, waits can still be cancelled") {
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++) handle(signal);
  Blocked blocked;
  blocked.end();
  CHECK_EQUAL(handled.load(), 0);
}

TEST("a signal that the program ignores stays ignored") {
  signal(SIGRTMAX - 1, SIG_IGN);
  Blocked blocked;
  blocked.end();
  struct sigaction action = {};
  sigaction(SIGRTMAX - 1, nullptr, &action);
  CHECK(action.sa_handler == SIG_IGN);
}
