// Devices, errors, versions, entry points of the driver.
#include <cstring>

#include "hostcuda/driver/error_table.h"
#include "hostcuda/runtime/entry.h"

using hostcuda::Note;

// ---- errors

HC_ENTRY cudaError_t cudaGetLastError(void) { return hostcuda::TakeLastError(); }
HC_ENTRY cudaError_t cudaPeekAtLastError(void) { return hostcuda::PeekLastError(); }

HC_ENTRY const char* cudaGetErrorName(cudaError_t error) {
  const char* name = nullptr;
  switch (static_cast<int>(error)) {
#define HC_CASE(code, driver_name, runtime_name, text) \
  case code:                                           \
    name = runtime_name;                               \
    break;
    HOSTCUDA_ERRORS(HC_CASE)
#undef HC_CASE
  }
  return name != nullptr ? name : "unrecognized error code";
}

HC_ENTRY const char* cudaGetErrorString(cudaError_t error) {
  switch (static_cast<int>(error)) {
#define HC_CASE(code, driver_name, runtime_name, text) \
  case code:                                           \
    return text;
    HOSTCUDA_ERRORS(HC_CASE)
#undef HC_CASE
  }
  return "unrecognized error code";
}

// ---- versions, profiler, entry points

HC_ENTRY cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  if (runtimeVersion == nullptr) return Note(cudaErrorInvalidValue);
  *runtimeVersion = CUDART_VERSION;
  return cudaSuccess;
}
HC_ENTRY cudaError_t cudaDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return Note(cudaErrorInvalidValue);
  *driverVersion = 0;
  const hostcuda::DriverCalls* driver = hostcuda::Calls();
  return driver == nullptr ? cudaSuccess : Note(driver->cuDriverGetVersion(driverVersion));
}
HC_ENTRY cudaError_t cudaProfilerStart(void) {
  HC_DRIVER();
  return Note(driver.cuProfilerStart());
}
HC_ENTRY cudaError_t cudaProfilerStop(void) {
  HC_DRIVER();
  return Note(driver.cuProfilerStop());
}

HC_ENTRY cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** funcPtr, unsigned int cudaVersion, unsigned long long flags,
    cudaDriverEntryPointQueryResult* driverStatus) {
  HC_DRIVER();
  if (symbol == nullptr || funcPtr == nullptr) return Note(cudaErrorInvalidValue);
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (flags == cudaEnableDefault && hostcuda::PerThreadDefault())
    flags = cudaEnablePerThreadDefaultStream;
  const CUresult result =
      driver.get_proc_address(symbol, funcPtr, static_cast<int>(cudaVersion), flags, &status);
  if (driverStatus != nullptr) {
    *driverStatus = static_cast<cudaDriverEntryPointQueryResult>(status);
    // Not found is then an answer, not an error.
    return result == CUDA_ERROR_NOT_FOUND ? cudaSuccess : Note(result);
  }
  return Note(result);
}
HC_ENTRY cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** funcPtr,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* driverStatus) {
  return cudaGetDriverEntryPointByVersion(symbol, funcPtr, CUDART_VERSION, flags, driverStatus);
}
HC_ENTRY cudaError_t cudaGetExportTable(const void** ppExportTable,
                                        const cudaUUID_t* pExportTableId) {
  HC_DRIVER();
  return Note(driver.cuGetExportTable(ppExportTable, pExportTableId));
}

// ---- devices

