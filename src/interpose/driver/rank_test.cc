#include "src/interpose/driver/rank.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace prism::interpose {
namespace {

using Ordinals = std::vector<uint32_t>;

TEST(VisibleDevicesTest, UnsetShowsAll) {
  EXPECT_EQ(ParseVisibleDevices(nullptr, 3), (Ordinals{0, 1, 2}));
}

TEST(VisibleDevicesTest, ListReorders) {
  EXPECT_EQ(ParseVisibleDevices("5", 8), (Ordinals{5}));
  EXPECT_EQ(ParseVisibleDevices("3,1, 0", 8), (Ordinals{3, 1, 0}));
}

TEST(VisibleDevicesTest, FirstInvalidEntryEndsTheList) {
  EXPECT_EQ(ParseVisibleDevices("", 8), Ordinals{});
  EXPECT_EQ(ParseVisibleDevices("1,8,2", 8), (Ordinals{1}));
  EXPECT_EQ(ParseVisibleDevices("1,-1,2", 8), (Ordinals{1}));
  EXPECT_EQ(ParseVisibleDevices("NoDevFiles", 8), Ordinals{});
}

TEST(VisibleDevicesTest, DuplicateHidesAll) {
  EXPECT_EQ(ParseVisibleDevices("2,2", 8), Ordinals{});
}

class IdentityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"PRISM_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
                             "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
      unsetenv(name);
    }
  }
  void TearDown() override { SetUp(); }
};

TEST_F(IdentityTest, NoVariableNamesNoRank) { EXPECT_FALSE(IdentityFromEnvironment().named); }

TEST_F(IdentityTest, LaunchersVariablesAreRead) {
  setenv("SLURM_PROCID", "12", 1);
  setenv("SLURM_NTASKS", "16", 1);
  setenv("SLURM_LOCALID", "4", 1);
  const Identity identity = IdentityFromEnvironment();
  EXPECT_TRUE(identity.named);
  EXPECT_EQ(identity.rank, 12u);
  EXPECT_EQ(identity.world, 16u);
  EXPECT_EQ(identity.local_rank, 4u);
  EXPECT_STREQ(identity.source, "SLURM_PROCID");
}

TEST_F(IdentityTest, PrismRankGoesFirst) {
  setenv("RANK", "3", 1);
  setenv("PRISM_RANK", "7", 1);
  EXPECT_EQ(IdentityFromEnvironment().rank, 7u);
}

TEST_F(IdentityTest, TextIsNoRank) {
  setenv("RANK", "3x", 1);
  EXPECT_FALSE(IdentityFromEnvironment().named);
  setenv("RANK", "-1", 1);
  EXPECT_FALSE(IdentityFromEnvironment().named);
  setenv("RANK", "99999999999", 1);
  EXPECT_FALSE(IdentityFromEnvironment().named);
}

}  // namespace
}  // namespace prism::interpose
