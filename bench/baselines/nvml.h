/* The part of NVML's interface that the programs here need, from its documentation. */
#pragma once
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct opaque* device;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} memory_v2;
typedef struct {
  unsigned gpu, memory;
} utilization;
typedef struct {
  unsigned version, sensor;
  int celsius;
} temperature_v1;
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gi, ci;
} process;

static inline void* need(void* library, const char* name) {
  void* function = dlsym(library, name);
  if (function == NULL) {
    fprintf(stderr, "%s is missing\n", name);
    exit(69);
  }
  return function;
}
