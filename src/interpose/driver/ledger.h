// Ledger: what a rank holds of one virtual device's memory, and what the target would still have.
//
// Counts every device allocation, rounded as the driver takes memory from the device: large ones to
// 2 MiB each, small ones share blocks of 2 MiB. With a limit (capture, emulate) an allocation that
// does not fit is refused before the real driver is asked, so that it fails where the target fails.
// Thread-safe.
//
//   Ledger ledger;
//   ledger.SetLimit(target_bytes, context_bytes);
//   if (!ledger.Reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
//   ... ledger.Return(bytes);
#ifndef PRISM_INTERPOSE_DRIVER_LEDGER_H_
#define PRISM_INTERPOSE_DRIVER_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace prism::interpose {

class Ledger {
 public:
  static constexpr uint64_t kGranularity = uint64_t{2} << 20;
  static constexpr uint64_t kSmall = uint64_t{1} << 20;  // up to here several share a block
  static constexpr uint64_t kSmallGranularity = 512;

  struct Figures {
    uint64_t requested_bytes;  // sum of what the program asked for
    uint64_t allocated_bytes;  // what the device gave for it
    uint64_t peak_bytes;       // largest allocated_bytes
    uint64_t limit_bytes;      // 0: none
    uint64_t context_bytes;
    uint32_t allocations;
  };

  /// `limit_bytes` is the device's whole memory, of which `context_bytes` are gone before the first
  /// allocation.
  void SetLimit(uint64_t limit_bytes, uint64_t context_bytes);
  bool limited() const { return limit_bytes_ != 0; }

  /// Takes room for one allocation; false: it does not fit.
  bool Reserve(uint64_t bytes);
  /// Gives the room back.
  void Return(uint64_t bytes);

  Figures figures() const;
  /// Free bytes as the driver would report them.
  uint64_t free_bytes() const;
  /// True when the peak has grown by more than 1 % since the last time this returned true.
  bool NewPeak();

 private:
  uint64_t AllocatedLocked() const;

  mutable std::mutex mutex_;
  uint64_t limit_bytes_ = 0, context_bytes_ = 0;
  uint64_t large_bytes_ = 0, small_bytes_ = 0, requested_bytes_ = 0, peak_bytes_ = 0;
  uint64_t told_peak_ = 0;
  uint32_t allocations_ = 0;
};

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_LEDGER_H_
