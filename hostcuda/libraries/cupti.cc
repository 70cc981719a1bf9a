// CUPTI by hand: the activity interface, so that torch.profiler and other Kineto users show
// kernels, copies, sets and synchronizations with the calls that caused them.
//
// Supported kinds: kernels, memcpy, memset, runtime and driver (one record a call: library kernels
// as a driver launch, all else under the name of the usual runtime function), external correlation,
// synchronization; overhead can be enabled and has no records. Records are delivered by a flush.
// The callback interface accepts a subscriber; domains other than "resource" are not supported and
// say so.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/activity_recorder.h"
#include "hostcuda/libraries/driver_link.h"

#pragma GCC visibility push(default)
#include <cupti.h>
#pragma GCC visibility pop

namespace hostcuda {
namespace {

HostcudaLibrary kLibrary = {"libcupti.so.13",
                            "hostcupti",
                            CUPTI_ERROR_NOT_SUPPORTED,
                            CUPTI_ERROR_NOT_INITIALIZED,
                            CUPTI_ERROR_INVALID_PARAMETER,
                            CUPTI_ERROR_UNKNOWN,
                            "CUPTI_ERROR_NOT_SUPPORTED",
                            {}};
HostcudaTailCall g_enable_kind = {&kLibrary, "cuptiActivityEnable of this activity kind", 0};
HostcudaTailCall g_enable_callback = {
    &kLibrary, "cuptiEnableCallback/cuptiEnableDomain outside the resource domain", 0};

struct State {
  ActivityRecorder recorder;
  std::array<std::atomic<bool>, CUPTI_ACTIVITY_KIND_COUNT> enabled{};
  std::atomic<CUpti_BuffersCallbackRequestFunc> request{nullptr};
  std::atomic<CUpti_BuffersCallbackCompleteFunc> complete{nullptr};
  std::atomic<CUpti_TimestampCallbackFunc> timestamp{nullptr};

  std::mutex mutex;  // below
  ClockMap clock;
  bool clock_started = false;
  uint8_t* first_buffer =
      nullptr;  // requested at the first record: profilers flush only if one is out
  size_t first_buffer_bytes = 0;
  std::set<uint32_t> muted_runtime_calls, muted_driver_calls;
  std::map<int, std::vector<char>> attributes;
  CUpti_Subscriber_st* subscriber = nullptr;
};
// Never destroyed: the driver may report while the process exits.
State& S() {
  static State* const state = new State;
  return *state;
}

bool Enabled(CUpti_ActivityKind kind) { return S().enabled[kind].load(std::memory_order_relaxed); }
// Which kinds are wanted, bit by bit. A profiler disables them before it flushes, so every record
// remembers.
uint64_t EnabledKinds() {
  uint64_t kinds = 0;
  for (size_t kind = 0; kind < CUPTI_ACTIVITY_KIND_COUNT; ++kind) {
    if (S().enabled[kind].load(std::memory_order_relaxed)) kinds |= uint64_t{1} << kind;
  }
  return kinds;
}
static_assert(CUPTI_ACTIVITY_KIND_COUNT <= 64, "one bit a kind");
bool KernelsEnabled() {
  return Enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) || Enabled(CUPTI_ACTIVITY_KIND_KERNEL);
}
bool AnyRecorded() {
  return KernelsEnabled() || Enabled(CUPTI_ACTIVITY_KIND_MEMCPY) ||
         Enabled(CUPTI_ACTIVITY_KIND_MEMSET) || Enabled(CUPTI_ACTIVITY_KIND_RUNTIME) ||
         Enabled(CUPTI_ACTIVITY_KIND_DRIVER) || Enabled(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
}

uint64_t RealTimeNs() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}
// Both clocks, read next to each other.
ClockMap::Reading ReadClocks() {
  const HostcudaTable* table = Table();
  CUpti_TimestampCallbackFunc callback = S().timestamp.load();
  const uint64_t job = table ? table->now_ns() : 0;
  return {job, callback ? callback() : RealTimeNs()};
}
uint32_t ThreadId() {
  thread_local const auto id = static_cast<uint32_t>(syscall(SYS_gettid));
  return id;
}

void Observe(const HostcudaActivity* activity) noexcept {
  State& s = S();
  s.recorder.Add(*activity, EnabledKinds());
  std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.first_buffer) {
    size_t max_records = 0;
    if (auto request = s.request.load())
      request(&s.first_buffer, &s.first_buffer_bytes, &max_records);
  }
}

