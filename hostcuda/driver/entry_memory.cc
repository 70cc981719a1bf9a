// Allocation, host memory, pointer attributes, memory between processes, virtual memory management,
// pools.
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "hostcuda/driver/copy.h"
#include "hostcuda/driver/entry.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/options.h"

using hostcuda::Context;
using hostcuda::kPageBytes;
using hostcuda::MemoryKind;
using hostcuda::MemoryRange;
using hostcuda::Physical;
using hostcuda::ValidDevice;

// ---- allocation

HC_ENTRY CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  HC_CONTEXT();
  driver->MemoryInfo(context->device, free, total);
  return CUDA_SUCCESS;
}

namespace {

CUresult Allocate(CUdeviceptr* out, size_t bytes, MemoryKind kind, unsigned flags) {
  HC_CONTEXT();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = hostcuda::CaptureUnsafe(); refused != CUDA_SUCCESS) return refused;
  uintptr_t address = 0;
  const CUresult result = driver->memory().Allocate(context, bytes, kind, flags, &address);
  if (result == CUDA_SUCCESS) *out = address;
  return result;
}

/// As the real driver, freeing waits for the device: nothing may still use the memory.
CUresult Quiesce(hostcuda::Driver* driver, uintptr_t address) {
  MemoryRange range;
  if (!driver->memory().Find(address, &range) || range.base != address)
    return CUDA_ERROR_INVALID_VALUE;
  for (Context* context : hostcuda::LiveContexts()) {
    if (context->device == range.device) driver->engine().Drain(*context);
  }
  return CUDA_SUCCESS;
}

}  // namespace

HC_ENTRY CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return Allocate(dptr, bytesize, MemoryKind::kDevice, 0);
}

HC_ENTRY CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  return Allocate(dptr, bytesize, MemoryKind::kManaged, flags);
}

HC_ENTRY CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes,
                                     size_t Height, unsigned int ElementSizeBytes) {
  if (pPitch == nullptr ||
      (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16))
    return CUDA_ERROR_INVALID_VALUE;
  const size_t pitch = (WidthInBytes + 511) / 512 * 512;
  const CUresult result = Allocate(dptr, pitch * Height, MemoryKind::kDevice, 0);
  if (result == CUDA_SUCCESS) *pPitch = pitch;
  return result;
}

HC_ENTRY CUresult cuMemFree_v2(CUdeviceptr dptr) {
  HC_CONTEXT();
  if (dptr == 0) return CUDA_SUCCESS;
  if (const CUresult refused = hostcuda::CaptureUnsafe(); refused != CUDA_SUCCESS) return refused;
  if (const CUresult known = Quiesce(driver, dptr); known != CUDA_SUCCESS) return known;
  hostcuda::ForgetPoolAllocation(dptr);
  return driver->memory().Free(dptr, false);
}

HC_ENTRY CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  HC_CONTEXT();
  MemoryRange range;
  if (!driver->memory().Find(dptr, &range) || !range.on_device()) return CUDA_ERROR_NOT_FOUND;
  if (pbase != nullptr) *pbase = range.base;
  if (psize != nullptr) *psize = range.bytes;
  return CUDA_SUCCESS;
}

// ---- host memory

HC_ENTRY CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  CUdeviceptr address = 0;
  if (pp == nullptr || (Flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Allocate(&address, bytesize, MemoryKind::kPinned, Flags);
  if (result == CUDA_SUCCESS) *pp = reinterpret_cast<void*>(address);
  return result;
}
HC_ENTRY CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}

HC_ENTRY CUresult cuMemFreeHost(void* p) {
  HC_CONTEXT();
  if (p == nullptr) return CUDA_SUCCESS;
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  if (const CUresult known = Quiesce(driver, address); known != CUDA_SUCCESS) return known;
  return driver->memory().Free(address, true);
}

HC_ENTRY CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  HC_CONTEXT();
  return driver->memory().Register(context, reinterpret_cast<uintptr_t>(p), bytesize, Flags);
}
HC_ENTRY CUresult cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  return cuMemHostRegister_v2(p, bytesize, Flags);
}

HC_ENTRY CUresult cuMemHostUnregister(void* p) {
  HC_CONTEXT();
  return driver->memory().Unregister(reinterpret_cast<uintptr_t>(p));
}

HC_ENTRY CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  HC_CONTEXT();
  MemoryRange range;
  if (pdptr == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!driver->memory().Find(reinterpret_cast<uintptr_t>(p), &range) || range.on_device())
    return CUDA_ERROR_INVALID_VALUE;
  *pdptr = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  HC_CONTEXT();
  MemoryRange range;
  if (pFlags == nullptr || !driver->memory().Find(reinterpret_cast<uintptr_t>(p), &range) ||
      range.kind != MemoryKind::kPinned) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pFlags = range.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

