/* The limit: a C program that claims a GPU as gpu-owner does, with the same files, locks and driver calls, and nothing else: no other
 * criteria, no messages, no second try.
 * claim NVML CUDA|- DIRECTORY ROUNDS [steps] -> the time of each claim and release in nanoseconds, a line each. CUDA: a context and 1 MiB
 * on the GPU, as a placeholder. `steps`: instead, when each step of the first claim was reached, by the clock that all share */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

enum { RECORD = 4096, MAX_GPUS = 64 };

static void *nvml, *cuda;
static const char *cuda_path, *directory;
static unsigned gpus;
static device devices[MAX_GPUS];
static char uuids[MAX_GPUS][96];
static int show_steps;

static uint64_t now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void reached(const char *step) {
  if (show_steps) printf("%s %llu\n", step, (unsigned long long)now(CLOCK_MONOTONIC));
}

static void fail(const char *what) {
  fprintf(stderr, "claim: %s\n", what);
  exit(70);
}

#define NVML(name, ...) ((int (*)(__VA_ARGS__))need(nvml, name))

static struct {
  int (*memory)(device, memory_v2 *), (*power)(device, unsigned *), (*limit)(device, unsigned *);
  int (*busy)(device, utilization *), (*temperature)(device, temperature_v1 *), (*mode)(device, unsigned *);
  int (*display)(device, unsigned *), (*mig)(device, unsigned *, unsigned *);
  int (*compute)(device, unsigned *, process *), (*graphics)(device, unsigned *, process *);
} ask;

static void open_driver(const char *path) {
  nvml = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (nvml == NULL) fail(dlerror());
  if (NVML("nvmlInit_v2", void)() != 0 || NVML("nvmlDeviceGetCount_v2", unsigned *)(&gpus) != 0) fail("no driver");
  if (gpus > MAX_GPUS) fail("too many GPUs");
  ask.memory = need(nvml, "nvmlDeviceGetMemoryInfo_v2");
  ask.power = need(nvml, "nvmlDeviceGetPowerUsage");
  ask.limit = need(nvml, "nvmlDeviceGetEnforcedPowerLimit");
  ask.busy = need(nvml, "nvmlDeviceGetUtilizationRates");
  ask.temperature = need(nvml, "nvmlDeviceGetTemperatureV");
  ask.mode = need(nvml, "nvmlDeviceGetComputeMode");
  ask.display = need(nvml, "nvmlDeviceGetDisplayActive");
  ask.mig = need(nvml, "nvmlDeviceGetMigMode");
  ask.compute = need(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
  ask.graphics = need(nvml, "nvmlDeviceGetGraphicsRunningProcesses_v3");
  for (unsigned i = 0; i < gpus; i++) {
    char name[96], pci[68];
    unsigned persistence;
    if (NVML("nvmlDeviceGetHandleByIndex_v2", unsigned, device *)(i, &devices[i]) != 0) fail("no handle");
    NVML("nvmlDeviceGetUUID", device, char *, unsigned)(devices[i], uuids[i], 96);
    NVML("nvmlDeviceGetName", device, char *, unsigned)(devices[i], name, 96);
    NVML("nvmlDeviceGetPciInfo_v3", device, void *)(devices[i], pci);
    NVML("nvmlDeviceGetPersistenceMode", device, unsigned *)(devices[i], &persistence);
  }
}

/* Whether no process computes on the GPU. */
static int is_free(unsigned gpu) {
  const device one = devices[gpu];
  memory_v2 bytes = {.version = 0x02000028};
  temperature_v1 heat = {.version = 0x0100000c};
  utilization use;
  process list[64];
  unsigned number, pending, computing = 64;
  ask.memory(one, &bytes);
  ask.power(one, &number);
  ask.limit(one, &number);
  ask.busy(one, &use);
  ask.temperature(one, &heat);
  ask.mode(one, &number);
  ask.display(one, &number);
  ask.mig(one, &number, &pending);
  ask.compute(one, &computing, list);
  number = 64;
  ask.graphics(one, &number, list);
  return computing == 0;
}

static const char *in(const char *name, const char *suffix) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s%s", directory, name, suffix);
  return path;
}

