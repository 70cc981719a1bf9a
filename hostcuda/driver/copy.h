// Copies and sets, in stream order, under the rule of HOSTCUDA_VALUES.
//
// With values none (and control) a copy or set of more than HOSTCUDA_COPY_LIMIT bytes is counted
// and shown to profilers but moves nothing when its destination is device memory, so that memory
// nobody touched stays untouched. Copies to the host are always made (memory nobody wrote reads as
// zeros). With values cpu, or once the program has registered a kernel body, everything is made.
// Thread-safe.
#ifndef HOSTCUDA_DRIVER_COPY_H_
#define HOSTCUDA_DRIVER_COPY_H_

#include <cuda.h>

#include <cstdint>

#include "hostcuda/driver/engine.h"

namespace hostcuda {

enum class Direction { kInfer, kHostToDevice, kDeviceToHost, kDeviceToDevice, kHostToHost, kPeer };

/// A copy of `height` rows of `width` bytes in each of `depth` planes.
struct CopyShape {
  uintptr_t destination = 0, source = 0;
  uint64_t width = 0, height = 1, depth = 1;
  uint64_t destination_pitch = 0, source_pitch = 0;
  uint64_t destination_plane = 0, source_plane = 0;
};

/// Reads a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER; false where it names an array: those are not
/// emulated.
template <class Parameters>
bool ShapeOf(const Parameters& p, CopyShape* shape) {
  const auto side = [](CUmemorytype type, const void* host, CUdeviceptr device,
                       uintptr_t* address) {
    *address = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
    return type != CU_MEMORYTYPE_ARRAY;
  };
  if (!side(p.srcMemoryType, p.srcHost, p.srcDevice, &shape->source) ||
      !side(p.dstMemoryType, p.dstHost, p.dstDevice, &shape->destination)) {
    return false;
  }
  shape->width = p.WidthInBytes;
  shape->height = p.Height;
  shape->depth = p.Depth;
  shape->source_pitch = p.srcPitch != 0 ? p.srcPitch : shape->width;
  shape->destination_pitch = p.dstPitch != 0 ? p.dstPitch : shape->width;
  shape->source_plane = shape->source_pitch * (p.srcHeight != 0 ? p.srcHeight : shape->height);
  shape->destination_plane =
      shape->destination_pitch * (p.dstHeight != 0 ? p.dstHeight : shape->height);
  shape->source += p.srcZ * shape->source_plane + p.srcY * shape->source_pitch + p.srcXInBytes;
  shape->destination +=
      p.dstZ * shape->destination_plane + p.dstY * shape->destination_pitch + p.dstXInBytes;
  return true;
}

/// Numbers of CUpti_ActivityMemcpyKind.
inline constexpr int kCopyDeviceToDevice = 8, kCopyPeer = 10;

/// Fills in what the call and the work of a copy's or set's label take on the virtual clock.
void Price(Label* label);

/// Enqueues a copy; `synchronous`: returns when it is done. As on a GPU, pageable memory is read
/// before the call returns and written when it returns.
CUresult Copy(const StreamRef& stream, const CopyShape& shape, Direction direction,
              bool synchronous);

/// A set of `height` rows of `width` elements of `element` bytes (1, 2 or 4).
struct SetShape {
  uintptr_t destination = 0;
  uint64_t pitch = 0, width = 0, height = 1;
  uint32_t value = 0;
  uint32_t element = 1;
};
CUresult Set(const StreamRef& stream, const SetShape& shape, bool synchronous);

/// What a graph node does at a replay.
int RunCopy(const CopyShape& shape);
int RunSet(const SetShape& shape);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_COPY_H_
