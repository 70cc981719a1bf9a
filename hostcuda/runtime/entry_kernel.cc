// Registration, launches, kernels' attributes, occupancy, libraries.
#include <cstring>
#include <vector>

#include "hostcuda/runtime/entry.h"

using hostcuda::FatBinary;
using hostcuda::Handle;
using hostcuda::Note;

// ---- what nvcc's start-up code calls

HC_ENTRY void** __cudaRegisterFatBinary(void* fatCubin) {
  return reinterpret_cast<void**>(hostcuda::RegisterFatBinary(fatCubin));
}
HC_ENTRY void __cudaRegisterFatBinaryEnd(void** fatCubinHandle) { (void)fatCubinHandle; }
HC_ENTRY void __cudaUnregisterFatBinary(void** fatCubinHandle) {
  hostcuda::UnregisterFatBinary(reinterpret_cast<FatBinary*>(fatCubinHandle));
}
HC_ENTRY char __cudaInitModule(void** fatCubinHandle) {
  (void)fatCubinHandle;
  return 1;
}
HC_ENTRY void __cudaRegisterFunction(void** fatCubinHandle, const char* hostFun, char* deviceFun,
                                     const char* deviceName, int thread_limit, uint3* tid,
                                     uint3* bid, dim3* bDim, dim3* gDim, int* wSize) {
  (void)deviceFun, (void)thread_limit, (void)tid, (void)bid, (void)bDim, (void)gDim, (void)wSize;
  hostcuda::RegisterFunction(reinterpret_cast<FatBinary*>(fatCubinHandle), hostFun, deviceName);
}
HC_ENTRY void __cudaRegisterVar(void** fatCubinHandle, char* hostVar, char* deviceAddress,
                                const char* deviceName, int ext, size_t size, int constant,
                                int global) {
  (void)deviceAddress, (void)ext, (void)constant, (void)global;
  hostcuda::RegisterVariable(reinterpret_cast<FatBinary*>(fatCubinHandle), hostVar, deviceName,
                             size);
}
HC_ENTRY void __cudaRegisterManagedVar(void** fatCubinHandle, void** hostVarPtrAddress,
                                       char* deviceAddress, const char* deviceName, int ext,
                                       size_t size, int constant, int global) {
  (void)deviceAddress, (void)ext, (void)constant, (void)global;
  hostcuda::RegisterManagedVariable(reinterpret_cast<FatBinary*>(fatCubinHandle), hostVarPtrAddress,
                                    deviceName, size);
}

// ---- launches

namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
// f<<<...>>>(g<<<...>>>()) nests: a stack a thread.
thread_local std::vector<Configuration> configurations;

/// What is a plain "invalid value" to the driver is an invalid configuration to the runtime.
bool ValidShape(const dim3& grid, const dim3& block) {
  return grid.x != 0 && grid.y != 0 && grid.z != 0 && grid.x <= 2147483647u && grid.y <= 65535 &&
         grid.z <= 65535 && block.x != 0 && block.y != 0 && block.z != 0 && block.x <= 1024 &&
         block.y <= 1024 && block.z <= 64 &&
         static_cast<unsigned long long>(block.x) * block.y * block.z <= 1024;
}

cudaError_t Launch(CUkernel kernel, const dim3& grid, const dim3& block, void** args, size_t shared,
                   cudaStream_t stream, CUlaunchAttribute* attributes, unsigned count) {
  HC_CONTEXT();
  if (!ValidShape(grid, block)) return Note(cudaErrorInvalidConfiguration);
  CUlaunchConfig config = {};
  config.gridDimX = grid.x;
  config.gridDimY = grid.y;
  config.gridDimZ = grid.z;
  config.blockDimX = block.x;
  config.blockDimY = block.y;
  config.blockDimZ = block.z;
  config.sharedMemBytes = static_cast<unsigned>(shared);
  config.hStream = Handle(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  return Note(
      driver.cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), args, nullptr));
}

cudaError_t LaunchHost(const void* func, const dim3& grid, const dim3& block, void** args,
                       size_t shared, cudaStream_t stream, CUlaunchAttribute* attributes,
                       unsigned count) {
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  return Launch(kernel, grid, block, args, shared, stream, attributes, count);
}

}  // namespace

