// Keeps binaries that are built on a new system usable on old ones: glibc 2.28 and libstdc++ of GCC 5 (what Node.js's
// own binaries need), however new the build machine. Included before everything else in every source file (-include).
//
// The linker binds a function to its newest version, and glibc 2.32 to 2.34 gave new versions to what moved into
// libc.so.6 from libdl and libpthread, although nothing else changed. `.symver` asks for the old version, which every
// glibc has. A line costs nothing where the function isn't used. glibc.cc and start.cc have what this cannot reach;
// scripts/check-binaries.js tells when a line is missing.
#ifndef GPU_OWNER_COMPAT_GLIBC_H
#define GPU_OWNER_COMPAT_GLIBC_H

#include <features.h>

// Sanitizers put functions of their own, which have no versions, in the place of these.
#if defined(__GLIBC__) && __has_include(<bits/c++config.h>) && (defined(__x86_64__) || defined(__aarch64__)) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define GPU_OWNER_COMPAT_GLIBC 1

// The first version that a port of glibc had is the oldest any of its functions can have.
#ifdef __aarch64__
#define GPU_OWNER_OLD_SYMBOL(name, old, version) __asm__(".symver " #name "," #old "@GLIBC_2.17");
#else
#define GPU_OWNER_OLD_SYMBOL(name, old, version) __asm__(".symver " #name "," #old "@GLIBC_" #version);
#endif
#define GPU_OWNER_OLD(name, version) GPU_OWNER_OLD_SYMBOL(name, name, version)

// The dynamic loader
GPU_OWNER_OLD(dladdr, 2.2.5)
GPU_OWNER_OLD(dlclose, 2.2.5)
GPU_OWNER_OLD(dlerror, 2.2.5)
GPU_OWNER_OLD(dlopen, 2.2.5)
GPU_OWNER_OLD(dlsym, 2.2.5)
GPU_OWNER_OLD(dlinfo, 2.3.3)

// Threads
GPU_OWNER_OLD(pthread_attr_setstacksize, 2.2.5)
GPU_OWNER_OLD(pthread_create, 2.2.5)
GPU_OWNER_OLD(pthread_detach, 2.2.5)
GPU_OWNER_OLD(pthread_getspecific, 2.2.5)
GPU_OWNER_OLD(pthread_join, 2.2.5)
GPU_OWNER_OLD(pthread_key_create, 2.2.5)
GPU_OWNER_OLD(pthread_key_delete, 2.2.5)
GPU_OWNER_OLD(pthread_kill, 2.2.5)
GPU_OWNER_OLD(pthread_mutex_timedlock, 2.2.5)
GPU_OWNER_OLD(pthread_mutex_trylock, 2.2.5)
GPU_OWNER_OLD(pthread_mutexattr_settype, 2.2.5)
GPU_OWNER_OLD(pthread_once, 2.2.5)
GPU_OWNER_OLD(pthread_setspecific, 2.2.5)
GPU_OWNER_OLD(pthread_sigmask, 2.2.5)
GPU_OWNER_OLD(__pthread_key_create, 2.2.5)

// Number parsing with binary literals of C23 (glibc 2.38), which nothing here needs
GPU_OWNER_OLD_SYMBOL(__isoc23_strtol, strtol, 2.2.5)
GPU_OWNER_OLD_SYMBOL(__isoc23_strtoll, strtoll, 2.2.5)
GPU_OWNER_OLD_SYMBOL(__isoc23_strtoul, strtoul, 2.2.5)
GPU_OWNER_OLD_SYMBOL(__isoc23_strtoull, strtoull, 2.2.5)
GPU_OWNER_OLD_SYMBOL(__isoc23_strtoimax, strtoimax, 2.2.5)
GPU_OWNER_OLD_SYMBOL(__isoc23_strtoumax, strtoumax, 2.2.5)
GPU_OWNER_OLD_SYMBOL(__isoc23_sscanf, __isoc99_sscanf, 2.7)
GPU_OWNER_OLD_SYMBOL(__isoc23_fscanf, __isoc99_fscanf, 2.7)
GPU_OWNER_OLD_SYMBOL(__isoc23_vsscanf, __isoc99_vsscanf, 2.7)

// libstdc++'s timed waits go by the monotonic clock where glibc has functions for it (2.30), else as they did before
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK

// std::condition_variable::wait, renewed in GCC 12
#define GPU_OWNER_WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
__asm__(".symver " GPU_OWNER_WAIT "," GPU_OWNER_WAIT "@GLIBCXX_3.4.11");
#undef GPU_OWNER_WAIT

#undef GPU_OWNER_OLD
#undef GPU_OWNER_OLD_SYMBOL
#endif

#endif
