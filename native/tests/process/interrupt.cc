// While an Interrupt lives, handlers of SIGINT, SIGTERM and SIGHUP are wrapped; otherwise everything is as the program
// has it.
#include "process/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "support/processes.h"
#include "support/stopwatch.h"
#include "test.h"

using namespace gpu_owner::process;

namespace {

std::atomic<int> plain_calls{0}, detailed_calls{0};
std::atomic<int> sender{0};

void plain(int) { plain_calls.fetch_add(1); }
void other(int) {}
void detailed(int, siginfo_t* info, void* context) {
  if (info != nullptr && context != nullptr) sender = info->si_pid;
  detailed_calls.fetch_add(1);
}

struct sigaction action_of(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action;
}

void set_handler(int signal, void (*handler)(int), int flags = 0) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaddset(&action.sa_mask, SIGUSR2);
  sigaction(signal, &action, nullptr);
}

bool same(const struct sigaction& a, const struct sigaction& b) {
  bool masks = true;
  for (int signal = 1; signal < 32; signal++)
    masks = masks && sigismember(&a.sa_mask, signal) == sigismember(&b.sa_mask, signal);
  constexpr int kFlags = SA_RESTART | SA_SIGINFO | SA_NODEFER | SA_RESETHAND | SA_ONSTACK | SA_NOCLDSTOP;
  return masks && a.sa_handler == b.sa_handler && (a.sa_flags & kFlags) == (b.sa_flags & kFlags);
}

// Waits until the main thread of a process sleeps, which takes long on a busy machine.
void wait_for_sleep(pid_t process) {
  tests::sleep_milliseconds(50);
  tests::eventually([process] {
    const std::string status = tests::contents_of("/proc/" + std::to_string(process) + "/stat");
    return status[status.rfind(')') + 2] == 'S';
  });
}

}  // namespace

TEST("handlers are wrapped for its lifetime and then exactly as before") {
  set_handler(SIGINT, plain, SA_RESTART);
  struct sigaction with_details = {};
  with_details.sa_sigaction = detailed;
  with_details.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGTERM, &with_details, nullptr);
  const struct sigaction interrupt_before = action_of(SIGINT), terminate_before = action_of(SIGTERM);
  {
    const Interrupt interrupt;
    CHECK(action_of(SIGINT).sa_handler != plain);
    CHECK(action_of(SIGTERM).sa_sigaction != detailed);
    CHECK_EQUAL(action_of(SIGINT).sa_flags & SA_RESTART, 0);
    CHECK_EQUAL(sigismember(&interrupt_before.sa_mask, SIGUSR2), 1);
    const struct sigaction during = action_of(SIGINT);
    CHECK_EQUAL(sigismember(&during.sa_mask, SIGUSR2), 1);
    CHECK_EQUAL(interrupt.signal(), 0);
  }
  CHECK(same(action_of(SIGINT), interrupt_before));
  CHECK(same(action_of(SIGTERM), terminate_before));
}

TEST("a wrapped handler still runs, with all it is told, and the wait learns of it") {
  set_handler(SIGINT, plain);
  struct sigaction with_details = {};
  with_details.sa_sigaction = detailed;
  with_details.sa_flags = SA_SIGINFO;
  sigaction(SIGHUP, &with_details, nullptr);
  const Interrupt interrupt;
  kill(getpid(), SIGINT);
  CHECK(tests::eventually([] { return plain_calls.load() == 1; }));
  CHECK_EQUAL(interrupt.signal(), SIGINT);
  kill(getpid(), SIGHUP);
  CHECK(tests::eventually([] { return detailed_calls.load() == 1; }));
  CHECK_EQUAL(sender.load(), getpid());
  CHECK_EQUAL(interrupt.signal(), SIGHUP);
}

TEST("a signal without a handler kills, one that is ignored is ignored") {
  signal(SIGHUP, SIG_IGN);
  const struct sigaction default_before = action_of(SIGINT), ignored_before = action_of(SIGHUP);
  {
    const Interrupt interrupt;
    CHECK(same(action_of(SIGINT), default_before));
    CHECK(same(action_of(SIGHUP), ignored_before));
    kill(getpid(), SIGHUP);
    CHECK_EQUAL(interrupt.signal(), 0);
    CHECK_EQUAL(tests::end_of(tests::start([] {
                  const Interrupt nested;
                  raise(SIGTERM);
                  return 0;
                })),
                128 + SIGTERM);
  }
  CHECK(same(action_of(SIGINT), default_before));
  CHECK(same(action_of(SIGHUP), ignored_before));
}

TEST("a handler that runs once and then dies of the signal, as Node.js's own does, can die of it") {
  const pid_t process = tests::start([] {
    set_handler(SIGINT, [](int signal) { raise(signal); }, static_cast<int>(SA_RESETHAND));
    const Interrupt interrupt;
    kill(getpid(), SIGINT);
    return interruptible_sleep(2'000'000'000) ? 1 : 2;
  });
  CHECK_EQUAL(tests::end_of(process), 128 + SIGINT);
}

TEST("a handler that the program changes meanwhile stays changed") {
  set_handler(SIGINT, [](int) { set_handler(SIGINT, SIG_DFL); });  // the second Ctrl-C shall kill
  set_handler(SIGTERM, plain);
  {
    const Interrupt interrupt;
    raise(SIGINT);
    CHECK_EQUAL(interrupt.signal(), SIGINT);
    set_handler(SIGTERM, other);
  }
  CHECK(action_of(SIGINT).sa_handler == SIG_DFL);
  CHECK(action_of(SIGTERM).sa_handler == other);
}

TEST("one within another: the handlers are back when the outer one ends") {
  set_handler(SIGINT, plain);
  const struct sigaction before = action_of(SIGINT);
  {
    const Interrupt outer;
    {
      const Interrupt inner;
      raise(SIGINT);
      CHECK_EQUAL(inner.signal(), SIGINT);
    }
    CHECK_EQUAL(outer.signal(), SIGINT);
    CHECK(action_of(SIGINT).sa_handler != plain);
  }
  CHECK_EQUAL(plain_calls.load(), 1);
  CHECK(same(action_of(SIGINT), before));
  const Interrupt later;
  CHECK_EQUAL(later.signal(), 0);
}

TEST("a sleep ends early when a handled signal comes, even with SA_RESTART, and says so") {
  set_handler(SIGTERM, plain, SA_RESTART);
  const pid_t sender = tests::start([] {
    wait_for_sleep(getppid());
    kill(getppid(), SIGTERM);
    return 0;
  });
  const tests::Stopwatch watch;
  CHECK(!interruptible_sleep(20'000'000'000));
  CHECK(watch.milliseconds() < 1000 * tests::slowness());
  CHECK_EQUAL(plain_calls.load(), 1);
  tests::end_of(sender);
}

TEST("a sleep ends early when another thread handles the signal") {
  set_handler(SIGTERM, plain);
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        wait_for_sleep(getpid());
        raise(SIGTERM);
        return nullptr;
      },
      nullptr);
  const tests::Stopwatch watch;
  CHECK(!interruptible_sleep(20'000'000'000));
  CHECK(watch.milliseconds() < 1000 * tests::slowness());
  pthread_join(thread, nullptr);
}

TEST("a sleep that nothing ends lasts as long as asked") {
  signal(SIGHUP, SIG_IGN);
  raise(SIGHUP);
  const tests::Stopwatch watch;
  CHECK(interruptible_sleep(60'000'000));
  CHECK(watch.milliseconds() >= 60);
  CHECK(interruptible_sleep(0));
}
