// The wall clock: work takes its stated time of this machine's clock.
//
// For checks of the virtual clock: nothing stands or moves here, processes run side by side and
// sleep for as long as their kernels, calls and communications take. Times are therefore those of a
// run, some tens of microseconds late each; a job of more processes than cores measures the
// machine. Shared events (clock.h) live in the session's clock segment, as the virtual clock's do;
// a process fires its own when one of its threads waits and their time has come.
//
// Threading: as JobClock.
#ifndef HOSTCUDA_CLOCK_WALL_CLOCK_H_
#define HOSTCUDA_CLOCK_WALL_CLOCK_H_

#include "hostcuda/clock/clock.h"

namespace hostcuda {

class WallClock final : public JobClock {
 public:
  explicit WallClock(JobPlace place) : place_(place) {}

  uint64_t NowNs() const override;
  bool takes_time() const override { return true; }
  uint32_t rank() const override {
    return place_.rank >= 0 ? static_cast<uint32_t>(place_.rank) : index_;
  }
  void Join(ClockSegment* segment, uint32_t index) override;
  void Leave() override;
  void Wait(const ClockWait& wait) override;
  /// Grows when events of this process are set or fire, and when it is rung.
  uint32_t Activity() const override;
  bool HadTurn(uint64_t turn_ns) const override { return NowNs() >= turn_ns; }
  void Wake(uint32_t index) override;
  uint32_t NewEvent(uint32_t target) override;
  void SetEvent(uint32_t event, uint64_t at_ns) override;
  const std::atomic<uint32_t>* EventWord(uint32_t event) override;
  void FreeEvent(uint32_t event) override;

 private:
  class Locked;
  /// Fires this process's events whose time has come. Returns when the next is due; 0 where one
  /// was.
  uint64_t FireDue();
  /// Frees the events of processes that were killed. With the segment's mutex held.
  void ForgetTheDead();

  const JobPlace place_;
  ClockSegment* segment_ = nullptr;
  uint32_t index_ = 0;
};

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_WALL_CLOCK_H_
