#include "hostcuda/driver/device_addresses.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace hostcuda {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(DeviceAddressesTest, AllocationsAscendInARegionAndRegionsDescend) {
  DeviceAddresses addresses;
  const uintptr_t first = addresses.Take(20 * kMiB);
  EXPECT_EQ(addresses.Take(2 * kMiB), first + 20 * kMiB);
  const uintptr_t second_region = addresses.Take(20 * kMiB);  // 10 MiB are left in the first
  EXPECT_LT(second_region, first);
  EXPECT_EQ(addresses.Take(32 * kMiB), second_region + 20 * kMiB);
  EXPECT_EQ(addresses.Take(2 * kMiB), second_region + 52 * kMiB) << "the newest region comes first";
}

TEST(DeviceAddressesTest, LargeAllocationsDescendEachOnItsOwn) {
  DeviceAddresses addresses;
  const uintptr_t large = addresses.Take(64 * kMiB), next = addresses.Take(33 * kMiB);
  EXPECT_EQ(next, large - 34 * kMiB);
  EXPECT_GT(addresses.Take(20 * kMiB), large) << "the first region still has room";
}

TEST(DeviceAddressesTest, LowestHoleOfARegionIsTakenAgain) {
  DeviceAddresses addresses;
  ASSERT_NE(addresses.Take(32 * kMiB), 0u);  // the rest of the first region
  const uintptr_t a = addresses.Take(20 * kMiB), b = addresses.Take(20 * kMiB);
  addresses.Take(20 * kMiB);
  addresses.GiveBack(a);
  EXPECT_GT(addresses.Take(22 * kMiB), b);
  EXPECT_EQ(addresses.Take(20 * kMiB), a);
}

TEST(DeviceAddressesTest, LargeAllocationTakesTheHighestGapThatFits) {
  DeviceAddresses addresses;
  const uintptr_t a = addresses.Take(64 * kMiB), b = addresses.Take(128 * kMiB);
  const uintptr_t c = addresses.Take(64 * kMiB);
  addresses.GiveBack(a);
  addresses.GiveBack(b);
  EXPECT_EQ(addresses.Take(256 * kMiB), c - 256 * kMiB);
  EXPECT_EQ(addresses.Take(64 * kMiB), a);
  addresses.GiveBack(uintptr_t{1} << 20);  // not ours
}

TEST(DeviceAddressesTest, WhatDoesNotFitIsRefused) {
  DeviceAddresses addresses;
  EXPECT_EQ(addresses.Take(0), 0u);
  EXPECT_EQ(addresses.Take(DeviceAddresses::kEnd), 0u);
  EXPECT_EQ(addresses.Take(DeviceAddresses::kEnd - DeviceAddresses::kLowest), 0u);
}

TEST(DeviceAddressesTest, AllocationsNeverOverlap) {
  DeviceAddresses addresses;
  std::mt19937 random(1);
  std::vector<std::pair<uintptr_t, uint64_t>> live;
  for (int step = 0; step < 3000; ++step) {
    if (!live.empty() && random() % 3 == 0) {
      const size_t victim = random() % live.size();
      addresses.GiveBack(live[victim].first);
      live.erase(live.begin() + static_cast<ptrdiff_t>(victim));
      continue;
    }
    const uint64_t bytes = (1 + random() % (random() % 4 == 0 ? 300 : 32)) * kMiB;
    const uintptr_t base = addresses.Take(bytes);
    ASSERT_NE(base, 0u);
    ASSERT_EQ(base % DeviceAddresses::kUnitBytes, 0u);
    for (const auto& [other, length] : live) {
      ASSERT_TRUE(base + bytes <= other || other + length <= base) << "step " << step;
    }
    live.emplace_back(base, bytes);
  }
}

}  // namespace
}  // namespace hostcuda