// ---- pointer attributes

namespace {

CUresult Attribute(hostcuda::Driver* driver, void* data, CUpointer_attribute attribute,
                   CUdeviceptr pointer) {
  MemoryRange range;
  const bool known = driver->memory().Find(pointer, &range);
  if (!known && attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
      attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
    return CUDA_ERROR_INVALID_VALUE;
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = reinterpret_cast<CUcontext>(range.context);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = range.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (range.on_device() && range.kind != MemoryKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = reinterpret_cast<void*>(pointer);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = range.id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = range.kind == MemoryKind::kManaged;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = range.device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned*>(data) = range.kind == MemoryKind::kDevice;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = range.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = range.accessible;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned*>(data) = range.kind == MemoryKind::kMapped
                                          ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                          : CU_MEM_HANDLE_TYPE_NONE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<unsigned*>(data) = range.accessible ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                                       : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = hostcuda::PoolOf(range.base);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<size_t*>(data) = range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(data) = range.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<unsigned long long*>(data) = range.id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

HC_ENTRY CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                        CUdeviceptr ptr) {
  HC_DRIVER();
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Attribute(driver, data, attribute, ptr);
}

HC_ENTRY CUresult cuPointerGetAttributes(unsigned int numAttributes,
                                         CUpointer_attribute* attributes, void** data,
                                         CUdeviceptr ptr) {
  HC_DRIVER();
  if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Unlike the single call, an address CUDA does not know is no error: its answers are zero.
  for (unsigned i = 0; i < numAttributes; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (Attribute(driver, data[i], attributes[i], ptr) == CUDA_SUCCESS) continue;
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *static_cast<int*>(data[i]) = -2;
        break;
      case CU_POINTER_ATTRIBUTE_CONTEXT:
      case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        memset(data[i], 0, 8);
        break;
      default:
        memset(data[i], 0, 4);
    }
  }
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                        CUdeviceptr ptr) {
  HC_DRIVER();
  MemoryRange range;
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
      !driver->memory().Find(ptr, &range)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;  // copies of such memory are ordered by their streams anyway
}

// ---- managed memory: one copy exists, so advice and prefetching change nothing but must name real
// memory

HC_ENTRY CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                                 CUmemLocation location) {
  HC_DRIVER();
  (void)count, (void)advice, (void)location;
  MemoryRange range;
  return driver->memory().Find(devPtr, &range) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
HC_ENTRY CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                        unsigned int flags, CUstream hStream) {
  HC_STREAM(stream, hStream);
  (void)count, (void)location, (void)flags;
  MemoryRange range;
  return driver->memory().Find(devPtr, &range) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
HC_ENTRY CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                         unsigned int flags) {
  HC_STREAM(stream, hStream);
  (void)length, (void)flags;
  MemoryRange range;
  return driver->memory().Find(dptr, &range) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- between processes

HC_ENTRY CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  HC_CONTEXT();
  return pHandle == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : driver->memory().GetIpcHandle(dptr, pHandle);
}
HC_ENTRY CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle,
                                        unsigned int Flags) {
  HC_CONTEXT();
  (void)Flags;
  if (pdptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t address = 0;
  const CUresult result = driver->memory().OpenIpcHandle(context, handle, &address);
  if (result == CUDA_SUCCESS) *pdptr = address;
  return result;
}
HC_ENTRY CUresult cuIpcOpenMemHandle(CUdeviceptr* pdptr, CUipcMemHandle handle,
                                     unsigned int Flags) {
  return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}
HC_ENTRY CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  HC_CONTEXT();
  if (const CUresult known = Quiesce(driver, dptr); known != CUDA_SUCCESS) return known;
  return driver->memory().CloseIpcHandle(dptr);
}

// ---- virtual memory management

namespace {

Physical* CheckedPhysical(CUmemGenericAllocationHandle handle) {
  auto* physical = reinterpret_cast<Physical*>(handle);
  return physical != nullptr && physical->magic == Physical::kMagic ? physical : nullptr;
}

bool ValidLocation(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return ValidDevice(location.id);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return true;
    default:
      return false;
  }
}

}  // namespace

HC_ENTRY CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                                const CUmemAllocationProp* prop,
                                                CUmemAllocationGranularity_flags option) {
  HC_DRIVER();
  (void)option;
  if (granularity == nullptr || prop == nullptr || !ValidLocation(prop->location))
    return CUDA_ERROR_INVALID_VALUE;
  *granularity = kPageBytes;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment,
                                      CUdeviceptr addr, unsigned long long flags) {
  HC_DRIVER();
  if (ptr == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t address = 0;
  const CUresult result = driver->memory().Reserve(size, alignment, addr, &address);
  if (result == CUDA_SUCCESS) *ptr = address;
  return result;
}
HC_ENTRY CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  HC_DRIVER();
  return driver->memory().Unreserve(ptr, size);
}