HC_ENTRY unsigned __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
                                              CUstream_st* stream) {
  configurations.push_back({gridDim, blockDim, sharedMem, stream});
  return 0;
}
HC_ENTRY cudaError_t __cudaPopCallConfiguration(dim3* gridDim, dim3* blockDim, size_t* sharedMem,
                                                void* stream) {
  if (configurations.empty()) return Note(cudaErrorMissingConfiguration);
  const Configuration top = configurations.back();
  configurations.pop_back();
  *gridDim = top.grid;
  *blockDim = top.block;
  *sharedMem = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

HC_ENTRY cudaError_t cudaGetKernel(cudaKernel_t* kernelPtr, const void* entryFuncAddr) {
  if (kernelPtr == nullptr) return Note(cudaErrorInvalidValue);
  return Note(hostcuda::FindKernel(entryFuncAddr, reinterpret_cast<CUkernel*>(kernelPtr)));
}
HC_ENTRY cudaError_t __cudaGetKernel(cudaKernel_t* kernelPtr, const void* entryFuncAddr) {
  return cudaGetKernel(kernelPtr, entryFuncAddr);
}
HC_ENTRY cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim,
                                        void** args, size_t sharedMem, cudaStream_t stream) {
  if (kernel == nullptr) return Note(cudaErrorInvalidDeviceFunction);
  return Launch(reinterpret_cast<CUkernel>(kernel), gridDim, blockDim, args, sharedMem, stream,
                nullptr, 0);
}
HC_ENTRY cudaError_t cudaLaunchKernel(const void* func, dim3 gridDim, dim3 blockDim, void** args,
                                      size_t sharedMem, cudaStream_t stream) {
  return LaunchHost(func, gridDim, blockDim, args, sharedMem, stream, nullptr, 0);
}
HC_ENTRY cudaError_t cudaLaunchCooperativeKernel(const void* func, dim3 gridDim, dim3 blockDim,
                                                 void** args, size_t sharedMem,
                                                 cudaStream_t stream) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  return LaunchHost(func, gridDim, blockDim, args, sharedMem, stream, &attribute, 1);
}
HC_ENTRY cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* func,
                                         void** args) {
  if (config == nullptr) return Note(cudaErrorInvalidValue);
  static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));
  return LaunchHost(func, config->gridDim, config->blockDim, args, config->dynamicSmemBytes,
                    config->stream, reinterpret_cast<CUlaunchAttribute*>(config->attrs),
                    config->numAttrs);
}

// ---- kernels' attributes

namespace {

cudaError_t ThreadDevice(int* device) { return hostcuda::CurrentDevice(device); }

}  // namespace

HC_ENTRY cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attr, const void* func) {
  HC_CONTEXT();
  if (attr == nullptr) return Note(cudaErrorInvalidValue);
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  int device = 0;
  ThreadDevice(&device);
  memset(attr, 0, sizeof *attr);
  CUresult result = CUDA_SUCCESS;
  const auto get = [&](CUfunction_attribute which) {
    int value = 0;
    const CUresult own = driver.cuKernelGetAttribute(&value, which, kernel, device);
    if (own != CUDA_SUCCESS) result = own;
    return value;
  };
  attr->sharedSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  attr->constSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  attr->localSizeBytes = static_cast<size_t>(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  attr->maxThreadsPerBlock = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  attr->numRegs = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
  attr->ptxVersion = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  attr->binaryVersion = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  attr->maxDynamicSharedSizeBytes = get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  attr->preferredShmemCarveout = get(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  attr->clusterDimMustBeSet = get(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
  attr->requiredClusterWidth = get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  attr->requiredClusterHeight = get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
  attr->requiredClusterDepth = get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  attr->nonPortableClusterSizeAllowed = get(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  return Note(result);
}
HC_ENTRY cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute attr, int value) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  int device = 0;
  ThreadDevice(&device);
  return Note(
      driver.cuKernelSetAttribute(static_cast<CUfunction_attribute>(attr), value, kernel, device));
}
HC_ENTRY cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attr,
                                                     int value, int device) {
  HC_CONTEXT();
  return Note(driver.cuKernelSetAttribute(static_cast<CUfunction_attribute>(attr), value,
                                          reinterpret_cast<CUkernel>(kernel), device));
}
HC_ENTRY cudaError_t cudaFuncSetCacheConfig(const void* func, cudaFuncCache cacheConfig) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  return Note(driver.cuKernelSetCacheConfig(kernel, static_cast<CUfunc_cache>(cacheConfig), 0));
}
HC_ENTRY cudaError_t cudaFuncSetSharedMemConfig(const void* func, cudaSharedMemConfig config) {
  (void)config;
  CUkernel kernel = nullptr;
  return Note(hostcuda::FindKernel(func, &kernel));
}
HC_ENTRY cudaError_t cudaFuncGetName(const char** name, const void* func) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  return Note(driver.cuKernelGetName(name, kernel));
}
HC_ENTRY cudaError_t cudaFuncGetParamInfo(const void* func, size_t paramIndex, size_t* paramOffset,
                                          size_t* paramSize) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  return Note(driver.cuKernelGetParamInfo(kernel, paramIndex, paramOffset, paramSize));
}
HC_ENTRY cudaError_t cudaGetFuncBySymbol(cudaFunction_t* functionPtr, const void* symbolPtr) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(symbolPtr, &kernel); error != cudaSuccess)
    return Note(error);
  return Note(driver.cuKernelGetFunction(functionPtr, kernel));
}

// ---- occupancy

HC_ENTRY cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* numBlocks, const void* func, int blockSize, size_t dynamicSMemSize, unsigned int flags) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  return Note(driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      numBlocks, reinterpret_cast<CUfunction>(kernel), blockSize, dynamicSMemSize, flags));
}
HC_ENTRY cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, const void* func,
                                                                   int blockSize,
                                                                   size_t dynamicSMemSize) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                dynamicSMemSize, 0);
}
HC_ENTRY cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize,
                                                               const void* func, int numBlocks,
                                                               int blockSize) {
  HC_CONTEXT();
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  return Note(driver.cuOccupancyAvailableDynamicSMemPerBlock(
      dynamicSmemSize, reinterpret_cast<CUfunction>(kernel), numBlocks, blockSize));
}

