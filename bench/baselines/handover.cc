// Measures what a hand-over costs without gpu-owner around it.
//   handover bare FILE ROUNDS           two processes hand an OFD lock to each other, waiting in the kernel: the limit
//   handover line FILE LEASE WAITERS    so many waiters in a queue, each of which takes the lease when it is first
//   handover killed FILE ROUNDS         a process waits in the kernel for a lock whose holder is killed
//   handover crowd FILE WAITERS UUID    joins the queue so many times, for this GPU, until its input is closed; prints
//                                       "there"
//   handover small FILE GENERATION      holds a lease until it is killed; prints "there"
// The first three print a line per hand-over: microseconds from just before the release, or the kill, to just after the
// lock was had.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "locks/heartbeat_file.h"
#include "locks/locks.h"
#include "locks/wait_queue.h"

using namespace gpu_owner::locks;

namespace {

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

int opened(const char* path) {
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) {
    perror(path);
    exit(1);
  }
  return file;
}

const char* boot_id() {
  static char id[64];
  const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const ssize_t size = read(file, id, sizeof id - 1);
  close(file);
  id[size > 0 && id[size - 1] == '\n' ? size - 1 : 0] = '\0';
  return id;
}

struct Times {
  int64_t had;
  int64_t released;
};

template <typename Value>
Value* shared(size_t count) {
  void* memory = mmap(nullptr, count * sizeof(Value), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return static_cast<Value*>(memory);
}

void hold_for_a_moment() { usleep(2000); }

int bare(const char* path, int rounds) {
  auto* times = shared<Times>(2 * rounds);
  for (int side = 0; side < 2; side++) {
    if (fork() != 0) continue;
    const int file = opened(path);
    if (side == 1) usleep(1000);
    for (int i = 0; i < rounds; i++) {
      wait_lock(file, Kind::ofd, Mode::exclusive, {0, 1});
      times[2 * i + side].had = nanoseconds();
      hold_for_a_moment();
      times[2 * i + side].released = nanoseconds();
      unlock(file, Kind::ofd, {0, 1});
      usleep(1000);  // the other one first
    }
    _exit(0);
  }
  while (wait(nullptr) > 0) {
  }
  std::vector<Times> all(times, times + 2 * rounds);
  std::sort(all.begin(), all.end(), [](const Times& a, const Times& b) { return a.had < b.had; });
  for (size_t i = 1; i < all.size(); i++) printf("%.1f\n", (all[i].had - all[i - 1].released) / 1e3);
  return 0;
}

// Waits until no waiter is ahead in the queue: for the nearest one, then for the one before, should it still be
// there.
void wait_for_turn(const char* path, int64_t slot) {
  for (;;) {
    const int looking = open(path, O_RDONLY | O_CLOEXEC);
    std::vector<int64_t> ahead;
    taken_slots(looking, 0, slot, ahead);
    if (slot > 0 && !ahead.empty()) wait_lock(looking, Kind::ofd, Mode::shared, {ahead.back(), 1});
    close(looking);
    if (slot == 0 || ahead.empty()) return;
  }
}

int line(const char* path, const char* lease_path, int waiters) {
  auto* times = shared<Times>(waiters);
  const int held = opened(lease_path);
  try_lock(held, Kind::ofd, Mode::exclusive, {0, 2});
  for (int i = 0; i < waiters; i++) {
    int ready[2];
    if (pipe(ready) != 0) return 1;
    if (fork() == 0) {
      close(held);
      const int file = opened(path);
      const int64_t slot = join_queue(file);
      close(ready[0]);
      close(ready[1]);
      wait_for_turn(path, slot);
      const int lease = opened(lease_path);
      for (;;) {  // the end of the lease epoch is waited for, as claimants do, then the lease is tried
        const int epoch = open(lease_path, O_RDONLY | O_CLOEXEC);
        wait_lock(epoch, Kind::ofd, Mode::shared, {1, 1});
        close(epoch);
        if (try_lock(lease, Kind::ofd, Mode::exclusive, {0, 1}) == 0) break;
      }
      times[i].had = nanoseconds();
      wait_lock(lease, Kind::ofd, Mode::exclusive, {1, 1});
      close(file);
      hold_for_a_moment();
      times[i].released = nanoseconds();
      _exit(0);
    }
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) != 0) return 1;  // end of file: it has joined
    close(ready[0]);
  }
  usleep(100000);
  const int64_t first = nanoseconds();
  close(held);
  while (wait(nullptr) > 0) {
  }
  std::vector<Times> all(times, times + waiters);
  std::sort(all.begin(), all.end(), [](const Times& a, const Times& b) { return a.had < b.had; });
  int64_t released = first;
  for (const Times& each : all) {
    printf("%.1f\n", (each.had - released) / 1e3);
    released = each.released;
  }
  return 0;
}

