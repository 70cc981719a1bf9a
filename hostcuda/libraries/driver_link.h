// How hostcuda's libraries reach the driver: as NVIDIA's do, by opening libcuda.so.1 and asking
// cuGetProcAddress.
//
// Owns the process-wide view of the driver that one library has (a static copy a library, as with a
// static runtime). A forwarding libcuda.so.1 that was preloaded is what dlopen finds, so a shim
// sees every call of every library.
//
// Threading: all functions may be called from any thread.
//
//   if (CUresult r = LaunchNamed(stream, "hostcufft_c2c_n1024_b8_forward", GridFor(8 * 1024)); r !=
//   CUDA_SUCCESS) ...
#ifndef HOSTCUDA_LIBRARIES_DRIVER_LINK_H_
#define HOSTCUDA_LIBRARIES_DRIVER_LINK_H_

#include <cuda.h>

#include <cstdint>
#include <string>

#include "hostcuda/internal_table.h"

namespace hostcuda {

/// Returns the driver's internal table, or null, after one line on stderr, if libcuda.so.1 is
/// missing or not hostcuda's.
const HostcudaTable* Table() noexcept;

/// Returns the driver's entry point `symbol` (as cuGetProcAddress names it, without a version
/// suffix) for CUDA 13, or null.
void* DriverSymbol(const char* symbol) noexcept;

/// Calls the driver function `symbol`, or returns CUDA_ERROR_NOT_FOUND.
template <typename... Parameters, typename... Arguments>
CUresult CallDriver(CUresult (*)(Parameters...), const char* symbol,
                    Arguments... arguments) noexcept {
  auto function = reinterpret_cast<CUresult (*)(Parameters...)>(DriverSymbol(symbol));
  return function ? function(arguments...) : CUDA_ERROR_NOT_FOUND;
}
/// HOSTCUDA_DRIVER(cuMemGetInfo, &free, &total): calls through the table of CUDA 13's names.
#define HOSTCUDA_DRIVER(function, ...) ::hostcuda::CallDriver(function, #function, ##__VA_ARGS__)

/// Makes the primary context of device 0 current if the thread has none, as the runtime inside
/// NVIDIA's libraries does.
CUresult EnsureContext() noexcept;

struct Grid {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {256, 1, 1};
  uint32_t shared_bytes = 0;
};

/// Returns the grid of an elementwise kernel over `elements`, four of them a thread.
Grid GridFor(uint64_t elements) noexcept;

/// Launches the kernel `name` on `stream` through the driver's public path. Enqueues only; the
/// memory it would write stays as it is.
CUresult LaunchNamed(CUstream stream, const std::string& name, const Grid& grid) noexcept;

/// Sets `bytes` bytes of device memory to 0 in the order of `stream`, without an operation that a
/// profiler would show.
CUresult ClearOnStream(CUstream stream, void* memory, size_t bytes) noexcept;

}  // namespace hostcuda

#endif  // HOSTCUDA_LIBRARIES_DRIVER_LINK_H_