HC_ENTRY CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                              const CUmemAllocationProp* prop, unsigned long long flags) {
  HC_DRIVER();
  if (handle == nullptr || prop == nullptr || flags != 0 ||
      prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !ValidLocation(prop->location)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  Physical* physical = nullptr;
  const CUresult result = driver->memory().CreatePhysical(size, *prop, &physical);
  if (result == CUDA_SUCCESS) *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return result;
}

HC_ENTRY CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  HC_DRIVER();
  Physical* physical = CheckedPhysical(handle);
  return physical == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : driver->memory().ReleasePhysical(physical);
}

HC_ENTRY CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                           CUmemGenericAllocationHandle handle, unsigned long long flags) {
  HC_DRIVER();
  Physical* physical = CheckedPhysical(handle);
  if (physical == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return driver->memory().Map(ptr, size, offset, physical);
}
HC_ENTRY CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  HC_DRIVER();
  return driver->memory().Unmap(ptr, size);
}

HC_ENTRY CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                                 size_t count) {
  HC_DRIVER();
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  // One address space serves all devices: the widest access given to any of them is what the pages
  // get.
  bool readable = false, writable = false;
  for (size_t i = 0; i < count; ++i) {
    if (!ValidLocation(desc[i].location)) return CUDA_ERROR_INVALID_VALUE;
    writable |= desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    readable |= desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  return driver->memory().SetAccess(ptr, size, readable, writable);
}
HC_ENTRY CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                 CUdeviceptr ptr) {
  HC_DRIVER();
  if (flags == nullptr || location == nullptr || !ValidLocation(*location))
    return CUDA_ERROR_INVALID_VALUE;
  CUmemAccess_flags own = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  const CUresult result = driver->memory().GetAccess(ptr, &own);
  if (result == CUDA_SUCCESS) *flags = own;
  return result;
}

HC_ENTRY CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  HC_DRIVER();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Physical* physical = driver->memory().PhysicalAt(reinterpret_cast<uintptr_t>(addr));
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                         CUmemGenericAllocationHandle handle) {
  HC_DRIVER();
  Physical* physical = CheckedPhysical(handle);
  if (prop == nullptr || physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->properties;
  return CUDA_SUCCESS;
}

HC_ENTRY CUresult cuMemExportToShareableHandle(void* shareableHandle,
                                               CUmemGenericAllocationHandle handle,
                                               CUmemAllocationHandleType handleType,
                                               unsigned long long flags) {
  HC_DRIVER();
  Physical* physical = CheckedPhysical(handle);
  if (shareableHandle == nullptr || physical == nullptr || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if ((physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  return driver->memory().Export(physical, static_cast<int*>(shareableHandle));
}
HC_ENTRY CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                 void* osHandle,
                                                 CUmemAllocationHandleType shHandleType) {
  HC_DRIVER();
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  Physical* physical = nullptr;
  const CUresult result =
      driver->memory().Import(static_cast<int>(reinterpret_cast<intptr_t>(osHandle)), &physical);
  if (result == CUDA_SUCCESS) *handle = reinterpret_cast<CUmemGenericAllocationHandle>(physical);
  return result;
}

// ---- pools: an allocation exists from the call on, a free happens in stream order

namespace {

struct Pool {
  static constexpr uint32_t kMagic = 0x504f4f4c;
  uint32_t magic = kMagic;
  int device = 0;
  bool is_default = false;
  uint64_t release_threshold = 0;
  uint64_t used = 0, used_high = 0;
  int reuse[3] = {1, 1, 1};
};

struct Pools {
  std::mutex mutex;
  Pool standard[hostcuda::kMaxDevices];
  Pool* current[hostcuda::kMaxDevices] = {};
  struct Allocation {
    Pool* pool;
    uint64_t bytes;
  };
  std::unordered_map<uintptr_t, Allocation> allocations;
  Pools() {
    for (int device = 0; device < hostcuda::kMaxDevices; ++device) {
      standard[device].device = device;
      standard[device].is_default = true;
      current[device] = &standard[device];
    }
  }
};

Pools& AllPools() {
  static Pools* const pools = new Pools;
  return *pools;
}

Pool* CheckedPool(CUmemoryPool handle) {
  auto* pool = reinterpret_cast<Pool*>(handle);
  return pool != nullptr && pool->magic == Pool::kMagic ? pool : nullptr;
}

CUresult AllocateFrom(Pool* pool, CUdeviceptr* out, size_t bytes, CUstream handle) {
  HC_STREAM(stream, handle);
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (driver->engine().Capturing(*stream)) {
    hostcuda::NotEmulated("cuMemAllocAsync", "an allocation as a graph node");
    return driver->engine().ForbidCapture(*stream);
  }
  uintptr_t address = 0;
  const CUresult result =
      driver->memory().Allocate(stream->context, bytes, MemoryKind::kDevice, 0, &address);
  if (result != CUDA_SUCCESS) return result;
  Pools& pools = AllPools();
  std::lock_guard<std::mutex> lock(pools.mutex);
  if (pool == nullptr) pool = pools.current[stream->context->device];
  pools.allocations[address] = {pool, bytes};
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  *out = address;
  return CUDA_SUCCESS;
}

}  // namespace

namespace hostcuda {

void ForgetPoolAllocation(uintptr_t address) {
  Pools& pools = AllPools();
  std::lock_guard<std::mutex> lock(pools.mutex);
  const auto found = pools.allocations.find(address);
  if (found == pools.allocations.end()) return;
  found->second.pool->used -= found->second.bytes;
  pools.allocations.erase(found);
}

CUmemoryPool PoolOf(uintptr_t address) {
  Pools& pools = AllPools();
  std::lock_guard<std::mutex> lock(pools.mutex);
  const auto found = pools.allocations.find(address);
  return found == pools.allocations.end() ? nullptr
                                          : reinterpret_cast<CUmemoryPool>(found->second.pool);
}

}  // namespace hostcuda

HC_ENTRY CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return AllocateFrom(nullptr, dptr, bytesize, hStream);
}
HC_ENTRY CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                          CUstream hStream) {
  return CheckedPool(pool) == nullptr ? CUDA_ERROR_INVALID_VALUE
                                      : AllocateFrom(CheckedPool(pool), dptr, bytesize, hStream);
}
HC_ENTRY CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  HC_STREAM(stream, hStream);
  if (dptr == 0) return CUDA_SUCCESS;
  MemoryRange range;
  if (!driver->memory().Find(dptr, &range) || range.base != dptr) return CUDA_ERROR_INVALID_VALUE;
  if (driver->engine().Capturing(*stream)) {
    hostcuda::NotEmulated("cuMemFreeAsync", "a free as a graph node");
    return driver->engine().ForbidCapture(*stream);
  }
  return driver->engine().Submit(*stream, hostcuda::Label{}, [dptr](hostcuda::PollState&) {
    hostcuda::ForgetPoolAllocation(dptr);
    hostcuda::Driver::Get()->memory().Free(dptr, false);
    return hostcuda::kDone;
  });
}

