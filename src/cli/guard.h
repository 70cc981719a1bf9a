// Guard: a small process that ends what a killed prism would leave running.
//
// Ranks die with their parents, but what a script started does not. The guard waits for the end of
// its maker on a pipe. A maker that is done dismisses it; one that was killed does not, and the
// guard then kills every process whose environment carries the job's mark, with what these started,
// and removes the runtime folder. Start it while the process has one thread.
//
//   Guard guard;
//   guard.Start("PRISM_CONTROL=" + runtime.path() + "/control", runtime.path());
#ifndef PRISM_CLI_GUARD_H_
#define PRISM_CLI_GUARD_H_

#include <string>

namespace prism::cli {

class Guard {
 public:
  Guard() = default;
  ~Guard();  // dismisses it
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// `mark` is a whole variable, NAME=VALUE, that only processes of this job have. Without
  /// resources for it (no process, no descriptor) the job runs unguarded.
  void Start(const std::string& mark, const std::string& runtime_folder);
  /// The guard's process, which is not one of the job's; -1: none.
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
  int pipe_ = -1;
};

}  // namespace prism::cli

#endif  // PRISM_CLI_GUARD_H_
