#include "hostcuda/driver/engine.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "hostcuda/clock/draw.h"
#include "hostcuda/driver/context.h"
#include "hostcuda/driver/options.h"
#include "hostcuda/driver/session.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace hostcuda {
namespace {

// The kernel's layout of one element of futex_waitv (Linux 5.16), for older headers.
struct FutexWaiter {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr uint32_t kFutex32 = 2;
constexpr int kMaxWaiters = 128;

// How long a query waits for peers, once for an operation. They may be waiting for this host: each
// wait in vain halves the next.
constexpr uint64_t kLongestPatienceNs = 2'000'000'000;
constexpr uint64_t kLeastPatienceNs = 10'000'000;

// True on threads that submit work. Others only watch (NCCL's watchdog) and are told what is.
thread_local bool t_submits = false;
// The thread's calls, and what they enqueue, take no time on the virtual clock while this is
// positive.
thread_local int t_uncharged = 0;
thread_local int t_polls = 0;  // the thread is inside so many works

// A program may store to a word without waking it, as it may on a GPU: waits on words look again
// after this long.
constexpr uint64_t kFirstLookNs = 1'000'000;
constexpr uint64_t kLastLookNs = 32'000'000;

/// Sleeps until one of the words changes or is woken, or `deadline_ns` (CLOCK_MONOTONIC;
/// UINT64_MAX: never).
void SleepOnWords(FutexWaiter* waiters, int count, uint64_t now_ns, uint64_t deadline_ns) {
  static std::atomic<bool> have_waitv{true};
  if (count > 1 && have_waitv.load(std::memory_order_relaxed)) {
    timespec deadline = {static_cast<time_t>(deadline_ns / 1'000'000'000u),
                         static_cast<long>(deadline_ns % 1'000'000'000u)};
    const long result = syscall(SYS_futex_waitv, waiters, count, 0,
                                deadline_ns == UINT64_MAX ? nullptr : &deadline, CLOCK_MONOTONIC);
    if (result >= 0 || errno != ENOSYS) return;
    have_waitv.store(false, std::memory_order_relaxed);
  }
  uint64_t timeout_ns =
      deadline_ns == UINT64_MAX ? UINT64_MAX : deadline_ns - std::min(deadline_ns, now_ns);
  if (count > 1) timeout_ns = std::min(timeout_ns, kFirstLookNs);
  timespec timeout = {static_cast<time_t>(timeout_ns / 1'000'000'000u),
                      static_cast<long>(timeout_ns % 1'000'000'000u)};
  syscall(SYS_futex, waiters[0].address, FUTEX_WAIT, static_cast<uint32_t>(waiters[0].value),
          timeout_ns == UINT64_MAX ? nullptr : &timeout, nullptr, 0);
}

}  // namespace

std::atomic<Engine*> Engine::instance_{nullptr};

Engine::Engine(Session* session, const WorkTimes* times)
    : clock_(Clock()),
      timed_(clock_.takes_time()),
      times_(times),
      session_(session),
      bell_(session->Doorbell(session->self())),
      sleepers_(session->Sleepers(session->self())),
      patience_ns_(kLongestPatienceNs) {
  // Stands in for threads that sleep where this library does not see it.
  if (timed_) StartProgressThread();
}

// ---- the virtual clock

uint64_t Engine::Drawn(uint64_t duration_ns, const Stream& stream, uint64_t sequence,
                       uint64_t part) const {
  if (duration_ns == 0) return 0;
  return times_->Drawn(duration_ns, clock_.rank(), stream.id, sequence, part);
}

void Engine::Pause(uint64_t until_ns, bool with_turn) {
  std::unique_lock<std::mutex> lock(mutex_);
  GiveUp give_up;
  (with_turn ? give_up.turn_ns : give_up.at_ns) = until_ns;
  WaitUntil(
      lock, [] { return false; }, give_up);
}

void Engine::HostWork(uint64_t duration_ns) {
  if (!timed_) return;
  clock_.Touch();
  if (duration_ns != 0) Pause(clock_.NowNs() + duration_ns, false);
}

void Engine::Charge(HostCall call) {
  if (!timed_) return;
  clock_.Touch();
  if (t_uncharged > 0) return;
  const uint64_t duration_ns = times_->HostNs(call);
  // What a query is told must not depend on which of the things that happen at this time have been
  // seen to already.
  if (duration_ns != 0) Pause(clock_.NowNs() + duration_ns, call == HostCall::kQuery);
}

Label Engine::Charged(const Label& given) {
  Charge(given.call);
  Label label = given;
  if (t_uncharged > 0) label.duration_ns = 0;
  Stamp(label);
  return label;
}

void Engine::Uncharged(int change) { t_uncharged += change; }

uint32_t Engine::AwaitRing(uint32_t seen, uint64_t until_ns) {
  clock_.Touch();
  const auto since = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [&] {
    return bell_->load(std::memory_order_acquire) != seen ||
           std::chrono::steady_clock::now() - since > std::chrono::milliseconds(500);
  };
  WaitUntil(lock, done, {.at_ns = until_ns});
  return bell_->load(std::memory_order_acquire);
}

void Engine::AwaitWord(const std::atomic<uint32_t>& word, uint32_t seen) {
  clock_.Touch();
  const auto since = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [&] {
    return word.load(std::memory_order_acquire) != seen ||
           std::chrono::steady_clock::now() - since > std::chrono::milliseconds(500);
  };
  WaitUntil(lock, done, {.polls_words = true});
}

StreamRef Engine::CreateStream(Context* context, unsigned flags, int priority, bool legacy) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->legacy = legacy;
  std::lock_guard<std::mutex> lock(mutex_);
  stream->id = next_stream_id_++;
  // CUPTI numbers a context's default stream 7 and created ones from 13.
  stream->number = legacy ? 7 : static_cast<uint32_t>(12 + stream->id);
  context->streams.push_back(stream);
  return stream;
}

void Engine::DestroyStream(Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  stream.magic = 0;
  if (stream.busy()) {
    stream.destroyed = true;  // SetIdle forgets it when its work is done
    return;
  }
  std::erase_if(stream.context->streams, [&](const StreamRef& s) { return s.get() == &stream; });
}

CUresult Engine::Begin(Stream& stream, const Label& label, Start* start) {
  if (timed_) clock_.Touch();
  t_submits = true;
  const int sticky = stream.context->sticky.load(std::memory_order_relaxed);
  if (sticky != 0) return static_cast<CUresult>(sticky);
  if (stream.capture != nullptr) {
    *start = Start::kCaptured;
  } else if (stream.legacy && stream.context->capturing_blocking != 0) {
    return CaptureImplicit(*stream.context);
  } else {
    *start = label.duration_ns == 0 && Clear(stream) ? Start::kIdle : Start::kQueue;
  }
  return CUDA_SUCCESS;
}

bool Engine::Clear(const Stream& stream) const {
  if (stream.busy()) return false;
  if (stream.legacy) return stream.context->busy_blocking == 0;
  return !stream.blocking() || !stream.context->legacy->busy();
}

void Engine::CollectWaits(Stream& stream, std::vector<Point>& waits) const {
  const Context& context = *stream.context;
  if (stream.legacy) {
    if (context.busy_blocking == 0) return;
    for (const StreamRef& other : context.streams) {
      if (other.get() != &stream && other->blocking() && other->busy()) {
        waits.push_back({other, other->enqueued});
      }
    }
  } else if (stream.blocking() && context.legacy->busy()) {
    waits.push_back({context.legacy, context.legacy->enqueued});
  }
}

void Engine::SetBusy(Stream& stream) {
  if (stream.counted || stream.legacy || !stream.blocking()) return;
  stream.counted = true;
  ++stream.context->busy_blocking;
}

void Engine::SetIdle(Stream& stream) {
  if (stream.counted) {
    stream.counted = false;
    --stream.context->busy_blocking;
  }
  if (stream.destroyed) {
    std::erase_if(stream.context->streams, [&](const StreamRef& s) { return s.get() == &stream; });
  }
}

void Engine::ListPending(Stream& stream) {
  SetBusy(stream);
  if (!stream.listed) {
    stream.listed = true;
    if (pending_.empty()) last_progress_ns_ = clock_.NowNs();
    pending_.push_back(stream.shared_from_this());
  }
  if (helping_ > 0 || timed_) {
    session_->Ring(session_->self());
    return;
  }
  if (!progress_thread_) StartProgressThread();
  progress_wanted_.notify_one();
  session_->Ring(session_->self());
}

void Engine::StartProgressThread() {
  progress_thread_ = true;
  {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    // Signals belong to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, &Engine::ProgressEntry, this) != 0) {
      Die("cannot start the progress thread: %s; raise the limit on threads (ulimit -u)",
          strerror(errno));
    }
    pthread_setname_np(thread, "hostcuda");
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
  }
}

void Engine::Push(Stream& stream, QueueEntry entry) {
  if (entry.label.correlation != 0) entry.label.enqueue_end_ns = clock_.NowNs();
  ++stream.enqueued;
  if (entry.label.duration_ns != 0)
    entry.duration_ns = Drawn(entry.label.duration_ns, stream, stream.enqueued, 0);
  stream.queue.push_back(std::move(entry));
  ListPending(stream);
}

void Engine::Requeue(Stream& stream, const Label& label, const PollState& state,
                     std::shared_ptr<Work> work) {
  QueueEntry entry;
  entry.label = label;
  if (label.correlation != 0) entry.label.enqueue_end_ns = clock_.NowNs();
  entry.started_ns = state.now_ns;
  entry.work = std::move(work);
  stream.queue.push_front(std::move(entry));
  stream.head = state;
  ListPending(stream);
}

void Engine::AfterInline(Stream& stream) {
  if (stream.queue.empty()) SetIdle(stream);
  if (pending_.empty() && helping_ == 0) return;
  if (!stream.queue.empty()) {
    ListPending(stream);
  } else {
    session_->Ring(
        session_->self());  // what ran may be what others wait for: whoever sleeps looks again
  }
}

void Engine::Fail(Stream& stream, int result) {
  int none = 0;
  stream.context->sticky.compare_exchange_strong(none, -result);
}

CUresult Engine::SubmitNothing(Stream& stream, const Label& given) {
  if (!observed() && !timed_) {
    std::unique_lock<std::mutex> lock(mutex_);
    Start start;
    const CUresult begun = Begin(stream, given, &start);
    if (begun != CUDA_SUCCESS) return begun;
    if (start == Start::kIdle) {
      Number(stream);
      return CUDA_SUCCESS;
    }
  }
  return Submit(stream, given, [](PollState&) { return kDone; });
}

CUresult Engine::SubmitWork(Stream& stream, const Label& given, std::shared_ptr<Work> work) {
  const Label label = Charged(given);
  std::unique_lock<std::mutex> lock(mutex_);
  Start start;
  const CUresult begun = Begin(stream, label, &start);
  if (begun != CUDA_SUCCESS) return begun;
  if (start == Start::kCaptured)
    return CaptureWork(stream, label, work);  // a copy: released after the lock
  if (start == Start::kQueue) {
    QueueEntry entry;
    CollectWaits(stream, entry.waits);
    entry.label = label;
    entry.work = std::move(work);
    Push(stream, std::move(entry));
    return CUDA_SUCCESS;
  }
  stream.running = stream.lasting = true;  // by the program's own thread
  ++stream.enqueued;
  SetBusy(stream);
  const StreamRef keep = stream.shared_from_this();
  lock.unlock();
  PollState state;
  state.now_ns = clock_.NowNs();
  const int result = work->Poll(state);
  if (result == kDone && observed()) Emit(label, stream, state.now_ns, clock_.NowNs());
  lock.lock();
  stream.running = false;
  if (result == kPending) {
    Requeue(stream, label, state, std::move(work));
    return CUDA_SUCCESS;
  }
  if (result < 0) Fail(stream, result);
  Finish(stream);
  AfterInline(stream);
  lock.unlock();
  work.reset();  // its release may be the caller's code: not under the lock
  return CUDA_SUCCESS;
}

void Engine::Finish(Stream& stream) {
  ++stream.completed;
  if (!timed_) return;
  ++digest_.operations;
  digest_.hash += Mix(Mix(Mix(stream.id) ^ stream.completed) ^ clock_.NowNs());
}

void Engine::Number(Stream& stream) {
  ++stream.enqueued;
  Finish(stream);
}

Engine::Digest Engine::digest() {
  std::lock_guard<std::mutex> lock(mutex_);
  return digest_;
}

void Engine::Complete(Event& event, uint64_t generation) {
  if (event.generation != generation) return;  // recorded again since
  event.time_ns = clock_.NowNs();
  event.stream.reset();
}

void Engine::CompleteNow(Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++event.generation;
  event.recorded = true;
  Complete(event, event.generation);
}

CUresult Engine::Record(const EventRef& event, Stream& stream, bool external) {
  std::unique_lock<std::mutex> lock(mutex_);
  Start start;
  const CUresult begun = Begin(stream, Label{}, &start);
  if (begun != CUDA_SUCCESS) return begun;
  if (start == Start::kCaptured) return CaptureRecord(stream, event, external);
  event->capture.reset();
  event->recorded = true;
  ++event->generation;
  if (start == Start::kIdle) {
    event->stream.reset();
    if ((event->flags & CU_EVENT_DISABLE_TIMING) == 0) event->time_ns = clock_.NowNs();
    event->busy_ns = stream.busy_ns;
    Number(stream);
    return CUDA_SUCCESS;
  }
  QueueEntry entry;
  CollectWaits(stream, entry.waits);
  entry.record = event;
  entry.record_generation = event->generation;
  Push(stream, std::move(entry));
  event->stream = stream.shared_from_this();
  event->sequence = stream.enqueued;
  return CUDA_SUCCESS;
}

CUresult Engine::WaitEvent(Stream& stream, Event& event, bool external) {
  std::unique_lock<std::mutex> lock(mutex_);
  Start start;
  const CUresult begun = Begin(stream, Label{}, &start);
  if (begun != CUDA_SUCCESS) return begun;
  if (start == Start::kCaptured || event.capture != nullptr)
    return CaptureWait(stream, event, external);
  const Point point{event.stream, event.sequence};
  if (event.stream != nullptr && Reached(point)) event.stream.reset();
  const bool waits = event.stream != nullptr && event.stream.get() != &stream;
  if (!waits && start == Start::kIdle) Number(stream);
  if (!waits && (start == Start::kIdle || !timed_)) return CUDA_SUCCESS;
  QueueEntry entry;
  CollectWaits(stream, entry.waits);
  if (waits) entry.waits.push_back(point);
  Push(stream, std::move(entry));
  return CUDA_SUCCESS;
}

template <class Predicate>
bool Engine::WaitUntil(std::unique_lock<std::mutex>& lock, Predicate done, const GiveUp& give_up) {
  if (done()) return true;
  ++helping_;
  ++waits_;
  bool is_done = false;
  for (;;) {
    const Before before = Look();
    Progress(lock);
    is_done = done();
    if (is_done || (give_up.at_ns != UINT64_MAX && clock_.NowNs() >= give_up.at_ns)) break;
    if (give_up.turn_ns != UINT64_MAX && clock_.HadTurn(give_up.turn_ns)) {
      AwaitPolls(lock);
      is_done = done();
      break;
    }
    Sleep(lock, before, give_up);
    is_done = done();
    if (is_done) break;
  }
  --helping_;
  // This thread may have polled heads whose words nobody else watches: somebody has to look again.
  // On a clock whoever sleeps next looks first.
  if (pending_.empty() || (timed_ && helping_ == 0)) return is_done;
  if (helping_ == 0) progress_wanted_.notify_one();
  session_->Ring(session_->self());
  return is_done;
}

// A Poll that is not lasting neither sleeps on the clock nor takes a lock that is held over a call.
void Engine::AwaitPolls(std::unique_lock<std::mutex>& lock) {
  if (t_polls > 0) return;  // it may be this thread's
  const auto runs = [](const StreamRef& stream) { return stream->running && !stream->lasting; };
  while (std::any_of(pending_.begin(), pending_.end(), runs)) {
    lock.unlock();
    sched_yield();
    lock.lock();
    Progress(lock);
  }
}

CUresult Engine::QueryEvent(Event& event, bool patient) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int sticky = event.context->sticky.load(std::memory_order_relaxed);
  if (sticky != 0) return static_cast<CUresult>(sticky);
  if (event.capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (event.stream == nullptr) return CUDA_SUCCESS;
  const Point point{event.stream, event.sequence};
  if (Reached(point)) return CUDA_SUCCESS;
  const auto context = event.context;  // the event may be destroyed meanwhile
  if (!patient || timed_ || !PeersReach(point, lock)) return CUDA_ERROR_NOT_READY;
  return static_cast<CUresult>(context->sticky.load(std::memory_order_relaxed));
}

bool Engine::AwaitsPeers(const Stream& stream, int depth) const {
  if (stream.queue.empty() || depth == 8) return false;
  const QueueEntry& head = stream.queue.front();
  const auto unreached = std::find_if(head.waits.begin(), head.waits.end(),
                                      [&](const Point& point) { return !Reached(point); });
  if (unreached != head.waits.end()) return AwaitsPeers(*unreached->stream, depth + 1);
  return head.work != nullptr && head.work->AwaitsPeers();
}

bool Engine::PeersReach(const Point& point, std::unique_lock<std::mutex>& lock) {
  Stream& stream = *point.stream;
  if (!t_submits || point.sequence <= stream.asked || !AwaitsPeers(stream)) return false;
  stream.asked = point.sequence;
  const bool reached =
      WaitUntil(lock, [&] { return Reached(point); }, {.at_ns = clock_.NowNs() + patience_ns_});
  patience_ns_ = reached ? std::min(patience_ns_ * 2, kLongestPatienceNs)
                         : std::max(patience_ns_ / 4, kLeastPatienceNs);
  return reached;
}

CUresult Engine::SynchronizeEvent(Event& event) {
  Label label;
  label.activity = HOSTCUDA_ACTIVITY_SYNC;
  label.name = "event";
  Stamp(label);
  StreamRef stream;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (event.capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
    if (event.stream != nullptr) {
      const Point point{event.stream, event.sequence};
      stream = event.stream;
      WaitUntil(lock, [&] { return Reached(point); });
    }
  }
  if (observed())
    Emit(label, stream != nullptr ? *stream : *event.context->legacy, label.enqueue_start_ns,
         clock_.NowNs());
  return static_cast<CUresult>(event.context->sticky.load(std::memory_order_relaxed));
}

CUresult Engine::Elapsed(float* milliseconds, const Event& start, const Event& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  if ((start.flags | end.flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!start.recorded || !end.recorded) return CUDA_ERROR_INVALID_HANDLE;
  for (const Event* event : {&start, &end}) {
    if (event->stream != nullptr && !Reached({event->stream, event->sequence}))
      return CUDA_ERROR_NOT_READY;
  }
  *milliseconds = static_cast<float>(
      static_cast<double>(static_cast<int64_t>(end.time_ns - start.time_ns)) * 1e-6);
  return CUDA_SUCCESS;
}

CUresult Engine::Busy(uint64_t* ns, const Event& start, const Event& end) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!start.recorded || !end.recorded) return CUDA_ERROR_INVALID_HANDLE;
  for (const Event* event : {&start, &end}) {
    if (event->stream != nullptr && !Reached({event->stream, event->sequence}))
      return CUDA_ERROR_NOT_READY;
  }
  if (end.busy_ns < start.busy_ns) return CUDA_ERROR_INVALID_VALUE;  // of two streams, or reversed
  *ns = end.busy_ns - start.busy_ns;
  return CUDA_SUCCESS;
}

CUresult Engine::QueryStream(Stream& stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int sticky = stream.context->sticky.load(std::memory_order_relaxed);
  if (sticky != 0) return static_cast<CUresult>(sticky);
  if (stream.capture != nullptr) return CaptureForbidden(stream);
  return Clear(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

bool Engine::Idle(Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stream.capture == nullptr && Clear(stream);
}

bool Engine::Capturing(Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stream.capture != nullptr;
}

CUresult Engine::ForbidCapture(Stream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  return stream.capture != nullptr ? CaptureForbidden(stream) : CUDA_SUCCESS;
}

void Engine::Drain(Context& context) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<Point> points;
  for (const StreamRef& stream : context.streams) {
    if (stream->busy()) points.push_back({stream, stream->enqueued});
  }
  if (points.empty()) return;
  WaitUntil(lock, [&] {
    return std::all_of(points.begin(), points.end(), [&](const Point& p) { return Reached(p); });
  });
}

CUresult Engine::Synchronize(Stream& stream) {
  Label label;
  label.activity = HOSTCUDA_ACTIVITY_SYNC;
  label.name = "stream";
  Stamp(label);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (stream.capture != nullptr) return CaptureForbidden(stream);
    if (!Clear(stream)) {
      std::vector<Point> points;
      CollectWaits(stream, points);
      points.push_back({stream.shared_from_this(), stream.enqueued});
      WaitUntil(lock, [&] {
        return std::all_of(points.begin(), points.end(),
                           [&](const Point& p) { return Reached(p); });
      });
    }
  }
  if (observed()) Emit(label, stream, label.enqueue_start_ns, clock_.NowNs());
  return static_cast<CUresult>(stream.context->sticky.load(std::memory_order_relaxed));
}

CUresult Engine::SynchronizeContext(Context& context) {
  Label label;
  label.activity = HOSTCUDA_ACTIVITY_SYNC;
  label.name = "context";
  Stamp(label);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    std::vector<Point> points;
    for (const StreamRef& stream : context.streams) {
      if (stream->capture != nullptr) return CaptureForbidden(*stream);
      if (stream->busy()) points.push_back({stream, stream->enqueued});
    }
    if (!points.empty()) {
      WaitUntil(lock, [&] {
        return std::all_of(points.begin(), points.end(),
                           [&](const Point& p) { return Reached(p); });
      });
    }
  }
  if (observed()) Emit(label, *context.legacy, label.enqueue_start_ns, clock_.NowNs());
  return static_cast<CUresult>(context.sticky.load(std::memory_order_relaxed));
}

void Engine::DropContext(Context& context) {
  std::vector<QueueEntry> dropped;  // released after the lock
  std::unique_lock<std::mutex> lock(mutex_);
  const std::vector<StreamRef> streams = context.streams;
  for (const StreamRef& stream : streams) {
    while (stream->running) {
      lock.unlock();
      const timespec pause = {0, 100'000};
      nanosleep(&pause, nullptr);
      lock.lock();
    }
    for (QueueEntry& entry : stream->queue) dropped.push_back(std::move(entry));
    stream->completed += stream->queue.size();
    stream->queue.clear();
    SetIdle(*stream);
  }
  session_->Ring(session_->self());
  lock.unlock();
}

void Engine::Notify() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!pending_.empty() || helping_ > 0) session_->Ring(session_->self());
}

bool Engine::RunQueue(Stream& stream, std::unique_lock<std::mutex>& lock) {
  bool progressed = false;
  while (!stream.running && !stream.queue.empty()) {
    QueueEntry& entry = stream.queue.front();
    std::erase_if(entry.waits, [&](const Point& point) { return Reached(point); });
    if (!entry.waits.empty()) {
      stream.head = PollState{};
      break;
    }
    if (entry.duration_ns != 0) {
      const uint64_t now_ns = clock_.NowNs();
      if (entry.started_ns == 0) entry.started_ns = now_ns;
      const uint64_t end_ns = entry.started_ns + entry.duration_ns;
      if (now_ns < end_ns) {
        stream.head = PollState{};
        stream.head.wake_at_ns = end_ns;
        break;
      }
    }
    std::shared_ptr<Work> work = entry.work;
    if (work != nullptr) {
      stream.running = true;
      Label label = entry.label;
      stream.lasting =
          label.type == CU_GRAPH_NODE_TYPE_HOST || label.type == CU_GRAPH_NODE_TYPE_GRAPH;
      uint64_t started_ns = entry.started_ns;
      lock.unlock();
      PollState state;
      state.now_ns = clock_.NowNs();
      if (started_ns == 0) started_ns = state.now_ns;
      ++t_polls;
      const int result = work->Poll(state);
      --t_polls;
      if (result == kDone && label.correlation != 0)
        Emit(label, stream, started_ns, clock_.NowNs());
      lock.lock();
      stream.running = false;
      if (result == kPending) {
        stream.queue.front().started_ns = started_ns;
        stream.head = state;
        break;
      }
      if (result < 0) Fail(stream, result);
    } else if (entry.record != nullptr) {
      if (entry.record->generation == entry.record_generation)
        entry.record->busy_ns = stream.busy_ns;
      Complete(*entry.record, entry.record_generation);
    }
    QueueEntry finished = std::move(stream.queue.front());
    stream.queue.pop_front();
    Finish(stream);
    const bool is_graph = finished.label.type == CU_GRAPH_NODE_TYPE_GRAPH;
    if (finished.started_ns != 0 && (is_graph || finished.duration_ns == 0)) {
      // A graph or a library's work (a collective): until it said that it was done.
      stream.busy_ns += clock_.NowNs() - finished.started_ns;
    } else {
      stream.busy_ns += finished.duration_ns;
    }
    progressed = true;
    // Destroying the work may call the release function of a library: not under the lock. The
    // stream stays busy, so nothing overtakes.
    finished.work.reset();
    if (work != nullptr) {
      stream.running = true;
      lock.unlock();
      work.reset();
      lock.lock();
      stream.running = false;
    }
  }
  if (!stream.busy()) SetIdle(stream);
  return progressed;
}

bool Engine::Progress(std::unique_lock<std::mutex>& lock) {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < pending_.size(); ++i) {
      const StreamRef stream = pending_[i];
      if (RunQueue(*stream, lock)) again = any = true;
    }
    std::erase_if(pending_, [](const StreamRef& stream) {
      if (!stream->queue.empty()) return false;
      stream->listed = false;
      return true;
    });
  }
  if (any) {
    if (timed_) clock_.Touch();
    last_progress_ns_ = clock_.NowNs();
    session_->Ring(session_->self());
  }
  return any;
}

