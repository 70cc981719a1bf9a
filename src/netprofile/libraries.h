// Libraries: the CUDA driver and NCCL, opened at run time. Nothing of NVIDIA's is linked, so the
// program starts on any machine, and hostcuda's stand-ins serve as well.
//
// The driver is opened first: NCCL looks for a loaded "libcuda.so.1" and finds that one. Never
// closed. Thread-compatible.
//
//   PRISM_ASSIGN_OR_RETURN(const Libraries cuda, Libraries::Open(driver_path, nccl_path));
//   PRISM_RETURN_IF_ERROR(cuda.Check(cuda.Init(0), "cuInit"));
#ifndef PRISM_NETPROFILE_LIBRARIES_H_
#define PRISM_NETPROFILE_LIBRARIES_H_

#include <cuda.h>
#include <nccl.h>

#include <string>

#include "src/base/status.h"

namespace prism::netprofile {

struct Libraries {
  CUresult (*Init)(unsigned flags);
  CUresult (*DriverGetVersion)(int* version);
  CUresult (*DeviceGetCount)(int* count);
  CUresult (*DeviceGet)(CUdevice* device, int ordinal);
  CUresult (*DeviceGetName)(char* name, int length, CUdevice device);
  CUresult (*DeviceGetPCIBusId)(char* id, int length, CUdevice device);
  CUresult (*PrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*CtxSetCurrent)(CUcontext context);
  CUresult (*MemGetInfo)(size_t* free_bytes, size_t* total_bytes);
  CUresult (*MemAlloc)(CUdeviceptr* address, size_t bytes);
  CUresult (*MemHostAlloc)(void** address, size_t bytes, unsigned flags);
  CUresult (*MemHostGetDevicePointer)(CUdeviceptr* device, void* host, unsigned flags);
  CUresult (*StreamCreate)(CUstream* stream, unsigned flags);
  CUresult (*StreamSynchronize)(CUstream stream);
  CUresult (*MemsetD8Async)(CUdeviceptr address, unsigned char value, size_t bytes,
                            CUstream stream);
  CUresult (*StreamWaitValue32)(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned flags);
  CUresult (*EventCreate)(CUevent* event, unsigned flags);
  CUresult (*EventRecord)(CUevent event, CUstream stream);
  CUresult (*EventElapsedTime)(float* milliseconds, CUevent from, CUevent to);
  CUresult (*GetErrorName)(CUresult result, const char** name);
  unsigned long long (*Now)();  // of a driver with a clock of its own; else null

  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRank) CommInitRank;
  decltype(&ncclCommSplit) CommSplit;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclGroupStart) GroupStart;
  decltype(&ncclGroupEnd) GroupEnd;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclReduce) Reduce;
  decltype(&ncclBroadcast) Broadcast;
  decltype(&ncclAllGather) AllGather;
  decltype(&ncclReduceScatter) ReduceScatter;
  decltype(&ncclSend) Send;
  decltype(&ncclRecv) Recv;

  /// NotFound names the library or symbol that is not there.
  static absl::StatusOr<Libraries> Open(const std::string& driver, const std::string& nccl);

  /// `what` is the call, for the message.
  absl::Status Check(CUresult result, const char* what) const;
  absl::Status Check(ncclResult_t result, const char* what) const;
};

}  // namespace prism::netprofile

#endif  // PRISM_NETPROFILE_LIBRARIES_H_
