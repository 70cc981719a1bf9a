// What every exported function of the driver starts with.
#ifndef HOSTCUDA_DRIVER_ENTRY_H_
#define HOSTCUDA_DRIVER_ENTRY_H_

#include <cuda.h>
#include <cudaProfiler.h>

#ifndef __CUDA_API_VERSION_INTERNAL
#error \
    "the driver is compiled with -D__CUDA_API_VERSION_INTERNAL: all versions of every call under their own symbols"
#endif

#include "hostcuda/driver/context.h"
#include "hostcuda/driver/driver.h"

/// An exported function. gen_entries.py reads these definitions to know what is implemented.
#define HC_ENTRY extern "C" __attribute__((visibility("default")))

/// Defines `driver`, or returns CUDA_ERROR_NOT_INITIALIZED.
#define HC_DRIVER()                                             \
  ::hostcuda::Driver* const driver = ::hostcuda::Driver::Get(); \
  if (driver == nullptr) return CUDA_ERROR_NOT_INITIALIZED

/// Defines `driver` and `context` (the current one), or returns the error, a sticky one included.
#define HC_CONTEXT()                                                            \
  HC_DRIVER();                                                                  \
  ::hostcuda::Context* const context = ::hostcuda::CurrentContext();            \
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;                    \
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;                  \
  if (const int sticky_error = context->sticky.load(std::memory_order_relaxed)) \
  return static_cast<CUresult>(sticky_error)

/// Defines `driver` and `name`, the stream that `handle` means, or returns the error.
#define HC_STREAM(name, handle)                                                 \
  HC_DRIVER();                                                                  \
  ::hostcuda::StreamRef name;                                                   \
  if (const CUresult resolved_error = ::hostcuda::ResolveStream(handle, &name); \
      resolved_error != CUDA_SUCCESS)                                           \
  return resolved_error

namespace hostcuda {

/// Says once per call name, on stderr, that it is not implemented. Returns
/// CUDA_ERROR_NOT_SUPPORTED.
CUresult NotImplemented(const char* function);
/// The same for a feature of an implemented call: "cuGraphExecUpdate: ... is not emulated".
CUresult NotEmulated(const char* function, const char* what);

bool ValidDevice(CUdevice device);

/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED where the calling thread's capture mode forbids unsafe
/// calls (allocation, ...).
CUresult CaptureUnsafe();

void ForgetPoolAllocation(uintptr_t address);
CUmemoryPool PoolOf(uintptr_t address);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_ENTRY_H_
