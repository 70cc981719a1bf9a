#include "src/emulate/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism::emulate {
namespace {

using ::testing::HasSubstr;

// By definition, over all of them.
SplitStatistics StatisticsOf(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  SplitStatistics s;
  s.minimum = static_cast<double>(values.front());
  s.maximum = static_cast<double>(values.back());
  s.mean = static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0})) / n;
  double second = 0, third = 0;
  for (const int64_t value : values) {
    const double d = static_cast<double>(value) - s.mean;
    second += d * d / n;
    third += d * d * d / n;
  }
  s.deviation = std::sqrt(second);
  s.skew = s.deviation == 0 ? 0 : third / std::pow(s.deviation, 3);
  const size_t half = values.size() / 2;
  s.median = static_cast<double>(values[half] + values[half - 1]) / 2;
  return s;
}

// Whole numbers lie within half of one of what has the moments exactly; so do mean and median, and
// the deviation, which is a distance. A sample's quantiles stand for its distribution: 1 % of the
// deviation more.
void ExpectNear(const SplitStatistics& found, const SplitStatistics& wanted) {
  const double slack = 0.5 + 0.01 * wanted.deviation;
  EXPECT_EQ(found.minimum, wanted.minimum);
  EXPECT_EQ(found.maximum, wanted.maximum);
  EXPECT_NEAR(found.mean, wanted.mean, slack);
  EXPECT_NEAR(found.deviation, wanted.deviation, slack);
  EXPECT_NEAR(found.median, wanted.median, slack + 1);
  // A shift of all values by half of one changes the skew by up to three times that, in deviations.
  EXPECT_NEAR(found.skew, wanted.skew, 3 * slack / wanted.deviation);
}

// Counts whose statistics are known by themselves: uniform, a mixture of two bells, exponential.
std::vector<std::vector<int64_t>> Truths() {
  std::vector<std::vector<int64_t>> truths(3);
  for (int64_t i = 0; i < 404; ++i) truths[0].push_back(i % 101);
  for (int64_t i = 0; i < 1000; ++i) {
    const double u = (static_cast<double>(i) + 0.5) / 1000;
    truths[1].push_back(std::llround(i % 10 < 7 ? 200 + 40 * std::cos(3.14159 * u)
                                                : 320 + 60 * std::cos(3.14159 * u)));
    truths[2].push_back(std::llround(-80 * std::log(1 - u)));
  }
  return truths;
}

TEST(RouterTest, SampleHasTheStatisticsOfTheTruth) {
  for (const std::vector<int64_t>& truth : Truths()) {
    const SplitStatistics wanted = StatisticsOf(truth);
    const auto sample = SampleWith(wanted, static_cast<uint32_t>(truth.size()));
    ASSERT_TRUE(sample.ok()) << sample.status();
    ExpectNear(StatisticsOf(*sample), wanted);
  }
}

// The closed form of the uniform distribution over 0 .. 100.
TEST(RouterTest, UniformStatisticsGiveTheUniformDistribution) {
  const SplitStatistics uniform{0, 100, 50, std::sqrt((101.0 * 101 - 1) / 12), 50, 0};
  const auto sample = SampleWith(uniform, 1010);
  ASSERT_TRUE(sample.ok()) << sample.status();
  for (int64_t value = 0; value <= 100; ++value)
    EXPECT_NEAR(static_cast<double>(std::count(sample->begin(), sample->end(), value)), 10, 2)
        << value;
}

// Four members of different load; the row's sum leaves none of them its own way.
TEST(RouterTest, RowsAddUpAndMembersKeepTheirStatistics) {
  RouterSpec spec;
  spec.seed = 5;
  spec.samples = 512;
  spec.members = {{10, 210, 100, 35, 98, 0.3},
                  {0, 180, 60, 30, 55, 0.8},
                  {120, 320, 200, 40, 200, 0},
                  {60, 250, 152, 38, 155, -0.2}};
  MockRouter router(spec);
  std::vector<std::vector<int64_t>> columns(4);
  for (uint64_t exchange = 0; exchange < spec.samples; ++exchange) {
    const auto row = router.Row(1, 2, exchange, 4, 512);
    ASSERT_TRUE(row.ok()) << row.status();
    EXPECT_EQ(std::accumulate(row->begin(), row->end(), int64_t{0}), 512);
    for (size_t j = 0; j < 4; ++j) columns[j].push_back((*row)[j]);
  }
  for (size_t j = 0; j < 4; ++j) ExpectNear(StatisticsOf(columns[j]), spec.members[j]);
}

TEST(RouterTest, WhoeverAsksGetsTheSameAndOthersSomethingElse) {
  RouterSpec spec;
  spec.members = {{0, 200, 64, 30, 60, 0.5}};
  MockRouter one(spec), other(spec);
  EXPECT_EQ(*one.Row(1, 3, 700, 8, 512), *other.Row(1, 3, 700, 8, 512));
  EXPECT_NE(*one.Row(1, 3, 700, 8, 512), *one.Row(1, 4, 700, 8, 512));
  EXPECT_NE(*one.Row(1, 3, 700, 8, 512), *one.Row(2, 3, 700, 8, 512));
  EXPECT_NE(*one.Row(1, 3, 700, 8, 512), *one.Row(1, 3, 701, 8, 512));
  spec.seed = 1;
  EXPECT_NE(*one.Row(1, 3, 700, 8, 512), *MockRouter(spec).Row(1, 3, 700, 8, 512));
}

TEST(RouterTest, StatisticsOfAnotherBatchAreScaled) {
  RouterSpec spec;
  spec.members = {{0, 200, 64, 30, 60, 0.5}};
  MockRouter router(spec);
  std::vector<int64_t> column;
  for (uint64_t exchange = 0; exchange < spec.samples; ++exchange)
    column.push_back((*router.Row(1, 0, exchange, 8, 2048))[3]);
  ExpectNear(StatisticsOf(column), {0, 800, 256, 120, 240, 0.5});
}

TEST(RouterTest, StatisticsThatCannotBeAreRefused) {
  const auto error = [](const SplitStatistics& s) {
    return std::string(SampleWith(s, 256).status().message());
  };
  EXPECT_THAT(error({0, 100, 50, 51, 50, 0}), HasSubstr("larger than the extremes allow"));
  EXPECT_THAT(error({0, 100, 120, 5, 50, 0}), HasSubstr("between the extremes"));
  EXPECT_THAT(error({-1, 100, 50, 5, 50, 0}), HasSubstr("not negative"));
  EXPECT_THAT(error({0, 100, 50, 10, 50, 9}), HasSubstr("no distribution has"));
  EXPECT_THAT(error({0, 100, 50, std::nan(""), 50, 0}), HasSubstr("not all of them are numbers"));
  RouterSpec spec;
  spec.members.resize(3, {0, 200, 64, 30, 60, 0.5});
  EXPECT_THAT(std::string(MockRouter(spec).Row(1, 0, 0, 8, 512).status().message()),
              HasSubstr("3 members on a communicator of 8"));
}

TEST(RouterTest, ExpertsGetEqualPartsOfARanksTokens) {
  EXPECT_EQ(Divide(8, 4, 3), (std::vector<int64_t>{2, 2, 2, 2}));
  std::vector<int64_t> parts = Divide(7, 4, 3);
  std::sort(parts.begin(), parts.end());
  EXPECT_EQ(parts, (std::vector<int64_t>{1, 2, 2, 2}));
}

}  // namespace
}  // namespace prism::emulate
