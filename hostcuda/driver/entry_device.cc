// Initialization, errors, devices and contexts.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>

#include "hostcuda/driver/entry.h"
#include "hostcuda/driver/error_table.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/options.h"

namespace hostcuda {

CUresult NotImplemented(const char* function) {
  struct Said {
    std::mutex mutex;
    std::unordered_set<std::string> functions;
  };
  static Said* const said = new Said;
  std::lock_guard<std::mutex> lock(said->mutex);
  if (said->functions.insert(function).second) {
    fprintf(stderr,
            "hostcuda: libcuda.so.1: %s is not implemented; it returns CUDA_ERROR_NOT_SUPPORTED\n",
            function);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult NotEmulated(const char* function, const char* what) {
  fprintf(stderr,
          "hostcuda: libcuda.so.1: %s: %s is not emulated; it returns CUDA_ERROR_NOT_SUPPORTED\n",
          function, what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

bool ValidDevice(CUdevice device) { return device >= 0 && device < VisibleDevices(); }

}  // namespace hostcuda

using hostcuda::Checked;
using hostcuda::Context;
using hostcuda::Gpu;
using hostcuda::ValidDevice;

// ---- initialization and errors

HC_ENTRY CUresult cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return hostcuda::Driver::Initialize();
}

HC_ENTRY CUresult cuDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = CUDA_VERSION;
  return CUDA_SUCCESS;
}

// A caller may ask for what is no error.
static int CodeOf(const CUresult& error) {
  int code = 0;
  static_assert(sizeof code == sizeof error);
  std::memcpy(&code, &error, sizeof code);
  return code;
}

HC_ENTRY CUresult cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (CodeOf(error)) {
#define HC_CASE(code, driver_name, runtime_name, text) \
  case code:                                           \
    if (driver_name == nullptr) break;                 \
    *pStr = text;                                      \
    return CUDA_SUCCESS;
    HOSTCUDA_ERRORS(HC_CASE)
#undef HC_CASE
  }
  *pStr = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

HC_ENTRY CUresult cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pStr = nullptr;
  switch (CodeOf(error)) {
#define HC_CASE(code, driver_name, runtime_name, text) \
  case code:                                           \
    *pStr = driver_name;                               \
    break;
    HOSTCUDA_ERRORS(HC_CASE)
#undef HC_CASE
  }
  return *pStr != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

HC_ENTRY CUresult cuProfilerStart(void) { return CUDA_SUCCESS; }
HC_ENTRY CUresult cuProfilerStop(void) { return CUDA_SUCCESS; }

// ---- devices

HC_ENTRY CUresult cuDeviceGetCount(int* count) {
  HC_DRIVER();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = hostcuda::VisibleDevices();
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  HC_DRIVER();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  HC_DRIVER();
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(len), "%s", Gpu().name);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  HC_DRIVER();
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = hostcuda::DeviceUuid(hostcuda::PhysicalDevice(dev));
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return cuDeviceGetUuid_v2(uuid, dev);
}

HC_ENTRY CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  HC_DRIVER();
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Gpu().memory_bytes;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  HC_DRIVER();
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return hostcuda::DeviceAttribute(Gpu(), hostcuda::PhysicalDevice(dev), attrib, pi)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

HC_ENTRY CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  HC_DRIVER();
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *major = Gpu().major;
  *minor = Gpu().minor;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
  HC_DRIVER();
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *prop = {1024,
           {1024, 1024, 64},
           {2147483647, 65535, 65535},
           49152,
           65536,
           32,
           2147483647,
           65536,
           Gpu().clock_khz,
           512};
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  HC_DRIVER();
  if (pciBusId == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  hostcuda::DevicePciBusId(hostcuda::PhysicalDevice(dev), pciBusId, len);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
  HC_DRIVER();
  if (dev == nullptr || pciBusId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (sscanf(pciBusId, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 &&
      sscanf(pciBusId, "%x:%x.%x", &bus, &slot, &function) < 2) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (int device = 0; device < hostcuda::VisibleDevices(); ++device) {
    int own = 0;
    hostcuda::DeviceAttribute(Gpu(), hostcuda::PhysicalDevice(device),
                              CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &own);
    if (own == static_cast<int>(bus) && domain == 0 && slot == 0) {
      *dev = device;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

HC_ENTRY CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  HC_DRIVER();
  if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev) || !ValidDevice(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
  *canAccessPeer = dev != peerDev;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib,
                                          CUdevice srcDevice, CUdevice dstDevice) {
  HC_DRIVER();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(srcDevice) || !ValidDevice(dstDevice) || srcDevice == dstDevice)
    return CUDA_ERROR_INVALID_DEVICE;
  switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return CUDA_SUCCESS;
  }
}

HC_ENTRY CUresult cuDeviceGetLuid(char* luid, unsigned int* deviceNodeMask, CUdevice dev) {
  HC_DRIVER();
  (void)luid, (void)deviceNodeMask;
  return ValidDevice(dev) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_DEVICE;  // Windows only
}

HC_ENTRY CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements,
                                                     CUarray_format format, unsigned numChannels,
                                                     CUdevice dev) {
  HC_DRIVER();
  (void)format, (void)numChannels;
  if (maxWidthInElements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *maxWidthInElements = 268435456;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  HC_DRIVER();
  (void)type;
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *pi = 0;
  return CUDA_SUCCESS;
}

// ---- primary contexts

HC_ENTRY CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  HC_DRIVER();
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Context* context = nullptr;
  const CUresult result = hostcuda::RetainPrimary(dev, &context);
  *pctx = reinterpret_cast<CUcontext>(context);
  return result;
}

HC_ENTRY CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  HC_DRIVER();
  return ValidDevice(dev) ? hostcuda::ReleasePrimary(dev) : CUDA_ERROR_INVALID_DEVICE;
}
HC_ENTRY CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return cuDevicePrimaryCtxRelease_v2(dev);
}