void Engine::SleepOnClock(std::unique_lock<std::mutex>& lock, const Before& before,
                          const GiveUp& give_up) {
  ClockWait wait{.bell = bell_,
                 .seen = before.bell,
                 .deadline_ns = give_up.at_ns,
                 .turn_ns = give_up.turn_ns,
                 .polls_words = give_up.polls_words,
                 .looked = before.activity};
  for (const StreamRef& stream : pending_) {
    if (stream->running) continue;
    wait.deadline_ns = std::min(wait.deadline_ns, stream->head.wake_at_ns);
    wait.polls_words |= stream->head.words != 0;
  }
  sleepers_->fetch_add(1, std::memory_order_seq_cst);
  lock.unlock();
  clock_.Wait(wait);
  lock.lock();
  sleepers_->fetch_sub(1, std::memory_order_seq_cst);
}

void Engine::Sleep(std::unique_lock<std::mutex>& lock, const Before& before,
                   const GiveUp& give_up) {
  if (timed_) {
    SleepOnClock(lock, before, give_up);
    return;
  }
  uint64_t deadline_ns = give_up.at_ns;
  FutexWaiter waiters[kMaxWaiters];
  int count = 0;
  waiters[count++] = {before.bell, reinterpret_cast<uint64_t>(bell_), kFutex32, 0};
  bool words = false;
  for (const StreamRef& stream : pending_) {
    if (stream->running) continue;
    deadline_ns = std::min(deadline_ns, stream->head.wake_at_ns);
    for (int i = 0; i < stream->head.words; ++i) {
      words = true;
      if (count == kMaxWaiters) break;
      waiters[count++] = {stream->head.word[i].seen,
                          reinterpret_cast<uint64_t>(stream->head.word[i].address), kFutex32, 0};
    }
  }
  const uint64_t now_ns = clock_.NowNs();
  if (words) {
    const uint64_t stalled_ns = now_ns - std::min(now_ns, last_progress_ns_);
    deadline_ns =
        std::min(deadline_ns, now_ns + std::clamp(stalled_ns / 4, kFirstLookNs, kLastLookNs));
  }
  if (deadline_ns <= now_ns) return;
  sleepers_->fetch_add(1, std::memory_order_seq_cst);
  lock.unlock();
  SleepOnWords(waiters, count, now_ns, deadline_ns);
  lock.lock();
  sleepers_->fetch_sub(1, std::memory_order_seq_cst);
}

