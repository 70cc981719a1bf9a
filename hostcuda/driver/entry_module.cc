// Modules, libraries, kernels, launches, occupancy, tensor maps.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "hostcuda/driver/entry.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/launch.h"
#include "hostcuda/driver/module.h"

using hostcuda::Gpu;
using hostcuda::Kernel;
using hostcuda::Module;

namespace {

Module* CheckedModule(const void* handle) {
  auto* module = static_cast<Module*>(const_cast<void*>(handle));
  return module != nullptr && module->magic == Module::kMagic ? module : nullptr;
}

Kernel* CheckedKernel(const void* handle) {
  auto* kernel = static_cast<Kernel*>(const_cast<void*>(handle));
  return kernel != nullptr && kernel->magic == Kernel::kMagic ? kernel : nullptr;
}

template <class Handle>
CUresult Load(Handle* out, const void* image) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult error;
  Module* module = hostcuda::LoadImage(image, &error);
  if (module != nullptr) *out = reinterpret_cast<Handle>(module);
  return error;
}

template <class Handle>
CUresult LoadFile(Handle* out, const char* path) {
  if (path == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  // Kept: a fat binary's names point into it.
  auto* image = new std::string(std::istreambuf_iterator<char>(file), {});
  if (image->size() < 16) return CUDA_ERROR_INVALID_IMAGE;
  return Load(out, image->c_str());
}

template <class Handle>
CUresult FindKernel(Handle* out, const void* module_handle, const char* name) {
  HC_DRIVER();
  Module* module = CheckedModule(module_handle);
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Kernel* kernel = module->Find(name);
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<Handle>(kernel);
  return CUDA_SUCCESS;
}

/// Address of a global, made at its first use. Where the image does not tell its size, a caller
/// that knows it (the runtime, from the registration) passes it in *bytes.
CUresult FindGlobal(CUdeviceptr* address, size_t* bytes, const void* module_handle,
                    const char* name) {
  HC_CONTEXT();
  Module* module = CheckedModule(module_handle);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard<std::mutex> lock(module->mutex);
  auto found = module->globals.find(name);
  if (found == module->globals.end()) {
    if (!module->every_name || bytes == nullptr || *bytes == 0 || *bytes > (1u << 30))
      return CUDA_ERROR_NOT_FOUND;
    found = module->globals.emplace(name, Module::Global{*bytes, {}, 0}).first;
  }
  Module::Global& global = found->second;
  if (global.address == 0) {
    const CUresult made = driver->memory().AllocateGlobal(
        context, std::max<uint64_t>(global.bytes, 1), &global.address);
    if (made != CUDA_SUCCESS) return made;
    memcpy(reinterpret_cast<void*>(global.address), global.initial.data(), global.initial.size());
  }
  if (address != nullptr) *address = global.address;
  if (bytes != nullptr) *bytes = global.bytes;
  return CUDA_SUCCESS;
}

}  // namespace

// ---- modules

