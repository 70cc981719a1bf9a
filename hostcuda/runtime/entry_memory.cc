// Memory: allocation, host memory, attributes, copies, sets, symbols, pools, between processes.
#include <cstring>

#include "hostcuda/runtime/entry.h"

using hostcuda::Handle;
using hostcuda::Note;

namespace {

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The address is read after the call: arguments are evaluated in any order, so it is passed by
// reference.
cudaError_t Answer(CUresult result, const CUdeviceptr& address, void** pointer) {
  if (result == CUDA_SUCCESS) *pointer = Pointer(address);
  return Note(result);
}

CUmemLocation Location(const cudaMemLocation& location) {
  CUmemLocation own = {};
  own.type = static_cast<CUmemLocationType>(location.type);
  own.id = location.id;
  return own;
}

}  // namespace

// ---- allocation

HC_ENTRY cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  HC_CONTEXT();
  return Note(driver.cuMemGetInfo(free, total));
}
HC_ENTRY cudaError_t cudaMalloc(void** devPtr, size_t size) {
  HC_CONTEXT();
  if (devPtr == nullptr) return Note(cudaErrorInvalidValue);
  *devPtr = nullptr;
  if (size == 0) return cudaSuccess;
  CUdeviceptr address = 0;
  return Answer(driver.cuMemAlloc(&address, size), address, devPtr);
}
HC_ENTRY cudaError_t cudaMallocManaged(void** devPtr, size_t size, unsigned int flags) {
  HC_CONTEXT();
  if (devPtr == nullptr || size == 0) return Note(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  return Answer(driver.cuMemAllocManaged(&address, size, flags), address, devPtr);
}
HC_ENTRY cudaError_t cudaMallocPitch(void** devPtr, size_t* pitch, size_t width, size_t height) {
  HC_CONTEXT();
  if (devPtr == nullptr || pitch == nullptr) return Note(cudaErrorInvalidValue);
  if (width == 0 || height == 0) {
    *devPtr = nullptr;
    *pitch = 0;
    return cudaSuccess;
  }
  CUdeviceptr address = 0;
  return Answer(driver.cuMemAllocPitch(&address, pitch, width, height, 4), address, devPtr);
}
HC_ENTRY cudaError_t cudaMalloc3D(cudaPitchedPtr* pitchedDevPtr, cudaExtent extent) {
  if (pitchedDevPtr == nullptr) return Note(cudaErrorInvalidValue);
  void* pointer = nullptr;
  size_t pitch = 0;
  const cudaError_t error =
      cudaMallocPitch(&pointer, &pitch, extent.width, extent.height * extent.depth);
  *pitchedDevPtr = {pointer, pitch, extent.width, extent.height};
  return error;
}
HC_ENTRY cudaError_t cudaFree(void* devPtr) {
  HC_CONTEXT();  // cudaFree(0) is how programs make the context
  return devPtr == nullptr ? cudaSuccess : Note(driver.cuMemFree(Address(devPtr)));
}

// ---- host memory

HC_ENTRY cudaError_t cudaHostAlloc(void** pHost, size_t size, unsigned int flags) {
  HC_CONTEXT();
  if (pHost == nullptr) return Note(cudaErrorInvalidValue);
  *pHost = nullptr;
  return size == 0 ? cudaSuccess : Note(driver.cuMemHostAlloc(pHost, size, flags));
}
HC_ENTRY cudaError_t cudaMallocHost(void** ptr, size_t size) { return cudaHostAlloc(ptr, size, 0); }
HC_ENTRY cudaError_t cudaFreeHost(void* ptr) {
  HC_CONTEXT();
  return ptr == nullptr ? cudaSuccess : Note(driver.cuMemFreeHost(ptr));
}
HC_ENTRY cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuMemHostRegister(ptr, size, flags));
}
HC_ENTRY cudaError_t cudaHostUnregister(void* ptr) {
  HC_CONTEXT();
  return Note(driver.cuMemHostUnregister(ptr));
}
HC_ENTRY cudaError_t cudaHostGetDevicePointer(void** pDevice, void* pHost, unsigned int flags) {
  HC_CONTEXT();
  if (pDevice == nullptr) return Note(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  return Answer(driver.cuMemHostGetDevicePointer(&address, pHost, flags), address, pDevice);
}
HC_ENTRY cudaError_t cudaHostGetFlags(unsigned int* pFlags, void* pHost) {
  HC_CONTEXT();
  return Note(driver.cuMemHostGetFlags(pFlags, pHost));
}

// ---- attributes

HC_ENTRY cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* ptr) {
  HC_DRIVER();
  if (attributes == nullptr) return Note(cudaErrorInvalidValue);
  memset(attributes, 0, sizeof *attributes);
  unsigned type = 0, managed = 0;
  int device = -2;
  CUdeviceptr device_pointer = 0;
  void* host_pointer = nullptr;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                  CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                  CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* answers[] = {&type, &managed, &device, &device_pointer, &host_pointer};
  const CUresult result = driver.cuPointerGetAttributes(5, wanted, answers, Address(ptr));
  if (result != CUDA_SUCCESS) return Note(result);
  attributes->type = managed != 0                   ? cudaMemoryTypeManaged
                     : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                     : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
  attributes->device = device;
  attributes->devicePointer = Pointer(device_pointer);
  attributes->hostPointer =
      attributes->type == cudaMemoryTypeUnregistered ? const_cast<void*>(ptr) : host_pointer;
  return cudaSuccess;
}
HC_ENTRY cudaError_t cudaMemAdvise(const void* devPtr, size_t count, cudaMemoryAdvise advice,
                                   cudaMemLocation location) {
  HC_CONTEXT();
  return Note(driver.cuMemAdvise(Address(devPtr), count, static_cast<CUmem_advise>(advice),
                                 Location(location)));
}
HC_ENTRY cudaError_t cudaMemPrefetchAsync(const void* devPtr, size_t count,
                                          cudaMemLocation location, unsigned int flags,
                                          cudaStream_t stream) {
  HC_CONTEXT();
  return Note(
      driver.cuMemPrefetchAsync(Address(devPtr), count, Location(location), flags, Handle(stream)));
}
HC_ENTRY cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* devPtr, size_t length,
                                              unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuStreamAttachMemAsync(Handle(stream), Address(devPtr), length, flags));
}