uint32_t RuntimeCall(const HostcudaActivity& a) {
  switch (a.kind) {
    case HOSTCUDA_ACTIVITY_KERNEL:
      return CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;
    case HOSTCUDA_ACTIVITY_MEMCPY:
      return CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020;
    case HOSTCUDA_ACTIVITY_MEMSET:
      return CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020;
    case HOSTCUDA_ACTIVITY_SYNC:
      // The driver says by name what was waited for.
      if (a.name && strstr(a.name, "vent"))
        return CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020;
      if (a.name && strstr(a.name, "tream"))
        return CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020;
      return CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020;
  }
  return 0;
}

size_t RecordBytes(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return sizeof(CUpti_ActivitySynchronization2);
    default:
      return 0;
  }
}

// Serializes records into buffers that the profiler lends, and hands each over when it is full.
class Delivery {
 public:
  Delivery(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete,
           uint8_t* buffer, size_t capacity)
      : request_(request), complete_(complete), buffer_(buffer), capacity_(capacity) {}
  ~Delivery() { HandOver(); }

  template <typename Record>
  void Put(const Record& record) {
    if (buffer_ && used_ + sizeof record > capacity_) HandOver();
    if (!buffer_) {
      size_t max_records = 0;
      request_(&buffer_, &capacity_, &max_records);
      if (!buffer_ || capacity_ < sizeof record) return;
    }
    memcpy(buffer_ + used_, &record, sizeof record);
    used_ += sizeof record;
  }

 private:
  void HandOver() {
    if (buffer_) complete_(nullptr, 0, buffer_, capacity_, used_);
    buffer_ = nullptr;
    used_ = 0;
  }
  CUpti_BuffersCallbackRequestFunc request_;
  CUpti_BuffersCallbackCompleteFunc complete_;
  uint8_t* buffer_;
  size_t capacity_, used_ = 0;
};

// Calls that a profiler does not want to see.
struct Muted {
  std::set<uint32_t> runtime, driver;
};

// Kernels of hostcuda's libraries carry its prefix; everything else was launched by the runtime, or
// by a program that calls the driver itself, which the activity does not tell.
bool FromLibrary(const HostcudaActivity& a) {
  return a.kind == HOSTCUDA_ACTIVITY_KERNEL && a.name && strncmp(a.name, "hostcu", 6) == 0;
}

CUpti_ActivityAPI ApiRecord(const HostcudaActivity& a, const ClockMap& clock,
                            CUpti_ActivityKind kind, uint32_t call) {
  CUpti_ActivityAPI api{};
  api.kind = kind;
  api.cbid = call;
  api.start = clock(a.enqueue_start_ns);
  api.end = clock(a.enqueue_end_ns);
  api.processId = static_cast<uint32_t>(getpid());
  api.threadId = a.thread;
  api.correlationId = a.correlation;
  return api;
}

