// hostcuda's job clock: what streams, events and tasks read and wait on.
//
// `free`: kernels and copies take no time; now_ns() is the machine's monotonic clock, so event
// intervals are what the program would measure on this machine. The interface is the one that a
// clock shared between processes needs: a task says until when it waits (see HostcudaTaskPoll), and
// nobody sleeps on anything else.
#ifndef HOSTCUDA_CLOCK_CLOCK_H_
#define HOSTCUDA_CLOCK_CLOCK_H_

#include <cstdint>

namespace hostcuda {

class JobClock {
 public:
  virtual ~JobClock() = default;
  /// Nanoseconds; never decreases within the job.
  virtual uint64_t NowNs() const = 0;
  /// How long an operation of `duration_ns` that starts now keeps its stream busy: 0 on the free
  /// clock.
  virtual uint64_t CostNs(uint64_t duration_ns) const = 0;
};

/// The clock named by HOSTCUDA_CLOCK (only "free" so far; an unknown name ends the process with
/// code 125).
JobClock& Clock();

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_CLOCK_H_