HC_ENTRY CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  HC_CONTEXT();
  return Load(module, image);
}
HC_ENTRY CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                                     CUjit_option* options, void** optionValues) {
  (void)numOptions, (void)options, (void)optionValues;
  return cuModuleLoadData(module, image);
}
HC_ENTRY CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return cuModuleLoadData(module, fatCubin);
}
HC_ENTRY CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  HC_CONTEXT();
  return LoadFile(module, fname);
}
HC_ENTRY CUresult cuModuleUnload(CUmodule hmod) {
  HC_DRIVER();
  // Kernels of it may be queued, and profilers keep their names: the module itself stays.
  return CheckedModule(hmod) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  HC_DRIVER();
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  return FindKernel(hfunc, hmod, name);
}
HC_ENTRY CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod,
                                       const char* name) {
  return FindGlobal(dptr, bytes, hmod, name);
}
HC_ENTRY CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  HC_DRIVER();
  Module* module = CheckedModule(mod);
  if (count == nullptr || module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->names.size());
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                             CUmodule mod) {
  HC_DRIVER();
  Module* module = CheckedModule(mod);
  if (functions == nullptr || module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned i = 0;
  for (const auto& [name, parameters] : module->names) {
    if (i == numFunctions) break;
    functions[i++] = reinterpret_cast<CUfunction>(module->Find(name));
  }
  return CUDA_SUCCESS;
}

// ---- libraries

HC_ENTRY CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                    void** jitOptionsValues, unsigned int numJitOptions,
                                    CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                    unsigned int numLibraryOptions) {
  HC_DRIVER();
  (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
      (void)libraryOptionValues, (void)numLibraryOptions;
  return Load(library, code);
}
HC_ENTRY CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName,
                                        CUjit_option* jitOptions, void** jitOptionsValues,
                                        unsigned int numJitOptions, CUlibraryOption* libraryOptions,
                                        void** libraryOptionValues,
                                        unsigned int numLibraryOptions) {
  HC_DRIVER();
  (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions, (void)libraryOptions,
      (void)libraryOptionValues, (void)numLibraryOptions;
  return LoadFile(library, fileName);
}
HC_ENTRY CUresult cuLibraryUnload(CUlibrary library) {
  HC_DRIVER();
  return CheckedModule(library) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  return FindKernel(pKernel, library, name);
}
HC_ENTRY CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  HC_CONTEXT();
  if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CheckedModule(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pMod = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                                     const char* name) {
  return FindGlobal(dptr, bytes, library, name);
}
HC_ENTRY CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                                      const char* name) {
  return FindGlobal(dptr, bytes, library, name);
}
HC_ENTRY CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  return cuModuleGetFunctionCount(count, reinterpret_cast<CUmodule>(lib));
}
HC_ENTRY CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels,
                                            CUlibrary lib) {
  return cuModuleEnumerateFunctions(reinterpret_cast<CUfunction*>(kernels), numKernels,
                                    reinterpret_cast<CUmodule>(lib));
}

// ---- kernels: a CUkernel and its CUfunction are one object

HC_ENTRY CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  HC_DRIVER();
  if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CheckedKernel(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pFunc = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  HC_DRIVER();
  if (pLib == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* own = CheckedKernel(kernel);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pLib = reinterpret_cast<CUlibrary>(own->module);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  HC_DRIVER();
  if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* own = CheckedKernel(hfunc);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *hmod = reinterpret_cast<CUmodule>(own->module);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  HC_DRIVER();
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* own = CheckedKernel(hfunc);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = own->name;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuKernelGetName(const char** name, CUkernel hfunc) {
  return cuFuncGetName(name, reinterpret_cast<CUfunction>(hfunc));
}

HC_ENTRY CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                                     size_t* paramSize) {
  HC_DRIVER();
  Kernel* own = CheckedKernel(func);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!own->sizes_known)
    return hostcuda::NotEmulated("cuFuncGetParamInfo",
                                 "a kernel whose image does not tell its parameters");
  if (paramOffset == nullptr || paramIndex >= own->parameter_sizes.size())
    return CUDA_ERROR_INVALID_VALUE;
  *paramOffset = own->parameter_offsets[paramIndex];
  if (paramSize != nullptr) *paramSize = own->parameter_sizes[paramIndex];
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                                       size_t* paramSize) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), paramIndex, paramOffset,
                            paramSize);
}

