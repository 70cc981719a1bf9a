// Whether a thread of this machine runs or is asleep, and what it waits for, from /proc.
//
// Owns nothing; pure functions over /proc, any thread.
//
//   if (ProcStateOf(getpid(), tid) == ProcState::kWaitsInside) ...
#ifndef HOSTCUDA_CLOCK_PROC_STATE_H_
#define HOSTCUDA_CLOCK_PROC_STATE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hostcuda {

enum class ProcState {
  kRuns,          // or is about to, is stopped, or waits for a disk or for time to pass (nanosleep)
  kWaitsInside,   // in a futex that only its own process can wake
  kWaitsOutside,  // in a system call that something outside of the process may end
  kGone,
};

/// State of thread `tid` of process `pid`. Of another process only with the permission to trace it;
/// without, kWaitsInside is never answered.
ProcState ProcStateOf(pid_t pid, pid_t tid);

/// The threads of a process; empty where it is gone.
std::vector<pid_t> ThreadsOf(pid_t pid);

/// True while the thread runs or is about to. Cheaper than ProcStateOf.
bool ThreadRuns(pid_t pid, pid_t tid);

/// "thread 4242 (python) is in system call 230, do_nanosleep", for messages.
std::string DescribeThread(pid_t pid, pid_t tid);

/// Start time of process `pid` in clock ticks since boot; 0 where it is gone or a zombie.
uint64_t ProcessStartTime(int pid);

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_PROC_STATE_H_
