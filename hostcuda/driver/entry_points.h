// The table of exported symbols that gen_entries.py writes: what cuGetProcAddress answers from.
#ifndef HOSTCUDA_DRIVER_ENTRY_POINTS_H_
#define HOSTCUDA_DRIVER_ENTRY_POINTS_H_

#include <cstddef>

namespace hostcuda {

struct EntryPoint {
  const char* symbol;  // as exported
  const char* name;    // as asked for
  int version;         // first CUDA version that means this symbol
  bool per_thread;     // takes the per-thread default stream
  void* address;
};

extern const EntryPoint kEntryPoints[];  // sorted by name, then version
extern const size_t kEntryPointCount;

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_ENTRY_POINTS_H_
