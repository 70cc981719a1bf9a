#include "src/interpose/driver/span_timer.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/interpose/driver/driver_clock.h"
#include "src/interpose/driver/numbers.h"
#include "src/interpose/driver/route.h"

namespace prism::interpose::driver {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(20);
// A host that blocks in a call that waits for a held stream, and that is not known to, goes on
// after this time: longer than it takes to enqueue nearly every span.
constexpr auto kLongestHold = std::chrono::milliseconds(10);
constexpr auto kLookAtHoldsEvery = std::chrono::milliseconds(2);
constexpr size_t kMostHolds = 64;  // streams that can be held at a time
constexpr size_t kNodesAChunk = 1024;
constexpr int64_t kNotMeasured = -1;

/// An event on a stream, of one node or of two: the end of the first and the start of the second.
struct TimedEvent {
  CUevent event;
  CUcontext context;
  int uses;
};

/// A node whose events are on its stream.
struct Pending {
  uint32_t stream;
  uint64_t node;
  bool is_enqueued;  // the host has not waited for it
  TimedEvent *start, *end;
};

struct NcclInterval {
  CUstream stream;
  uint32_t number;
  TimedEvent *start, *end;
};
thread_local std::vector<NcclInterval>* t_nccl = nullptr;  // not yet claimed by Communicated

/// A stream that can be held. The stream waits until its word, which the GPU reads, has the value;
/// a word never goes back, so whoever comes late does no harm.
struct Hold {
  std::atomic<uint32_t>* word = nullptr;
  std::atomic<uint32_t> value{0};
  std::atomic<uint64_t> since_ns{0};  // 0: not held

  void LetGo() {
    // In this order: a hold that has begun meanwhile is let go of too early, but never kept.
    if (since_ns.exchange(0) == 0) return;
    const uint32_t value_now = value.load();
    uint32_t seen = word->load();
    while (static_cast<int32_t>(value_now - seen) > 0 &&
           !word->compare_exchange_weak(seen, value_now)) {
    }
  }
};

/// All of them, for who may take no lock: a host that blocks in the driver has the timer's.
struct Holds {
  bool enabled = false;
  std::atomic<size_t> used{0};
  Hold all[kMostHolds];
  std::vector<Hold*> free;  // of streams that are gone; under the timer's lock
};
Holds& GetHolds() {
  static auto* holds = new Holds;
  return *holds;
}

struct Stream {
  CUstream handle = nullptr;
  TimedEvent* start = nullptr;  // of the open span
  TimedEvent* last =
      nullptr;  // the end of the span before, if nothing that takes time is behind it
  bool waited = false;
  Hold* hold = nullptr;
};

/// Durations of a stream's nodes that are not in the file yet.
struct Samples {
  uint64_t first = 0;
  std::vector<int64_t> ns;
};

struct State {
  std::mutex mutex;  // taken under the writer's stream lock, so nothing that writes may hold it
  std::unordered_map<uint32_t, Stream> streams;
  std::map<CUcontext, std::vector<TimedEvent*>> free;
  std::deque<Pending> pending;  // of each stream in its order
  std::condition_variable stop;
  bool stopping = false, stopped = false;

