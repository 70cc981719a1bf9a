// Rounds: how often this process has updated its model's weights, told by the names of the kernels
// that it launches (base/optimizer_kernel.h). A training step is what lies between two updates, its
// micro-batches included.
//
// Thread-safe.
#ifndef PRISM_INTERPOSE_DRIVER_ROUNDS_H_
#define PRISM_INTERPOSE_DRIVER_ROUNDS_H_

#include <atomic>
#include <cstdint>

namespace prism::interpose::driver {

class Rounds {
 public:
  static Rounds& Get();

  /// Before the program goes on after a launch. `updates`: the kernel is an optimizer's.
  void Launched(bool updates);
  /// Updates that have begun. An update is many kernels, with communications and now and then
  /// others in between: what follows one sooner than half a round later is a part of it.
  uint32_t now() const { return rounds_.load(std::memory_order_acquire); }

 private:
  // Launches that update nothing: since the last update, and in the shortest round.
  std::atomic<uint64_t> since_{0}, shortest_{0};
  std::atomic<uint32_t> rounds_{0};
};

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_ROUNDS_H_
