#include "hostcuda/driver/copy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "hostcuda/driver/context.h"
#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/module.h"
#include "hostcuda/driver/options.h"

namespace hostcuda {
namespace {

constexpr uint64_t kReleaseBytes =
    1u << 20;  // zeroing from here on gives pages back instead of writing them

enum class Place { kPageable, kHost, kDevice };

Place PlaceOf(uintptr_t address, int* device) {
  MemoryRange range;
  if (!Driver::Get()->memory().Find(address, &range)) return Place::kPageable;
  *device = range.device;
  return range.on_device() ? Place::kDevice : Place::kHost;
}

bool Moves(uint64_t bytes) { return bytes <= Options().copy_limit_bytes || AnyBody(); }

/// How long the copy or set of the label takes on the virtual clock.
uint64_t DurationOf(const Label& label) {
  const WorkTimes* const times = Driver::Get()->engine().times();
  if (times == nullptr) return 0;
  if (label.type == CU_GRAPH_NODE_TYPE_MEMSET) return times->SetNs(label.bytes);
  const CopyWay way = label.copy_kind == kCopyDeviceToDevice ? CopyWay::kDevice
                      : label.copy_kind == kCopyPeer         ? CopyWay::kPeer
                                                             : CopyWay::kHost;
  return times->CopyNs(way, label.bytes);
}

uint64_t Span(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t plane) {
  return (depth - 1) * plane + (height - 1) * pitch + width;
}

}  // namespace

void Price(Label* label) {
  label->call = HostCall::kCopy;
  label->duration_ns = DurationOf(*label);
}

int RunCopy(const CopyShape& s) {
  const uint64_t bytes = s.width * s.height * s.depth;
  if (bytes == 0) return kDone;
  DeviceMemory& memory = Driver::Get()->memory();
  if (!memory.Accessible(s.destination, Span(s.width, s.height, s.depth, s.destination_pitch,
                                             s.destination_plane)) ||
      !memory.Accessible(s.source,
                         Span(s.width, s.height, s.depth, s.source_pitch, s.source_plane))) {
    return Failed(CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  int device = 0;
  const bool large = bytes > Options().copy_limit_bytes;
  const bool flat = s.depth == 1 && (s.height == 1 ||
                                     (s.width == s.destination_pitch && s.width == s.source_pitch));
  if (large && !Moves(bytes)) {
    if (PlaceOf(s.destination, &device) == Place::kDevice) return kDone;
    if (flat && PlaceOf(s.source, &device) == Place::kDevice) {
      memory.CopyOutSparse(reinterpret_cast<void*>(s.destination), s.source, bytes);
      return kDone;
    }
  }
  if (flat) {
    memmove(reinterpret_cast<void*>(s.destination), reinterpret_cast<const void*>(s.source), bytes);
    return kDone;
  }
  for (uint64_t z = 0; z < s.depth; ++z) {
    for (uint64_t y = 0; y < s.height; ++y) {
      memmove(reinterpret_cast<void*>(s.destination + z * s.destination_plane +
                                      y * s.destination_pitch),
              reinterpret_cast<const void*>(s.source + z * s.source_plane + y * s.source_pitch),
              s.width);
    }
  }
  return kDone;
}

CUresult Copy(const StreamRef& stream, const CopyShape& given, Direction direction,
              bool synchronous) {
  const CopyShape& shape = given;
  const uint64_t bytes = shape.width * shape.height * shape.depth;
  if (bytes == 0) return CUDA_SUCCESS;
  if (shape.destination == 0 || shape.source == 0) return CUDA_ERROR_INVALID_VALUE;
  Engine& engine = Driver::Get()->engine();
  int source_device = stream->context->device, destination_device = source_device;
  const Place from = PlaceOf(shape.source, &source_device),
              to = PlaceOf(shape.destination, &destination_device);
  // What the call says must agree with what the addresses are, where CUDA knows them.
  if ((direction == Direction::kDeviceToHost && from == Place::kPageable) ||
      (direction == Direction::kHostToDevice && to == Place::kPageable) ||
      ((direction == Direction::kDeviceToDevice || direction == Direction::kPeer) &&
       (from == Place::kPageable || to == Place::kPageable))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  label.activity = HOSTCUDA_ACTIVITY_MEMCPY;
  label.bytes = bytes;
  label.host_pinned = from == Place::kHost || to == Place::kHost;
  if (from == Place::kDevice && to == Place::kDevice) {
    const bool peer = source_device != destination_device;
    label.copy_kind = peer ? kCopyPeer : kCopyDeviceToDevice;
    label.name = peer ? "PtoP" : "DtoD";
  } else if (to == Place::kDevice) {
    label.copy_kind = 1;
    label.name = "HtoD";
  } else if (from == Place::kDevice) {
    label.copy_kind = 2;
    label.name = "DtoH";
  } else {
    label.copy_kind = 9;
    label.name = "HtoH";
  }
  Price(&label);
  const bool capturing = engine.Capturing(*stream);
  CUresult result;
  if (from == Place::kPageable && !capturing && (engine.takes_time() || !engine.Idle(*stream)) &&
      (Moves(bytes) || to != Place::kDevice)) {
    // The caller may reuse pageable memory as soon as the call returns.
    auto staged = std::make_shared<std::vector<char>>(bytes);
    CopyShape in = shape;
    in.destination = reinterpret_cast<uintptr_t>(staged->data());
    in.destination_pitch = shape.width;
    in.destination_plane = shape.width * shape.height;
    for (uint64_t z = 0; z < in.depth; ++z) {
      for (uint64_t y = 0; y < in.height; ++y) {
        memcpy(staged->data() + z * in.destination_plane + y * in.width,
               reinterpret_cast<const void*>(shape.source + z * shape.source_plane +
                                             y * shape.source_pitch),
               in.width);
      }
    }
    CopyShape out = shape;
    out.source = in.destination;
    out.source_pitch = in.destination_pitch;
    out.source_plane = in.destination_plane;
    result = engine.Submit(*stream, label, [out, staged](PollState&) { return RunCopy(out); });
  } else {
    result = engine.Submit(*stream, label, [shape](PollState&) { return RunCopy(shape); });
  }
  if (result != CUDA_SUCCESS || capturing) return result;
  if (synchronous || to == Place::kPageable) {
    if (!engine.Idle(*stream)) return engine.Synchronize(*stream);
    return static_cast<CUresult>(stream->context->sticky.load(std::memory_order_relaxed));
  }
  return CUDA_SUCCESS;
}

int RunSet(const SetShape& s) {
  const uint64_t row = s.width * s.element;
  const uint64_t bytes = row * s.height;
  if (bytes == 0) return kDone;
  DeviceMemory& memory = Driver::Get()->memory();
  if (!memory.Accessible(s.destination, (s.height - 1) * s.pitch + row))
    return Failed(CUDA_ERROR_ILLEGAL_ADDRESS);
  const bool flat = s.height == 1 || s.pitch == row;
  if (flat && s.value == 0 && bytes >= kReleaseBytes && memory.ZeroByRelease(s.destination, bytes))
    return kDone;
  if (!Moves(bytes)) return kDone;
  for (uint64_t y = 0; y < s.height; ++y) {
    char* out = reinterpret_cast<char*>(s.destination + y * s.pitch);
    if (s.element == 1) {
      memset(out, static_cast<int>(s.value), row);
    } else if (s.element == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(out), s.width, static_cast<uint16_t>(s.value));
    } else {
      std::fill_n(reinterpret_cast<uint32_t*>(out), s.width, s.value);
    }
  }
  return kDone;
}

CUresult Set(const StreamRef& stream, const SetShape& shape, bool synchronous) {
  const uint64_t bytes = shape.width * shape.element * shape.height;
  if (bytes == 0) return CUDA_SUCCESS;
  if (shape.destination == 0 || shape.destination % shape.element != 0)
    return CUDA_ERROR_INVALID_VALUE;
  int device = 0;
  if (PlaceOf(shape.destination, &device) == Place::kPageable) return CUDA_ERROR_INVALID_VALUE;
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_MEMSET;
  label.activity = HOSTCUDA_ACTIVITY_MEMSET;
  label.name = "memset";
  label.bytes = bytes;
  Price(&label);
  Engine& engine = Driver::Get()->engine();
  const CUresult result =
      engine.Submit(*stream, label, [shape](PollState&) { return RunSet(shape); });
  if (result != CUDA_SUCCESS || !synchronous || engine.Capturing(*stream)) return result;
  return engine.Idle(*stream) ? CUDA_SUCCESS : engine.Synchronize(*stream);
}

}  // namespace hostcuda
