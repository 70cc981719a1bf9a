// Streams and events, and the one engine of a process that runs them.
//
// A stream is an ordered queue. An operation on an idle stream runs at once on the calling thread;
// when the head of a queue cannot finish, later operations queue behind it, and the progress thread
// or any thread inside a synchronizing call polls the heads. Nobody sleeps on anything but futexes:
// the process's doorbell and the words that heads wait for.
//
// On the virtual clock an operation that takes time is always queued, and is done (its effect
// included) when its time has passed; a call first takes its own time. Threads sleep in
// JobClock::Wait only, and while they do they poll the heads; the progress thread does when every
// other thread of the process is asleep elsewhere.
//
// Threading: one mutex guards every stream and event; operations run outside it, one at a time a
// stream. Work must not throw and must not call anything that waits for a stream. The engine is
// never destroyed.
//
//   engine.Submit(stream, label, [=](PollState&) { memcpy(d, s, n); return kDone; });
//   engine.Synchronize(stream);
#ifndef HOSTCUDA_DRIVER_ENGINE_H_
#define HOSTCUDA_DRIVER_ENGINE_H_

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hostcuda/clock/clock.h"
#include "hostcuda/clock/work_times.h"
#include "hostcuda/internal_table.h"

namespace hostcuda {

class Context;
class Capture;
class Engine;
class Session;
struct SharedEvent;

inline constexpr int kDone = HOSTCUDA_TASK_DONE;
inline constexpr int kPending = HOSTCUDA_TASK_PENDING;
inline constexpr int Failed(CUresult error) { return -static_cast<int>(error); }

/// A 32-bit word that pending work waits for, and the value it had when the work looked.
struct WaitWord {
  const void* address;
  uint32_t seen;
};

/// What Work tells the engine when it is not done.
struct PollState {
  uint64_t now_ns = 0;
  uint64_t wake_at_ns = UINT64_MAX;
  int words = 0;
  WaitWord word[4];
  /// Beyond four words the rest is looked at by time only.
  void WaitFor(const void* address, uint32_t seen) {
    if (words < 4) word[words++] = {address, seen};
  }
};

/// What a profiler and a graph are told about an operation.
struct Label {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  int activity = -1;      // HostcudaActivityKind, or -1: no record
  const char* name = "";  // static lifetime
  uint32_t grid[3] = {0, 0, 0}, block[3] = {0, 0, 0}, shared_bytes = 0;
  uint64_t bytes = 0;
  int copy_kind = 0;
  bool host_pinned = false;
  void* handle = nullptr;           // kernels: the Kernel
  HostCall call = HostCall::kNone;  // what the call that enqueues it is charged for
  uint64_t duration_ns = 0;         // how long it keeps its stream busy; 0 on the free clock
  // Filled by the engine while an observer is set.
  uint64_t enqueue_start_ns = 0, enqueue_end_ns = 0;
  uint32_t correlation = 0, thread = 0;
};

/// One operation. Stateless work may be polled by several graph launches at once; other work makes
/// a copy for each.
class Work {
 public:
  virtual ~Work() = default;
  /// kDone, kPending or Failed(error). Called without locks, never concurrently for one stream.
  virtual int Poll(PollState& state) = 0;
  /// A fresh instance for a replay; null where the work cannot be replayed.
  virtual std::shared_ptr<Work> Fresh() { return nullptr; }
  virtual bool replayable() const { return true; }
  /// True where other processes decide when it is done: a library's task (a collective).
  virtual bool AwaitsPeers() const { return false; }
};

template <class Function>
class FunctionWork final : public Work,
                           public std::enable_shared_from_this<FunctionWork<Function>> {
 public:
  explicit FunctionWork(Function function) : function_(std::move(function)) {}
  int Poll(PollState& state) override { return function_(state); }
  std::shared_ptr<Work> Fresh() override { return this->shared_from_this(); }

 private:
  Function function_;
};

struct Stream;
using StreamRef = std::shared_ptr<Stream>;

/// All work of `stream` up to the `sequence`-th operation.
struct Point {
  StreamRef stream;
  uint64_t sequence;
};

struct Event {
  static constexpr uint32_t kMagic = 0x45564e54;
  uint32_t magic = kMagic;
  unsigned flags = 0;
  Context* context = nullptr;
  SharedEvent* shared = nullptr;  // between processes: then the words tell, not what follows
  CUipcEventHandle ipc_handle = {};
  // Guarded by the engine's mutex.
  std::shared_ptr<Event> handle;  // itself, until cuEventDestroy
  bool recorded = false;
  uint64_t time_ns = 0;
  uint64_t busy_ns = 0;  // its stream's
  uint64_t generation = 0;
  StreamRef stream;  // null: the recorded work is complete
  uint64_t sequence = 0;
  std::shared_ptr<Capture> capture;  // last recorded in this capture
  std::vector<CUgraphNode> capture_nodes;
};
using EventRef = std::shared_ptr<Event>;

/// An entry of a queue: wait for the points, then run the work or complete the record.
struct QueueEntry {
  std::vector<Point> waits;
  std::shared_ptr<Work> work;
  EventRef record;
  uint64_t record_generation = 0;
  Label label;
  uint64_t started_ns = 0;
  uint64_t duration_ns = 0;  // as drawn
};

struct Stream : std::enable_shared_from_this<Stream> {
  static constexpr uint32_t kMagic = 0x5354524d;
  uint32_t magic = kMagic;
  uint32_t number = 0;  // 7 is a context's legacy default stream
  uint64_t id = 0;      // unique in the process
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  Context* context = nullptr;
  // Guarded by the engine's mutex.
  bool running = false;    // a thread is inside the head's Poll
  bool lasting = false;    // and may stay: it is the program's code, or its thread
  bool listed = false;     // in Engine::pending_
  bool counted = false;    // in Context::busy_blocking
  bool destroyed = false;  // its handle is gone; forgotten when its work is done
  // Operations are numbered as the program submits them, those that had nothing to wait for too:
  // what is drawn for a number must not depend on who came first.
  uint64_t enqueued = 0, completed = 0;
  uint64_t busy_ns = 0;  // what the completed operations took, on the virtual clock
  uint64_t asked = 0;    // operations up to this one are not waited for by queries any more
  std::deque<QueueEntry> queue;
  PollState head;  // what the pending head waits for
  std::shared_ptr<Capture> capture;
  std::vector<CUgraphNode> capture_nodes;  // what the next captured operation depends on

