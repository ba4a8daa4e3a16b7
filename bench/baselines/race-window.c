/* Takes a GPU as programs do that poll: asks which GPUs there are and which processes compute, chooses the first GPU without one, shows
 * CUDA only that one, and makes a context with an allocation there. safe-gpu does the same under a lock of its own; here is none.
 * race-window CUDA_LIBRARY GPUS_COMMAND… -- APPS_COMMAND… -> "had GPU LOOKED VISIBLE": when the answers were there and when the process
 * was on the GPU, in ns on the monotonic clock. Then it keeps the GPU until its standard input is closed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* The output of a program. */
static char *ask(char **words) {
  enum { ROOM = 1 << 16 };
  int output[2], status;
  pid_t pid;
  posix_spawn_file_actions_t actions;
  if (pipe(output) != 0) exit(71);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  posix_spawn_file_actions_addclose(&actions, output[0]);
  if (posix_spawnp(&pid, words[0], &actions, NULL, words, environ) != 0) exit(127);
  posix_spawn_file_actions_destroy(&actions);
  close(output[1]);
  char *text = calloc(1, ROOM + 1);
  for (size_t at = 0; at < ROOM;) {
    const ssize_t length = read(output[0], text + at, ROOM - at);
    if (length <= 0) break;
    at += (size_t)length;
  }
  close(output[0]);
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fprintf(stderr, "%s failed (status %d)\n", words[0], status);
    exit(70);
  }
  return text;
}

static void check(const char *call, int code) {
  if (code == 0) return;
  fprintf(stderr, "%s failed: %d\n", call, code);
  exit(69);
}

int main(int argc, char **argv) {
  char **apps_words = NULL;
  for (int i = 2; i < argc && apps_words == NULL; i++) {
    if (strcmp(argv[i], "--") != 0) continue;
    argv[i] = NULL;
    apps_words = argv + i + 1;
  }
  if (apps_words == NULL || *apps_words == NULL) {
    fputs("usage: race-window CUDA_LIBRARY GPUS_COMMAND... -- APPS_COMMAND...\n", stderr);
    return 64;
  }
  char *gpus = ask(argv + 2), *apps = ask(apps_words);
  const long long looked = now();

  int index = -1;
  char uuid[96] = "", *rest = NULL;
  for (char *line = strtok_r(gpus, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    if (sscanf(line, "%d, %95[^,]", &index, uuid) == 2 && strstr(apps, uuid) == NULL) break;
    *uuid = '\0';
  }
  if (*uuid == '\0') {
    fputs("no GPU is free\n", stderr);
    return 75;
  }
  setenv("CUDA_VISIBLE_DEVICES", uuid, 1);
  void *cuda = dlopen(argv[1], RTLD_NOW), *context;
  unsigned long long memory;
  if (cuda == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 69;
  }
  int (*init)(unsigned) = dlsym(cuda, "cuInit");
  int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
  int (*push)(void *) = dlsym(cuda, "cuCtxPushCurrent_v2");
  int (*allocate)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
  if (init == NULL || retain == NULL || push == NULL || allocate == NULL) return 69;
  check("cuInit", init(0));
  check("cuDevicePrimaryCtxRetain", retain(&context, 0));
  check("cuCtxPushCurrent_v2", push(context));
  check("cuMemAlloc_v2", allocate(&memory, 1 << 20));
  printf("had %d %lld %lld\n", index, looked, now());
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}
