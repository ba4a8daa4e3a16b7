/* The limit: a C program that makes the driver calls of a snapshot, the same ones in the same order, and nothing else.
 * snapshot LIBRARY ROUNDS -> the time of each round in nanoseconds, a line each */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct opaque *device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version, sensor; int celsius; } temperature_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

static void *library;

static void *need(const char *name) {
  void *function = dlsym(library, name);
  if (function == NULL) {
    fprintf(stderr, "%s is missing\n", name);
    exit(69);
  }
  return function;
}

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc != 3 || (library = dlopen(argv[1], RTLD_NOW)) == NULL) {
    fprintf(stderr, "usage: snapshot LIBRARY ROUNDS (%s)\n", argc == 3 ? dlerror() : "two arguments");
    return 64;
  }
  const int rounds = atoi(argv[2]);
  int (*init)(void) = need("nvmlInit_v2");
  int (*count_of)(unsigned *) = need("nvmlDeviceGetCount_v2");
  int (*handle)(unsigned, device *) = need("nvmlDeviceGetHandleByIndex_v2");
  int (*memory)(device, memory_v2 *) = need("nvmlDeviceGetMemoryInfo_v2");
  int (*power)(device, unsigned *) = need("nvmlDeviceGetPowerUsage");
  int (*limit)(device, unsigned *) = need("nvmlDeviceGetEnforcedPowerLimit");
  int (*busy)(device, utilization *) = need("nvmlDeviceGetUtilizationRates");
  int (*temperature)(device, temperature_v1 *) = dlsym(library, "nvmlDeviceGetTemperatureV");
  int (*temperature_old)(device, unsigned, unsigned *) = need("nvmlDeviceGetTemperature");
  int (*mode)(device, unsigned *) = need("nvmlDeviceGetComputeMode");
  int (*display)(device, unsigned *) = need("nvmlDeviceGetDisplayActive");
  int (*mig)(device, unsigned *, unsigned *) = need("nvmlDeviceGetMigMode");
  int (*compute)(device, unsigned *, process *) = need("nvmlDeviceGetComputeRunningProcesses_v3");
  int (*graphics)(device, unsigned *, process *) = need("nvmlDeviceGetGraphicsRunningProcesses_v3");

  unsigned gpus = 0;
  device devices[64];
  if (init() != 0 || count_of(&gpus) != 0 || gpus > 64) return 69;
  for (unsigned i = 0; i < gpus; i++) {
    if (handle(i, &devices[i]) != 0) return 69;
  }
  uint64_t *times = malloc(sizeof *times * (size_t)rounds);
  for (int round = 0; round < rounds; round++) {
    const uint64_t start = now();
    for (unsigned i = 0; i < gpus; i++) {
      memory_v2 bytes = {.version = 0x02000028};
      temperature_v1 heat = {.version = 0x0100000c};
      utilization use;
      process list[64];
      unsigned number, pending;
      memory(devices[i], &bytes);
      power(devices[i], &number);
      limit(devices[i], &number);
      busy(devices[i], &use);
      if (temperature == NULL || temperature(devices[i], &heat) != 0) temperature_old(devices[i], 0, &number);
      mode(devices[i], &number);
      display(devices[i], &number);
      mig(devices[i], &number, &pending);
      number = 64;
      compute(devices[i], &number, list);
      number = 64;
      graphics(devices[i], &number, list);
    }
    times[round] = now() - start;
  }
  for (int round = 0; round < rounds; round++) printf("%llu\n", (unsigned long long)times[round]);
  return 0;
}
