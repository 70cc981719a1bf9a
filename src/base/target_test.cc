#include "src/base/target.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism {
namespace {

using testing::HasSubstr;

TEST(TargetTest, NodesAndGpusAreRead) {
  const auto target = ParseTarget("h200x8:2");
  ASSERT_TRUE(target.ok());
  EXPECT_STREQ(target->gpu.name, "NVIDIA H200");
  EXPECT_EQ(ParseTarget("H200X8:2")->text, target->text);
  EXPECT_EQ(target->gpus_per_node, 8u);
  EXPECT_EQ(target->nodes, 2u);
  EXPECT_EQ(target->gpus(), 16u);
  EXPECT_EQ(ParseTarget("a100x4")->nodes, 1u);
}

TEST(TargetTest, EveryMistakeHasARemedy) {
  EXPECT_THAT(HintOf(ParseTarget("h20x8").status()), HasSubstr("did you mean 'h200'?"));
  EXPECT_THAT(HintOf(ParseTarget("tpux8").status()), HasSubstr("known are h200"));
  for (const char* text : {"h200", "x8", "", "h200x", "h200x0", "h200x8:", "h200x8:0", "h200x8:two",
                           "h200x8:-1", "h200x99999999999"}) {
    EXPECT_THAT(HintOf(ParseTarget(text).status()), HasSubstr("GPUxCOUNT[:NODES]")) << text;
    EXPECT_EQ(ParseTarget(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TargetTest, WorldMustFitTheNodes) {
  const Target target = *ParseTarget("h200x8:2");
  EXPECT_TRUE(CheckWorld(target, 16, 8).ok());
  EXPECT_TRUE(CheckWorld(target, 4, 4).ok());
  EXPECT_THAT(HintOf(CheckWorld(target, 32, 8)), HasSubstr("--target h200x8:4"));
  EXPECT_THAT(std::string(CheckWorld(target, 12, 6).message()),
              HasSubstr("12 ranks do not divide into nodes of 8"));
  EXPECT_THAT(HintOf(CheckWorld(target, 16, 16)), HasSubstr("--nproc-per-node 8"));
}

}  // namespace
}  // namespace prism
