// What the export layer uses of the CUDA driver, reached as NVIDIA's libraries reach theirs:
// dlopen("libcuda.so.1"), cuGetProcAddress, cuGetExportTable. A forwarding shim in front of the
// driver therefore sees every call.
//
// Thread-safe; loaded on first use and never unloaded.
//
//   const DriverFunctions* driver = nullptr;
//   if (Status s = LoadDriver(&driver); !s.ok()) return s;
//   driver->table->stream_enqueue(...);
#ifndef HOSTCUDA_NCCL_DRIVER_H_
#define HOSTCUDA_NCCL_DRIVER_H_

#include <cuda.h>
#include <hostcuda/internal_table.h>

#include "hostcuda/nccl/status.h"

namespace hostnccl {

struct DriverFunctions {
  const HostcudaTable* table = nullptr;
  bool takes_time = false;
  CUresult (*init)(unsigned flags) = nullptr;
  CUresult (*ctx_get_current)(CUcontext* context) = nullptr;
  CUresult (*ctx_set_current)(CUcontext context) = nullptr;
  CUresult (*ctx_push_current)(CUcontext context) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext* context) = nullptr;
  CUresult (*ctx_get_device)(CUdevice* device) = nullptr;
  CUresult (*device_get)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*device_get_count)(int* count) = nullptr;
  CUresult (*device_get_pci_bus_id)(char* text, int length, CUdevice device) = nullptr;
  CUresult (*device_primary_ctx_retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*device_primary_ctx_release)(CUdevice device) = nullptr;
  CUresult (*mem_alloc)(CUdeviceptr* address, size_t bytes) = nullptr;
  CUresult (*mem_free)(CUdeviceptr address) = nullptr;
  CUresult (*stream_is_capturing)(CUstream stream, CUstreamCaptureStatus* status) = nullptr;
};

/// Gives the process's driver; fails when there is none, or when it is not hostcuda's.
Status LoadDriver(const DriverFunctions** out);

/// Makes LoadDriver give `driver`, for tests that play the driver. Call before any other use.
void SetDriverForTesting(const DriverFunctions* driver);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_DRIVER_H_
