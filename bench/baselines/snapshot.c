/* The limit: a C program that makes the driver calls of a snapshot, the same ones in the same order, and nothing else.
 * snapshot LIBRARY ROUNDS [threads] -> the time of each round in nanoseconds, a line each; `threads`: a thread per GPU, so that
 * the GPUs are asked side by side */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "nvml.h"

static void *library;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int (*init)(void);
static int (*count_of)(unsigned *);
static int (*handle)(unsigned, device *);
static int (*memory)(device, memory_v2 *);
static int (*power)(device, unsigned *);
static int (*limit)(device, unsigned *);
static int (*busy)(device, utilization *);
static int (*temperature)(device, temperature_v1 *);
static int (*temperature_old)(device, unsigned, unsigned *);
static int (*mode)(device, unsigned *);
static int (*display)(device, unsigned *);
static int (*mig)(device, unsigned *, unsigned *);
static int (*compute)(device, unsigned *, process *);
static int (*graphics)(device, unsigned *, process *);

static void *look(void *gpu) {
  const device one = gpu;
  memory_v2 bytes = {.version = 0x02000028};
  temperature_v1 heat = {.version = 0x0100000c};
  utilization use;
  process list[64];
  unsigned number, pending;
  memory(one, &bytes);
  power(one, &number);
  limit(one, &number);
  busy(one, &use);
  if (temperature == NULL || temperature(one, &heat) != 0) temperature_old(one, 0, &number);
  mode(one, &number);
  display(one, &number);
  mig(one, &number, &pending);
  number = 64;
  compute(one, &number, list);
  number = 64;
  graphics(one, &number, list);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 3 || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
    fprintf(stderr, "usage: snapshot LIBRARY ROUNDS [threads] (%s)\n", argc < 3 ? "two arguments" : dlerror());
    return 64;
  }
  const int rounds = atoi(argv[2]), side_by_side = argc > 3;
  init = need(library, "nvmlInit_v2");
  count_of = need(library, "nvmlDeviceGetCount_v2");
  handle = need(library, "nvmlDeviceGetHandleByIndex_v2");
  memory = need(library, "nvmlDeviceGetMemoryInfo_v2");
  power = need(library, "nvmlDeviceGetPowerUsage");
  limit = need(library, "nvmlDeviceGetEnforcedPowerLimit");
  busy = need(library, "nvmlDeviceGetUtilizationRates");
  temperature = dlsym(library, "nvmlDeviceGetTemperatureV");
  temperature_old = need(library, "nvmlDeviceGetTemperature");
  mode = need(library, "nvmlDeviceGetComputeMode");
  display = need(library, "nvmlDeviceGetDisplayActive");
  mig = need(library, "nvmlDeviceGetMigMode");
  compute = need(library, "nvmlDeviceGetComputeRunningProcesses_v3");
  graphics = need(library, "nvmlDeviceGetGraphicsRunningProcesses_v3");

  unsigned gpus = 0;
  device devices[64];
  if (init() != 0 || count_of(&gpus) != 0 || gpus > 64) return 69;
  for (unsigned i = 0; i < gpus; i++) {
    if (handle(i, &devices[i]) != 0) return 69;
  }
  uint64_t *times = malloc(sizeof *times * (size_t)rounds);
  for (int round = 0; round < rounds; round++) {
    const uint64_t start = now();
    pthread_t threads[64];
    for (unsigned i = 0; i < gpus; i++) {
      if (!side_by_side) {
        look(devices[i]);
      } else if (pthread_create(&threads[i], NULL, look, devices[i]) != 0) {
        return 71;
      }
    }
    for (unsigned i = 0; side_by_side && i < gpus; i++) pthread_join(threads[i], NULL);
    times[round] = now() - start;
  }
  for (int round = 0; round < rounds; round++) printf("%llu\n", (unsigned long long)times[round]);
  return 0;
}