// ---- copies

namespace {

/// Copies by kind; `stream` null pointer to a handle: synchronous.
cudaError_t Copy(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                 const CUstream* stream) {
  HC_CONTEXT();
  if (count == 0) return cudaSuccess;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return Note(stream != nullptr ? driver.cuMemcpyHtoDAsync(Address(dst), src, count, *stream)
                                    : driver.cuMemcpyHtoD(Address(dst), src, count));
    case cudaMemcpyDeviceToHost:
      return Note(stream != nullptr ? driver.cuMemcpyDtoHAsync(dst, Address(src), count, *stream)
                                    : driver.cuMemcpyDtoH(dst, Address(src), count));
    case cudaMemcpyDeviceToDevice:
      return Note(stream != nullptr
                      ? driver.cuMemcpyDtoDAsync(Address(dst), Address(src), count, *stream)
                      : driver.cuMemcpyDtoD(Address(dst), Address(src), count));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return Note(stream != nullptr
                      ? driver.cuMemcpyAsync(Address(dst), Address(src), count, *stream)
                      : driver.cuMemcpy(Address(dst), Address(src), count));
    default:
      return Note(cudaErrorInvalidMemcpyDirection);
  }
}

/// The synchronous form on the per-thread stream: enqueue there and wait for it.
template <class Enqueue>
cudaError_t OnThreadStream(Enqueue enqueue) {
  HC_CONTEXT();
  const CUstream stream = CU_STREAM_PER_THREAD;
  const cudaError_t error = enqueue(stream);
  return error != cudaSuccess ? error : Note(driver.cuStreamSynchronize(stream));
}

}  // namespace

HC_ENTRY cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  if (hostcuda::PerThreadDefault()) {
    return OnThreadStream([&](CUstream stream) { return Copy(dst, src, count, kind, &stream); });
  }
  return Copy(dst, src, count, kind, nullptr);
}
HC_ENTRY cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  const CUstream handle = Handle(stream);
  return Copy(dst, src, count, kind, &handle);
}
HC_ENTRY cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice,
                                         size_t count, cudaStream_t stream) {
  HC_CONTEXT();
  (void)dstDevice, (void)srcDevice;
  return count == 0 ? cudaSuccess
                    : Note(driver.cuMemcpyPeerAsync(Address(dst), nullptr, Address(src), nullptr,
                                                    count, Handle(stream)));
}
HC_ENTRY cudaError_t cudaMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice,
                                    size_t count) {
  HC_CONTEXT();
  (void)dstDevice, (void)srcDevice;
  return count == 0
             ? cudaSuccess
             : Note(driver.cuMemcpyPeer(Address(dst), nullptr, Address(src), nullptr, count));
}

namespace {

CUDA_MEMCPY2D Shape2D(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                      size_t height) {
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = Address(dst);
  copy.dstPitch = dpitch;
  copy.srcDevice = Address(src);
  copy.srcPitch = spitch;
  copy.WidthInBytes = width;
  copy.Height = height;
  return copy;
}

}  // namespace