void Deliver(const ActivityRecorder::Record& r, const ClockMap& clock, const Muted& muted,
             Delivery* out) {
  const HostcudaActivity& a = r.activity;
  const auto wanted = [&r](CUpti_ActivityKind kind) { return (r.enabled >> kind & 1) != 0; };
  const uint64_t start = clock(a.start_ns), end = clock(a.end_ns);
  if (r.first_of_call && wanted(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    for (uint32_t kind = 0; kind < ActivityRecorder::kExternalKinds; ++kind) {
      if (!(r.external_kinds >> kind & 1)) continue;
      CUpti_ActivityExternalCorrelation e{};
      e.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
      e.externalKind = static_cast<CUpti_ExternalCorrelationKind>(kind);
      e.externalId = r.external[kind];
      e.correlationId = a.correlation;
      out->Put(e);
    }
  }
  if (r.first_of_call && FromLibrary(a)) {
    // NVIDIA's libraries launch through the driver, so that is the record profilers expect.
    if (wanted(CUPTI_ACTIVITY_KIND_DRIVER) &&
        !muted.driver.contains(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx))
      out->Put(ApiRecord(a, clock, CUPTI_ACTIVITY_KIND_DRIVER,
                         CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx));
  } else if (const uint32_t call = RuntimeCall(a); r.first_of_call &&
                                                   wanted(CUPTI_ACTIVITY_KIND_RUNTIME) &&
                                                   !muted.runtime.contains(call)) {
    out->Put(ApiRecord(a, clock, CUPTI_ACTIVITY_KIND_RUNTIME, call));
  }
  switch (a.kind) {
    case HOSTCUDA_ACTIVITY_KERNEL: {
      if (!(wanted(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) || wanted(CUPTI_ACTIVITY_KIND_KERNEL)))
        return;
      CUpti_ActivityKernel10 k{};
      k.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
      k.start = start;
      k.end = end;
      k.deviceId = a.device;
      k.contextId = a.context;
      k.streamId = a.stream;
      k.gridX = static_cast<int32_t>(a.grid[0]);
      k.gridY = static_cast<int32_t>(a.grid[1]);
      k.gridZ = static_cast<int32_t>(a.grid[2]);
      k.blockX = static_cast<int32_t>(a.block[0]);
      k.blockY = static_cast<int32_t>(a.block[1]);
      k.blockZ = static_cast<int32_t>(a.block[2]);
      k.dynamicSharedMemory = static_cast<int32_t>(a.shared_bytes);
      k.correlationId = a.correlation;
      k.name = a.name;
      out->Put(k);
      return;
    }
    case HOSTCUDA_ACTIVITY_MEMCPY: {
      if (!wanted(CUPTI_ACTIVITY_KIND_MEMCPY)) return;
      CUpti_ActivityMemcpy6 m{};
      m.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
      m.copyKind = static_cast<uint8_t>(a.copy_kind);
      const bool from_host = a.copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD ||
                             a.copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
      const bool to_host = a.copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ||
                           a.copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
      const CUpti_ActivityMemoryKind host =
          a.host_pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
      m.srcKind = from_host ? host : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
      m.dstKind = to_host ? host : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
      m.bytes = a.bytes;
      m.start = start;
      m.end = end;
      m.deviceId = a.device;
      m.contextId = a.context;
      m.streamId = a.stream;
      m.correlationId = a.correlation;
      out->Put(m);
      return;
    }
    case HOSTCUDA_ACTIVITY_MEMSET: {
      if (!wanted(CUPTI_ACTIVITY_KIND_MEMSET)) return;
      CUpti_ActivityMemset4 m{};
      m.kind = CUPTI_ACTIVITY_KIND_MEMSET;
      m.bytes = a.bytes;
      m.start = start;
      m.end = end;
      m.deviceId = a.device;
      m.contextId = a.context;
      m.streamId = a.stream;
      m.correlationId = a.correlation;
      m.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
      out->Put(m);
      return;
    }
    case HOSTCUDA_ACTIVITY_SYNC: {
      if (!wanted(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)) return;
      CUpti_ActivitySynchronization2 y{};
      y.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
      switch (RuntimeCall(a)) {
        case CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020:
          y.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE;
          break;
        case CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020:
          y.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
          break;
        default:
          y.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE;
          break;
      }
      y.start = start;
      y.end = end;
      y.correlationId = a.correlation;
      y.contextId = a.context;
      y.streamId = a.stream;
      out->Put(y);
      return;
    }
  }
}

CUptiResult SetEnabled(CUpti_ActivityKind kind, bool on) noexcept {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_MEMCPY:
    case CUPTI_ACTIVITY_KIND_MEMSET:
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      break;
    default:
      return on ? static_cast<CUptiResult>(HostcudaUnsupported(&g_enable_kind)) : CUPTI_SUCCESS;
  }
  const HostcudaTable* table = Table();
  if (!table) return CUPTI_ERROR_NOT_INITIALIZED;
  State& s = S();
  s.enabled[kind].store(on);
  std::lock_guard<std::mutex> lock(s.mutex);
  if (on && !s.clock_started) {
    s.clock.Start(ReadClocks());
    s.clock_started = true;
  }
  table->set_activity_observer(AnyRecorded() ? Observe : nullptr);
  return CUPTI_SUCCESS;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback;
  void* context;
};

