#include "examples/cpp/moe_trainer/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace moe_trainer {
namespace {

using ::testing::ElementsAre;

const std::vector<Group> kGroups = {Group::kTensor, Group::kData, Group::kExpert,
                                    Group::kExpertData, Group::kStage};

std::vector<Parallelism> Layouts() {
  std::vector<Parallelism> layouts;
  for (int data : {1, 2, 4})
    for (int tensor : {1, 2, 3})
      for (int pipeline : {1, 2, 3, 4})
        for (int expert = 1; expert <= data * tensor; ++expert)
          for (int interleave : {1, 2})
            if (data * tensor % expert == 0)
              layouts.push_back({data, tensor, pipeline, expert, interleave});
  return layouts;
}

TEST(LayoutTest, GroupsOfAKindPartitionTheWorldIntoEqualSizes) {
  for (const Parallelism& sizes : Layouts()) {
    for (const Group group : kGroups) {
      std::map<int, std::set<int>> keys;  // by color
      for (int rank = 0; rank < sizes.world(); ++rank) {
        const Membership membership = MembershipIn(sizes, group, rank);
        EXPECT_TRUE(keys[membership.color].insert(membership.key).second);
      }
      EXPECT_EQ(static_cast<int>(keys.size()) * SizeOf(sizes, group), sizes.world());
      for (const auto& [color, members] : keys) {
        EXPECT_EQ(static_cast<int>(members.size()), SizeOf(sizes, group));
        EXPECT_EQ(*members.rbegin(), SizeOf(sizes, group) - 1);
      }
    }
  }
}

TEST(LayoutTest, RankOfInvertsPlaceOf) {
  const Parallelism sizes = {.data = 4, .tensor = 2, .pipeline = 3, .expert = 4};
  for (int rank = 0; rank < sizes.world(); ++rank) {
    const Place place = PlaceOf(sizes, rank);
    EXPECT_EQ(RankOf(sizes, place.stage, place.token_rank), rank);
    EXPECT_EQ((place.stage * sizes.data + place.data) * sizes.tensor + place.tensor, rank);
  }
}

TEST(LayoutTest, OfSixteenRanksIsAsWrittenOutByHand) {
  const Parallelism sizes = {.data = 4, .tensor = 2, .pipeline = 2, .expert = 4};
  EXPECT_THAT(Members(sizes, Group::kTensor, 11), ElementsAre(10, 11));
  EXPECT_THAT(Members(sizes, Group::kData, 11), ElementsAre(9, 11, 13, 15));
  EXPECT_THAT(Members(sizes, Group::kExpert, 11), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(Members(sizes, Group::kExpertData, 11), ElementsAre(11, 15));
  EXPECT_THAT(Members(sizes, Group::kStage, 3), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(LayoutTest, LinkRoundsJoinEveryPairOfNeighboursOnce) {
  for (const Parallelism& sizes : Layouts()) {
    std::map<int, int> rounds_of;  // link -> rounds in which both of its ends see it
    for (int round = 0; round < kLinkRounds; ++round) {
      std::map<int, std::vector<int>> ends;  // color -> ranks by key
      for (int rank = 0; rank < sizes.world(); ++rank) {
        const Membership membership = MembershipInRound(sizes, round, rank);
        if (membership.color < 0) continue;
        auto& pair = ends[membership.color];
        pair.resize(2, -1);
        EXPECT_EQ(pair[static_cast<size_t>(membership.key)], -1);
        pair[static_cast<size_t>(membership.key)] = rank;
      }
      for (const auto& [color, pair] : ends) {
        ASSERT_GE(pair[0], 0);
        ASSERT_GE(pair[1], 0);
        const Place first = PlaceOf(sizes, pair[0]), second = PlaceOf(sizes, pair[1]);
        EXPECT_EQ(first.token_rank, second.token_rank);
        EXPECT_EQ((first.stage + 1) % sizes.pipeline, second.stage);
        if (first.token_rank == 0) ++rounds_of[first.stage];
      }
    }
    EXPECT_EQ(static_cast<int>(rounds_of.size()), Links(sizes));
    for (const auto& [link, rounds] : rounds_of) EXPECT_EQ(rounds, 1) << link;
  }
}

}  // namespace
}  // namespace moe_trainer
