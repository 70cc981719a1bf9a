#include "hostcuda/nccl/message_slots.h"

#include <gtest/gtest.h>

namespace hostnccl {
namespace {

TEST(MessageSlotsTest, EverySlotMayBeTakenOnceUntilItIsFreed) {
  SlotFlags flags{};
  MessageSlots slots(&flags);
  for (uint32_t slot = 0; slot < kMessageSlots; ++slot) {
    EXPECT_EQ(slots.FreeSlots(), kMessageSlots - slot);
    ASSERT_EQ(slots.Free(), static_cast<int>(slot));
    slots.Take(slot, slot % 2 == 0);
  }
  EXPECT_EQ(slots.Free(), -1);
  EXPECT_EQ(slots.EarlyBusy(), kMessageSlots / 2);
  flags.Free(5);
  EXPECT_EQ(slots.Free(), 5);
  EXPECT_EQ(slots.EarlyBusy(), kMessageSlots / 2);
  flags.Free(6);
  EXPECT_EQ(slots.EarlyBusy(), kMessageSlots / 2 - 1);
}

}  // namespace
}  // namespace hostnccl