extern "C" {

CUptiResult cuptiGetVersion(uint32_t* version) {
  return version ? (*version = CUPTI_API_VERSION, CUPTI_SUCCESS) : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  if (!text) return CUPTI_ERROR_INVALID_PARAMETER;
  switch (result) {
    case CUPTI_SUCCESS:
      *text = "CUPTI_SUCCESS";
      break;
    case CUPTI_ERROR_INVALID_PARAMETER:
      *text = "CUPTI_ERROR_INVALID_PARAMETER";
      break;
    case CUPTI_ERROR_INVALID_KIND:
      *text = "CUPTI_ERROR_INVALID_KIND";
      break;
    case CUPTI_ERROR_MAX_LIMIT_REACHED:
      *text = "CUPTI_ERROR_MAX_LIMIT_REACHED";
      break;
    case CUPTI_ERROR_NOT_INITIALIZED:
      *text = "CUPTI_ERROR_NOT_INITIALIZED";
      break;
    case CUPTI_ERROR_QUEUE_EMPTY:
      *text = "CUPTI_ERROR_QUEUE_EMPTY";
      break;
    case CUPTI_ERROR_NOT_SUPPORTED:
      *text = "CUPTI_ERROR_NOT_SUPPORTED";
      break;
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
      break;
    default:
      *text = "another CUptiResult";
      break;
  }
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** text) {
  return cuptiGetResultString(result, text);
}

CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  if (!timestamp) return CUPTI_ERROR_INVALID_PARAMETER;
  *timestamp = ReadClocks().second;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc callback) {
  State& s = S();
  s.timestamp.store(callback);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.clock_started = false;  // readings of two different clocks make no line
  if (AnyRecorded()) {
    s.clock.Start(ReadClocks());
    s.clock_started = true;
  }
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  if (!request || !complete) return CUPTI_ERROR_INVALID_PARAMETER;
  S().request.store(request);
  S().complete.store(complete);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  return kind > 0 && kind < CUPTI_ACTIVITY_KIND_COUNT ? SetEnabled(kind, true)
                                                      : CUPTI_ERROR_INVALID_KIND;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  return kind > 0 && kind < CUPTI_ACTIVITY_KIND_COUNT ? SetEnabled(kind, false)
                                                      : CUPTI_ERROR_INVALID_KIND;
}

CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId call, uint8_t enable) {
  State& s = S();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (enable)
    s.muted_runtime_calls.erase(call);
  else
    s.muted_runtime_calls.insert(call);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId call, uint8_t enable) {
  State& s = S();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (enable)
    s.muted_driver_calls.erase(call);
  else
    s.muted_driver_calls.insert(call);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t* size,
                                      void* value) {
  if (!size || !value) return CUPTI_ERROR_INVALID_PARAMETER;
  State& s = S();
  std::lock_guard<std::mutex> lock(s.mutex);
  const char* bytes = static_cast<const char*>(value);
  s.attributes[attribute].assign(bytes, bytes + *size);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetAttribute(CUpti_ActivityAttribute attribute, size_t* size,
                                      void* value) {
  if (!size || !value) return CUPTI_ERROR_INVALID_PARAMETER;
  State& s = S();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto found = s.attributes.find(attribute);
  if (found == s.attributes.end()) return CUPTI_ERROR_NOT_SUPPORTED;
  if (*size < found->second.size()) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  memcpy(value, found->second.data(), found->second.size());
  *size = found->second.size();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                   uint64_t id) {
  const HostcudaTable* table = Table();
  if (kind <= 0 || kind >= CUPTI_EXTERNAL_CORRELATION_KIND_SIZE)
    return CUPTI_ERROR_INVALID_PARAMETER;
  S().recorder.Push(ThreadId(), kind, id, table ? table->now_ns() : 0);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                                  uint64_t* last) {
  const HostcudaTable* table = Table();
  if (kind <= 0 || kind >= CUPTI_EXTERNAL_CORRELATION_KIND_SIZE)
    return CUPTI_ERROR_INVALID_PARAMETER;
  return S().recorder.Pop(ThreadId(), kind, table ? table->now_ns() : 0, last)
             ? CUPTI_SUCCESS
             : CUPTI_ERROR_QUEUE_EMPTY;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  State& s = S();
  auto request = s.request.load();
  auto complete = s.complete.load();
  if (!request || !complete) return CUPTI_ERROR_INVALID_OPERATION;
  std::vector<ActivityRecorder::Record> records = s.recorder.Take();
  ClockMap clock;
  Muted muted;
  uint8_t* buffer;
  size_t bytes;
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    s.clock.End(ReadClocks());
    clock = s.clock;
    muted = {s.muted_runtime_calls, s.muted_driver_calls};
    buffer = std::exchange(s.first_buffer, nullptr);
    bytes = s.first_buffer_bytes;
  }
  // Without the lock: the profiler's callbacks take locks of their own.
  Delivery delivery(request, complete, buffer, bytes);
  for (const ActivityRecorder::Record& record : records) Deliver(record, clock, muted, &delivery);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlush(CUcontext, uint32_t, uint32_t flags) {
  return cuptiActivityFlushAll(flags);
}
// Records are handed over at a flush; the period only says how often CUPTI would do so by itself.
CUptiResult cuptiActivityFlushPeriod(uint32_t) { return CUPTI_SUCCESS; }

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  if (!buffer || !record) return CUPTI_ERROR_INVALID_PARAMETER;
  uint8_t* next = buffer;
  if (*record) {
    const size_t bytes = RecordBytes((*record)->kind);
    if (bytes == 0) return CUPTI_ERROR_INVALID_KIND;
    next = reinterpret_cast<uint8_t*>(*record) + bytes;
  }
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  return dropped ? (*dropped = 0, CUPTI_SUCCESS) : CUPTI_ERROR_INVALID_PARAMETER;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                           void* context) {
  if (!subscriber) return CUPTI_ERROR_INVALID_PARAMETER;
  State& s = S();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (s.subscriber) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  s.subscriber = new CUpti_Subscriber_st{callback, context};
  *subscriber = s.subscriber;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  State& s = S();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (!subscriber || subscriber != s.subscriber) return CUPTI_ERROR_INVALID_PARAMETER;
  delete std::exchange(s.subscriber, nullptr);
  return CUPTI_SUCCESS;
}
// Resource callbacks (a context was created) only tell a profiler when to begin; they are accepted
// and never come, because records do not depend on them. API callbacks would have to come, so they
// are refused.
CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle,
                                CUpti_CallbackDomain domain, CUpti_CallbackId) {
  return !enable || domain == CUPTI_CB_DOMAIN_RESOURCE
             ? CUPTI_SUCCESS
             : static_cast<CUptiResult>(HostcudaUnsupported(&g_enable_callback));
}
CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle,
                              CUpti_CallbackDomain domain) {
  return !enable || domain == CUPTI_CB_DOMAIN_RESOURCE
             ? CUPTI_SUCCESS
             : static_cast<CUptiResult>(HostcudaUnsupported(&g_enable_callback));
}

CUptiResult cuptiFinalize(void) {
  State& s = S();
  for (auto& kind : s.enabled) kind.store(false);
  if (const HostcudaTable* table = Table()) table->set_activity_observer(nullptr);
  return CUPTI_SUCCESS;
}

}  // extern "C"