HC_ENTRY cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch,
                                       size_t width, size_t height, cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  HC_CONTEXT();
  if (kind > cudaMemcpyDefault) return Note(cudaErrorInvalidMemcpyDirection);
  if (dpitch < width || spitch < width) return Note(cudaErrorInvalidPitchValue);
  const CUDA_MEMCPY2D copy = Shape2D(dst, dpitch, src, spitch, width, height);
  return Note(driver.cuMemcpy2DAsync(&copy, Handle(stream)));
}
HC_ENTRY cudaError_t cudaMemcpy2D(void* dst, size_t dpitch, const void* src, size_t spitch,
                                  size_t width, size_t height, cudaMemcpyKind kind) {
  HC_CONTEXT();
  if (hostcuda::PerThreadDefault()) {
    return OnThreadStream([&](CUstream) {
      return cudaMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, nullptr);
    });
  }
  if (kind > cudaMemcpyDefault) return Note(cudaErrorInvalidMemcpyDirection);
  if (dpitch < width || spitch < width) return Note(cudaErrorInvalidPitchValue);
  const CUDA_MEMCPY2D copy = Shape2D(dst, dpitch, src, spitch, width, height);
  return Note(driver.cuMemcpy2D(&copy));
}

namespace {

/// Arrays are not emulated: a copy that names one is refused by the driver, by name.
template <class Driver3D, class Parameters>
Driver3D Shape3D(const Parameters& p) {
  Driver3D copy = {};
  const bool arrays = p.srcArray != nullptr || p.dstArray != nullptr;
  copy.srcMemoryType = p.srcArray != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  copy.dstMemoryType = p.dstArray != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
  (void)arrays;
  copy.srcXInBytes = p.srcPos.x;
  copy.srcY = p.srcPos.y;
  copy.srcZ = p.srcPos.z;
  copy.srcDevice = Address(p.srcPtr.ptr);
  copy.srcPitch = p.srcPtr.pitch;
  copy.srcHeight = p.srcPtr.ysize;
  copy.dstXInBytes = p.dstPos.x;
  copy.dstY = p.dstPos.y;
  copy.dstZ = p.dstPos.z;
  copy.dstDevice = Address(p.dstPtr.ptr);
  copy.dstPitch = p.dstPtr.pitch;
  copy.dstHeight = p.dstPtr.ysize;
  copy.WidthInBytes = p.extent.width;
  copy.Height = p.extent.height;
  copy.Depth = p.extent.depth;
  return copy;
}

}  // namespace

HC_ENTRY cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  HC_CONTEXT();
  if (p == nullptr) return Note(cudaErrorInvalidValue);
  const auto copy = Shape3D<CUDA_MEMCPY3D>(*p);
  return Note(driver.cuMemcpy3DAsync(&copy, Handle(stream)));
}
HC_ENTRY cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  HC_CONTEXT();
  if (p == nullptr) return Note(cudaErrorInvalidValue);
  if (hostcuda::PerThreadDefault())
    return OnThreadStream([&](CUstream) { return cudaMemcpy3DAsync(p, nullptr); });
  const auto copy = Shape3D<CUDA_MEMCPY3D>(*p);
  return Note(driver.cuMemcpy3D(&copy));
}
HC_ENTRY cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* p, cudaStream_t stream) {
  HC_CONTEXT();
  if (p == nullptr) return Note(cudaErrorInvalidValue);
  const auto copy = Shape3D<CUDA_MEMCPY3D_PEER>(*p);
  return Note(driver.cuMemcpy3DPeerAsync(&copy, Handle(stream)));
}
HC_ENTRY cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* p) {
  HC_CONTEXT();
  if (p == nullptr) return Note(cudaErrorInvalidValue);
  const auto copy = Shape3D<CUDA_MEMCPY3D_PEER>(*p);
  return Note(driver.cuMemcpy3DPeer(&copy));
}
HC_ENTRY cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs,
                                          const size_t* sizes, size_t count,
                                          cudaMemcpyAttributes* attrs, size_t* attrsIdxs,
                                          size_t numAttrs, cudaStream_t stream) {
  HC_CONTEXT();
  (void)attrs, (void)attrsIdxs, (void)numAttrs;
  static_assert(sizeof(CUdeviceptr) == sizeof(void*));
  return Note(driver.cuMemcpyBatchAsync(reinterpret_cast<CUdeviceptr*>(const_cast<void**>(dsts)),
                                        reinterpret_cast<CUdeviceptr*>(const_cast<void**>(srcs)),
                                        const_cast<size_t*>(sizes), count, nullptr, nullptr, 0,
                                        Handle(stream)));
}