namespace {

CUlaunchConfig DriverConfig(const cudaLaunchConfig_t& config) {
  CUlaunchConfig own = {};
  own.gridDimX = config.gridDim.x;
  own.gridDimY = config.gridDim.y;
  own.gridDimZ = config.gridDim.z;
  own.blockDimX = config.blockDim.x;
  own.blockDimY = config.blockDim.y;
  own.blockDimZ = config.blockDim.z;
  own.sharedMemBytes = static_cast<unsigned>(config.dynamicSmemBytes);
  own.hStream = Handle(config.stream);
  own.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
  own.numAttrs = config.numAttrs;
  return own;
}

}  // namespace

HC_ENTRY cudaError_t cudaOccupancyMaxPotentialClusterSize(int* clusterSize, const void* func,
                                                          const cudaLaunchConfig_t* launchConfig) {
  HC_CONTEXT();
  if (launchConfig == nullptr) return Note(cudaErrorInvalidValue);
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  const CUlaunchConfig config = DriverConfig(*launchConfig);
  return Note(driver.cuOccupancyMaxPotentialClusterSize(
      clusterSize, reinterpret_cast<CUfunction>(kernel), &config));
}
HC_ENTRY cudaError_t cudaOccupancyMaxActiveClusters(int* numClusters, const void* func,
                                                    const cudaLaunchConfig_t* launchConfig) {
  HC_CONTEXT();
  if (launchConfig == nullptr) return Note(cudaErrorInvalidValue);
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(func, &kernel); error != cudaSuccess)
    return Note(error);
  const CUlaunchConfig config = DriverConfig(*launchConfig);
  return Note(driver.cuOccupancyMaxActiveClusters(numClusters, reinterpret_cast<CUfunction>(kernel),
                                                  &config));
}

// ---- libraries

HC_ENTRY cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code,
                                         cudaJitOption* jitOptions, void** jitOptionsValues,
                                         unsigned int numJitOptions,
                                         cudaLibraryOption* libraryOptions,
                                         void** libraryOptionValues,
                                         unsigned int numLibraryOptions) {
  HC_CONTEXT();
  (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
      (void)libraryOptionValues, (void)numLibraryOptions;
  return Note(driver.cuLibraryLoadData(reinterpret_cast<CUlibrary*>(library), code, nullptr,
                                       nullptr, 0, nullptr, nullptr, 0));
}
HC_ENTRY cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* fileName,
                                             cudaJitOption* jitOptions, void** jitOptionsValues,
                                             unsigned int numJitOptions,
                                             cudaLibraryOption* libraryOptions,
                                             void** libraryOptionValues,
                                             unsigned int numLibraryOptions) {
  HC_CONTEXT();
  (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
      (void)libraryOptionValues, (void)numLibraryOptions;
  return Note(driver.cuLibraryLoadFromFile(reinterpret_cast<CUlibrary*>(library), fileName, nullptr,
                                           nullptr, 0, nullptr, nullptr, 0));
}
HC_ENTRY cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  HC_CONTEXT();
  return Note(driver.cuLibraryUnload(reinterpret_cast<CUlibrary>(library)));
}
HC_ENTRY cudaError_t cudaLibraryGetKernel(cudaKernel_t* pKernel, cudaLibrary_t library,
                                          const char* name) {
  HC_CONTEXT();
  return Note(driver.cuLibraryGetKernel(reinterpret_cast<CUkernel*>(pKernel),
                                        reinterpret_cast<CUlibrary>(library), name));
}
HC_ENTRY cudaError_t cudaLibraryGetGlobal(void** dptr, size_t* bytes, cudaLibrary_t library,
                                          const char* name) {
  HC_CONTEXT();
  CUdeviceptr address = 0;
  const CUresult result =
      driver.cuLibraryGetGlobal(&address, bytes, reinterpret_cast<CUlibrary>(library), name);
  if (result == CUDA_SUCCESS && dptr != nullptr) *dptr = reinterpret_cast<void*>(address);
  return Note(result);
}
HC_ENTRY cudaError_t cudaLibraryGetManaged(void** dptr, size_t* bytes, cudaLibrary_t library,
                                           const char* name) {
  return cudaLibraryGetGlobal(dptr, bytes, library, name);
}
HC_ENTRY cudaError_t cudaLibraryGetKernelCount(unsigned int* count, cudaLibrary_t lib) {
  HC_CONTEXT();
  return Note(driver.cuLibraryGetKernelCount(count, reinterpret_cast<CUlibrary>(lib)));
}
HC_ENTRY cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t* kernels, unsigned int numKernels,
                                                 cudaLibrary_t lib) {
  HC_CONTEXT();
  return Note(driver.cuLibraryEnumerateKernels(reinterpret_cast<CUkernel*>(kernels), numKernels,
                                               reinterpret_cast<CUlibrary>(lib)));
}