HC_ENTRY CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  HC_DRIVER();
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *pool_out = reinterpret_cast<CUmemoryPool>(&AllPools().standard[dev]);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  HC_DRIVER();
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> lock(AllPools().mutex);
  *pool = reinterpret_cast<CUmemoryPool>(AllPools().current[dev]);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  HC_DRIVER();
  if (!ValidDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (CheckedPool(pool) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(AllPools().mutex);
  AllPools().current[dev] = CheckedPool(pool);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  HC_DRIVER();
  if (pool == nullptr || poolProps == nullptr || !ValidLocation(poolProps->location))
    return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return hostcuda::NotEmulated("cuMemPoolCreate", "a pool shared between processes");
  auto* made = new Pool;
  made->device = poolProps->location.id;
  *pool = reinterpret_cast<CUmemoryPool>(made);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  HC_DRIVER();
  Pool* own = CheckedPool(pool);
  if (own == nullptr || own->is_default) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(AllPools().mutex);
  if (AllPools().current[own->device] == own)
    AllPools().current[own->device] = &AllPools().standard[own->device];
  return CUDA_SUCCESS;  // its allocations may outlive it: the pool itself stays
}
HC_ENTRY CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  HC_DRIVER();
  (void)minBytesToKeep;  // nothing is kept: freed memory goes back at once
  return CheckedPool(pool) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  HC_DRIVER();
  Pool* own = CheckedPool(pool);
  if (own == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(AllPools().mutex);
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      own->reuse[attr - 1] = *static_cast<int*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      own->release_threshold = *static_cast<cuuint64_t*>(value);
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      own->used_high = own->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
HC_ENTRY CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  HC_DRIVER();
  Pool* own = CheckedPool(pool);
  if (own == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> lock(AllPools().mutex);
  auto* wide = static_cast<cuuint64_t*>(value);
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = own->reuse[attr - 1];
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *wide = own->release_threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *wide = own->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *wide = own->used_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
HC_ENTRY CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  HC_DRIVER();
  if (CheckedPool(pool) == nullptr || map == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (!ValidLocation(map[i].location)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;  // every device reaches every allocation
}
HC_ENTRY CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool,
                                     CUmemLocation* location) {
  HC_DRIVER();
  if (flags == nullptr || CheckedPool(memPool) == nullptr || location == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
