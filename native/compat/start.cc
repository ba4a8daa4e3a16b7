// How an executable starts on old and new systems, see glibc.h. glibc 2.34 gave `__libc_start_main`, which the
// compiler's start-up code calls, a new version that runs the constructors itself; the old one, which every glibc has,
// is given a function that does. This definition comes before the library's, for this executable only.
#ifdef GPU_OWNER_COMPAT_GLIBC

#include <cstddef>

#define GPU_OWNER_HIDDEN __attribute__((visibility("hidden")))

#ifdef __aarch64__
__asm__(".symver gpu_owner_old_start_main,__libc_start_main@GLIBC_2.17");
#else
__asm__(".symver gpu_owner_old_start_main,__libc_start_main@GLIBC_2.2.5");
#endif

extern "C" {

using Main = int (*)(int, char**, char**);
using Constructor = void (*)(int, char**, char**);

extern GPU_OWNER_HIDDEN Constructor __init_array_start[];
extern GPU_OWNER_HIDDEN Constructor __init_array_end[];
void _init(void);

int gpu_owner_old_start_main(Main main, int argc, char** argv, Constructor init, void (*fini)(), void (*loader_fini)(),
                             void* stack_end);

static void run_constructors(int argc, char** argv, char** environment) {
  _init();
  const auto count = static_cast<std::size_t>(__init_array_end - __init_array_start);
  for (std::size_t i = 0; i < count; i++) __init_array_start[i](argc, argv, environment);
}

GPU_OWNER_HIDDEN int __libc_start_main(Main main, int argc, char** argv, Constructor, void (*)(), void (*loader_fini)(),
                                       void* stack_end) {
  return gpu_owner_old_start_main(main, argc, argv, run_constructors, nullptr, loader_fini, stack_end);
}
}

#endif
