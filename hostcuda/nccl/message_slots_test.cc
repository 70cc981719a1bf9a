#include "hostcuda/nccl/message_slots.h"

#include <gtest/gtest.h>

#include <thread>

namespace hostnccl {
namespace {

struct Sender {
  SlotFlags flags{};
  MessageSlots slots{&flags};
  void TakeEarly(uint32_t count, uint64_t now_ns) {
    for (uint32_t i = 0; i < count; ++i)
      slots.Take(static_cast<uint32_t>(slots.Free()), true, now_ns);
  }
};

TEST(MessageSlotsTest, EverySlotMayBeTakenOnceUntilItIsFreed) {
  Sender sender;
  for (uint32_t slot = 0; slot < kMessageSlots; ++slot) {
    EXPECT_EQ(sender.slots.FreeSlots(), kMessageSlots - slot);
    ASSERT_EQ(sender.slots.Free(), static_cast<int>(slot));
    sender.slots.Take(slot, slot % 2 == 0, 1);
  }
  EXPECT_EQ(sender.slots.Free(), -1);
  EXPECT_EQ(sender.slots.EarlyBusy(), kMessageSlots / 2);
  sender.flags.Free(5, 2);
  EXPECT_EQ(sender.slots.Free(), 5);
  EXPECT_EQ(sender.slots.EarlyBusy(), kMessageSlots / 2);
}

TEST(MessageSlotsTest, WhatIsFreedGivesRoomANanosecondLater) {
  Sender sender;
  sender.TakeEarly(3, 10);
  EXPECT_EQ(sender.slots.EarlyInUse(20), 3u);
  EXPECT_FALSE(sender.slots.EarlyFreedAt(20));
  sender.flags.Free(1, 20);
  EXPECT_EQ(sender.slots.EarlyInUse(20), 3u);
  EXPECT_TRUE(sender.slots.EarlyFreedAt(20));
  EXPECT_EQ(sender.slots.EarlyInUse(21), 2u);
  EXPECT_FALSE(sender.slots.EarlyFreedAt(21));
  sender.slots.Reserve(4);
  EXPECT_EQ(sender.slots.EarlyInUse(21), 6u);
  sender.slots.EndReservation(4);
  // Its receiver came at the same time: nobody took them.
  sender.slots.CountAsFreed(4, 21);
  EXPECT_EQ(sender.slots.EarlyInUse(21), 6u);
  EXPECT_EQ(sender.slots.EarlyInUse(22), 2u);
}

TEST(MessageSlotsTest, ASlotTakenAgainAtTheTimeItCameFreeCountsTwice) {
  for (const bool early : {true, false}) {
    Sender sender;
    sender.TakeEarly(1, 10);
    sender.flags.Free(0, 20);
    sender.slots.Take(0, early, 20);
    EXPECT_EQ(sender.slots.EarlyInUse(20), early ? 2u : 1u);
    EXPECT_EQ(sender.slots.EarlyInUse(21), early ? 1u : 0u);
  }
}

// Two looks at a slot, for those that came free and for those that are busy, missed what came free
// between them: a message began a nanosecond early, or in place of another.
TEST(MessageSlotsTest, RoomAtATimeIsTheSameWhileReceiversFree) {
  constexpr uint64_t kRounds = 300;
  Sender sender;
  std::atomic<uint64_t> taken{0}, freed{0};
  std::thread receiver([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      while (taken.load() < round) std::this_thread::yield();
      for (uint32_t slot = 0; slot < kEarlySlots; ++slot) sender.flags.Free(slot, round);
      freed.store(round);
    }
  });
  uint64_t wrong = 0;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    sender.TakeEarly(kEarlySlots, round);
    taken.store(round);
    for (bool ends = false; !ends;) {
      ends = freed.load() == round;
      wrong += sender.slots.EarlyInUse(round) != kEarlySlots;
    }
  }
  receiver.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace hostnccl