  std::unordered_map<uint32_t, Samples> samples;  // the timer thread's
};
State& GetState() {
  static auto* state = new State;
  return *state;
}

/// An event on the stream, now; null if the driver gives none. The lock is held.
TimedEvent* Put(State& state, CUstream stream) {
  const DriverClock::Uncharged scope;
  CUcontext context = nullptr;
  if (PRISM_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS) return nullptr;
  std::vector<TimedEvent*>& free = state.free[context];
  if (free.empty()) {
    CUevent event = nullptr;
    if (PRISM_REAL(cuEventCreate)(&event, static_cast<unsigned>(CU_EVENT_DEFAULT)) !=
        CUDA_SUCCESS) {
      return nullptr;
    }
    free.push_back(new TimedEvent{event, context, 0});
  }
  TimedEvent* const timed = free.back();
  if (PRISM_REAL(cuEventRecord)(timed->event, stream) != CUDA_SUCCESS) return nullptr;
  free.pop_back();
  timed->uses = 1;
  return timed;
}

void GiveBack(State& state, TimedEvent* timed) {
  if (timed != nullptr && --timed->uses == 0) state.free[timed->context].push_back(timed);
}

/// The start of what is enqueued next on a stream that still works: the end of what is before it.
/// (An event that takes the time occupies an H200 for 2.9 us.) Null: the stream may be idle until
/// then, and the start needs an event of its own.
TimedEvent* TakeLast(State& state, Stream& stream) {
  TimedEvent* const last = std::exchange(stream.last, nullptr);
  if (last == nullptr) return nullptr;
  const DriverClock::Uncharged scope;
  if (!AnyCapture() && PRISM_REAL(cuEventQuery)(last->event) == CUDA_ERROR_NOT_READY) return last;
  GiveBack(state, last);
  return nullptr;
}

/// The words that held streams wait for; null where the GPU cannot read them.
std::atomic<uint32_t>* HoldWords() {
  alignas(4096) static std::atomic<uint32_t> words[4096 / sizeof(uint32_t)];
  static const bool registered =
      PRISM_REAL(cuMemHostRegister_v2)(
          static_cast<void*>(words), sizeof(words),
          static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)) ==
      CUDA_SUCCESS;
  return registered ? words : nullptr;
}

/// Lets the stream wait if it has nothing to do. The lock is held.
void HoldIfIdle(Stream& stream) {
  Holds& holds = GetHolds();
  if (stream.hold == nullptr && !holds.free.empty()) {
    stream.hold = holds.free.back();
    holds.free.pop_back();
  }
  if (stream.hold == nullptr) {
    const size_t next = holds.used.load();
    std::atomic<uint32_t>* const words = HoldWords();
    if (words == nullptr || next == kMostHolds) return;
    stream.hold = &holds.all[next];
    stream.hold->word = &words[next];
    holds.used.store(next + 1);
  }
  if (AnyCapture() || PRISM_REAL(cuStreamQuery)(stream.handle) != CUDA_SUCCESS) return;
  Hold& hold = *stream.hold;
  hold.value.store(hold.value.load() + 1);
  hold.since_ns.store(DriverClock::NowNs());
  const CUresult result = PRISM_REAL(cuStreamWaitValue32_v2)(
      stream.handle, reinterpret_cast<CUdeviceptr>(hold.word), hold.value.load(),
      static_cast<unsigned>(CU_STREAM_WAIT_VALUE_GEQ));
  if (result != CUDA_SUCCESS) hold.LetGo();
}

void LetGoOfHolds(uint64_t begun_before_ns) {
  Holds& holds = GetHolds();
  const size_t used = holds.used.load();
  for (size_t i = 0; i < used; ++i) {
    const uint64_t since_ns = holds.all[i].since_ns.load();
    if (since_ns != 0 && since_ns <= begun_before_ns) holds.all[i].LetGo();
  }
}

/// A thread that takes no lock.
void* WatchHolds(void*) {
  pthread_setname_np(pthread_self(), "prism-holds");
  while (true) {
    std::this_thread::sleep_for(kLookAtHoldsEvery);
    const uint64_t longest_ns = std::chrono::nanoseconds(kLongestHold).count();
    LetGoOfHolds(DriverClock::NowNs() - longest_ns);
  }
}

/// Starts a thread that signals do not disturb.
bool StartThread(void* (*run)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, run, argument) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) pthread_detach(thread);
  return started;
}

void SpanEnded(uint32_t number, uint64_t node) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  const auto found = state.streams.find(number);
  if (found == state.streams.end() || found->second.start == nullptr) return;
  Stream& stream = found->second;
  TimedEvent* const end = state.stopping ? nullptr : Put(state, stream.handle);
  if (stream.hold != nullptr) stream.hold->LetGo();
  if (end == nullptr) {
    GiveBack(state, stream.start);
  } else {
    state.pending.push_back({number, node, !stream.waited, stream.start, end});
    stream.last = end;
    ++end->uses;
  }
  stream.start = nullptr;
  stream.waited = false;
}

/// Something is enqueued that may take time and is no span: the next one does not begin with the
/// end of the last.
void TakesTime(uint32_t number) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  const auto found = state.streams.find(number);
  if (found != state.streams.end()) GiveBack(state, std::exchange(found->second.last, nullptr));
}

