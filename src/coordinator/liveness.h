// Liveness: for how long each rank's process has slept.
//
// Reads /proc: a process is idle while every thread sleeps and the process's CPU time stands still
// but for what a watchdog thread uses that wakes up now and then. Single-threaded.
//
// On a machine with more work than cores a process may be kept from running for seconds. So the
// whole job counts: while any process of it that is not a rank (the rendezvous store, a data
// loader's worker) works or waits for a core, no rank is idle.
//
// What may wake an idle rank is told by the calls that its threads are in and by its connections: a
// sleep, or something outside of the job (input, an event loop, a connection to another machine).
//
//   Liveness liveness;
//   std::map<uint32_t, Idleness> idle = liveness.Sample({{0, pid0}, {1, pid1}}, {store_pid},
//   /*look_outside=*/false, now_ns);   // four times a second
#ifndef PRISM_COORDINATOR_LIVENESS_H_
#define PRISM_COORDINATOR_LIVENESS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "src/coordinator/coordinator.h"

namespace prism::coordinator {

class Liveness {
 public:
  /// Looks at the processes, by rank, and at `others` of the job; returns the idle ranks. Whether
  /// something outside may wake them costs more: it is found out with `look_outside`.
  std::map<uint32_t, Idleness> Sample(const std::map<uint32_t, int>& processes,
                                      const std::vector<int>& others, bool look_outside,
                                      int64_t now_ns);

 private:
  struct Seen {
    bool child_sleeps = false;  // that it waits for
    bool known = false;
    int64_t since_ns = 0;      // when it was last seen at work
    uint64_t since_ticks = 0;  // its CPU time then
    int runnable_samples = 0;  // of a run of samples in which a thread was not asleep
  };
  bool IsIdle(Seen* seen, int pid, int64_t now_ns);
  std::map<int, Seen> seen_;  // by process
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_LIVENESS_H_
