#include "src/interpose/driver/rounds.h"

#include <gtest/gtest.h>

namespace prism::interpose::driver {
namespace {

void Launch(Rounds& rounds, int others, int updates) {
  for (int i = 0; i < others; ++i) rounds.Launched(false);
  for (int i = 0; i < updates; ++i) rounds.Launched(true);
}

TEST(RoundsTest, NothingIsARoundUntilWeightsAreUpdated) {
  Rounds rounds;
  Launch(rounds, 1000, 0);
  EXPECT_EQ(rounds.now(), 0u);
}

TEST(RoundsTest, KernelsOfOneUpdateAreOneRound) {
  Rounds rounds;
  Launch(rounds, 100, 7);
  EXPECT_EQ(rounds.now(), 1u);
  // Buckets: between their updates something else may run.
  Launch(rounds, 10, 7);
  Launch(rounds, 10, 7);
  EXPECT_EQ(rounds.now(), 1u);
  Launch(rounds, 70, 7);
  EXPECT_EQ(rounds.now(), 2u);
}

TEST(RoundsTest, WhatSetsAProgramUpDoesNotMakeLaterRoundsLong) {
  Rounds rounds;
  Launch(rounds, 150, 1);  // 50 to set up, 100 a step
  Launch(rounds, 100, 1);
  Launch(rounds, 100, 1);
  EXPECT_EQ(rounds.now(), 3u);
  Launch(rounds, 49, 1);
  EXPECT_EQ(rounds.now(), 3u);
}

TEST(RoundsTest, UpdatesWithoutAnythingBeforeThemAreOne) {
  Rounds rounds;
  Launch(rounds, 0, 5);
  EXPECT_EQ(rounds.now(), 1u);
}

}  // namespace
}  // namespace prism::interpose::driver