/// What has completed, oldest first; nothing of a stream behind what has not.
std::vector<Pending> TakeComplete(State& state) {
  std::deque<Pending> all;
  {
    std::lock_guard lock(state.mutex);
    all.swap(state.pending);
  }
  std::vector<Pending> complete;
  std::deque<Pending> left;
  std::unordered_map<uint32_t, bool> blocked;
  for (const Pending& node : all) {
    bool& is_blocked = blocked[node.stream];
    if (!is_blocked) {
      is_blocked = PRISM_REAL(cuEventQuery)(node.end->event) == CUDA_ERROR_NOT_READY;
    }
    if (is_blocked) {
      left.push_back(node);
    } else {
      complete.push_back(node);
    }
  }
  std::lock_guard lock(state.mutex);
  state.pending.insert(state.pending.begin(), left.begin(), left.end());
  return complete;
}

void Write(trace::Writer* writer, uint32_t stream, Samples& samples) {
  if (samples.ns.empty()) return;
  writer->Timing(stream, samples.first, samples.ns.data(), samples.ns.size());
  samples.first += samples.ns.size();
  samples.ns.clear();
}

/// What the node took. What it launches may come late, so its gaps are the host's, where the
/// driver can tell them.
int64_t TimeBetween(const Pending& node) {
  uint64_t busy_ns = 0;
  if (node.is_enqueued && DriverClock::BusyTime(node.start->event, node.end->event, &busy_ns))
    return static_cast<int64_t>(busy_ns);
  float ms = 0;
  if (PRISM_REAL(cuEventElapsedTime)(&ms, node.start->event, node.end->event) != CUDA_SUCCESS)
    return kNotMeasured;
  return std::llround(double{ms} * 1e6);
}

/// The writer refers timings to nodes that are in the file, so those are flushed first.
void Measure(trace::Writer* writer, State& state, bool all) {
  const std::vector<Pending> complete = TakeComplete(state);
  for (const Pending& node : complete) {
    const int64_t ns = TimeBetween(node);
    Samples& samples = state.samples[node.stream];
    if (samples.ns.empty()) samples.first = node.node;
    if (node.node < samples.first) continue;  // cannot happen: nodes complete in order
    samples.ns.resize(node.node - samples.first, kNotMeasured);
    samples.ns.push_back(ns);
  }
  {
    std::lock_guard lock(state.mutex);
    for (const Pending& node : complete) {
      GiveBack(state, node.start);
      GiveBack(state, node.end);
    }
  }
  bool flushed = false;
  for (auto& [stream, samples] : state.samples) {
    if (samples.ns.empty() || (!all && samples.ns.size() < kNodesAChunk)) continue;
    if (!flushed) writer->Flush();
    flushed = true;
    Write(writer, stream, samples);
  }
}

void* Run(void* argument) {
  auto* writer = static_cast<trace::Writer*>(argument);
  pthread_setname_np(pthread_self(), "prism-timer");
  const DriverClock::Uncharged scope;
  // Asking for an event of one stream must not disturb the capture of another.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  PRISM_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
  State& state = GetState();
  while (true) {
    bool last;
    {
      std::unique_lock lock(state.mutex);
      last = state.stop.wait_for(lock, kLookEvery, [&] { return state.stopping; });
    }
    Measure(writer, state, last);
    if (!last) continue;
    std::lock_guard lock(state.mutex);
    state.stopped = true;
    state.stop.notify_all();
    return nullptr;
  }
}

}  // namespace

SpanTimer& SpanTimer::Get() {
  static auto* timer = new SpanTimer;
  return *timer;
}

void SpanTimer::Start(trace::Writer* writer) {
  Holds& holds = GetHolds();
  holds.enabled = holds.enabled && !DriverClock::is_virtual() && StartThread(&WatchHolds, nullptr);
  if (!StartThread(&Run, writer)) return;
  writer->OnSpanEnd(&SpanEnded);
  writer->SetHostTimeSource(trace::TimeSource::kMeasured);
  // A span's launches have one time, which is of the regime in which it was measured: a host that
  // is late, or a stream that is. Where the events are free, each launch has its own.
  if (DriverClock::is_virtual()) writer->CutEveryLaunch();
  writer_.store(writer, std::memory_order_release);
}

