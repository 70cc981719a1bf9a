// DriverCalls: the real driver's functions that a communication under capture is made of, past
// prism's own wrappers.
#ifndef PRISM_INTERPOSE_NCCL_DRIVER_CALLS_H_
#define PRISM_INTERPOSE_NCCL_DRIVER_CALLS_H_

#include <cuda.h>

#include "src/interpose/core_table.h"

namespace prism::interpose::nccl {

struct DriverCalls {
  CUresult (*memcpy_async)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
  CUresult (*memset_async)(CUdeviceptr, unsigned char, size_t, CUstream);
  CUresult (*memset)(CUdeviceptr, unsigned char, size_t);
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*module_load_data)(CUmodule*, const void*);
  CUresult (*module_get_function)(CUfunction*, CUmodule, const char*);
  CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, CUstream, void**, void**);
  CUresult (*ctx_get_current)(CUcontext*);
  CUresult (*ctx_set_current)(CUcontext);
  CUresult (*primary_ctx_retain)(CUcontext*, CUdevice);
  CUresult (*memcpy_dtoh)(void*, CUdeviceptr, size_t);
  CUresult (*launch_host_func)(CUstream, CUhostFn, void*);
  CUresult (*stream_wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  CUresult (*stream_is_capturing)(CUstream, CUstreamCaptureStatus*);
  CUresult (*stream_wait_event)(CUstream, CUevent, unsigned);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*event_create)(CUevent*, unsigned);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*event_destroy)(CUevent);
  CUresult (*ctx_get_device)(CUdevice*);
  CUresult (*get_error_name)(CUresult, const char**);

  /// Null members never: false when the driver lacks one, with its name in *missing.
  bool Load(const CoreTable& core, const char** missing);
};

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_DRIVER_CALLS_H_