static int lock(int file, int command, int type, uint64_t byte, uint64_t length) {
  struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = (off_t)length};
  return fcntl(file, command, &lock) == 0 && (command != F_OFD_GETLK || lock.l_type == F_UNLCK);
}

static int open_file(const char *path, int access) {
  struct stat status;
  const int file = open(path, access | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (file >= 0 && (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1)) fail(path);
  return file;
}

static int open_shared(const char *path) {
  int file = open_file(path, O_RDWR);
  if (file >= 0) return file;
  char source[64];
  file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (file < 0 || fchmod(file, 0666) != 0 || posix_fallocate(file, 0, RECORD) != 0) fail(path);
  snprintf(source, sizeof source, "/proc/thread-self/fd/%d", file);
  if (linkat(AT_FDCWD, source, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0) fail(path);
  return file;
}

static int is_named(int file, const char *path) {
  struct stat ours, named;
  return fstat(file, &ours) == 0 && lstat(path, &named) == 0 && ours.st_ino == named.st_ino;
}

static int is_leased(unsigned gpu) {
  const int file = open_file(in(uuids[gpu], ".lease"), O_RDONLY);
  if (file < 0) return 0;
  const int held = !lock(file, F_OFD_GETLK, F_WRLCK, 0, 1);
  close(file);
  const int nested = open_file(in(uuids[gpu], ".nested-1"), O_RDONLY);
  if (nested >= 0) close(nested);
  return held || nested >= 0;
}

static void write_record(int file, unsigned gpu, uint64_t generation, uint64_t ended) {
  char record[RECORD], host[64], since[32];
  const time_t seconds = time(NULL);
  struct tm utc;
  memset(record, ' ', sizeof record);
  gethostname(host, sizeof host);
  strftime(since, sizeof since, "%FT%TZ", gmtime_r(&seconds, &utc));
  const int length = snprintf(record, sizeof record,
                              "{\"user\":\"somebody\",\"uid\":%u,\"pid\":%d,\"host\":\"%s\",\"command\":\"claim\",\"since\":\"%s\","
                              "\"generation\":%llu,\"gpus\":[{\"index\":%u,\"uuid\":\"%s\"}],\"ended\":%llu}",
                              geteuid(), getpid(), host, since, (unsigned long long)generation, gpu, uuids[gpu],
                              (unsigned long long)ended);
  record[length] = ' ';
  record[RECORD - 1] = '\n';
  if (pwrite(file, record, RECORD, 0) != RECORD) fail("record");
}

static int choose(void) {
  int chosen = -1;
  for (int gpu = (int)gpus - 1; gpu >= 0; gpu--) {
    if (!is_leased((unsigned)gpu)) chosen = gpu;
  }
  const int line = open_file(in("line", ".lock"), O_RDONLY);
  if (line >= 0) close(line);
  return chosen;
}

static unsigned context_device;

static void take_placeholder(void) {
  void *context = NULL;
  unsigned long long memory = 0;
  int count = 0, one = 0;
  if (cuda == NULL) cuda = dlopen(cuda_path, RTLD_NOW | RTLD_LOCAL);
  if (cuda == NULL) fail(dlerror());
  if (((int (*)(unsigned))need(cuda, "cuInit"))(0) != 0) fail("cuInit");
  ((int (*)(int *))need(cuda, "cuDeviceGetCount"))(&count);
  if (((int (*)(int *, int))need(cuda, "cuDeviceGet"))(&one, 0) != 0) fail("cuDeviceGet");
  if (((int (*)(void **, int))need(cuda, "cuDevicePrimaryCtxRetain"))(&context, one) != 0) fail("context");
  ((int (*)(void *))need(cuda, "cuCtxPushCurrent_v2"))(context);
  if (((int (*)(unsigned long long *, size_t))need(cuda, "cuMemAlloc_v2"))(&memory, 1 << 20) != 0) fail("memory");
  ((int (*)(void **))need(cuda, "cuCtxPopCurrent_v2"))(&context);
  context_device = (unsigned)one;
}

/* Claims and releases; the placeholder, if any, is left to the process's end. */
static void claim(void) {
  struct stat status;
  struct statfs system;
  static const char *const places[] = {"gpu_lock", "gpu_locks", "home_locks", "tmp_locks", "work_locks"};
  if (lstat(directory, &status) != 0 && mkdir(directory, 01777) != 0) fail(directory);
  statfs(directory, &system);
  for (unsigned i = 0; i < sizeof places / sizeof *places; i++) lstat(in(places[i], ""), &status);
  for (unsigned gpu = 0; gpu < gpus; gpu++) is_free(gpu);
  reached("driver");
  choose();
  const int shared = open_shared(in("safe-gpu", ".lock"));
  lock(shared, F_OFD_GETLK, F_WRLCK, 0, 0);
  lock(shared, F_OFD_SETLK, F_RDLCK, 0, 0);
  is_named(shared, in("safe-gpu", ".lock"));
  const int deciding = open_shared(in("acquisition", ".lock"));
  if (!lock(deciding, F_OFD_SETLK, F_WRLCK, 0, 1) || !is_named(deciding, in("acquisition", ".lock"))) fail("acquisition");
  const uint64_t generation = now(CLOCK_MONOTONIC) & ((1ull << 46) - 1);
  write_record(deciding, 0, generation, 0);
  reached("acquisition-lock");
  const int gpu = choose();
  if (gpu < 0) fail("no GPU is free");
  reached("chosen");
  const int lease = open_shared(in(uuids[gpu], ".lease"));
  if (!lock(lease, F_OFD_SETLK, F_WRLCK, 0, 1) || !is_named(lease, in(uuids[gpu], ".lease"))) fail("lease");
  lock(lease, F_OFD_SETLK, F_WRLCK, 1 + generation, 1);
  flock(lease, LOCK_SH | LOCK_NB);
  const int nested = open_file(in(uuids[gpu], ".nested-1"), O_RDONLY);
  if (nested >= 0) close(nested);
  write_record(lease, (unsigned)gpu, generation, 0);
  reached("leased");
  if (!is_free((unsigned)gpu)) fail("somebody came in between");
  reached("looked-again");
  close(deciding);
  reached("unlocked");
  setenv("CUDA_VISIBLE_DEVICES", uuids[gpu], 1);
  reached("environment");
  if (cuda_path != NULL) take_placeholder();
  reached("placeholder");
  close(shared);
  is_free((unsigned)gpu);
  reached("claimed");
  unsetenv("CUDA_VISIBLE_DEVICES");
  write_record(lease, (unsigned)gpu, generation, now(CLOCK_BOOTTIME) / 1000000);
  close(lease);
}

int main(int argc, char **argv) {
  if (argc < 5) {
    fputs("usage: claim NVML CUDA|- DIRECTORY ROUNDS [steps]\n", stderr);
    return 64;
  }
  show_steps = argc > 5;
  cuda_path = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
  directory = argv[3];
  reached("main");
  umask(0);
  reached("start");
  open_driver(argv[1]);
  const int rounds = show_steps ? 1 : atoi(argv[4]);
  uint64_t *times = malloc(sizeof *times * (size_t)rounds);
  for (int round = 0; round < rounds; round++) {
    const uint64_t start = now(CLOCK_MONOTONIC);
    claim();
    times[round] = now(CLOCK_MONOTONIC) - start;
  }
  for (int round = 0; !show_steps && round < rounds; round++) printf("%llu\n", (unsigned long long)times[round]);
  return 0;
}