HC_ENTRY CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  HC_DRIVER();
  Kernel* own = CheckedKernel(hfunc);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (pi == nullptr || attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  switch (attrib) {
    // What only a compiler knows is a plausible constant: a kernel's registers and static memory
    // are not in every image.
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *pi = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *pi = 32;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *pi = Gpu().major * 10 + Gpu().minor;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *pi = own->max_dynamic_shared.load(std::memory_order_relaxed);
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *pi = own->preferred_carveout.load(std::memory_order_relaxed);
      break;
    default:
      *pi = own->attributes[attrib].load(std::memory_order_relaxed);
  }
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  HC_DRIVER();
  Kernel* own = CheckedKernel(hfunc);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || value > Gpu().shared_per_block_optin) return CUDA_ERROR_INVALID_VALUE;
      own->max_dynamic_shared.store(value, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      own->preferred_carveout.store(value, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      own->attributes[attrib].store(value, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
HC_ENTRY CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel,
                                       CUdevice dev) {
  (void)dev;
  return cuFuncGetAttribute(pi, attrib, reinterpret_cast<CUfunction>(kernel));
}
HC_ENTRY CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                       CUdevice dev) {
  (void)dev;
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attrib, val);
}
HC_ENTRY CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  HC_DRIVER();
  (void)config;
  return CheckedKernel(hfunc) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  (void)dev;
  return cuFuncSetCacheConfig(reinterpret_cast<CUfunction>(kernel), config);
}
HC_ENTRY CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  HC_DRIVER();
  (void)config;
  return CheckedKernel(hfunc) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  HC_DRIVER();
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CheckedKernel(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuFuncLoad(CUfunction function) {
  HC_DRIVER();
  return CheckedKernel(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

// ---- launches

namespace {

CUresult Launch(CUfunction function, const hostcuda::LaunchShape& shape, CUstream handle,
                void** parameters, void** extra) {
  HC_STREAM(stream, handle);
  Kernel* kernel = CheckedKernel(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return hostcuda::LaunchKernel(*stream, *kernel, shape, parameters, extra);
}

}  // namespace

HC_ENTRY CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                 unsigned int gridDimZ, unsigned int blockDimX,
                                 unsigned int blockDimY, unsigned int blockDimZ,
                                 unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                                 void** extra) {
  return Launch(f,
                {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes},
                hStream, kernelParams, extra);
}
HC_ENTRY CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                            unsigned int gridDimY, unsigned int gridDimZ,
                                            unsigned int blockDimX, unsigned int blockDimY,
                                            unsigned int blockDimZ, unsigned int sharedMemBytes,
                                            CUstream hStream, void** kernelParams) {
  const hostcuda::LaunchShape shape{
      {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes};
  const uint64_t blocks = uint64_t{gridDimX} * gridDimY * gridDimZ;
  if (blocks > static_cast<uint64_t>(hostcuda::BlocksPerMultiprocessor(shape)) *
                   static_cast<uint64_t>(Gpu().multiprocessors)) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return Launch(f, shape, hStream, kernelParams, nullptr);
}
HC_ENTRY CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                   void** extra) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  CUevent record = nullptr;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
        const auto& cluster = attribute.value.clusterDim;
        const uint64_t size = uint64_t{cluster.x} * cluster.y * cluster.z;
        if (size == 0 || size > 16 || config->gridDimX % cluster.x != 0 ||
            config->gridDimY % cluster.y != 0 || config->gridDimZ % cluster.z != 0) {
          return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        }
        break;
      }
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        record = attribute.value.programmaticEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        record = attribute.value.launchCompletionEvent.event;
        break;
      default:
        break;  // priorities, cooperation, memory domains, programmatic order: nothing to do in an
                // ordered queue
    }
  }
  const CUresult launched = Launch(f,
                                   {{config->gridDimX, config->gridDimY, config->gridDimZ},
                                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                                    config->sharedMemBytes},
                                   config->hStream, kernelParams, extra);
  if (launched != CUDA_SUCCESS || record == nullptr) return launched;
  return cuEventRecord(record, config->hStream);
}

// ---- occupancy

