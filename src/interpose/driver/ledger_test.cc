#include "src/interpose/driver/ledger.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace prism::interpose {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t Allocated(const Ledger& ledger) { return ledger.figures().allocated_bytes; }

// What cuMemGetInfo said on an H200 (driver 580.159) after each allocation:
// bench/results/h200/shims.md.
TEST(LedgerTest, AllocationsAreRoundedAsTheDriverRounds) {
  const struct {
    uint64_t bytes, taken;
  } kSeen[] = {{kMiB + 1, 2 * kMiB},     {3 * kMiB / 2, 2 * kMiB}, {2 * kMiB, 2 * kMiB},
               {2 * kMiB + 1, 4 * kMiB}, {3 * kMiB, 4 * kMiB},     {5 * kMiB, 6 * kMiB},
               {10 * kMiB, 10 * kMiB},   {20 * kMiB, 20 * kMiB}};
  Ledger ledger;
  for (const auto& [bytes, taken] : kSeen) {
    const uint64_t before = Allocated(ledger);
    ASSERT_TRUE(ledger.Reserve(bytes));
    EXPECT_EQ(Allocated(ledger) - before, taken) << bytes;
  }
}

TEST(LedgerTest, SmallAllocationsShareABlock) {
  Ledger ledger;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{512}, uint64_t{65536}, uint64_t{524288}}) {
    ASSERT_TRUE(ledger.Reserve(bytes));
  }
  EXPECT_EQ(Allocated(ledger), 2 * kMiB);
  ASSERT_TRUE(ledger.Reserve(kMiB));  // two of a MiB share one, also on the device
  EXPECT_EQ(Allocated(ledger), 2 * kMiB);
  ASSERT_TRUE(ledger.Reserve(kMiB));
  EXPECT_EQ(Allocated(ledger), 4 * kMiB);
}

TEST(LedgerTest, AllocationOverTheLimitIsRefusedAndCountsNothing) {
  Ledger ledger;
  ledger.SetLimit(100 * kMiB, 40 * kMiB);
  EXPECT_EQ(ledger.free_bytes(), 60 * kMiB);
  EXPECT_FALSE(ledger.Reserve(60 * kMiB + 1));
  EXPECT_FALSE(ledger.Reserve(UINT64_MAX));
  EXPECT_FALSE(ledger.Reserve(UINT64_MAX - kMiB));
  EXPECT_EQ(ledger.figures().allocations, 0u);
  EXPECT_TRUE(ledger.Reserve(60 * kMiB));
  EXPECT_EQ(ledger.free_bytes(), 0u);
  EXPECT_FALSE(ledger.Reserve(1));
}

TEST(LedgerTest, ReturnGivesBackExactlyWhatWasTaken) {
  Ledger ledger;
  ledger.SetLimit(1000 * kMiB, 0);
  const uint64_t sizes[] = {1, 513, kMiB - 1, kMiB, kMiB + 1, 7 * kMiB + 3};
  for (const uint64_t bytes : sizes) ASSERT_TRUE(ledger.Reserve(bytes));
  const uint64_t peak = ledger.figures().peak_bytes;
  for (const uint64_t bytes : sizes) ledger.Return(bytes);
  EXPECT_EQ(Allocated(ledger), 0u);
  EXPECT_EQ(ledger.figures().requested_bytes, 0u);
  EXPECT_EQ(ledger.figures().peak_bytes, peak);
  EXPECT_EQ(ledger.free_bytes(), 1000 * kMiB);
}

TEST(LedgerTest, NewPeakIsToldOncePerPercent) {
  Ledger ledger;
  ASSERT_TRUE(ledger.Reserve(1000 * kMiB));
  EXPECT_TRUE(ledger.NewPeak());
  EXPECT_FALSE(ledger.NewPeak());
  ASSERT_TRUE(ledger.Reserve(10 * kMiB));  // exactly 1 %
  EXPECT_FALSE(ledger.NewPeak());
  ASSERT_TRUE(ledger.Reserve(2 * kMiB));
  EXPECT_TRUE(ledger.NewPeak());
}

}  // namespace
}  // namespace prism::interpose
