#include "src/interpose/driver/numbers.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "src/base/optimizer_kernel.h"
#include "src/interpose/driver/kernel_parameters.h"
#include "src/interpose/driver/route.h"

namespace prism::interpose::driver {
namespace {

struct Streams {
  std::shared_mutex mutex;
  std::unordered_map<CUstream, uint32_t> numbers;
};
Streams& GetStreams() {
  static auto* streams = new Streams;
  return *streams;
}

struct Events {
  std::shared_mutex mutex;
  struct State {
    uint32_t number;
    std::atomic<uint64_t> version{0};
  };
  std::unordered_map<CUevent, State*> states;  // states are not freed: a reader may still hold one
  uint32_t next = 1;
};
Events& GetEvents() {
  static auto* events = new Events;
  return *events;
}

std::atomic<int> g_captures{0};
std::atomic<uint32_t> g_kernel_generation{0};
std::atomic<uint32_t> g_stream_generation{1};  // a handle may come again for another stream

uint32_t Device() {
  const VisibleDevices* devices = Rank::Get().visible_devices();
  return devices == nullptr || devices->own == UINT32_MAX ? 0 : devices->own;
}

Events::State& EventState(CUevent event) {
  Events& events = GetEvents();
  {
    std::shared_lock lock(events.mutex);
    const auto found = events.states.find(event);
    if (found != events.states.end()) return *found->second;
  }
  std::unique_lock lock(events.mutex);
  Events::State*& state = events.states[event];
  if (state == nullptr) {
    state = new Events::State;
    state->number = events.next++;
  }
  return *state;
}

}  // namespace

uint32_t StreamNumber(trace::Writer* writer, CUstream stream, bool per_thread) {
  if (stream == nullptr) stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  if (stream == CU_STREAM_PER_THREAD) {
    thread_local uint32_t number = UINT32_MAX;
    if (number == UINT32_MAX) number = writer->AddStream(Device(), 0, "per-thread default stream");
    return number;
  }
  // Most calls are about the stream of the call before.
  struct Last {
    CUstream stream;
    uint32_t generation, number;
  };
  thread_local Last last{nullptr, 0, 0};
  const uint32_t generation = g_stream_generation.load(std::memory_order_acquire);
  if (last.stream == stream && last.generation == generation) return last.number;
  const auto remember = [&](uint32_t number) {
    last = {stream, generation, number};
    return number;
  };
  Streams& streams = GetStreams();
  {
    std::shared_lock lock(streams.mutex);
    const auto found = streams.numbers.find(stream);
    if (found != streams.numbers.end()) return remember(found->second);
  }
  std::unique_lock lock(streams.mutex);
  const auto [place, inserted] = streams.numbers.try_emplace(stream, 0);
  if (inserted) {
    int priority = 0;
    if (stream != CU_STREAM_LEGACY) PRISM_REAL(cuStreamGetPriority)(stream, &priority);
    place->second = writer->AddStream(Device(), priority,
                                      stream == CU_STREAM_LEGACY ? "default stream" : "stream");
  }
  return remember(place->second);
}

void StreamCreated(trace::Writer* writer, CUstream stream, int priority) {
  Streams& streams = GetStreams();
  std::unique_lock lock(streams.mutex);
  streams.numbers[stream] = writer->AddStream(Device(), priority, "stream");
  g_stream_generation.fetch_add(1, std::memory_order_acq_rel);
}

void StreamDestroyed(CUstream stream) {
  Streams& streams = GetStreams();
  std::unique_lock lock(streams.mutex);
  streams.numbers.erase(stream);
  g_stream_generation.fetch_add(1, std::memory_order_acq_rel);
}

EventVersion EventRecorded(CUevent event) {
  Events::State& state = EventState(event);
  return {state.number, state.version.fetch_add(1, std::memory_order_acq_rel) + 1};
}

EventVersion EventNow(CUevent event) {
  Events::State& state = EventState(event);
  return {state.number, state.version.load(std::memory_order_acquire)};
}

void EventDestroyed(CUevent event) {
  Events& events = GetEvents();
  std::unique_lock lock(events.mutex);
  events.states.erase(event);
}

bool AnyCapture() { return g_captures.load(std::memory_order_relaxed) != 0; }

bool IsCapturing(CUstream stream, bool per_thread) {
  if (!AnyCapture()) return false;
  if (stream == nullptr) stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  // The legacy stream is never captured, and asking while another is would invalidate that capture.
  if (stream == CU_STREAM_LEGACY) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return PRISM_REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void CaptureBegun() { g_captures.fetch_add(1, std::memory_order_relaxed); }
void CaptureEnded() { g_captures.fetch_sub(1, std::memory_order_relaxed); }

LaunchKind LaunchKindOf(trace::Writer* writer, CUfunction function, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, uint32_t parameters) {
  struct Seen {  // no padding: launches are compared byte by byte
    CUfunction function;
    uint32_t grid[3], block[3], shared_bytes, parameters, generation, number, updates, unused;
  };
  static_assert(sizeof(Seen) == sizeof(CUfunction) + 12 * sizeof(uint32_t));
  constexpr size_t kSeen = 512;
  // On the heap: thread-local storage of a preloaded library comes out of every thread's stack.
  thread_local std::unique_ptr<Seen[]> seen;
  if (seen == nullptr) seen = std::make_unique<Seen[]>(kSeen);
  Seen key{};
  key.function = function;
  memcpy(key.grid, grid, sizeof key.grid);
  memcpy(key.block, block, sizeof key.block);
  key.shared_bytes = shared_bytes;
  key.parameters = parameters;
  key.generation = g_kernel_generation.load(std::memory_order_acquire) + 1;
  uint64_t hash = reinterpret_cast<uintptr_t>(function) >> 4;
  for (const uint32_t part :
       {grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, parameters}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
  }
  Seen& slot = seen[(hash >> 32) % kSeen];
  key.number = slot.number;
  key.updates = slot.updates;
  if (memcmp(&slot, &key, sizeof key) == 0) return {slot.number, slot.updates != 0};
  const char* name = nullptr;
  // A launch takes kernels as well as functions.
  if (PRISM_REAL(cuFuncGetName)(&name, function) != CUDA_SUCCESS || name == nullptr) {
    if (PRISM_REAL(cuKernelGetName)(&name, reinterpret_cast<CUkernel>(function)) != CUDA_SUCCESS) {
      name = nullptr;
    }
  }
  if (name == nullptr) name = "unknown kernel";
  key.number =
      writer->Kernel(trace::KernelKind::kKernel, name, grid, block, shared_bytes, 0, parameters);
  key.updates = UpdatesWeights(name) ? 1 : 0;
  slot = key;
  return {key.number, key.updates != 0};
}

void KernelsUnloaded() {
  g_kernel_generation.fetch_add(1, std::memory_order_acq_rel);
  ForgetKernelParameters();
}

}  // namespace prism::interpose::driver