// ---- symbols

HC_ENTRY cudaError_t cudaGetSymbolAddress(void** devPtr, const void* symbol) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  if (devPtr == nullptr) return Note(cudaErrorInvalidValue);
  const cudaError_t error = hostcuda::FindVariable(symbol, &address, &bytes);
  if (error == cudaSuccess) *devPtr = Pointer(address);
  return Note(error);
}
HC_ENTRY cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  CUdeviceptr address = 0;
  if (size == nullptr) return Note(cudaErrorInvalidValue);
  return Note(hostcuda::FindVariable(symbol, &address, size));
}

namespace {

cudaError_t SymbolAt(const void* symbol, size_t count, size_t offset, char** at) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  if (const cudaError_t error = hostcuda::FindVariable(symbol, &address, &bytes);
      error != cudaSuccess)
    return Note(error);
  if (offset > bytes || count > bytes - offset) return Note(cudaErrorInvalidValue);
  *at = reinterpret_cast<char*>(address) + offset;
  return cudaSuccess;
}

}  // namespace

HC_ENTRY cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* src, size_t count,
                                        size_t offset, cudaMemcpyKind kind) {
  char* at = nullptr;
  const cudaError_t error = SymbolAt(symbol, count, offset, &at);
  return error != cudaSuccess ? error : cudaMemcpy(at, src, count, kind);
}
HC_ENTRY cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* src, size_t count,
                                             size_t offset, cudaMemcpyKind kind,
                                             cudaStream_t stream) {
  char* at = nullptr;
  const cudaError_t error = SymbolAt(symbol, count, offset, &at);
  return error != cudaSuccess ? error : cudaMemcpyAsync(at, src, count, kind, stream);
}
HC_ENTRY cudaError_t cudaMemcpyFromSymbol(void* dst, const void* symbol, size_t count,
                                          size_t offset, cudaMemcpyKind kind) {
  char* at = nullptr;
  const cudaError_t error = SymbolAt(symbol, count, offset, &at);
  return error != cudaSuccess ? error : cudaMemcpy(dst, at, count, kind);
}
HC_ENTRY cudaError_t cudaMemcpyFromSymbolAsync(void* dst, const void* symbol, size_t count,
                                               size_t offset, cudaMemcpyKind kind,
                                               cudaStream_t stream) {
  char* at = nullptr;
  const cudaError_t error = SymbolAt(symbol, count, offset, &at);
  return error != cudaSuccess ? error : cudaMemcpyAsync(dst, at, count, kind, stream);
}

// ---- sets

