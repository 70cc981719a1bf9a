// What every exported function of the driver starts with.
#ifndef HOSTCUDA_DRIVER_ENTRY_H_
#define HOSTCUDA_DRIVER_ENTRY_H_

#include <cuda.h>
#include <cudaProfiler.h>

#include <type_traits>

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

/// Defines `driver` and `name`, the event that `handle` means, or returns the error.
#define HC_EVENT(name, handle)                                                    \
  HC_DRIVER();                                                                    \
  ::hostcuda::Event* const name = ::hostcuda::Checked<::hostcuda::Event>(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

namespace hostcuda {

/// The object that `handle` points to; null where it is not a live `Object`.
template <class Object, class Handle>
Object* Checked(Handle handle) {
  auto* object = reinterpret_cast<Object*>(handle);
  return object != nullptr && object->magic == Object::kMagic ? object : nullptr;
}

/// Answers a query: *out = value, or CUDA_ERROR_INVALID_VALUE where the caller gave no place.
template <class Value>
CUresult Answer(Value* out, std::type_identity_t<Value> value) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = value;
  return CUDA_SUCCESS;
}

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
