// HostClock: the host time of a rank that records.
//
// All time of a thread counts, in calls and between them, but what it waits: in a blocking call
// (Waited), or for another thread of the program. That it waited for one is seen from who enqueued
// last: PyTorch's backward pass runs on a thread of autograd while the main thread waits, and no
// call tells. When the turn passes, a node says so (Writer::Handoff), and time counts from the
// other's last call. The time is the driver's (driver_clock.h).
//
// Per thread, in the order of its calls; no locks.
#ifndef PRISM_INTERPOSE_DRIVER_HOST_CLOCK_H_
#define PRISM_INTERPOSE_DRIVER_HOST_CLOCK_H_

#include <cstdint>

#include "src/trace/writer.h"

namespace prism::interpose::driver {

class HostClock {
 public:
  /// Around a call.
  static void Begin(trace::Writer* writer);
  static void End(trace::Writer* writer);
  /// The thread has waited until now.
  static void Waited();
  /// The call has enqueued work, of which a node comes next: whoever enqueues next from another
  /// thread had to wait for it. Also CountSoFar.
  static void Enqueued(trace::Writer* writer);
  /// On a virtual clock: what the call has taken so far counts before the node that comes next.
  static void CountSoFar(trace::Writer* writer);
};

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_HOST_CLOCK_H_