void SpanTimer::HoldIdleStreams() { GetHolds().enabled = true; }

void SpanTimer::BeforeBlocking() { LetGoOfHolds(UINT64_MAX); }

void SpanTimer::Stop() {
  if (writer_.exchange(nullptr, std::memory_order_acq_rel) == nullptr) return;
  State& state = GetState();
  std::unique_lock lock(state.mutex);
  state.stopping = true;
  state.stop.notify_all();
  BeforeBlocking();
  // The thread is gone where the process is being torn down without it.
  state.stop.wait_for(lock, std::chrono::seconds(2), [&] { return state.stopped; });
}

void SpanTimer::BeforeLaunch(CUstream handle, bool per_thread) {
  trace::Writer* writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || IsCapturing(handle, per_thread)) return;
  const uint32_t number = StreamNumber(writer, handle, per_thread);
  if (!writer->BeginsSpan(number)) return;
  if (handle == nullptr) handle = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  Stream& stream = state.streams[number];
  stream.handle = handle;
  GiveBack(state, stream.start);  // of a launch that failed
  stream.start = TakeLast(state, stream);
  if (stream.start == nullptr) {
    if (GetHolds().enabled && !state.stopping) HoldIfIdle(stream);
    stream.start = Put(state, handle);
  }
  stream.waited = false;
}

void SpanTimer::BeforeNode(CUstream handle, bool per_thread) {
  trace::Writer* writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || IsCapturing(handle, per_thread)) return;
  const uint32_t number = StreamNumber(writer, handle, per_thread);
  writer->EndSpan(number);
  TakesTime(number);
}

void SpanTimer::BeforeRecord(CUstream handle, bool per_thread) {
  trace::Writer* writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || IsCapturing(handle, per_thread)) return;
  writer->EndSpan(StreamNumber(writer, handle, per_thread));
}

void SpanTimer::Waited(uint32_t number) {
  if (!active()) return;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  const auto found = state.streams.find(number);
  if (found != state.streams.end() && found->second.start != nullptr) found->second.waited = true;
}

void SpanTimer::BeforeNcclKernel(CUstream handle) {
  trace::Writer* writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || IsCapturing(handle, false)) return;
  if (t_nccl == nullptr) t_nccl = new std::vector<NcclInterval>;  // one a thread that communicates
  for (const NcclInterval& interval : *t_nccl) {
    if (interval.stream == handle) return;
  }
  const uint32_t number = StreamNumber(writer, handle, false);
  writer->EndSpan(number);
  TakesTime(number);
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  TimedEvent* const start = Put(state, handle);
  if (start != nullptr) t_nccl->push_back({handle, number, start, nullptr});
}

void SpanTimer::AfterNcclKernel(CUstream handle) {
  if (!active() || t_nccl == nullptr) return;
  for (NcclInterval& interval : *t_nccl) {
    if (interval.stream != handle) continue;
    State& state = GetState();
    std::lock_guard lock(state.mutex);
    GiveBack(state, interval.end);
    interval.end = Put(state, handle);
  }
}

void SpanTimer::Communicated(uint32_t number) {
  trace::Writer* writer = writer_.load(std::memory_order_acquire);
  if (writer == nullptr || t_nccl == nullptr) return;
  for (auto interval = t_nccl->begin(); interval != t_nccl->end(); ++interval) {
    if (interval->number != number) continue;
    const uint64_t node = writer->NextNode(number);
    State& state = GetState();
    std::lock_guard lock(state.mutex);
    if (interval->end == nullptr) {
      GiveBack(state, interval->start);
    } else {
      state.pending.push_back({number, node, true, interval->start, interval->end});
    }
    t_nccl->erase(interval);
    return;
  }
}

void SpanTimer::StreamDestroyed(uint32_t number) {
  if (!active()) return;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  const auto found = state.streams.find(number);
  if (found == state.streams.end()) return;
  GiveBack(state, found->second.start);
  GiveBack(state, found->second.last);
  if (found->second.hold != nullptr) {
    found->second.hold->LetGo();
    GetHolds().free.push_back(found->second.hold);
  }
  state.streams.erase(found);
}

}  // namespace prism::interpose::driver
