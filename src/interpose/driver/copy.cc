// Copies and sets. Synchronous forms also make the host wait for the stream.
#include <cuda.h>

#include "src/interpose/driver/driver_clock.h"
#include "src/interpose/driver/numbers.h"
#include "src/interpose/driver/route.h"
#include "src/interpose/driver/span_timer.h"

namespace prism::interpose::driver {
namespace {

constexpr char kHtoD[] = "HtoD", kDtoH[] = "DtoH", kDtoD[] = "DtoD", kPtoP[] = "PtoP",
               kHtoH[] = "HtoH", kSet[] = "set";
constexpr uint32_t kOne[3] = {1, 1, 1};

void Enqueueing(CUstream stream, bool per_thread) {
  if (Rank::Get().writer() != nullptr) SpanTimer::Get().BeforeLaunch(stream, per_thread);
}

/// The same, before a call in which the host waits, or may.
void EnqueueingAwaited(CUstream stream, bool per_thread) {
  Enqueueing(stream, per_thread);
  SpanTimer::Get().BeforeBlocking();
}

/// What a copy does, and whether the host has waited for it in a call that need not.
struct Direction {
  const char* name;
  bool awaited = false;
};

void Enqueued(trace::KernelKind kind, Direction direction, uint64_t bytes, CUstream stream,
              bool per_thread) {
  trace::Writer* writer = Rank::Get().writer();
  if (writer == nullptr || IsCapturing(stream, per_thread)) return;
  const uint32_t number = StreamNumber(writer, stream, per_thread);
  if (direction.awaited) {
    HostClock::Waited();
    SpanTimer::Get().Waited(number);
  }
  HostClock::Enqueued(writer);
  writer->Launch(number, writer->Kernel(kind, direction.name, kOne, kOne, 0, bytes));
  // Its time ends here, where the host goes on.
  if (direction.awaited && DriverClock::is_virtual()) writer->EndSpan(number);
}

void EnqueuedAndAwaited(trace::KernelKind kind, const char* name, uint64_t bytes, bool per_thread) {
  trace::Writer* writer = Rank::Get().writer();
  if (writer == nullptr) return;
  const uint32_t stream = StreamNumber(writer, nullptr, per_thread);
  HostClock::Waited();
  SpanTimer::Get().Waited(stream);
  HostClock::Enqueued(writer);
  writer->Launch(stream, writer->Kernel(kind, name, kOne, kOne, 0, bytes));
  writer->SyncCopy(stream);
}

enum class Memory { kDevice, kPinned, kPageable };

Memory MemoryOf(CUdeviceptr address) {
  CUmemorytype type{};
  // Memory that CUDA does not know is pageable host memory.
  if (PRISM_REAL(cuPointerGetAttribute)(static_cast<void*>(&type), CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        address) != CUDA_SUCCESS)
    return Memory::kPageable;
  return type == CU_MEMORYTYPE_HOST ? Memory::kPinned : Memory::kDevice;
}

Direction DirectionOf(Memory to, Memory from) {
  if (from != Memory::kDevice) return {to == Memory::kDevice ? kHtoD : kHtoH};
  // Into pageable memory all forms wait.
  if (to != Memory::kDevice) return {kDtoH, to == Memory::kPageable};
  return {kDtoD};
}

Direction DirectionOf(CUdeviceptr to, CUdeviceptr from) {
  if (Rank::Get().writer() == nullptr) return {kDtoD};
  return DirectionOf(MemoryOf(to), MemoryOf(from));
}

CUdeviceptr AddressOf(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

template <class Parameters>
Direction DirectionOf(const Parameters& p) {
  const auto memory = [](CUmemorytype type, CUdeviceptr device, const void* host) {
    if (type == CU_MEMORYTYPE_HOST) return MemoryOf(AddressOf(host));
    return type == CU_MEMORYTYPE_UNIFIED ? MemoryOf(device) : Memory::kDevice;
  };
  return DirectionOf(memory(p.dstMemoryType, p.dstDevice, p.dstHost),
                     memory(p.srcMemoryType, p.srcDevice, p.srcHost));
}

constexpr auto kCopy = trace::KernelKind::kCopy;

template <const char* kName, class To, class From>
CUresult CopyAsync(Route real, To to, From from, size_t bytes, CUstream stream) {
  // Of pageable memory also this form waits.
  (kName == kDtoD ? Enqueueing : EnqueueingAwaited)(stream, real.per_thread);
  const CUresult result = real(to, from, bytes, stream);
  if (result != CUDA_SUCCESS || Rank::Get().writer() == nullptr) return result;
  Direction direction{kName};
  if constexpr (kName == kDtoH) direction = DirectionOf(MemoryOf(AddressOf(to)), Memory::kDevice);
  Enqueued(kCopy, direction, bytes, stream, real.per_thread);
  return result;
}

template <const char* kName, class To, class From>
CUresult Copy(Route real, To to, From from, size_t bytes) {
  EnqueueingAwaited(nullptr, real.per_thread);
  const CUresult result = real(to, from, bytes);
  if (result == CUDA_SUCCESS) EnqueuedAndAwaited(kCopy, kName, bytes, real.per_thread);
  return result;
}

CUresult CopyDtoD(Route real, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  Enqueueing(nullptr, real.per_thread);
  const CUresult result = real(to, from, bytes);  // returns before the copy is done
  if (result == CUDA_SUCCESS) Enqueued(kCopy, {kDtoD}, bytes, nullptr, real.per_thread);
  return result;
}

CUresult CopyUnified(Route real, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  EnqueueingAwaited(nullptr, real.per_thread);
  const CUresult result = real(to, from, bytes);
  if (result == CUDA_SUCCESS) {
    EnqueuedAndAwaited(kCopy, DirectionOf(to, from).name, bytes, real.per_thread);
  }
  return result;
}

CUresult CopyUnifiedAsync(Route real, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                          CUstream stream) {
  EnqueueingAwaited(stream, real.per_thread);
  const CUresult result = real(to, from, bytes, stream);
  if (result == CUDA_SUCCESS) {
    Enqueued(kCopy, DirectionOf(to, from), bytes, stream, real.per_thread);
  }
  return result;
}

CUresult CopyPeerAsync(Route real, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                       CUcontext from_context, size_t bytes, CUstream stream) {
  Enqueueing(stream, real.per_thread);
  const CUresult result = real(to, to_context, from, from_context, bytes, stream);
  if (result == CUDA_SUCCESS) Enqueued(kCopy, {kPtoP}, bytes, stream, real.per_thread);
  return result;
}

CUresult Copy2D(Route real, const CUDA_MEMCPY2D* p) {
  EnqueueingAwaited(nullptr, real.per_thread);
  const CUresult result = real(p);
  if (result == CUDA_SUCCESS && Rank::Get().writer() != nullptr) {
    EnqueuedAndAwaited(kCopy, DirectionOf(*p).name, p->WidthInBytes * p->Height, real.per_thread);
  }
  return result;
}

CUresult Copy2DAsync(Route real, const CUDA_MEMCPY2D* p, CUstream stream) {
  EnqueueingAwaited(stream, real.per_thread);
  const CUresult result = real(p, stream);
  if (result == CUDA_SUCCESS && Rank::Get().writer() != nullptr) {
    Enqueued(kCopy, DirectionOf(*p), p->WidthInBytes * p->Height, stream, real.per_thread);
  }
  return result;
}

CUresult Copy3DAsync(Route real, const CUDA_MEMCPY3D* p, CUstream stream) {
  EnqueueingAwaited(stream, real.per_thread);
  const CUresult result = real(p, stream);
  if (result == CUDA_SUCCESS && Rank::Get().writer() != nullptr) {
    Enqueued(kCopy, DirectionOf(*p), p->WidthInBytes * p->Height * p->Depth, stream,
             real.per_thread);
  }
  return result;
}

CUresult CopyBatchAsync(Route real, CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                        CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                        CUstream stream) {
  EnqueueingAwaited(stream, real.per_thread);
  const CUresult result =
      real(to, from, bytes, count, attributes, indices, attribute_count, stream);
  if (result == CUDA_SUCCESS) {
    for (size_t i = 0; i < count; ++i) {
      Enqueued(kCopy, DirectionOf(to[i], from[i]), bytes[i], stream, real.per_thread);
    }
  }
  return result;
}

template <class Value>
CUresult SetAsync(Route real, CUdeviceptr to, Value value, size_t count, CUstream stream) {
  Enqueueing(stream, real.per_thread);
  const CUresult result = real(to, value, count, stream);
  if (result == CUDA_SUCCESS) {
    Enqueued(trace::KernelKind::kSet, {kSet}, count * sizeof(Value), stream, real.per_thread);
  }
  return result;
}

template <class Value>
CUresult Set(Route real, CUdeviceptr to, Value value, size_t count) {
  Enqueueing(nullptr, real.per_thread);
  const CUresult result = real(to, value, count);
  if (result == CUDA_SUCCESS) {
    Enqueued(trace::KernelKind::kSet, {kSet}, count * sizeof(Value), nullptr, real.per_thread);
  }
  return result;
}

template <class Value>
CUresult Set2DAsync(Route real, CUdeviceptr to, size_t pitch, Value value, size_t width,
                    size_t height, CUstream stream) {
  Enqueueing(stream, real.per_thread);
  const CUresult result = real(to, pitch, value, width, height, stream);
  if (result == CUDA_SUCCESS) {
    Enqueued(trace::KernelKind::kSet, {kSet}, width * height * sizeof(Value), stream,
             real.per_thread);
  }
  return result;
}

using Host = const void*;
using Dev = CUdeviceptr;
constexpr auto kHtoDAsync = &CopyAsync<kHtoD, Dev, Host>;
constexpr auto kDtoHAsync = &CopyAsync<kDtoH, void*, Dev>;
constexpr auto kDtoDAsync = &CopyAsync<kDtoD, Dev, Dev>;
constexpr auto kHtoDSync = &Copy<kHtoD, Dev, Host>;
constexpr auto kDtoHSync = &Copy<kDtoH, void*, Dev>;

#define PRISM_WRAP_POINTER_AS(name, pointer, per_thread)                                        \
  Wrapper {                                                                                     \
    k_##name, false,                                                                            \
        reinterpret_cast<void*>(&Thunk<Route, CallScope, pointer, k_##name, per_thread>::Entry) \
  }
#define PRISM_WRAP_POINTER_PTSZ(name, pointer) \
  PRISM_WRAP_POINTER_AS(name, pointer, false), PRISM_WRAP_POINTER_AS(name##_ptsz, pointer, true)
#define PRISM_WRAP_POINTER_PTDS(name, pointer) \
  PRISM_WRAP_POINTER_AS(name, pointer, false), PRISM_WRAP_POINTER_AS(name##_ptds, pointer, true)

const Wrapper kWrappers[] = {
    PRISM_WRAP_POINTER_PTSZ(cuMemcpyHtoDAsync_v2, kHtoDAsync),
    PRISM_WRAP_POINTER_PTSZ(cuMemcpyDtoHAsync_v2, kDtoHAsync),
    PRISM_WRAP_POINTER_PTSZ(cuMemcpyDtoDAsync_v2, kDtoDAsync),
    PRISM_WRAP_POINTER_PTDS(cuMemcpyHtoD_v2, kHtoDSync),
    PRISM_WRAP_POINTER_PTDS(cuMemcpyDtoH_v2, kDtoHSync),
    PRISM_WRAP_PTDS(cuMemcpyDtoD_v2, CopyDtoD),
    PRISM_WRAP_PTDS(cuMemcpy, CopyUnified),
    PRISM_WRAP_PTSZ(cuMemcpyAsync, CopyUnifiedAsync),
    PRISM_WRAP_PTSZ(cuMemcpyPeerAsync, CopyPeerAsync),
    PRISM_WRAP_PTDS(cuMemcpy2D_v2, Copy2D),
    PRISM_WRAP_PTDS(cuMemcpy2DUnaligned_v2, Copy2D),
    PRISM_WRAP_PTSZ(cuMemcpy2DAsync_v2, Copy2DAsync),
    PRISM_WRAP_PTSZ(cuMemcpy3DAsync_v2, Copy3DAsync),
    PRISM_WRAP_PTSZ(cuMemcpyBatchAsync_v2, CopyBatchAsync),
    PRISM_WRAP_PTSZ(cuMemsetD8Async, SetAsync<unsigned char>),
    PRISM_WRAP_PTSZ(cuMemsetD16Async, SetAsync<unsigned short>),
    PRISM_WRAP_PTSZ(cuMemsetD32Async, SetAsync<unsigned int>),
    PRISM_WRAP_PTDS(cuMemsetD8_v2, Set<unsigned char>),
    PRISM_WRAP_PTDS(cuMemsetD16_v2, Set<unsigned short>),
    PRISM_WRAP_PTDS(cuMemsetD32_v2, Set<unsigned int>),
    PRISM_WRAP_PTSZ(cuMemsetD2D8Async, Set2DAsync<unsigned char>),
    PRISM_WRAP_PTSZ(cuMemsetD2D16Async, Set2DAsync<unsigned short>),
    PRISM_WRAP_PTSZ(cuMemsetD2D32Async, Set2DAsync<unsigned int>),
};

}  // namespace

std::span<const Wrapper> CopyWrappers() { return kWrappers; }

}  // namespace prism::interpose::driver
