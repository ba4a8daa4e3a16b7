/* A command that uses its GPUs for a while and notes so in a witness's log (see witness.js); without a log it only waits.
 * witness LOG|- MILLISECONDS [GPU...]     the GPUs, if not named, are those of CUDA_VISIBLE_DEVICES */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char *gpus[256];
static int count;

static void note(int log, const char *what) {
  char lines[4096];
  size_t length = 0;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  for (int i = 0; i < count && length < sizeof lines; i++) {
    length += (size_t)snprintf(lines + length, sizeof lines - length, "%d %s %lld%09ld %s\n", (int)getpid(), what,
                               (long long)now.tv_sec, now.tv_nsec, gpus[i]);
  }
  if (length >= sizeof lines || write(log, lines, length) != (ssize_t)length) {
    fputs("witness: can't write the log\n", stderr);
    exit(74);
  }
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fputs("usage: witness LOG|- MILLISECONDS [GPU...]\n", stderr);
    return 64;
  }
  for (int i = 3; i < argc && count < 256; i++) gpus[count++] = argv[i];
  char *visible = argc > 3 ? NULL : getenv("CUDA_VISIBLE_DEVICES");
  for (char *gpu = visible ? strtok(visible, ",") : NULL; gpu && count < 256; gpu = strtok(NULL, ",")) gpus[count++] = gpu;
  const int silent = strcmp(argv[1], "-") == 0;
  const int log = silent ? -1 : open(argv[1], O_WRONLY | O_APPEND | O_CLOEXEC);
  if (!silent && log < 0) {
    perror(argv[1]);
    return 66;
  }
  if (!silent && count == 0) {
    fputs("witness: CUDA_VISIBLE_DEVICES names no GPU\n", stderr);
    return 64;
  }
  if (!silent) note(log, "had");
  const double milliseconds = atof(argv[2]);
  const struct timespec time = {(time_t)(milliseconds / 1e3), (long)(milliseconds * 1e6) % 1000000000L};
  if (milliseconds > 0) nanosleep(&time, NULL);
  if (!silent) note(log, "gone");
  return 0;
}
