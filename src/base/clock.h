// Clock: what the engine and the paced emulation read, wait on and block on.
//
// One interface, so that the engine that evaluates a graph offline is the one that drives virtual
// ranks. Implementations: WallClock (steady time), FreeClock (no waiting: everything completes at
// once). Thread-safe.
#ifndef PRISM_BASE_CLOCK_H_
#define PRISM_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace prism {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Nanoseconds since the clock's epoch; never decreases.
  virtual int64_t NowNs() const = 0;
  /// Returns when NowNs() >= deadline_ns.
  virtual void WaitUntil(int64_t deadline_ns) = 0;
};

class WallClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                                epoch_)
        .count();
  }
  void WaitUntil(int64_t deadline_ns) override {
    std::this_thread::sleep_until(epoch_ + std::chrono::nanoseconds(deadline_ns));
  }

 private:
  const std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
};

/// Time is wherever the latest waiter wanted it to be.
class FreeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }
  void WaitUntil(int64_t deadline_ns) override {
    int64_t now = now_ns_.load(std::memory_order_relaxed);
    while (now < deadline_ns && !now_ns_.compare_exchange_weak(now, deadline_ns)) {
    }
  }

 private:
  std::atomic<int64_t> now_ns_{0};
};

}  // namespace prism

#endif  // PRISM_BASE_CLOCK_H_