int killed(const char* path, int rounds) {
  auto* had = shared<int64_t>(rounds);
  for (int i = 0; i < rounds; i++) {
    int ready[2];
    if (pipe(ready) != 0) return 1;
    const pid_t holder = fork();
    if (holder == 0) {
      const int file = opened(path);
      wait_lock(file, Kind::ofd, Mode::exclusive, {0, 1});
      if (write(ready[1], "", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) return 1;
    if (fork() == 0) {
      const int file = opened(path);
      wait_lock(file, Kind::ofd, Mode::exclusive, {0, 1});
      had[i] = nanoseconds();
      _exit(0);
    }
    hold_for_a_moment();
    const int64_t at = nanoseconds();
    kill(holder, SIGKILL);
    while (wait(nullptr) > 0) {
    }
    close(ready[0]);
    close(ready[1]);
    printf("%.1f\n", (had[i] - at) / 1e3);
  }
  return 0;
}

// A request as claims write it, with the tag of a preemptible one.
bool write_request(int file, int64_t slot, const char* uuid) {
  char block[kBlockSize - kHeartbeatSize];
  memset(block, ' ', sizeof block);
  const int64_t start = 1'000'000'000 + slot * 1'000'000;
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const int length =
      snprintf(block, sizeof block,
               "{\"order\":\"2 %016lld %016lld %016lld 0000065534\",\"user\":\"crowd\",\"pid\":1,\"place\":%lld,"
               "\"count\":1,\"uuids\":[\"%s\"],\"scope\":null,\"boot\":\"%s\"}",
               static_cast<long long>(start), static_cast<long long>(start + 1'000'000),
               static_cast<long long>(now.tv_sec) * 1000, static_cast<long long>(slot), uuid, boot_id());
  block[length] = ' ';
  return pwrite(file, block, sizeof block, block_offset(slot)) == static_cast<ssize_t>(sizeof block) &&
         write_heartbeat(file, heartbeat_offset(slot)) == 0;
}

int crowd(const char* path, int waiters, const char* uuid) {
  int64_t slot = -1;
  int last = -1;
  std::vector<int64_t> slots;
  for (int i = 0; i < waiters; i++) {
    const int file = opened(path);
    // Directly behind the last one: to ask for the end of the queue each time takes longer than all that is measured.
    const bool next = slot >= 0 && try_lock(file, Kind::ofd, Mode::exclusive, {slot + 1, 1}) == 0;
    slot = next ? slot + 1 : join_queue(file);
    if (slot < 0 || !write_request(file, slot, uuid)) return 1;
    last = file;
    slots.push_back(slot);
  }
  // As newcomers do: waiters look at the order again.
  char stamp[32];
  memset(stamp, ' ', sizeof stamp);
  snprintf(stamp, sizeof stamp, "%d %lld", getpid(), static_cast<long long>(nanoseconds()));
  if (pwrite(last, stamp, sizeof stamp, kBlocks * kBlockSize) < 0) return 1;
  puts("there");
  fflush(stdout);
  // All are alive: waiters that are not are skipped.
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  while (poll(&input, 1, 1000) == 0) {
    for (const int64_t each : slots) write_heartbeat(last, heartbeat_offset(each));
  }
  return 0;
}

int small(const char* path, int64_t generation) {
  const int file = opened(path);
  if (try_lock(file, Kind::ofd, Mode::exclusive, {0, 1}) != 0) return 1;
  if (try_lock(file, Kind::ofd, Mode::exclusive, {1 + generation, 1}) != 0) return 1;
  puts("there");
  fflush(stdout);
  for (;;) pause();
}

}  // namespace

int main(int count, char** arguments) {
  rlimit files = {65536, 65536};
  if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (count == 4 && strcmp(arguments[1], "bare") == 0) return bare(arguments[2], atoi(arguments[3]));
  if (count == 4 && strcmp(arguments[1], "killed") == 0) return killed(arguments[2], atoi(arguments[3]));
  if (count == 5 && strcmp(arguments[1], "line") == 0) return line(arguments[2], arguments[3], atoi(arguments[4]));
  if (count == 5 && strcmp(arguments[1], "crowd") == 0) return crowd(arguments[2], atoi(arguments[3]), arguments[4]);
  if (count == 4 && strcmp(arguments[1], "small") == 0) return small(arguments[2], atoll(arguments[3]));
  return 64;
}
