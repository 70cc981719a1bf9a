// Liveness: for how long each rank's process has slept.
//
// Reads /proc: a process is idle while every thread sleeps and the process's CPU time stands still
// but for what a watchdog thread uses that wakes up now and then. Single-threaded.
//
//   Liveness liveness;
//   std::map<uint32_t, Idleness> idle = liveness.Sample({{0, pid0}, {1, pid1}}, now_ns);   // four
//   times a second
#ifndef PRISM_COORDINATOR_LIVENESS_H_
#define PRISM_COORDINATOR_LIVENESS_H_

#include <cstdint>
#include <map>

#include "src/coordinator/coordinator.h"

namespace prism::coordinator {

class Liveness {
 public:
  /// Looks at the processes, by rank, and returns the idle ones.
  std::map<uint32_t, Idleness> Sample(const std::map<uint32_t, int>& processes, int64_t now_ns);

 private:
  struct Seen {
    int pid = 0;
    uint64_t cpu_ticks = 0;
    int64_t since_ns = 0;      // when it was last seen at work
    uint64_t since_ticks = 0;  // its CPU time then
    int runnable_samples = 0;  // of a run of samples in which a thread was not asleep
  };
  std::map<uint32_t, Seen> seen_;
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_LIVENESS_H_
