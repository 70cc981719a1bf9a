#include "src/interpose/driver/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <utility>
#include <vector>

namespace prism::interpose {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
char g_reason[256];

std::vector<std::pair<char*, size_t>> g_registered;
bool Remember(void* address, size_t bytes) {
  g_registered.emplace_back(static_cast<char*>(address), bytes);
  return true;
}
bool Refuse(void*, size_t) { return false; }

TEST(ArenaTest, SlotsDoNotOverlapAndLieInTheSharedFile) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kArenaBytes, g_reason, sizeof g_reason)) << g_reason;
  void* mapped = mmap(nullptr, wire::kArenaBytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, arena.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::map<uint64_t, uint64_t> taken;
  for (const uint64_t bytes :
       {uint64_t{1}, uint64_t{4096}, uint64_t{4097}, kMiB, 3 * kMiB, uint64_t{100}}) {
    ArenaSlot slot;
    ASSERT_TRUE(arena.Take(bytes, &slot));
    EXPECT_GE(slot.bytes, bytes);
    EXPECT_GE(slot.offset, wire::kControlBytes);
    taken[slot.offset] = slot.bytes;
    static_cast<char*>(slot.host)[bytes - 1] = 42;
    EXPECT_EQ(static_cast<char*>(mapped)[slot.offset + bytes - 1], 42);
  }
  uint64_t end = 0;
  for (const auto& [offset, bytes] : taken) {
    EXPECT_GE(offset, end);
    end = offset + bytes;
  }
  munmap(mapped, wire::kArenaBytes);
}

TEST(ArenaTest, GivenSlotIsReusedFirst) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kArenaBytes, g_reason, sizeof g_reason)) << g_reason;
  ArenaSlot first, second, again;
  ASSERT_TRUE(arena.Take(10 * kMiB, &first));
  ASSERT_TRUE(arena.Take(10 * kMiB, &second));
  arena.Give(first);
  ASSERT_TRUE(arena.Take(9 * kMiB, &again));
  EXPECT_EQ(again.offset, first.offset);
}

TEST(ArenaTest, FullArenaRefuses) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kControlBytes + 4 * kMiB, g_reason, sizeof g_reason)) << g_reason;
  ArenaSlot slot, other;
  EXPECT_FALSE(arena.Take(8 * kMiB, &other));
  ASSERT_TRUE(arena.Take(4 * kMiB, &slot));
  EXPECT_FALSE(arena.Take(1, &other));
  arena.Give(slot);
  EXPECT_TRUE(arena.Take(4 * kMiB, &other));
}

TEST(ArenaTest, EverySlotLiesInsideOneRegistration) {
  g_registered.clear();
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kArenaBytes, g_reason, sizeof g_reason)) << g_reason;
  arena.SetRegister(&Remember);
  for (const uint64_t bytes :
       {kMiB, 12 * kMiB, 8 * kMiB, 100 * kMiB, uint64_t{1}, 16 * kMiB, 5 * kMiB}) {
    ArenaSlot slot;
    ASSERT_TRUE(arena.Take(bytes, &slot));
    int inside = 0;
    for (const auto& [start, size] : g_registered) {
      inside += static_cast<char*>(slot.host) >= start &&
                static_cast<char*>(slot.host) + slot.bytes <= start + size;
    }
    EXPECT_EQ(inside, 1) << bytes;
  }
}

TEST(ArenaTest, WithoutRegistrationSlotsAreStillGiven) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kArenaBytes, g_reason, sizeof g_reason)) << g_reason;
  arena.SetRegister(&Refuse);
  ArenaSlot slot;
  EXPECT_TRUE(arena.Take(kMiB, &slot));
}

TEST(ArenaTest, WordsAreDistinctAndZeroed) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kControlBytes, g_reason, sizeof g_reason)) << g_reason;
  const uint32_t first = arena.WordTake(), second = arena.WordTake();
  EXPECT_NE(first, second);
  EXPECT_GE(first, wire::kFirstFreeWord);
  *arena.Word(first) = 7;
  arena.WordGive(first);
  const uint32_t again = arena.WordTake();
  EXPECT_EQ(again, first);
  EXPECT_EQ(*arena.Word(again), 0u);
}

TEST(ArenaTest, WordTakeWaitsUntilOneIsGivenBack) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kControlBytes, g_reason, sizeof g_reason)) << g_reason;
  for (uint32_t i = wire::kFirstFreeWord; i < wire::kControlWords; ++i) arena.WordTake();
  std::atomic<bool> got{false};
  std::thread waiter([&] {
    arena.WordTake();
    got = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(got);
  arena.WordGive(100);
  waiter.join();
  EXPECT_TRUE(got);
}

TEST(ArenaTest, RingBumpsTheBell) {
  Arena arena;
  ASSERT_TRUE(arena.Create(wire::kControlBytes, g_reason, sizeof g_reason)) << g_reason;
  arena.Ring();
  arena.Ring();
  EXPECT_EQ(*arena.Word(wire::kBellWord), 2u);
}

}  // namespace
}  // namespace prism::interpose