HC_ENTRY cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return Note(cudaErrorInvalidValue);
  *count = 0;
  HC_DRIVER();
  return Note(driver.cuDeviceGetCount(count));
}
HC_ENTRY cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return Note(cudaErrorInvalidValue);
  HC_DRIVER();
  (void)driver;
  return Note(hostcuda::CurrentDevice(device));
}
HC_ENTRY cudaError_t cudaSetDevice(int device) { return Note(hostcuda::SelectDevice(device)); }
HC_ENTRY cudaError_t cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags) {
  HC_DRIVER();
  if ((flags & cudaInitDeviceFlagsAreValid) != 0) {
    if (const CUresult result = driver.cuDevicePrimaryCtxSetFlags(device, deviceFlags);
        result != CUDA_SUCCESS)
      return Note(result);
  }
  int before = 0;
  hostcuda::CurrentDevice(&before);
  const cudaError_t error = hostcuda::SelectDevice(device);
  if (error == cudaSuccess && before != device) return Note(hostcuda::SelectDevice(before));
  return Note(error);
}
HC_ENTRY cudaError_t cudaDeviceReset(void) { return Note(hostcuda::ResetDevice()); }
HC_ENTRY cudaError_t cudaDeviceSynchronize(void) {
  HC_CONTEXT();
  return Note(driver.cuCtxSynchronize());
}
HC_ENTRY cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  HC_DRIVER();
  int device = 0;
  hostcuda::CurrentDevice(&device);
  return Note(
      driver.cuDevicePrimaryCtxSetFlags(device, flags & ~static_cast<unsigned>(cudaDeviceMapHost)));
}
HC_ENTRY cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  HC_DRIVER();
  if (flags == nullptr) return Note(cudaErrorInvalidValue);
  int device = 0, active = 0;
  hostcuda::CurrentDevice(&device);
  const CUresult result = driver.cuDevicePrimaryCtxGetState(device, flags, &active);
  *flags |= cudaDeviceMapHost;
  return Note(result);
}
HC_ENTRY cudaError_t cudaSetValidDevices(int* device_arr, int len) {
  HC_DRIVER();
  int count = 0;
  driver.cuDeviceGetCount(&count);
  for (int i = 0; i < len; ++i) {
    if (device_arr == nullptr || device_arr[i] < 0 || device_arr[i] >= count)
      return Note(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
HC_ENTRY cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  HC_DRIVER();
  return Note(driver.cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attr),
                                          device));  // same numbers
}
HC_ENTRY cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  HC_DRIVER();
  return Note(driver.cuDeviceGetPCIBusId(pciBusId, len, device));
}
HC_ENTRY cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* pciBusId) {
  HC_DRIVER();
  return Note(driver.cuDeviceGetByPCIBusId(device, pciBusId));
}
HC_ENTRY cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  HC_CONTEXT();
  return Note(driver.cuCtxGetStreamPriorityRange(leastPriority, greatestPriority));
}
HC_ENTRY cudaError_t cudaDeviceCanAccessPeer(int* canAccessPeer, int device, int peerDevice) {
  HC_DRIVER();
  return Note(driver.cuDeviceCanAccessPeer(canAccessPeer, device, peerDevice));
}
HC_ENTRY cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attr, int srcDevice,
                                               int dstDevice) {
  HC_DRIVER();
  return Note(driver.cuDeviceGetP2PAttribute(value, static_cast<CUdevice_P2PAttribute>(attr),
                                             srcDevice, dstDevice));
}

namespace {

/// The primary context of a peer device, retained for good: peer access needs it to exist.
cudaError_t PeerContext(int device, CUcontext* context) {
  return static_cast<cudaError_t>(hostcuda::Calls()->cuDevicePrimaryCtxRetain(context, device));
}

}  // namespace

HC_ENTRY cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags) {
  HC_CONTEXT();
  int own = 0;
  hostcuda::CurrentDevice(&own);
  if (own == peerDevice) return Note(cudaErrorInvalidDevice);
  CUcontext peer = nullptr;
  if (const cudaError_t error = PeerContext(peerDevice, &peer); error != cudaSuccess)
    return Note(error);
  const CUresult result = driver.cuCtxEnablePeerAccess(peer, flags);
  if (result != CUDA_SUCCESS) driver.cuDevicePrimaryCtxRelease(peerDevice);
  return Note(result);
}
HC_ENTRY cudaError_t cudaDeviceDisablePeerAccess(int peerDevice) {
  HC_CONTEXT();
  CUcontext peer = nullptr;
  if (const cudaError_t error = PeerContext(peerDevice, &peer); error != cudaSuccess)
    return Note(error);
  const CUresult result = driver.cuCtxDisablePeerAccess(peer);
  driver.cuDevicePrimaryCtxRelease(peerDevice);
  if (result == CUDA_SUCCESS)
    driver.cuDevicePrimaryCtxRelease(peerDevice);  // the one of cudaDeviceEnablePeerAccess
  return Note(result);
}
HC_ENTRY cudaError_t cudaDeviceGetLimit(size_t* pValue, cudaLimit limit) {
  HC_CONTEXT();
  return Note(driver.cuCtxGetLimit(pValue, static_cast<CUlimit>(limit)));
}
HC_ENTRY cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  HC_CONTEXT();
  return Note(driver.cuCtxSetLimit(static_cast<CUlimit>(limit), value));
}
HC_ENTRY cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* pCacheConfig) {
  HC_CONTEXT();
  return Note(driver.cuCtxGetCacheConfig(reinterpret_cast<CUfunc_cache*>(pCacheConfig)));
}
HC_ENTRY cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache cacheConfig) {
  HC_CONTEXT();
  return Note(driver.cuCtxSetCacheConfig(static_cast<CUfunc_cache>(cacheConfig)));
}
HC_ENTRY cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* pConfig) {
  HC_CONTEXT();
  (void)driver;
  if (pConfig == nullptr) return Note(cudaErrorInvalidValue);
  *pConfig = cudaSharedMemBankSizeFourByte;
  return cudaSuccess;
}
HC_ENTRY cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig config) {
  HC_CONTEXT();
  (void)driver;
  return config > cudaSharedMemBankSizeEightByte ? Note(cudaErrorInvalidValue) : cudaSuccess;
}
HC_ENTRY cudaError_t cudaCtxResetPersistingL2Cache(void) {
  HC_CONTEXT();
  return Note(driver.cuCtxResetPersistingL2Cache());
}