void* Engine::ProgressEntry(void* engine) {
  static_cast<Engine*>(engine)->ProgressLoop();
  return nullptr;
}

void Engine::StandIn() {
  for (;;) {
    clock_.Watch();
    // From here on the clock stands until this thread sleeps: the others may have come back, and
    // they do not see to what it is about to poll.
    clock_.Touch();
    std::unique_lock<std::mutex> lock(mutex_);
    ++helping_;
    // Who came back may be gone again by the time that this thread runs.
    const uint64_t waits = waits_;
    do {
      const Before before = Look();
      Progress(lock);
      Sleep(lock, before, {});
    } while (helping_ == 1 && waits_ == waits);
    --helping_;
    // Who came back passed by what this thread was polling, and what it waits for is not in their
    // wait: as at the end of WaitUntil. The clock stands until they have been woken.
    if (!pending_.empty()) session_->Ring(session_->self());
  }
}

void Engine::ProgressLoop() {
  if (timed_) StandIn();
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    progress_wanted_.wait(lock, [&] { return !pending_.empty() && helping_ == 0; });
    const Before before = Look();
    Progress(lock);
    if (pending_.empty()) continue;
    if (helping_ == 0) {
      Sleep(lock, before, {});
    } else {
      session_->Ring(session_->self());  // as at the end of WaitUntil
    }
  }
}

