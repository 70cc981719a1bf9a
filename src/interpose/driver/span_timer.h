// SpanTimer: how long the GPU takes for the spans and communications of a rank that records.
//
// An event is put before and behind each of them, on their own stream (spans of a stream that lags
// behind the host share one where only the program's events are between them); a thread of its own
// asks for the time between when both are complete and writes it as timing of the node. A duration
// is thus what the stream was occupied for: of a communication from this rank being ready to its
// end. On a virtual clock every launch is a span, and its time what the stream worked
// (DriverClock::BusyTime). Inactive (every call returns at once) until Start.
//
// A host that is slower than the GPU leaves gaps between a span's launches. With HoldIdleStreams a
// stream that has nothing to do waits from a span's first launch to its last, so that the span's
// time has none; one that is behind its host has none by itself, and is left alone.
//
//   SpanTimer& timer = SpanTimer::Get();
//   timer.BeforeLaunch(stream, per_thread); real(...); writer->Launch(...);   // the span's end
//   comes by itself: Writer::OnSpanEnd
#ifndef PRISM_INTERPOSE_DRIVER_SPAN_TIMER_H_
#define PRISM_INTERPOSE_DRIVER_SPAN_TIMER_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "src/trace/writer.h"

namespace prism::interpose::driver {

class SpanTimer {
 public:
  static SpanTimer& Get();

  bool active() const { return writer_.load(std::memory_order_acquire) != nullptr; }
  /// Once, before the writer's first node.
  void Start(trace::Writer* writer);
  /// Before Start; not on a virtual clock, which tells gaps apart.
  void HoldIdleStreams();
  /// Before a call that may wait for the device: lets all streams go that are held.
  void BeforeBlocking();
  /// Writes what is known and stops: before the writer is closed.
  void Stop();
  /// In a forked child, which has no timer thread.
  void Abandon() { writer_.store(nullptr, std::memory_order_release); }

  /// Before work that extends or begins a span.
  void BeforeLaunch(CUstream stream, bool per_thread);
  /// Before an event is recorded: ends the span in front of it.
  void BeforeRecord(CUstream stream, bool per_thread);
  /// Before anything else on the stream, which may take time: the same.
  void BeforeNode(CUstream stream, bool per_thread);

  /// The host has waited for the launch that comes next: the span's time is the call's, too.
  void Waited(uint32_t stream);

  /// Around a kernel that NCCL launches. The time is the next communication's of this thread and
  /// stream (Communicated); several kernels are one interval.
  void BeforeNcclKernel(CUstream stream);
  void AfterNcclKernel(CUstream stream);
  /// The next node of stream number `stream` is the communication, or the first of a group.
  void Communicated(uint32_t stream);

  void StreamDestroyed(uint32_t stream);

 private:
  SpanTimer() = default;

  std::atomic<trace::Writer*> writer_{nullptr};
};

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_SPAN_TIMER_H_
