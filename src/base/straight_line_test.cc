#include "src/base/straight_line.h"

#include "gtest/gtest.h"

namespace prism {
namespace {

TEST(StraightLineTest, GoesThroughPointsOfOne) {
  StraightLine line;
  for (const double x : {1e9, 1e9 + 1e6, 1e9 + 3e6}) line.Add(x, 5 + 2 * x, x / 1e9);
  EXPECT_TRUE(line.has_slope());
  EXPECT_NEAR(line.slope(), 2, 1e-9);
  EXPECT_NEAR(line.At(1e9 + 2e6), 5 + 2 * (1e9 + 2e6), 1e-3);
}

TEST(StraightLineTest, IsFlatWhereAllIsOfOneX) {
  StraightLine line;
  line.Add(3, 10);
  line.Add(3, 20, 3);
  EXPECT_FALSE(line.has_slope());
  EXPECT_DOUBLE_EQ(line.At(100), 17.5);
  EXPECT_DOUBLE_EQ(line.VarianceAt(3), 0.25);
}

TEST(StraightLineTest, LeastSquaresByHand) {
  // Weights 1, 1, 2 at x = 0, 1, 2: means 1.25 and 2.75; slope 4.25 / 2.75.
  StraightLine line;
  line.Add(0, 1);
  line.Add(1, 2);
  line.Add(2, 4, 2);
  EXPECT_NEAR(line.slope(), 4.25 / 2.75, 1e-12);
  EXPECT_NEAR(line.At(1.25), 2.75, 1e-12);
  EXPECT_NEAR(line.VarianceAt(2.25), 0.25 + 1 / 2.75, 1e-12);
}

}  // namespace
}  // namespace prism