HC_ENTRY CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  HC_DRIVER();
  return ValidDevice(dev) ? hostcuda::ResetPrimary(dev) : CUDA_ERROR_INVALID_DEVICE;
}
HC_ENTRY CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

HC_ENTRY CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  HC_DRIVER();
  return ValidDevice(dev) ? hostcuda::SetPrimaryFlags(dev, flags) : CUDA_ERROR_INVALID_DEVICE;
}
HC_ENTRY CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

HC_ENTRY CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  HC_DRIVER();
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  unsigned own = 0;
  const bool is_active = hostcuda::PrimaryState(dev, &own);
  if (flags != nullptr) *flags = own;
  if (active != nullptr) *active = is_active;
  return CUDA_SUCCESS;
}

// ---- contexts

namespace {

CUresult Create(CUcontext* out, unsigned flags, CUdevice device) {
  HC_DRIVER();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  Context* context = nullptr;
  const CUresult result = hostcuda::CreateContext(device, flags, &context);
  if (result != CUDA_SUCCESS) return result;
  hostcuda::PushContext(context);
  *out = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

}  // namespace

HC_ENTRY CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return Create(pctx, flags, dev);
}
HC_ENTRY CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                                 unsigned int flags, CUdevice dev) {
  (void)paramsArray;
  if (numParams != 0) return hostcuda::NotEmulated("cuCtxCreate_v3", "execution affinity");
  return Create(pctx, flags, dev);
}
HC_ENTRY CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams,
                                 unsigned int flags, CUdevice dev) {
  if (ctxCreateParams != nullptr &&
      (ctxCreateParams->numExecAffinityParams != 0 || ctxCreateParams->cigParams != nullptr)) {
    return hostcuda::NotEmulated("cuCtxCreate_v4", "execution affinity or graphics sharing");
  }
  return Create(pctx, flags, dev);
}

HC_ENTRY CUresult cuCtxDestroy_v2(CUcontext ctx) {
  HC_DRIVER();
  Context* context = Checked<Context>(ctx);
  return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : hostcuda::DestroyContext(context);
}

HC_ENTRY CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  HC_DRIVER();
  Context* context = Checked<Context>(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  hostcuda::PushContext(context);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  HC_DRIVER();
  Context* context = nullptr;
  if (!hostcuda::PopContext(&context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx != nullptr) *pctx = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxSetCurrent(CUcontext ctx) {
  HC_DRIVER();
  Context* context = Checked<Context>(ctx);
  if (ctx != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr && !context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  hostcuda::SetCurrentContext(context);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetCurrent(CUcontext* pctx) {
  HC_DRIVER();
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pctx = reinterpret_cast<CUcontext>(hostcuda::CurrentContext());
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  HC_DRIVER();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = ctx == nullptr ? hostcuda::CurrentContext() : Checked<Context>(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

HC_ENTRY CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  HC_DRIVER();
  Context* context = ctx == nullptr ? hostcuda::CurrentContext() : Checked<Context>(ctx);
  if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *ctxId = context->number;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetFlags(unsigned int* flags) {
  HC_CONTEXT();
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxSetFlags(unsigned int flags) {
  HC_CONTEXT();
  context->flags = flags;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  HC_DRIVER();
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ctx != nullptr && Checked<Context>(ctx) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *version = 3020;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  HC_DRIVER();
  Context* context = ctx == nullptr ? hostcuda::CurrentContext() : Checked<Context>(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  driver->engine().Charge(hostcuda::HostCall::kSync);
  return driver->engine().SynchronizeContext(*context);
}
HC_ENTRY CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(nullptr); }

HC_ENTRY CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  HC_CONTEXT();
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  context->limits[limit].store(value, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  HC_CONTEXT();
  if (pvalue == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *pvalue = context->limits[limit].load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  HC_CONTEXT();
  if (leastPriority != nullptr) *leastPriority = 0;
  if (greatestPriority != nullptr) *greatestPriority = -5;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  HC_CONTEXT();
  if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pconfig = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  HC_CONTEXT();
  return config <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
HC_ENTRY CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  HC_CONTEXT();
  if (pConfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  HC_CONTEXT();
  return config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}
HC_ENTRY CUresult cuCtxResetPersistingL2Cache(void) {
  HC_CONTEXT();
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  HC_CONTEXT();
  Context* peer = Checked<Context>(peerContext);
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer == nullptr || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  // Every device's memory is the process's own: access needs no set-up, only the state is kept.
  std::lock_guard<std::mutex> lock(driver->engine().mutex());
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

HC_ENTRY CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  HC_CONTEXT();
  Context* peer = Checked<Context>(peerContext);
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard<std::mutex> lock(driver->engine().mutex());
  return context->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
