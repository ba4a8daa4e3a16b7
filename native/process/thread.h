// Threads that wait, or call the driver, on behalf of others.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>

namespace gpu_owner::process {

// Starts a thread with a small stack in which all signals are blocked but one (0: all of them), so that the program's
// handlers never run on it. 0 or an errno value.
inline int start_thread(pthread_t& thread, size_t stack, int allowed_signal, void* (*run)(void*), void* argument) {
  sigset_t mask, before;
  sigfillset(&mask);
  if (allowed_signal != 0) sigdelset(&mask, allowed_signal);
  pthread_sigmask(SIG_SETMASK, &mask, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack);
  const int error = pthread_create(&thread, &attributes, run, argument);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

// As start_thread, for a thread that isn't joined and in which all signals are blocked.
inline int start_detached(size_t stack, void* (*run)(void*), void* argument) {
  pthread_t thread;
  const int error = start_thread(thread, stack, 0, run, argument);
  if (error == 0) pthread_detach(thread);
  return error;
}

}  // namespace gpu_owner::process
