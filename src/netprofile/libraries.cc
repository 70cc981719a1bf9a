#include "src/netprofile/libraries.h"

#include <dlfcn.h>

#include "fmt/format.h"

namespace prism::netprofile {
namespace {

absl::StatusOr<void*> OpenLibrary(const std::string& path, const char* hint) {
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
  const char* error = dlerror();
  return WithHint(
      absl::NotFoundError(fmt::format("cannot open {}: {}", path, error == nullptr ? "?" : error)),
      hint);
}

}  // namespace

absl::StatusOr<Libraries> Libraries::Open(const std::string& driver_path,
                                          const std::string& nccl_path) {
  Libraries all{};
  PRISM_ASSIGN_OR_RETURN(void* const driver,
                         OpenLibrary(driver_path, "is NVIDIA's driver installed?"));
  PRISM_ASSIGN_OR_RETURN(void* const nccl, OpenLibrary(nccl_path, "--nccl PATH names another"));
  absl::Status missing;
  const auto find = [&](void* library, const char* name, auto* to) {
    *to = reinterpret_cast<std::remove_reference_t<decltype(*to)>>(dlsym(library, name));
    if (*to == nullptr && missing.ok()) {
      missing =
          WithHint(absl::NotFoundError(fmt::format(
                       "{} has no {}", library == driver ? driver_path : nccl_path, name)),
                   library == driver ? "a driver of CUDA 11.7 or newer is needed"
                                     : "NCCL 2.18 or newer is needed: --nccl PATH names another");
    }
  };
  find(driver, "cuInit", &all.Init);
  find(driver, "cuDriverGetVersion", &all.DriverGetVersion);
  find(driver, "cuDeviceGetCount", &all.DeviceGetCount);
  find(driver, "cuDeviceGet", &all.DeviceGet);
  find(driver, "cuDeviceGetName", &all.DeviceGetName);
  find(driver, "cuDeviceGetPCIBusId", &all.DeviceGetPCIBusId);
  find(driver, "cuDevicePrimaryCtxRetain", &all.PrimaryCtxRetain);
  find(driver, "cuCtxSetCurrent", &all.CtxSetCurrent);
  find(driver, "cuMemGetInfo_v2", &all.MemGetInfo);
  find(driver, "cuMemAlloc_v2", &all.MemAlloc);
  find(driver, "cuMemHostAlloc", &all.MemHostAlloc);
  find(driver, "cuMemHostGetDevicePointer_v2", &all.MemHostGetDevicePointer);
  find(driver, "cuStreamCreate", &all.StreamCreate);
  find(driver, "cuStreamSynchronize", &all.StreamSynchronize);
  find(driver, "cuMemsetD8Async", &all.MemsetD8Async);
  find(driver, "cuStreamWaitValue32_v2", &all.StreamWaitValue32);
  find(driver, "cuEventCreate", &all.EventCreate);
  find(driver, "cuEventRecord", &all.EventRecord);
  find(driver, "cuEventElapsedTime", &all.EventElapsedTime);
  find(driver, "cuGetErrorName", &all.GetErrorName);
  find(nccl, "ncclGetVersion", &all.GetVersion);
  find(nccl, "ncclGetUniqueId", &all.GetUniqueId);
  find(nccl, "ncclCommInitRank", &all.CommInitRank);
  find(nccl, "ncclCommSplit", &all.CommSplit);
  find(nccl, "ncclCommDestroy", &all.CommDestroy);
  find(nccl, "ncclGetErrorString", &all.GetErrorString);
  find(nccl, "ncclGetLastError", &all.GetLastError);
  find(nccl, "ncclGroupStart", &all.GroupStart);
  find(nccl, "ncclGroupEnd", &all.GroupEnd);
  find(nccl, "ncclAllReduce", &all.AllReduce);
  find(nccl, "ncclReduce", &all.Reduce);
  find(nccl, "ncclBroadcast", &all.Broadcast);
  find(nccl, "ncclAllGather", &all.AllGather);
  find(nccl, "ncclReduceScatter", &all.ReduceScatter);
  find(nccl, "ncclSend", &all.Send);
  find(nccl, "ncclRecv", &all.Recv);
  int (*is_virtual)() = nullptr;
  is_virtual = reinterpret_cast<decltype(is_virtual)>(dlsym(driver, "hostcudaClockIsVirtual"));
  if (is_virtual != nullptr && is_virtual() != 0)
    all.Now = reinterpret_cast<decltype(all.Now)>(dlsym(driver, "hostcudaNow"));
  if (!missing.ok()) return missing;
  return all;
}

absl::Status Libraries::Check(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  const std::string text = fmt::format("{}: {} ({})", what, name, static_cast<int>(result));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    return WithHint(absl::ResourceExhaustedError(text),
                    "another program has the GPU's memory; --sizes 1KiB:64MiB:2 needs less");
  }
  return absl::UnavailableError(text);
}

absl::Status Libraries::Check(ncclResult_t result, const char* what) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* last = GetLastError(nullptr);
  return WithHint(absl::UnavailableError(fmt::format("{}: {}{}{}", what, GetErrorString(result),
                                                     last == nullptr || *last == '\0' ? "" : ": ",
                                                     last == nullptr ? "" : last)),
                  "NCCL_DEBUG=INFO shows what NCCL does");
}

}  // namespace prism::netprofile