HC_ENTRY cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuMemsetD8Async(Address(devPtr), static_cast<unsigned char>(value), count,
                                     Handle(stream)));
}
HC_ENTRY cudaError_t cudaMemset(void* devPtr, int value, size_t count) {
  HC_CONTEXT();
  if (hostcuda::PerThreadDefault()) return cudaMemsetAsync(devPtr, value, count, nullptr);
  return Note(driver.cuMemsetD8(Address(devPtr), static_cast<unsigned char>(value), count));
}
HC_ENTRY cudaError_t cudaMemset2DAsync(void* devPtr, size_t pitch, int value, size_t width,
                                       size_t height, cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuMemsetD2D8Async(Address(devPtr), pitch, static_cast<unsigned char>(value),
                                       width, height, Handle(stream)));
}
HC_ENTRY cudaError_t cudaMemset2D(void* devPtr, size_t pitch, int value, size_t width,
                                  size_t height) {
  return cudaMemset2DAsync(devPtr, pitch, value, width, height, nullptr);
}
HC_ENTRY cudaError_t cudaMemset3DAsync(cudaPitchedPtr pitchedDevPtr, int value, cudaExtent extent,
                                       cudaStream_t stream) {
  for (size_t z = 0; z < extent.depth; ++z) {
    char* plane =
        static_cast<char*>(pitchedDevPtr.ptr) + z * pitchedDevPtr.pitch * pitchedDevPtr.ysize;
    const cudaError_t error =
        cudaMemset2DAsync(plane, pitchedDevPtr.pitch, value, extent.width, extent.height, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
HC_ENTRY cudaError_t cudaMemset3D(cudaPitchedPtr pitchedDevPtr, int value, cudaExtent extent) {
  return cudaMemset3DAsync(pitchedDevPtr, value, extent, nullptr);
}

// ---- pools

HC_ENTRY cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream) {
  HC_CONTEXT();
  if (devPtr == nullptr) return Note(cudaErrorInvalidValue);
  *devPtr = nullptr;
  if (size == 0) return cudaSuccess;
  CUdeviceptr address = 0;
  return Answer(driver.cuMemAllocAsync(&address, size, Handle(hStream)), address, devPtr);
}
HC_ENTRY cudaError_t cudaMallocFromPoolAsync(void** ptr, size_t size, cudaMemPool_t memPool,
                                             cudaStream_t stream) {
  HC_CONTEXT();
  if (ptr == nullptr) return Note(cudaErrorInvalidValue);
  CUdeviceptr address = 0;
  return Answer(driver.cuMemAllocFromPoolAsync(&address, size, memPool, Handle(stream)), address,
                ptr);
}
HC_ENTRY cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
  HC_CONTEXT();
  return devPtr == nullptr ? cudaSuccess
                           : Note(driver.cuMemFreeAsync(Address(devPtr), Handle(hStream)));
}
HC_ENTRY cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* memPool, int device) {
  HC_DRIVER();
  return Note(driver.cuDeviceGetDefaultMemPool(memPool, device));
}
HC_ENTRY cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* memPool, int device) {
  HC_DRIVER();
  return Note(driver.cuDeviceGetMemPool(memPool, device));
}
HC_ENTRY cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t memPool) {
  HC_DRIVER();
  return Note(driver.cuDeviceSetMemPool(device, memPool));
}
HC_ENTRY cudaError_t cudaMemPoolCreate(cudaMemPool_t* memPool, const cudaMemPoolProps* poolProps) {
  HC_DRIVER();
  if (poolProps == nullptr) return Note(cudaErrorInvalidValue);
  CUmemPoolProps own = {};
  own.allocType = static_cast<CUmemAllocationType>(poolProps->allocType);
  own.handleTypes = static_cast<CUmemAllocationHandleType>(poolProps->handleTypes);
  own.location = Location(poolProps->location);
  own.maxSize = poolProps->maxSize;
  return Note(driver.cuMemPoolCreate(memPool, &own));
}
HC_ENTRY cudaError_t cudaMemPoolDestroy(cudaMemPool_t memPool) {
  HC_DRIVER();
  return Note(driver.cuMemPoolDestroy(memPool));
}
HC_ENTRY cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep) {
  HC_DRIVER();
  return Note(driver.cuMemPoolTrimTo(memPool, minBytesToKeep));
}
HC_ENTRY cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr,
                                             void* value) {
  HC_DRIVER();
  return Note(driver.cuMemPoolSetAttribute(memPool, static_cast<CUmemPool_attribute>(attr), value));
}
HC_ENTRY cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool, cudaMemPoolAttr attr,
                                             void* value) {
  HC_DRIVER();
  return Note(driver.cuMemPoolGetAttribute(memPool, static_cast<CUmemPool_attribute>(attr), value));
}
HC_ENTRY cudaError_t cudaMemPoolSetAccess(cudaMemPool_t memPool, const cudaMemAccessDesc* descList,
                                          size_t count) {
  HC_DRIVER();
  static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
  return Note(driver.cuMemPoolSetAccess(memPool, reinterpret_cast<const CUmemAccessDesc*>(descList),
                                        count));
}
HC_ENTRY cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t memPool,
                                          cudaMemLocation* location) {
  HC_DRIVER();
  static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
  return Note(driver.cuMemPoolGetAccess(reinterpret_cast<CUmemAccess_flags*>(flags), memPool,
                                        reinterpret_cast<CUmemLocation*>(location)));
}

// ---- between processes

HC_ENTRY cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* devPtr) {
  HC_CONTEXT();
  return Note(driver.cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), Address(devPtr)));
}
HC_ENTRY cudaError_t cudaIpcOpenMemHandle(void** devPtr, cudaIpcMemHandle_t handle,
                                          unsigned int flags) {
  HC_CONTEXT();
  CUipcMemHandle own;
  static_assert(sizeof own == sizeof handle);
  memcpy(&own, &handle, sizeof own);
  CUdeviceptr address = 0;
  return Answer(driver.cuIpcOpenMemHandle(&address, own, flags), address, devPtr);
}
HC_ENTRY cudaError_t cudaIpcCloseMemHandle(void* devPtr) {
  HC_CONTEXT();
  return Note(driver.cuIpcCloseMemHandle(Address(devPtr)));
}
HC_ENTRY cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  HC_CONTEXT();
  return Note(driver.cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event));
}
HC_ENTRY cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  HC_CONTEXT();
  CUipcEventHandle own;
  static_assert(sizeof own == sizeof handle);
  memcpy(&own, &handle, sizeof own);
  return Note(driver.cuIpcOpenEventHandle(event, own));
}