void Engine::Stamp(Label& label) const {
  if (!observed()) return;
  label.enqueue_start_ns = clock_.NowNs();
  label.correlation = next_correlation_.fetch_add(1, std::memory_order_relaxed);
  label.thread = static_cast<uint32_t>(syscall(SYS_gettid));
}

void Engine::Emit(const Label& label, const Stream& stream, uint64_t start_ns, uint64_t end_ns) {
  const HostcudaActivityObserver observer = observer_.load(std::memory_order_acquire);
  if (observer == nullptr || label.activity < 0) return;
  HostcudaActivity activity = {};
  activity.kind = static_cast<HostcudaActivityKind>(label.activity);
  activity.start_ns = start_ns;
  activity.end_ns = std::max(start_ns, end_ns);
  activity.enqueue_start_ns = label.enqueue_start_ns;
  activity.enqueue_end_ns = label.enqueue_end_ns != 0 ? label.enqueue_end_ns : activity.end_ns;
  activity.device = static_cast<uint32_t>(stream.context->device);
  activity.context = stream.context->number;
  activity.stream = stream.number;
  activity.correlation = label.correlation;
  activity.thread = label.thread;
  activity.name = label.name;
  for (int i = 0; i < 3; ++i) {
    activity.grid[i] = label.grid[i];
    activity.block[i] = label.block[i];
  }
  activity.shared_bytes = label.shared_bytes;
  activity.bytes = label.bytes;
  activity.copy_kind = label.copy_kind;
  activity.host_pinned = label.host_pinned ? 1 : 0;
  observer(&activity);
}

}  // namespace hostcuda
