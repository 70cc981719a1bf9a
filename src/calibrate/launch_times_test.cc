#include "src/calibrate/launch_times.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism::calibrate {
namespace {

TEST(LaunchTimesTest, OfASizeThatWasMeasuredAllMeasurementsAreDrawnAndNothingElse) {
  LaunchTimes times;
  const std::set<int64_t> measured = {90, 100, 120};
  for (const int64_t ns : measured) times.Add(1, 10, ns);
  times.Add(1, 11, 500);
  times.Add(2, 10, 700);
  std::set<int64_t> drawn;
  for (uint64_t key = 0; key < 50; ++key) {
    const auto answer = times.Draw(1, 10, key);
    ASSERT_TRUE(answer.has_value());
    EXPECT_TRUE(answer->measured);
    EXPECT_EQ(times.Draw(1, 10, key)->ns, answer->ns);
    drawn.insert(answer->ns);
  }
  EXPECT_EQ(drawn, measured);
}

TEST(LaunchTimesTest, BetweenAndBeyondSizesAStraightLineGoesOn) {
  LaunchTimes times;
  const auto ns_of = [](uint64_t size) { return static_cast<int64_t>(3000 + 7 * size); };
  for (const uint64_t size : {400, 100, 900, 350}) times.Add(1, size, ns_of(size));
  for (const uint64_t size : {50, 101, 360, 899, 2000}) {
    for (uint64_t key = 0; key < 8; ++key) {
      const auto answer = times.Draw(1, size, key);
      ASSERT_TRUE(answer.has_value());
      EXPECT_FALSE(answer->measured);
      EXPECT_NEAR(static_cast<double>(answer->ns), static_cast<double>(ns_of(size)), 1) << size;
    }
  }
}

// Twice as long by chance: what is drawn for another size has that chance, not the mean.
TEST(LaunchTimesTest, ChanceOfNearSizesIsKept) {
  LaunchTimes times;
  for (const uint64_t size : {100, 102, 104, 106}) {
    times.Add(1, size, 1000);
    times.Add(1, size, 2000);
  }
  std::set<int64_t> drawn;
  for (uint64_t key = 0; key < 50; ++key) drawn.insert(times.Draw(1, 103, key)->ns);
  EXPECT_THAT(drawn, ::testing::ElementsAre(1000, 2000));
}

// The line through these meets zero between the sizes: nothing takes longer for less work, nor
// grows by more than its work.
TEST(LaunchTimesTest, ALineThatComesNearNothingDoesNotRuinATime) {
  LaunchTimes times;
  times.Add(1, 8, 5000);
  times.Add(1, 16, 6000);
  times.Add(1, 100, 55'000);
  times.Add(1, 128, 80'000);
  for (uint64_t key = 0; key < 8; ++key) {
    const auto answer = times.Draw(1, 12, key);
    ASSERT_TRUE(answer.has_value());
    EXPECT_GE(answer->ns, 4500);  // of 16, by 12 / 16
    EXPECT_LE(answer->ns, 7500);  // of 8, by 12 / 8
  }
}

TEST(LaunchTimesTest, WhatNothingIsKnownOfHasNoTime) {
  LaunchTimes times;
  times.Add(1, 10, 100);
  times.Add(1, 10, 110);
  EXPECT_FALSE(times.Draw(2, 10, 0).has_value());
  EXPECT_FALSE(times.Draw(1, 11, 0).has_value());
}

}  // namespace
}  // namespace prism::calibrate