HC_ENTRY CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags) {
  HC_DRIVER();
  (void)flags;
  if (CheckedKernel(func) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (numBlocks == nullptr || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
  *numBlocks = hostcuda::BlocksPerMultiprocessor({{1, 1, 1},
                                                  {static_cast<unsigned>(blockSize), 1, 1},
                                                  static_cast<unsigned>(dynamicSMemSize)});
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func,
                                                              int blockSize,
                                                              size_t dynamicSMemSize) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                              dynamicSMemSize, 0);
}
HC_ENTRY CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(
    int* minGridSize, int* blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags) {
  HC_DRIVER();
  (void)flags;
  if (CheckedKernel(func) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (minGridSize == nullptr || blockSize == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int limit = blockSizeLimit <= 0 || blockSizeLimit > 1024 ? 1024 : blockSizeLimit;
  int best_threads = 0;
  for (int size = limit / 32 * 32; size >= 32; size -= 32) {
    const size_t shared =
        blockSizeToDynamicSMemSize != nullptr ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;
    const int blocks = hostcuda::BlocksPerMultiprocessor(
        {{1, 1, 1}, {static_cast<unsigned>(size), 1, 1}, static_cast<unsigned>(shared)});
    if (blocks * size <= best_threads) continue;
    best_threads = blocks * size;
    *blockSize = size;
    *minGridSize = blocks * Gpu().multiprocessors;
  }
  return best_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
HC_ENTRY CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(
      minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, 0);
}
HC_ENTRY CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                          int numBlocks, int blockSize) {
  HC_DRIVER();
  if (CheckedKernel(func) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (dynamicSmemSize == nullptr || numBlocks <= 0 || blockSize <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int each = Gpu().shared_per_multiprocessor / numBlocks - 1024;
  *dynamicSmemSize = static_cast<size_t>(std::clamp(each, 0, Gpu().shared_per_block_optin));
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                     const CUlaunchConfig* config) {
  HC_DRIVER();
  (void)config;
  Kernel* own = CheckedKernel(func);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (clusterSize == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *clusterSize =
      own->attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED].load() != 0 ? 16 : 8;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                               const CUlaunchConfig* config) {
  HC_DRIVER();
  if (CheckedKernel(func) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (numClusters == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      size = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
             config->attrs[i].value.clusterDim.z;
    }
  }
  const int blocks =
      hostcuda::BlocksPerMultiprocessor({{1, 1, 1},
                                         {config->blockDimX, config->blockDimY, config->blockDimZ},
                                         config->sharedMemBytes});
  *numClusters = blocks * Gpu().multiprocessors / static_cast<int>(std::max(size, 1u));
  return CUDA_SUCCESS;
}

// ---- tensor maps: opaque to everything but a GPU's copy unit, so what they encode is kept
// recognisable, not usable

namespace {

CUresult EncodeTensorMap(CUtensorMap* map, cuuint32_t rank, const void* address) {
  if (map == nullptr || rank == 0 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, sizeof *map);
  map->opaque[0] = 0x70614d726f736e54;  // "TnsorMap"
  map->opaque[1] = reinterpret_cast<cuuint64_t>(address);
  map->opaque[2] = rank;
  return CUDA_SUCCESS;
}

}  // namespace

HC_ENTRY CUresult cuTensorMapEncodeTiled(
    CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void* globalAddress, const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
    const cuuint32_t* boxDim, const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill) {
  (void)tensorDataType, (void)globalDim, (void)globalStrides, (void)boxDim, (void)elementStrides,
      (void)interleave, (void)swizzle, (void)l2Promotion, (void)oobFill;
  if (reinterpret_cast<uintptr_t>(globalAddress) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  return EncodeTensorMap(tensorMap, tensorRank, globalAddress);
}
HC_ENTRY CUresult cuTensorMapEncodeIm2col(
    CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void* globalAddress, const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
    const int* pixelBoxLowerCorner, const int* pixelBoxUpperCorner, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill) {
  (void)tensorDataType, (void)globalDim, (void)globalStrides, (void)pixelBoxLowerCorner,
      (void)pixelBoxUpperCorner, (void)channelsPerPixel, (void)pixelsPerColumn,
      (void)elementStrides, (void)interleave, (void)swizzle, (void)l2Promotion, (void)oobFill;
  return EncodeTensorMap(tensorMap, tensorRank, globalAddress);
}
HC_ENTRY CUresult cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  if (tensorMap == nullptr) return CUDA_ERROR_INVALID_VALUE;
  tensorMap->opaque[1] = reinterpret_cast<cuuint64_t>(globalAddress);
  return CUDA_SUCCESS;
}
