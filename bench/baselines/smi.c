/* A poll of the driver as a process of its own: what `nvidia-smi --query-gpu=index,uuid,memory.used --format=csv,noheader` and
 * `nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader` must do at least. This program
 * loads NVML, initialises it, asks each GPU, prints lines and ends. nvidia-smi does all of that and more, so no poll
 * by nvidia-smi of the same driver takes less. smi LIBRARY gpus|apps|driver     driver: only its version, and then a
 * line per GPU with its name */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

typedef struct { unsigned long long total, free, used; } memory;

static void *library;

static void check(const char *call, int code) {
  if (code == 0) return;
  fprintf(stderr, "%s failed: %d\n", call, code);
  exit(69);
}

int main(int argc, char **argv) {
  const int gpus = argc == 3 && strcmp(argv[2], "gpus") == 0;
  const int apps = argc == 3 && strcmp(argv[2], "apps") == 0;
  const int driver = argc == 3 && strcmp(argv[2], "driver") == 0;
  if (!gpus && !apps && !driver) {
    fputs("usage: smi LIBRARY gpus|apps|driver\n", stderr);
    return 64;
  }
  if ((library = dlopen(argv[1], RTLD_NOW)) == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 69;
  }
  int (*init)(void) = need(library, "nvmlInit_v2");
  int (*count_of)(unsigned *) = need(library, "nvmlDeviceGetCount_v2");
  int (*handle)(unsigned, device *) = need(library, "nvmlDeviceGetHandleByIndex_v2");
  int (*uuid_of)(device, char *, unsigned) = need(library, "nvmlDeviceGetUUID");
  int (*memory_of)(device, memory *) = need(library, "nvmlDeviceGetMemoryInfo");
  int (*processes_of)(device, unsigned *, process *) = need(library, "nvmlDeviceGetComputeRunningProcesses_v3");
  int (*shutdown)(void) = need(library, "nvmlShutdown");

  unsigned count = 0;
  check("nvmlInit_v2", init());
  check("nvmlDeviceGetCount_v2", count_of(&count));
  if (driver) {
    int (*version_of)(char *, unsigned) = need(library, "nvmlSystemGetDriverVersion");
    char version[80];
    check("nvmlSystemGetDriverVersion", version_of(version, sizeof version));
    puts(version);
  }
  for (unsigned i = 0; i < count; i++) {
    device gpu;
    char uuid[96];
    check("nvmlDeviceGetHandleByIndex_v2", handle(i, &gpu));
    if (driver) {
      int (*name_of)(device, char *, unsigned) = need(library, "nvmlDeviceGetName");
      char name[96];
      check("nvmlDeviceGetName", name_of(gpu, name, sizeof name));
      puts(name);
      continue;
    }
    check("nvmlDeviceGetUUID", uuid_of(gpu, uuid, sizeof uuid));
    if (gpus) {
      memory bytes;
      check("nvmlDeviceGetMemoryInfo", memory_of(gpu, &bytes));
      printf("%u, %s, %llu MiB\n", i, uuid, bytes.used >> 20);
    } else {
      process list[256];
      unsigned number = 256;
      check("nvmlDeviceGetComputeRunningProcesses_v3", processes_of(gpu, &number, list));
      for (unsigned k = 0; k < number; k++) printf("%s, %u, %llu MiB\n", uuid, list[k].pid, list[k].used >> 20);
    }
  }
  check("nvmlShutdown", shutdown());
  return 0;
}
