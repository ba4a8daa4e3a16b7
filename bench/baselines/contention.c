/* The least that claiming and giving back costs when many do it at once: so many processes make the system calls of a
 * claim again and again (the acquisition lock, a probe of each lease, one lease with its epoch, its record, the end
 * written down) and nothing else. A refused process tries again after a millisecond. Each hold is noted in the log of
 * the witness (bench/witness.js). contention DIRECTORY WITNESS GPUS PROCESSES MILLISECONDS -> a line per process:
 * claims, refusals */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 4096, MAX_GPUS = 64 };

static int gpus;
static int witness;
static char acquisition[4096], leases[MAX_GPUS][4096];
static char record[RECORD];

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int opened(const char *path, int access) {
  const int file = open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    perror(path);
    _exit(70);
  }
  return file;
}

static int is_named(int file, const char *path) {
  struct stat ours, named;
  return fstat(file, &ours) == 0 && lstat(path, &named) == 0 && ours.st_ino == named.st_ino;
}

static int lock(int file, int command, int64_t byte) {
  struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  const int result = fcntl(file, command, &range);
  return command == F_OFD_GETLK ? range.l_type == F_UNLCK : result == 0;
}

static int is_free(int gpu) {
  const int file = opened(leases[gpu], O_RDONLY);
  const int answer = lock(file, F_OFD_GETLK, 0);
  close(file);
  return answer;
}

/* Under the acquisition lock. The lease of the first GPU that is free; -1: there is none. */
static int lease(int *gpu, int64_t generation) {
  int chosen = -1;
  for (int i = 0; i < gpus; i++) {
    if (is_free(i) && chosen < 0) chosen = i;
  }
  if (chosen < 0) return -1;
  const int file = opened(leases[chosen], O_RDWR);
  if (!lock(file, F_OFD_SETLK, 0) || !is_named(file, leases[chosen])) {
    close(file);
    return -1;
  }
  lock(file, F_OFD_SETLK, 1 + generation);
  flock(file, LOCK_SH | LOCK_NB);
  if (pwrite(file, record, RECORD, 0) != RECORD) _exit(74);
  *gpu = chosen;
  return file;
}

static int claim(int *gpu, int64_t generation) {
  int any = 0;
  for (int i = 0; i < gpus; i++) any |= is_free(i);
  if (!any) return -1;
  const int file = opened(acquisition, O_RDWR);
  char epoch[32];
  if (pread(file, epoch, sizeof epoch, RECORD - sizeof epoch) < 0 || !lock(file, F_OFD_SETLKW, 0)) _exit(74);
  if (!is_named(file, acquisition) || pread(file, epoch, sizeof epoch, RECORD - sizeof epoch) < 0) _exit(74);
  if (pwrite(file, record, RECORD, 0) != RECORD) _exit(74);
  const int held = lease(gpu, generation);
  close(file);
  return held;
}

static void testify(const char *what, int gpu) {
  char line[96];
  const int length = snprintf(line, sizeof line, "%d %s %lld %d\n", getpid(), what, (long long)now(), gpu);
  if (write(witness, line, (size_t)length) != length) _exit(74);
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fputs("usage: contention DIRECTORY WITNESS GPUS PROCESSES MILLISECONDS\n", stderr);
    return 64;
  }
  const int processes = atoi(argv[4]);
  gpus = atoi(argv[3]);
  if ((witness = open(argv[2], O_WRONLY | O_APPEND | O_CLOEXEC)) < 0) {
    perror(argv[2]);
    return 66;
  }
  if (gpus < 1 || gpus > MAX_GPUS || processes < 1) return 64;
  memset(record, ' ', RECORD);
  snprintf(acquisition, sizeof acquisition, "%s/acquisition.lock", argv[1]);
  for (int i = -1; i < gpus; i++) {
    char *path = i < 0 ? acquisition : leases[i];
    if (i >= 0) snprintf(path, sizeof leases[i], "%s/gpu-%d.lease", argv[1], i);
    const int file = opened(path, O_RDWR | O_CREAT);
    if (pwrite(file, record, RECORD, 0) != RECORD) return 74;
    close(file);
  }
  struct count { int64_t claims, refusals; } *counts =
      mmap(NULL, processes * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const int64_t start = now() + 5000000 + processes * 500000, end = start + atoll(argv[5]) * 1000000;
  for (int p = 0; p < processes; p++) {
    if (fork() != 0) continue;
    while (now() < start) usleep(100);
    for (int64_t i = 0; now() < end; i++) {
      int gpu;
      const int held = claim(&gpu, i * processes + p);
      if (held < 0) {
        counts[p].refusals++;
        usleep(1000);
        continue;
      }
      testify("had", gpu);
      counts[p].claims++;
      testify("gone", gpu);
      if (pwrite(held, record, RECORD, 0) != RECORD) _exit(74);
      close(held);
    }
    _exit(0);
  }
  int status, failed = 0;
  while (wait(&status) > 0) failed |= status != 0;
  for (int p = 0; p < processes; p++) {
    printf("%lld %lld\n", (long long)counts[p].claims, (long long)counts[p].refusals);
  }
  return failed ? 70 : 0;
}
