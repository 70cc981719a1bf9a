#include "examples/cpp/moe_trainer/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace moe_trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Options Good() {
  Options options;
  options.real = true;
  options.sizes = {.data = 2, .tensor = 2, .pipeline = 2, .expert = 4, .interleave = 2};
  return options;
}

std::string ProblemAfter(const std::function<void(Options&)>& change, int world = 8) {
  Options options = Good();
  change(options);
  return Problem(options, world);
}

TEST(OptionsTest, ThatWorkHaveNoProblem) { EXPECT_EQ(Problem(Good(), 8), ""); }

TEST(OptionsTest, AWorldOfAnotherSizeIsRefusedWithBothSizes) {
  EXPECT_EQ(Problem(Good(), 6),
            "--dp 2 x --tp 2 x --pp 2 is 8 ranks, and there are 6 processes: start 8, or choose "
            "sizes whose product is 6");
}

TEST(OptionsTest, ThatDoNotDivideAreRefusedWithTheDivisor) {
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.experts = 6; }),
              AllOf(HasSubstr("--experts 6"), HasSubstr("--ep 4"), HasSubstr("multiple of 4")));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.sizes.expert = 3; }), HasSubstr("--dp x --tp 4"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.heads = 5; }), HasSubstr("--hidden 64"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.heads = 1; }), HasSubstr("--heads 1"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.sequence = 31; }), HasSubstr("--sequence 31"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.layers = 6; }),
              AllOf(HasSubstr("--layers 6"), HasSubstr("--pp x --interleave 4")));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.micro_batches = 3; }),
              HasSubstr("--micro-batches (3) to be a multiple of --pp 2"));
}

TEST(OptionsTest, ThatMakeNoSenseAreRefusedWithARemedy) {
  EXPECT_THAT(ProblemAfter([](Options& o) { o.real = false; }), HasSubstr("give --real"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.timed = true; }), HasSubstr("Give one of them"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.top_k = 9; }), HasSubstr("at most 8"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.steps = 0; }), HasSubstr("--steps 0"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.jitter = 0.1; }), HasSubstr("use --timed"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.model.imbalance = std::nan(""); }),
              HasSubstr("--imbalance nan"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.bucket_mib = 0; }), HasSubstr("--bucket-mib 0:"));
  EXPECT_THAT(
      ProblemAfter([](Options& o) { o.real = false, o.timed = true, o.straggler.rank = 8; }),
      HasSubstr("the last rank is 7"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.real = false, o.timed = true, o.save = "x"; }),
              HasSubstr("Use --real"));
  EXPECT_THAT(ProblemAfter([](Options& o) { o.sizes = {.data = 8, .interleave = 2}; }),
              HasSubstr("--interleave 1"));
}

}  // namespace
}  // namespace moe_trainer
