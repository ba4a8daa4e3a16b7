/* What claiming and giving back costs at least when many do it at once: so many processes make the system calls of a claim again and
 * again (the acquisition lock, a probe of each lease, one lease with its tenure, its record, the end written down) and nothing else.
 * With a LIBRARY, each also looks at the driver as often as a claim does: at all GPUs before it decides, at its own twice after.
 * Who is refused tries again after a millisecond. Each hold is noted in the log of the witness (bench/witness.js).
 * contention DIRECTORY WITNESS GPUS PROCESSES MILLISECONDS [LIBRARY] -> a line per process: claims, refusals */
#define _GNU_SOURCE
#include <dlfcn.h>
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

enum { RECORD = 4096, MOST_GPUS = 64 };

typedef struct opaque *device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version, sensor; int celsius; } temperature_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

static int gpus;
static int witness;
static char acquisition[4096], leases[MOST_GPUS][4096];
static device devices[MOST_GPUS];
static void *library;
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

static void *need(const char *name) {
  void *function = dlsym(library, name);
  if (function != NULL) return function;
  fprintf(stderr, "%s is missing\n", name);
  exit(69);
}

static int (*memory_of)(device, memory_v2 *), (*power_of)(device, unsigned *), (*limit_of)(device, unsigned *),
    (*use_of)(device, utilization *), (*heat_of)(device, temperature_v1 *), (*mode_of)(device, unsigned *),
    (*display_of)(device, unsigned *), (*mig_of)(device, unsigned *, unsigned *), (*compute_of)(device, unsigned *, process *),
    (*graphics_of)(device, unsigned *, process *);

static void open_driver(const char *path) {
  if ((library = dlopen(path, RTLD_NOW)) == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(69);
  }
  int (*init)(void) = need("nvmlInit_v2");
  int (*handle)(unsigned, device *) = need("nvmlDeviceGetHandleByIndex_v2");
  memory_of = need("nvmlDeviceGetMemoryInfo_v2");
  power_of = need("nvmlDeviceGetPowerUsage");
  limit_of = need("nvmlDeviceGetEnforcedPowerLimit");
  use_of = need("nvmlDeviceGetUtilizationRates");
  heat_of = need("nvmlDeviceGetTemperatureV");
  mode_of = need("nvmlDeviceGetComputeMode");
  display_of = need("nvmlDeviceGetDisplayActive");
  mig_of = need("nvmlDeviceGetMigMode");
  compute_of = need("nvmlDeviceGetComputeRunningProcesses_v3");
  graphics_of = need("nvmlDeviceGetGraphicsRunningProcesses_v3");
  if (init() != 0) exit(69);
  for (int i = 0; i < gpus; i++) {
    if (handle(i, &devices[i]) != 0) exit(69);
  }
}

static void look(int from, int to) {
  if (library == NULL) return;
  for (int i = from; i < to; i++) {
    memory_v2 bytes = {.version = 0x02000028};
    temperature_v1 heat = {.version = 0x0100000c};
    utilization use;
    process list[64];
    unsigned number, pending;
    memory_of(devices[i], &bytes);
    power_of(devices[i], &number);
    limit_of(devices[i], &number);
    use_of(devices[i], &use);
    heat_of(devices[i], &heat);
    mode_of(devices[i], &number);
    display_of(devices[i], &number);
    mig_of(devices[i], &number, &pending);
    number = 64;
    compute_of(devices[i], &number, list);
    number = 64;
    graphics_of(devices[i], &number, list);
  }
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
  look(chosen, chosen + 1);
  *gpu = chosen;
  return file;
}

static int claim(int *gpu, int64_t generation) {
  look(0, gpus);
  int any = 0;
  for (int i = 0; i < gpus; i++) any |= is_free(i);
  if (!any) return -1;
  const int file = opened(acquisition, O_RDWR);
  char before[RECORD];
  if (pread(file, before, RECORD, 0) < 0 || flock(file, LOCK_EX) != 0 || !is_named(file, acquisition)) _exit(74);
  if (pwrite(file, record, RECORD, 0) != RECORD) _exit(74);
  const int held = lease(gpu, generation);
  close(file);
  if (held >= 0) look(*gpu, *gpu + 1);
  return held;
}

static void testify(const char *what, int gpu) {
  char line[96];
  const int length = snprintf(line, sizeof line, "%d %s %lld %d\n", getpid(), what, (long long)now(), gpu);
  if (write(witness, line, (size_t)length) != length) _exit(74);
}

int main(int argc, char **argv) {
  if (argc != 6 && argc != 7) {
    fputs("usage: contention DIRECTORY WITNESS GPUS PROCESSES MILLISECONDS [LIBRARY]\n", stderr);
    return 64;
  }
  const int processes = atoi(argv[4]);
  gpus = atoi(argv[3]);
  if ((witness = open(argv[2], O_WRONLY | O_APPEND | O_CLOEXEC)) < 0) {
    perror(argv[2]);
    return 66;
  }
  if (gpus < 1 || gpus > MOST_GPUS || processes < 1) return 64;
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
    if (argc == 7) open_driver(argv[6]);
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
