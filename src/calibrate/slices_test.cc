#include "src/calibrate/slices.h"

#include <stdlib.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/graph/testing/synthetic.h"

namespace prism::calibrate {
namespace {

using graph::Graph;
using graph::testing::JobKind;

class SlicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/slices_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Graph Load() {
    absl::StatusOr<Graph> graph = graph::LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  std::string directory_;
};

// A job that is made again of its representatives is the same job.
TEST_F(SlicesTest, CopiesOfTheRepresentativesAreTheWholeJob) {
  for (const JobKind kind : {JobKind::kDataParallel, JobKind::kFullyShardedDP, JobKind::kPipeline,
                             JobKind::kExpertParallel}) {
    std::filesystem::remove_all(directory_ + "/trace");
    ASSERT_EQ(graph::testing::WriteJob(directory_, {.kind = kind, .world = 6, .steps = 2}), 0);
    const Graph whole = Load();
    const std::vector<Slice> slices = Slices(whole);
    EXPECT_EQ(slices.size(), whole.programs.size());
    size_t ranks = 0;
    for (const Slice& slice : slices) {
      ranks += slice.ranks.size();
      const auto source = trace::Reader::Open(whole.ranks[slice.representative].path);
      ASSERT_TRUE(source.ok());
      for (const uint32_t rank : slice.ranks) {
        if (rank == slice.representative) continue;
        const auto identity = IdentityOf(whole, slice.representative, rank);
        ASSERT_TRUE(identity.ok()) << identity.status();
        const absl::Status copied = trace::CopyAs(*source, *identity, whole.ranks[rank].path);
        ASSERT_TRUE(copied.ok()) << copied;
      }
    }
    EXPECT_EQ(ranks, 6u);
    if (kind == JobKind::kDataParallel) {
      EXPECT_EQ(slices.size(), 1u);
    }
    const Graph again = Load();
    ASSERT_EQ(again.ranks.size(), whole.ranks.size());
    EXPECT_EQ(again.channels.size(), whole.channels.size());
    ASSERT_EQ(again.communicators.size(), whole.communicators.size());
    for (size_t c = 0; c < again.communicators.size(); ++c) {
      EXPECT_EQ(again.communicators[c].number, whole.communicators[c].number);
      EXPECT_EQ(again.communicators[c].world_ranks, whole.communicators[c].world_ranks);
    }
    for (size_t r = 0; r < again.ranks.size(); ++r) {
      EXPECT_TRUE(
          graph::SameProgram(again.program_of(again.ranks[r]), whole.program_of(whole.ranks[r])));
      EXPECT_EQ(again.ranks[r].comm_rank, whole.ranks[r].comm_rank);
      EXPECT_EQ(again.ranks[r].peer, whole.ranks[r].peer);
    }
  }
}

TEST_F(SlicesTest, RanksOfDifferentProgramsAreNoCopies) {
  ASSERT_EQ(
      graph::testing::WriteJob(directory_, {.kind = JobKind::kPipeline, .world = 4, .steps = 1}),
      0);
  const Graph graph = Load();
  ASSERT_NE(graph.ranks[0].program, graph.ranks[3].program);
  EXPECT_EQ(IdentityOf(graph, 0, 3).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace prism::calibrate
