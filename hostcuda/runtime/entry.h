// What every exported function of the runtime starts with.
#ifndef HOSTCUDA_RUNTIME_ENTRY_H_
#define HOSTCUDA_RUNTIME_ENTRY_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "hostcuda/runtime/driver_calls.h"
#include "hostcuda/runtime/registry.h"
#include "hostcuda/runtime/thread_state.h"

/// An exported function. gen_entries.py reads these definitions to know what is implemented.
#define HC_ENTRY extern "C" __attribute__((visibility("default")))

/// Defines `driver` (initialized), or notes and returns the error.
#define HC_DRIVER()                                                                    \
  if (const cudaError_t use_error = ::hostcuda::UseDriver(); use_error != cudaSuccess) \
    return ::hostcuda::Note(use_error);                                                \
  const ::hostcuda::DriverCalls& driver = *::hostcuda::Calls()

/// The same, with a context current in this thread.
#define HC_CONTEXT()                                                                    \
  if (const cudaError_t use_error = ::hostcuda::UseContext(); use_error != cudaSuccess) \
    return ::hostcuda::Note(use_error);                                                 \
  const ::hostcuda::DriverCalls& driver = *::hostcuda::Calls()

#endif  // HOSTCUDA_RUNTIME_ENTRY_H_
