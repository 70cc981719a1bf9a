#include "examples/cpp/moe_trainer/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moe_trainer {
namespace {

TEST(RoutingTest, CountsAreWithinTheRowsAndAddUp) {
  for (int rows : {1, 7, 512})
    for (int experts : {1, 4, 64})
      for (int top_k = 1; top_k <= std::min(experts, 8); ++top_k)
        for (double imbalance : {0.0, 0.5, 4.0})
          for (int step = 0; step < 5; ++step) {
            const std::vector<int> counts = DrawCounts(
                {.seed = 3, .step = step, .token_rank = step}, {rows, experts, top_k, imbalance});
            EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), rows * top_k);
            EXPECT_LE(*std::max_element(counts.begin(), counts.end()), rows);
            EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 0);
          }
}

TEST(RoutingTest, BalancedCountsVaryAsDrawsOfTheRowsDo) {
  // Without imbalance each count is that of `rows` draws with probability top_k / experts.
  const RoutingShape shape = {.rows = 1024, .experts = 16, .top_k = 2};
  double mean = 0, square = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    const int count = DrawCounts({.seed = 1, .micro_batch = i}, shape)[5];
    mean += count;
    square += double(count) * count;
  }
  mean /= kDraws;
  const double deviation = std::sqrt(square / kDraws - mean * mean);
  const double p = 2.0 / 16, expected = std::sqrt(1024 * p * (1 - p));
  // Four standard errors, of the mean and of the deviation; what is left over after all draws is
  // spread evenly, and takes up to one part in `experts` of the variance.
  EXPECT_NEAR(mean, 1024 * p, 4 * expected / std::sqrt(kDraws));
  EXPECT_NEAR(deviation, expected, expected * (4 / std::sqrt(2.0 * kDraws) + 1.0 / 16));
}

TEST(RoutingTest, ImbalanceMakesSomeExpertsPopularThroughout) {
  const RoutingShape shape = {.rows = 4096, .experts = 32, .top_k = 2, .imbalance = 1};
  const auto most = [&](const RoutingKey& key) {
    const std::vector<int> counts = DrawCounts(key, shape);
    return std::max_element(counts.begin(), counts.end()) - counts.begin();
  };
  const auto popular = most({.seed = 1, .layer = 2});
  for (int rank = 1; rank < 8; ++rank)
    EXPECT_EQ(most({.seed = 1, .step = rank, .layer = 2, .token_rank = rank}), popular);
  EXPECT_GT(DrawCounts({.seed = 1, .layer = 2}, shape)[static_cast<size_t>(popular)],
            2 * 4096 * 2 / 32);
}

}  // namespace
}  // namespace moe_trainer
