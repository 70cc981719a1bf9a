#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/netprofile/profile_rank.h"

namespace prism::netprofile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlanTest, SizesAreGeometricAndIncludeBothEnds) {
  Plan plan;
  ASSERT_TRUE(ParseSizes("1KiB:16KiB:4", &plan).ok());
  EXPECT_THAT(plan.Sizes(), ElementsAre(1024, 4096, 16384));
  ASSERT_TRUE(ParseSizes("100:1000:3", &plan).ok());
  EXPECT_THAT(plan.Sizes(), ElementsAre(100, 300, 900));
  ASSERT_TRUE(ParseSizes("8:8:2", &plan).ok());
  EXPECT_THAT(plan.Sizes(), ElementsAre(8));
  ASSERT_TRUE(ParseSizes("1:4:1.1", &plan).ok());  // rounded to bytes, each once
  EXPECT_THAT(plan.Sizes(), ElementsAre(1, 2, 3, 4));
}

TEST(PlanTest, BadSizesAreExplained) {
  Plan plan;
  for (const char* text : {"", "1KiB", "1KiB:1MiB", "1KiB:1MiB:2:3", "0:1MiB:2", "1KiB:1MiB:1",
                           "1KiB:1MiB:0.5", "1KiB:1MiB:nan", "1KiB:1MiB:x", "-1:1MiB:2",
                           "1kb:1MiB:2", "1MiB:1KiB:2", "1KiB:99999999999GiB:2"}) {
    const absl::Status status = ParseSizes(text, &plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(HintOf(status), HasSubstr("1KiB:1GiB:2")) << text;
  }
}

TEST(PlanTest, GroupsAreRanksOrNodesTimesRanks) {
  const auto groups = ParseGroups("2,4,2x1,2x8");
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 4u);
  EXPECT_EQ(groups->at(1).nodes, 0u);
  EXPECT_EQ(groups->at(1).ranks_per_node, 4u);
  EXPECT_EQ(groups->at(3).nodes, 2u);
  EXPECT_EQ(groups->at(3).ranks_per_node, 8u);
  EXPECT_EQ(groups->at(3).stride, 1u);
  EXPECT_EQ(ParseGroups("2x4/2")->at(0).stride, 2u);
  EXPECT_TRUE(ParseGroups("")->empty());
  for (const char* text : {"1", "0", "2,", "x2", "2x", "2x0", "1x1", "two", "2x2x2", "-2", "4/2",
                           "2x2/", "2x2/0", "2x2/2/2"})
    EXPECT_EQ(ParseGroups(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
}

}  // namespace
}  // namespace prism::netprofile
