/* How long a program takes as a process of its own, for a caller that costs next to nothing itself: from before the start until all its
 * output has been read and it has ended. Programs that are separated by "--" run one after the other and count as one.
 * spawn ROUNDS PROGRAM [ARGUMENT…] [-- PROGRAM [ARGUMENT…]] -> the time of each round in nanoseconds, a line each */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void run(char **words) {
  int output[2];
  pid_t pid;
  int status;
  char buffer[65536];
  posix_spawn_file_actions_t actions;
  if (pipe2(output, O_CLOEXEC) != 0) exit(71);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  const int error = posix_spawnp(&pid, words[0], &actions, NULL, words, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    fprintf(stderr, "%s: %s\n", words[0], strerror(error));
    exit(127);
  }
  close(output[1]);
  while (read(output[0], buffer, sizeof buffer) > 0) {
  }
  close(output[0]);
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fprintf(stderr, "%s failed (status %d)\n", words[0], status);
    exit(70);
  }
}

int main(int argc, char **argv) {
  char **programs[16];
  int count = 0, rounds;
  if (argc < 3 || (rounds = atoi(argv[1])) < 1) {
    fputs("usage: spawn ROUNDS PROGRAM [ARGUMENT...] [-- PROGRAM [ARGUMENT...]]\n", stderr);
    return 64;
  }
  programs[count++] = argv + 2;
  for (int i = 3; i + 1 < argc && count < 16; i++) {
    if (strcmp(argv[i], "--") != 0) continue;
    argv[i] = NULL;
    programs[count++] = argv + i + 1;
  }
  uint64_t *times = malloc(sizeof *times * (size_t)rounds);
  for (int round = 0; round < rounds; round++) {
    const uint64_t start = now();
    for (int i = 0; i < count; i++) run(programs[i]);
    times[round] = now() - start;
  }
  for (int round = 0; round < rounds; round++) printf("%llu\n", (unsigned long long)times[round]);
  return 0;
}