HC_ENTRY cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  HC_DRIVER();
  if (prop == nullptr) return Note(cudaErrorInvalidValue);
  memset(prop, 0, sizeof *prop);
  if (const CUresult result = driver.cuDeviceGetName(prop->name, sizeof prop->name, device);
      result != CUDA_SUCCESS)
    return Note(result);
  driver.cuDeviceGetUuid(&prop->uuid, device);
  driver.cuDeviceTotalMem(&prop->totalGlobalMem, device);
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    driver.cuDeviceGetAttribute(&value, which, device);
    return value;
  };
#define HC_PROPERTY(field, name) \
  prop->field = static_cast<decltype(prop->field)>(attribute(CU_DEVICE_ATTRIBUTE_##name))
  HC_PROPERTY(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
  HC_PROPERTY(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
  HC_PROPERTY(warpSize, WARP_SIZE);
  HC_PROPERTY(memPitch, MAX_PITCH);
  HC_PROPERTY(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
  prop->maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  prop->maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  prop->maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  prop->maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  prop->maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  prop->maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  HC_PROPERTY(totalConstMem, TOTAL_CONSTANT_MEMORY);
  HC_PROPERTY(major, COMPUTE_CAPABILITY_MAJOR);
  HC_PROPERTY(minor, COMPUTE_CAPABILITY_MINOR);
  HC_PROPERTY(textureAlignment, TEXTURE_ALIGNMENT);
  HC_PROPERTY(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT);
  HC_PROPERTY(multiProcessorCount, MULTIPROCESSOR_COUNT);
  HC_PROPERTY(integrated, INTEGRATED);
  HC_PROPERTY(canMapHostMemory, CAN_MAP_HOST_MEMORY);
  HC_PROPERTY(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH);
  prop->maxTexture2D[0] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH);
  prop->maxTexture2D[1] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT);
  prop->maxTexture2DLinear[0] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH);
  prop->maxTexture2DLinear[1] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT);
  prop->maxTexture2DLinear[2] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH);
  prop->maxTexture3D[0] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH);
  prop->maxTexture3D[1] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT);
  prop->maxTexture3D[2] = attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH);
  HC_PROPERTY(surfaceAlignment, SURFACE_ALIGNMENT);
  HC_PROPERTY(concurrentKernels, CONCURRENT_KERNELS);
  HC_PROPERTY(ECCEnabled, ECC_ENABLED);
  HC_PROPERTY(pciBusID, PCI_BUS_ID);
  HC_PROPERTY(pciDeviceID, PCI_DEVICE_ID);
  HC_PROPERTY(pciDomainID, PCI_DOMAIN_ID);
  HC_PROPERTY(tccDriver, TCC_DRIVER);
  HC_PROPERTY(asyncEngineCount, ASYNC_ENGINE_COUNT);
  HC_PROPERTY(unifiedAddressing, UNIFIED_ADDRESSING);
  HC_PROPERTY(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
  HC_PROPERTY(l2CacheSize, L2_CACHE_SIZE);
  HC_PROPERTY(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE);
  HC_PROPERTY(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
  HC_PROPERTY(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
  HC_PROPERTY(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED);
  HC_PROPERTY(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED);
  HC_PROPERTY(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  HC_PROPERTY(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
  HC_PROPERTY(managedMemory, MANAGED_MEMORY);
  HC_PROPERTY(isMultiGpuBoard, MULTI_GPU_BOARD);
  HC_PROPERTY(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID);
  HC_PROPERTY(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED);
  HC_PROPERTY(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS);
  HC_PROPERTY(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS);
  HC_PROPERTY(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED);
  HC_PROPERTY(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  HC_PROPERTY(cooperativeLaunch, COOPERATIVE_LAUNCH);
  HC_PROPERTY(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  HC_PROPERTY(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
  HC_PROPERTY(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
  HC_PROPERTY(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
  HC_PROPERTY(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE);
  HC_PROPERTY(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK);
  HC_PROPERTY(hostRegisterSupported, HOST_REGISTER_SUPPORTED);
  HC_PROPERTY(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED);
  HC_PROPERTY(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
  HC_PROPERTY(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES);
  HC_PROPERTY(ipcEventSupported, IPC_EVENT_SUPPORTED);
  HC_PROPERTY(clusterLaunch, CLUSTER_LAUNCH);
  HC_PROPERTY(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS);
  HC_PROPERTY(deviceNumaId, NUMA_ID);
  HC_PROPERTY(hostNumaId, HOST_NUMA_ID);
#undef HC_PROPERTY
  return cudaSuccess;
}

HC_ENTRY cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* prop) {
  HC_DRIVER();
  (void)driver;
  if (device == nullptr || prop == nullptr) return Note(cudaErrorInvalidValue);
  *device = 0;  // all devices are alike
  return cudaSuccess;
}

HC_ENTRY cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                     cudaChannelFormatKind f) {
  return {x, y, z, w, f};
}
