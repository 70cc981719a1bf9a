// VirtualClock: this process's part in the virtual clock of the driver that ranks use (hostcuda's).
//
// The clock stands while a process of its session works. A thread of this class is that process's
// face: it waits on the clock, and when a rank has rung, or a time has come, the clock stands, and
// fd() is readable, until Continue() says that everything was handled.
//
// Owns the session's folder and its shared memory. The driver can be joined once a process; later
// runs of the process share the session. Used by one thread; Ring and NowNs by any.
//
//   PRISM_ASSIGN_OR_RETURN(auto clock, VirtualClock::Join(cuda.driver, {{"HOSTCUDA_GPU",
//   "h200"}})); loop.Add(clock->fd(), [&] { clock->Acknowledge(); ...
//   clock->Continue(next_deadline_ns); });
#ifndef PRISM_CLI_VIRTUAL_CLOCK_H_
#define PRISM_CLI_VIRTUAL_CLOCK_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/cli/runtime_folder.h"

namespace prism::cli {

class VirtualClock final : public JobClock {
 public:
  /// `driver`: path of its libcuda.so.1. `environment`: what the ranks' driver is told.
  /// FailedPrecondition: this driver has no virtual clock.
  static absl::StatusOr<std::unique_ptr<VirtualClock>> Join(
      const std::string& driver, const std::map<std::string, std::string>& environment);
  ~VirtualClock() override;
  VirtualClock(const VirtualClock&) = delete;
  VirtualClock& operator=(const VirtualClock&) = delete;

  int64_t NowNs() const override;
  void Ring(uint32_t number) override;

  /// This process's number on the clock, plus 1 (wire::Welcome::clock_number).
  uint32_t number() const { return number_; }
  /// Name of the session that the ranks' driver has to join.
  std::string session() const { return folder_->session(); }

  /// Readable when the clock stands for this process.
  int fd() const { return wake_fd_; }
  /// Makes fd() unreadable again.
  void Acknowledge() const;
  /// The clock goes on, at most to `until_ns` (INT64_MAX: nothing is planned).
  void Continue(int64_t until_ns);

 private:
  struct Functions {
    unsigned long long (*now)();
    int (*hold)(int change);
    unsigned (*number)();
    int (*ring)(unsigned number);
    int (*wait)(unsigned* rings, unsigned long long until_ns);
  };
  VirtualClock(const Functions& functions, std::unique_ptr<RuntimeFolder> folder);
  void Run();

  const Functions functions_;
  const std::unique_ptr<RuntimeFolder> folder_;
  const int wake_fd_;
  uint32_t number_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool joined_ = false, goes_on_ = false, stop_ = false;
  int64_t until_ns_ = INT64_MAX;
  std::thread thread_;
};

}  // namespace prism::cli

#endif  // PRISM_CLI_VIRTUAL_CLOCK_H_
