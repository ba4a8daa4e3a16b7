// What an executable needs of libstdc++ when it uses strings and vectors, so that it starts without loading that library,
// which takes most of a millisecond. Everything here is hidden: it serves the executable that it is linked into, and no library
// that this loads. Exceptions are off, so whoever would throw ends the process.
#ifdef GPU_OWNER_COMPAT_GLIBC

#include <stddef.h>
#include <stdlib.h>

// By the names that the linker knows: the compiler has declared these visible.
#define GPU_OWNER_HIDDEN(symbol) __asm__(symbol) __attribute__((visibility("hidden")))

extern "C" {

void *gpu_owner_new(size_t size) GPU_OWNER_HIDDEN("_Znwm");
void *gpu_owner_new_array(size_t size) GPU_OWNER_HIDDEN("_Znam");
void gpu_owner_delete(void *memory) GPU_OWNER_HIDDEN("_ZdlPv");
void gpu_owner_delete_array(void *memory) GPU_OWNER_HIDDEN("_ZdaPv");
void gpu_owner_delete_sized(void *memory, size_t) GPU_OWNER_HIDDEN("_ZdlPvm");
void gpu_owner_delete_array_sized(void *memory, size_t) GPU_OWNER_HIDDEN("_ZdaPvm");

void *gpu_owner_new(size_t size) {
  void *memory = malloc(size > 0 ? size : 1);
  if (memory == nullptr) abort();
  return memory;
}
void *gpu_owner_new_array(size_t size) { return gpu_owner_new(size); }
void gpu_owner_delete(void *memory) { free(memory); }
void gpu_owner_delete_array(void *memory) { free(memory); }
void gpu_owner_delete_sized(void *memory, size_t) { free(memory); }
void gpu_owner_delete_array_sized(void *memory, size_t) { free(memory); }

// What strings, vectors and mutexes call for what can't be.
[[noreturn]] void gpu_owner_throw_bad_alloc() GPU_OWNER_HIDDEN("_ZSt17__throw_bad_allocv");
[[noreturn]] void gpu_owner_throw_logic_error(const char *) GPU_OWNER_HIDDEN("_ZSt19__throw_logic_errorPKc");
[[noreturn]] void gpu_owner_throw_length_error(const char *) GPU_OWNER_HIDDEN("_ZSt20__throw_length_errorPKc");
[[noreturn]] void gpu_owner_throw_out_of_range(const char *, ...) GPU_OWNER_HIDDEN("_ZSt24__throw_out_of_range_fmtPKcz");
[[noreturn]] void gpu_owner_throw_system_error(int) GPU_OWNER_HIDDEN("_ZSt20__throw_system_errori");

void gpu_owner_throw_bad_alloc() { abort(); }
void gpu_owner_throw_logic_error(const char *) { abort(); }
void gpu_owner_throw_length_error(const char *) { abort(); }
void gpu_owner_throw_out_of_range(const char *, ...) { abort(); }
void gpu_owner_throw_system_error(int) { abort(); }
}

#endif
