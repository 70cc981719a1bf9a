// hostcuda's job clock: what streams, events, tasks and host threads read and wait on.
//
// `free`: kernels and copies take no time; NowNs() is the machine's monotonic clock, so event
// intervals are what the program would measure on this machine.
//
// `virtual`: one clock for all processes of a session, starting at one second. It stands while any
// process of the session runs and moves to the next deadline when all of them are blocked: so a
// job's times do not depend on the machine, and repeat to the nanosecond
// (docs/design/0009-virtual-clock.md). A deadline is one of
//   - the deadline_ns of a thread in Wait (a kernel ends, a host call has taken its time),
//   - the turn_ns of a thread in Wait: like a deadline, but after everything else that happens at
//     that time, one process at a time in the order of their ranks. For what looks at the state of
//     others (a query): the answer must not depend on who runs first,
//   - a shared event: a deadline that any process can set, move and cancel for a process.
//
// `wall`: this machine's clock, on which work takes its stated time: what the virtual clock says is
// checked against it (wall_clock.h).
//
// Threading: thread-safe. Wait must be called without locks that another thread of the process
// needs to get on.
//
//   JobClock& clock = Clock();
//   uint32_t flow = clock.NewEvent(receiver);        // any process may use the number from here on
//   clock.SetEvent(flow, clock.NowNs() + 500);       // and again, when contention moves the end
//   ... the receiver's tasks are polled at that time; clock.EventWord(flow) has grown by one
#ifndef HOSTCUDA_CLOCK_CLOCK_H_
#define HOSTCUDA_CLOCK_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace hostcuda {

struct ClockSegment;

inline constexpr uint64_t kNever = UINT64_MAX;
inline constexpr uint32_t kNoEvent = UINT32_MAX;

/// What a thread waits for; whichever comes first.
struct ClockWait {
  const std::atomic<uint32_t>* bell;  // no longer holds `seen`: the process's doorbell
  uint32_t seen;
  uint64_t deadline_ns = kNever;
  uint64_t turn_ns = kNever;
  bool polls_words = false;  // also waits for words that are stored to without ringing
  uint32_t looked = 0;       // what Activity() was when it looked last at all that it waits for
};

class JobClock {
 public:
  virtual ~JobClock() = default;
  /// Nanoseconds; never decreases within the job.
  virtual uint64_t NowNs() const = 0;
  /// False: nothing takes time, and nothing below may be called.
  virtual bool takes_time() const { return false; }
  /// Time stands while processes run.
  virtual bool is_virtual() const { return false; }

  /// This process in its job: what orders things that happen at one time.
  virtual uint32_t rank() const { return 0; }

  /// This process is member `index` of the session whose memory `segment` is. The clock takes no
  /// notice of it until a thread of it touches: a launcher may ask for devices and do nothing else.
  virtual void Join(ClockSegment*, uint32_t /*index*/) {}
  /// Leaves at exit: the others' clock does not wait for this process any more, and to this process
  /// every deadline has passed.
  virtual void Leave() {}

  /// Says that the calling thread uses CUDA: from now on the clock stands unless the thread is in
  /// Wait, or asleep in a system call. Cheap; every call that reads or changes streams starts with
  /// it.
  virtual void Touch() {}
  /// While the calling thread holds (counted, +1 and -1), it runs, though it may sleep in a system
  /// call: what it waits for comes from a process that the clock must not pass by.
  virtual void Hold(int /*change*/) {}
  virtual void Wait(const ClockWait&) {}
  /// Grows with what the processes of the session do.
  virtual uint32_t Activity() const { return 0; }
  /// True once the turn that this process waited for at `turn_ns` has come.
  virtual bool HadTurn(uint64_t) const { return true; }
  /// Wakes the threads of process `index` that are in Wait; its bell was rung before.
  virtual void Wake(uint32_t /*index*/) {}
  /// For the one thread of a process that stands in for the others: returns when they are all
  /// asleep outside of Wait, so that this thread has to wait for the process's streams.
  virtual void Watch() {}

  /// Makes an event of this process that wakes process `target`: its doorbell rings and its tasks
  /// are polled when the event's time has come. kNoEvent where all are in use.
  virtual uint32_t NewEvent(uint32_t /*target*/) { return kNoEvent; }
  /// Sets the time, in place of an earlier one. A time that has passed fires at once; kNever
  /// cancels. Any process of the session.
  virtual void SetEvent(uint32_t /*event*/, uint64_t /*at_ns*/) {}
  /// How often the event has fired since it was made.
  virtual const std::atomic<uint32_t>* EventWord(uint32_t /*event*/) { return nullptr; }
  virtual void FreeEvent(uint32_t /*event*/) {}
};

/// The clock named by HOSTCUDA_CLOCK: free, virtual or wall (an unknown name ends the process with
/// code 125).
JobClock& Clock();

/// Where this process stands in its job.
struct JobPlace {
  int rank = -1;      // -1: not told; the order of joining decides
  int processes = 0;  // the clock stands until so many ranks have joined
};
/// From HOSTCUDA_PROCESS, HOSTCUDA_PROCESSES, else what torchrun, Open MPI, Slurm or PMI set.
/// False, and what is wrong, where a variable is no number or the rank is none of the processes.
bool ReadJobPlace(JobPlace* place, std::string* error);

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_CLOCK_H_