  bool busy() const { return running || !queue.empty(); }
  bool blocking() const { return legacy || (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

class Engine {
 public:
  /// `times`: how long things take, null on the free clock.
  Engine(Session* session, const WorkTimes* times);

  /// The process's engine; null before cuInit.
  static Engine* Get() { return instance_.load(std::memory_order_acquire); }
  static void Set(Engine* engine) { instance_.store(engine, std::memory_order_release); }

  StreamRef CreateStream(Context* context, unsigned flags, int priority, bool legacy);
  /// The handle dies at once, the work that was submitted still runs.
  void DestroyStream(Stream& stream);
  /// Runs `function` in stream order: now and on this thread where the stream is idle. `function`
  /// must be copyable.
  template <class Function>
  CUresult Submit(Stream& stream, const Label& label, Function function);
  CUresult SubmitWork(Stream& stream, const Label& given, std::shared_ptr<Work> work);
  /// An operation that takes no time and does nothing (a kernel without a body).
  CUresult SubmitNothing(Stream& stream, const Label& label);

  CUresult Record(const EventRef& event, Stream& stream, bool external);
  CUresult WaitEvent(Stream& stream, Event& event, bool external);
  /// Waits for work that only lacks peers (a collective), as if they kept pace on processors of
  /// their own: what a caching allocator may use again would else depend on this machine's load.
  CUresult QueryEvent(Event& event, bool patient = true);
  CUresult SynchronizeEvent(Event& event);
  CUresult Elapsed(float* milliseconds, const Event& start, const Event& end);
  /// What the operations of their stream between two events took; the gaps do not count.
  CUresult Busy(uint64_t* ns, const Event& start, const Event& end);
  /// Marks the event complete now: what a replayed graph's record node does.
  void CompleteNow(Event& event);

  CUresult QueryStream(Stream& stream);
  CUresult Synchronize(Stream& stream);
  CUresult SynchronizeContext(Context& context);
  /// The calling thread works for so long: on the virtual clock it sleeps.
  void HostWork(uint64_t duration_ns);
  /// The calling thread takes the time of such a call.
  void Charge(HostCall call);
  /// The label of what the calling thread submits now, once it has taken the time of the call.
  Label Charged(const Label& given);
  /// While the sum of changes is positive, the calling thread's calls take no time, nor does what
  /// they enqueue.
  static void Uncharged(int change);
  /// Sleeps on the virtual clock until this process's doorbell no longer reads `seen`, or until
  /// `until_ns`; may return early. Returns what the doorbell reads.
  uint32_t AwaitRing(uint32_t seen, uint64_t until_ns);
  /// Sleeps on the virtual clock while the word holds `seen`; may return early.
  void AwaitWord(const std::atomic<uint32_t>& word, uint32_t seen);
  bool Idle(Stream& stream);
  bool Capturing(Stream& stream);
  /// Invalidates the capture of `stream`, where there is one.
  CUresult ForbidCapture(Stream& stream);
  /// Waits for everything submitted to the context, whatever its state: what freeing memory does.
  void Drain(Context& context);
  /// Drops what a context's streams still hold.
  void DropContext(Context& context);

  /// Makes `result` (a negated error) the sticky error of the stream's context.
  void Fail(Stream& stream, int result);
  /// Called (under no lock) by work that made something true for other streams.
  void Notify();
  uint64_t NowNs() const { return clock_.NowNs(); }
  bool takes_time() const { return timed_; }
  /// Null on the free clock.
  const WorkTimes* times() const { return times_; }
  /// A duration as drawn for an operation of a stream; see WorkTimes::Drawn.
  uint64_t Drawn(uint64_t duration_ns, const Stream& stream, uint64_t sequence,
                 uint64_t part) const;

  /// How many operations the streams have done, and a hash of when each of them ended, in whatever
  /// order they were seen to. Not on the free clock.
  struct Digest {
    uint64_t operations = 0, hash = 0;
  };
  Digest digest();

  HostcudaActivityObserver SetObserver(HostcudaActivityObserver observer) {
    return observer_.exchange(observer);
  }
  void Emit(const Label& label, const Stream& stream, uint64_t start_ns, uint64_t end_ns);
  bool observed() const { return observer_.load(std::memory_order_relaxed) != nullptr; }
  void Stamp(Label& label) const;

  std::mutex& mutex() { return mutex_; }

 private:
  enum class Start { kIdle, kQueue, kCaptured };

  // All of these are called with mutex_ held.
  CUresult Begin(Stream& stream, const Label& label, Start* start);
  bool Clear(const Stream& stream) const;
  bool Reached(const Point& point) const { return point.stream->completed >= point.sequence; }
  bool AwaitsPeers(const Stream& stream, int depth = 0) const;
  bool PeersReach(const Point& point, std::unique_lock<std::mutex>& lock);
  void CollectWaits(Stream& stream, std::vector<Point>& waits) const;
  void Push(Stream& stream, QueueEntry entry);
  void ListPending(Stream& stream);
  void SetBusy(Stream& stream);
  void SetIdle(Stream& stream);
  void Complete(Event& event, uint64_t generation);
  /// Counts the stream's oldest operation as done.
  void Finish(Stream& stream);
  /// Numbers an operation of an idle stream that has nothing to do.
  void Number(Stream& stream);
  void Requeue(Stream& stream, const Label& label, const PollState& state,
               std::shared_ptr<Work> work);
  void AfterInline(Stream& stream);
  bool Progress(std::unique_lock<std::mutex>& lock);
  bool RunQueue(Stream& stream, std::unique_lock<std::mutex>& lock);
  /// When a wait gives up: at a time, or with a turn of the virtual clock.
  struct GiveUp {
    uint64_t at_ns = UINT64_MAX;
    uint64_t turn_ns = UINT64_MAX;
    bool polls_words = false;  // what is waited for may come true without ringing
  };
  template <class Predicate>
  bool WaitUntil(std::unique_lock<std::mutex>& lock, Predicate done, const GiveUp& give_up);
  template <class Predicate>
  bool WaitUntil(std::unique_lock<std::mutex>& lock, Predicate done) {
    return WaitUntil(lock, done, GiveUp{});
  }
  /// Lets other threads end what they carry out, so that all that is due now is done.
  void AwaitPolls(std::unique_lock<std::mutex>& lock);
  /// What there was before a look at the heads: what comes later ends a sleep.
  struct Before {
    uint32_t bell;
    uint32_t activity;  // of the virtual clock
  };
  Before Look() const {
    const uint32_t activity = timed_ ? clock_.Activity() : 0;
    return {bell_->load(std::memory_order_seq_cst), activity};
  }
  void Sleep(std::unique_lock<std::mutex>& lock, const Before& before, const GiveUp& give_up);
  void SleepOnClock(std::unique_lock<std::mutex>& lock, const Before& before,
                    const GiveUp& give_up);
  void ProgressLoop();
  void StandIn();
  void StartProgressThread();
  void Pause(uint64_t until_ns, bool with_turn);
  static void* ProgressEntry(void* engine);

  static std::atomic<Engine*> instance_;
  JobClock& clock_;
  const bool timed_;
  const WorkTimes* const times_;
  Session* session_;
  std::atomic<uint32_t>* bell_;
  std::atomic<uint32_t>* sleepers_;
  uint64_t patience_ns_;  // with peers
  std::mutex mutex_;
  std::condition_variable progress_wanted_;
  std::vector<StreamRef> pending_;
  int helping_ = 0;     // threads inside synchronizing calls: they do the progress thread's work
  uint64_t waits_ = 0;  // such calls, ever
  bool progress_thread_ = false;
  uint64_t last_progress_ns_ = 0;
  Digest digest_;
  uint64_t next_stream_id_ = 1;
  std::atomic<HostcudaActivityObserver> observer_{nullptr};
  mutable std::atomic<uint32_t> next_correlation_{1};
};

/// Adds captured work to the graph of stream.capture; defined in graph.cc. Called with the engine's
/// mutex held.
CUresult CaptureWork(Stream& stream, const Label& label, std::shared_ptr<Work> work);
CUresult CaptureRecord(Stream& stream, const EventRef& event, bool external);
CUresult CaptureWait(Stream& stream, Event& event, bool external);
/// An operation of the legacy stream while a blocking stream captures: invalidates those captures.
CUresult CaptureImplicit(Context& context);
/// A call that is not allowed while `stream` captures: invalidates the capture.
CUresult CaptureForbidden(Stream& stream);

template <class Function>
CUresult Engine::Submit(Stream& stream, const Label& given, Function function) {
  const Label label = Charged(given);
  std::unique_lock<std::mutex> lock(mutex_);
  Start start;
  const CUresult begun = Begin(stream, label, &start);
  if (begun != CUDA_SUCCESS) return begun;
  if (start == Start::kCaptured) {
    return CaptureWork(stream, label,
                       std::make_shared<FunctionWork<Function>>(std::move(function)));
  }
  if (start == Start::kQueue) {
    QueueEntry entry;
    CollectWaits(stream, entry.waits);
    entry.label = label;
    entry.work = std::make_shared<FunctionWork<Function>>(std::move(function));
    Push(stream, std::move(entry));
    return CUDA_SUCCESS;
  }
  // Idle: run it here. The stream is busy meanwhile, so that what other threads submit queues
  // behind it.
  stream.running = stream.lasting = true;  // by the program's own thread
  ++stream.enqueued;
  SetBusy(stream);
  const StreamRef keep = stream.shared_from_this();
  lock.unlock();
  PollState state;
  const bool observed_now = observed();
  if (observed_now) state.now_ns = clock_.NowNs();
  const int result = function(state);
  if (result == kDone && observed_now) Emit(label, stream, state.now_ns, clock_.NowNs());
  lock.lock();
  stream.running = false;
  if (result == kPending) {
    Requeue(stream, label, state, std::make_shared<FunctionWork<Function>>(std::move(function)));
    return CUDA_SUCCESS;
  }
  if (result < 0) Fail(stream, result);
  Finish(stream);
  AfterInline(stream);
  return CUDA_SUCCESS;
}

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_ENGINE_H_
