// MessageSlots: the slots in which a rank puts pieces of its messages.
//
// The sender takes slots, their receivers free them, whenever they run.
//
// Threading: SlotFlags is shared memory; MessageSlots belongs to the sender, its calls are
// serialized by the caller.
//
//   MessageSlots slots(&self.message_slots);
//   const int slot = slots.Free();
//   if (slot >= 0) slots.Take(slot, /*early=*/true);
//   ...                                        // the receiver: flags.Free(slot)
#ifndef HOSTCUDA_NCCL_MESSAGE_SLOTS_H_
#define HOSTCUDA_NCCL_MESSAGE_SLOTS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace hostnccl {

inline constexpr uint32_t kMessageSlots = 32;
// Slots of a rank that may hold messages whose receives have not come. The rest stays free for
// messages that somebody waits for.
inline constexpr uint64_t kEarlySlots = 24;

/// Zero-filled memory: all are free.
struct SlotFlags {
  std::atomic<uint32_t> busy[kMessageSlots];  // cleared by receivers

  void Free(uint32_t slot) { busy[slot].store(0, std::memory_order_release); }
};

class MessageSlots {
 public:
  explicit MessageSlots(SlotFlags* flags) : flags_(*flags) {}

  /// Returns a slot that is free; -1: none is.
  int Free() const {
    const auto* slot = std::find_if(std::begin(flags_.busy), std::end(flags_.busy), IsFree);
    return slot == std::end(flags_.busy) ? -1 : static_cast<int>(slot - std::begin(flags_.busy));
  }
  uint64_t FreeSlots() const {
    return static_cast<uint64_t>(
        std::count_if(std::begin(flags_.busy), std::end(flags_.busy), IsFree));
  }
  /// Takes a free slot.
  void Take(uint32_t slot, bool early) {
    flags_.busy[slot].store(1, std::memory_order_relaxed);
    early_[slot] = early;
  }
  /// Slots that early messages are in.
  uint64_t EarlyBusy() const {
    uint64_t busy = 0;
    for (uint32_t slot = 0; slot < kMessageSlots; ++slot)
      busy += early_[slot] && !IsFree(flags_.busy[slot]);
    return busy;
  }

 private:
  static bool IsFree(const std::atomic<uint32_t>& busy) {
    return busy.load(std::memory_order_acquire) == 0;
  }

  SlotFlags& flags_;
  std::array<bool, kMessageSlots> early_{};
};

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_MESSAGE_SLOTS_H_
