// MessageSlots: the slots in which a rank puts pieces of its messages, and how much room there is
// in them for messages whose receives have not come.
//
// The sender takes slots, their receivers free them, whenever they run. On the virtual clock the
// room that there is at a time must not depend on which of the things of that time have happened.
// So what is in use at a time, or was until that time, counts: it gives room a nanosecond later.
// Each slot is looked at once, or it could come free between two looks and be missed by both.
//
// Threading: SlotFlags is shared memory; MessageSlots belongs to the sender, its calls are
// serialized by the caller.
//
//   MessageSlots slots(&self.message_slots);
//   if (slots.EarlyInUse(now_ns) + pieces <= kEarlySlots) slots.Reserve(pieces);
//   slots.Take(slots.Free(), true, now_ns);
//   ...                                        // the receiver: flags.Free(slot, now_ns)
#ifndef HOSTCUDA_NCCL_MESSAGE_SLOTS_H_
#define HOSTCUDA_NCCL_MESSAGE_SLOTS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace hostnccl {

inline constexpr uint32_t kMessageSlots = 16;
// Slots of a rank that hold messages whose receives have not come: 4 MiB, the size of NCCL's FIFOs.
// The rest stays free for messages that somebody waits for.
inline constexpr uint32_t kEarlySlots = 8;

/// Zero-filled memory: all are free.
struct SlotFlags {
  std::atomic<uint32_t> busy[kMessageSlots];      // cleared by receivers
  std::atomic<uint64_t> freed_ns[kMessageSlots];  // when they did, on the virtual clock

  void Free(uint32_t slot, uint64_t now_ns) {
    freed_ns[slot].store(now_ns, std::memory_order_relaxed);
    busy[slot].store(0, std::memory_order_release);
  }
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
  /// Takes a free slot. `now_ns`: the virtual clock's, else 0.
  void Take(uint32_t slot, bool early, uint64_t now_ns) {
    // What shows that it came free at this time is lost.
    if (WasFreedAt(slot, now_ns)) CountAsFreed(1, now_ns);
    flags_.busy[slot].store(1, std::memory_order_relaxed);
    early_[slot] = early;
  }

  /// For a message that begins early and takes its slots later.
  void Reserve(uint64_t slots) { reserved_ += slots; }
  void EndReservation(uint64_t slots) { reserved_ -= slots; }
  /// Slots that nobody had to take, because the receiver came at this time, count as if somebody
  /// had.
  void CountAsFreed(uint64_t slots, uint64_t now_ns) {
    if (counted_ns_ != now_ns) counted_ = 0;
    counted_ns_ = now_ns;
    counted_ += slots;
  }

  /// Slots that early messages are in.
  uint64_t EarlyBusy() const {
    uint64_t busy = 0;
    for (uint32_t slot = 0; slot < kMessageSlots; ++slot)
      busy += early_[slot] && !IsFree(flags_.busy[slot]);
    return busy;
  }
  /// Slots that early messages are in, are about to be, or left at this time.
  uint64_t EarlyInUse(uint64_t now_ns) const {
    uint64_t used = reserved_ + Counted(now_ns);
    for (uint32_t slot = 0; slot < kMessageSlots; ++slot)
      used += early_[slot] && (!IsFree(flags_.busy[slot]) || WasFreedAt(slot, now_ns));
    return used;
  }
  /// True where early messages have left a slot at this time, so that there is more room later.
  bool EarlyFreedAt(uint64_t now_ns) const {
    if (Counted(now_ns) != 0) return true;
    for (uint32_t slot = 0; slot < kMessageSlots; ++slot) {
      if (early_[slot] && IsFree(flags_.busy[slot]) && WasFreedAt(slot, now_ns)) return true;
    }
    return false;
  }

 private:
  static bool IsFree(const std::atomic<uint32_t>& busy) {
    return busy.load(std::memory_order_acquire) == 0;
  }
  bool WasFreedAt(uint32_t slot, uint64_t now_ns) const {
    return early_[slot] && flags_.freed_ns[slot].load(std::memory_order_relaxed) == now_ns;
  }
  uint64_t Counted(uint64_t now_ns) const { return counted_ns_ == now_ns ? counted_ : 0; }

  SlotFlags& flags_;
  std::array<bool, kMessageSlots> early_{};
  uint64_t reserved_ = 0;
  uint64_t counted_ = 0;  // as freed at counted_ns_
  uint64_t counted_ns_ = 0;
};

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_MESSAGE_SLOTS_H_
