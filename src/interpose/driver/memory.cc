// Device and host memory: counted by the ledger, written to the trace.
#include <cuda.h>

#include "src/interpose/driver/numbers.h"
#include "src/interpose/driver/ownership.h"
#include "src/interpose/driver/route.h"
#include "src/interpose/driver/span_timer.h"

namespace prism::interpose::driver {
namespace {

CUresult MemAlloc(Route real, CUdeviceptr* address, size_t bytes) {
  return Ownership::Get().Allocate(
      bytes, [&] { return real(address, bytes); }, address);
}

CUresult MemAllocManaged(Route real, CUdeviceptr* address, size_t bytes, unsigned flags) {
  // Counted in full: where its pages are at a moment is not modelled.
  Rank::Get().Gap("managed memory is counted as device memory");
  return Ownership::Get().Allocate(
      bytes, [&] { return real(address, bytes, flags); }, address);
}

CUresult MemAllocPitch(Route real, CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                       unsigned element) {
  constexpr size_t kPitchAlignment = 512;
  const size_t bytes = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment * height;
  return Ownership::Get().Allocate(
      bytes, [&] { return real(address, pitch, width, height, element); }, address);
}

CUresult MemFree(Route real, CUdeviceptr address) {
  SpanTimer::Get().BeforeBlocking();
  return Ownership::Get().Free(address, [&] { return real(address); });
}

// Stream-ordered allocations are counted from call to call, not from when the stream gets there,
// and what a pool keeps after a free is not counted: cuMemGetInfo of a program that uses pools is
// an upper bound.
CUresult MemAllocAsync(Route real, CUdeviceptr* address, size_t bytes, CUstream stream) {
  if (IsCapturing(stream, real.per_thread)) return real(address, bytes, stream);
  return Ownership::Get().Allocate(
      bytes, [&] { return real(address, bytes, stream); }, address);
}

CUresult MemAllocFromPoolAsync(Route real, CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                               CUstream stream) {
  if (IsCapturing(stream, real.per_thread)) return real(address, bytes, pool, stream);
  return Ownership::Get().Allocate(
      bytes, [&] { return real(address, bytes, pool, stream); }, address);
}

CUresult MemFreeAsync(Route real, CUdeviceptr address, CUstream stream) {
  return Ownership::Get().Free(address, [&] { return real(address, stream); });
}

bool OnDevice(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult MemCreate(Route real, CUmemGenericAllocationHandle* handle, size_t bytes,
                   const CUmemAllocationProp* properties, unsigned long long flags) {
  if (properties == nullptr || !OnDevice(properties->location)) {
    return real(handle, bytes, properties, flags);
  }
  CUmemAllocationProp placed = *properties;
  const auto ordinal = static_cast<uint32_t>(placed.location.id);  // the runtime's, see device.cc
  if (Observed() & kObserveOrdinals) placed.location.id = 0;
  return Ownership::Get().Create(
      ordinal, bytes,
      [&] { return real(handle, bytes, static_cast<const CUmemAllocationProp*>(&placed), flags); },
      handle);
}

CUresult MemRelease(Route real, CUmemGenericAllocationHandle handle) {
  return Ownership::Get().Release(handle, [&] { return real(handle); });
}

CUresult MemRetainAllocationHandle(Route real, CUmemGenericAllocationHandle* handle,
                                   void* address) {
  const CUresult result = real(handle, address);
  if (result == CUDA_SUCCESS) Ownership::Get().Retained(*handle);
  return result;
}

CUresult MemMap(Route real, CUdeviceptr address, size_t bytes, size_t offset,
                CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return Ownership::Get().Map(address, bytes, handle,
                              [&] { return real(address, bytes, offset, handle, flags); });
}

CUresult MemUnmap(Route real, CUdeviceptr address, size_t bytes) {
  return Ownership::Get().Unmap(address, bytes, [&] { return real(address, bytes); });
}

CUresult MemGetInfo(Route real, size_t* free_bytes, size_t* total_bytes) {
  const CUresult result = real(free_bytes, total_bytes);
  const Ledger& ledger = Rank::Get().ledger(Rank::Get().CurrentOrdinal());
  if (result == CUDA_SUCCESS && ledger.limited()) {
    if (free_bytes != nullptr) *free_bytes = ledger.free_bytes();
    if (total_bytes != nullptr) *total_bytes = ledger.figures().limit_bytes;
  }
  return result;
}

void RecordPinned(int64_t bytes, void* address) {
  if (trace::Writer* writer = Rank::Get().memory_writer()) {
    writer->Memory(trace::MemoryKind::kPinned, bytes, reinterpret_cast<uintptr_t>(address));
  }
}

CUresult MemHostAlloc(Route real, void** address, size_t bytes, unsigned flags) {
  const CUresult result = real(address, bytes, flags);
  if (result == CUDA_SUCCESS) RecordPinned(static_cast<int64_t>(bytes), *address);
  return result;
}

CUresult MemAllocHost(Route real, void** address, size_t bytes) {
  const CUresult result = real(address, bytes);
  if (result == CUDA_SUCCESS) RecordPinned(static_cast<int64_t>(bytes), *address);
  return result;
}

CUresult MemFreeHost(Route real, void* address) {
  SpanTimer::Get().BeforeBlocking();
  const CUresult result = real(address);
  if (result == CUDA_SUCCESS) RecordPinned(-1, address);
  return result;
}

const Wrapper kWrappers[] = {
    PRISM_WRAP(cuMemAlloc_v2, MemAlloc),
    PRISM_WRAP(cuMemAllocManaged, MemAllocManaged),
    PRISM_WRAP(cuMemAllocPitch_v2, MemAllocPitch),
    PRISM_WRAP(cuMemFree_v2, MemFree),
    PRISM_WRAP_PTSZ(cuMemAllocAsync, MemAllocAsync),
    PRISM_WRAP_PTSZ(cuMemAllocFromPoolAsync, MemAllocFromPoolAsync),
    PRISM_WRAP_PTSZ(cuMemFreeAsync, MemFreeAsync),
    PRISM_WRAP(cuMemCreate, MemCreate),
    PRISM_WRAP(cuMemRelease, MemRelease),
    PRISM_WRAP(cuMemRetainAllocationHandle, MemRetainAllocationHandle),
    PRISM_WRAP(cuMemMap, MemMap),
    PRISM_WRAP(cuMemUnmap, MemUnmap),
    PRISM_WRAP(cuMemGetInfo_v2, MemGetInfo),
    PRISM_WRAP(cuMemHostAlloc, MemHostAlloc),
    PRISM_WRAP(cuMemAllocHost_v2, MemAllocHost),
    PRISM_WRAP(cuMemFreeHost, MemFreeHost),
};

}  // namespace

std::span<const Wrapper> MemoryWrappers() { return kWrappers; }

}  // namespace prism::interpose::driver
