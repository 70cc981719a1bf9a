#include "src/graph/replicas.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/graph/check.h"
#include "src/graph/testing/synthetic_job_test.h"

namespace prism::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::JobKind;

class ReplicasTest : public testing::SyntheticJobTest {
 protected:
  // Two ranks shard by tensors, `data` by batches, in two stages.
  Graph Hybrid(uint32_t data) {
    return Load(
        {.kind = JobKind::kHybrid, .world = 4 * data, .steps = 2, .tensor = 2, .data = data});
  }
  // The communicator of these ranks.
  static uint32_t Number(const Graph& graph, const std::vector<uint32_t>& world_ranks) {
    for (const Communicator& c : graph.communicators) {
      if (c.world_ranks == world_ranks) return c.number;
    }
    ADD_FAILURE() << "there is none";
    return 0;
  }
};

std::vector<std::vector<uint32_t>> Groups(const Graph& graph) {
  std::vector<std::vector<uint32_t>> groups;
  for (const Communicator& c : graph.communicators) groups.push_back(c.world_ranks);
  std::sort(groups.begin(), groups.end());
  return groups;
}

// Whom a rank's calls go to, and how large they are: a line a call that its program makes.
std::vector<std::string> Calls(const Graph& graph, size_t rank) {
  const Rank& r = graph.ranks[rank];
  const Program& program = graph.program_of(r);
  std::vector<std::string> lines;
  for (const Sequence& sequence : program.sequences) {
    for (const Op& op : sequence.ops) {
      if (op.kind != OpKind::kComm) continue;
      const Call& call = program.calls[op.a];
      const Communicator& c = graph.communicators[r.comm[call.participant]];
      std::string line = std::string(CommOpName(call.op)) + " " + std::to_string(op.b) + ":";
      if (r.channel[op.a] != kNone) {
        const Channel& channel = graph.channels[r.channel[op.a]];
        line += " " + std::to_string(c.world_ranks[channel.from]) + ">" +
                std::to_string(c.world_ranks[channel.to]);
      } else {
        for (const uint32_t member : c.world_ranks) line += " " + std::to_string(member);
      }
      lines.push_back(line);
    }
  }
  return lines;
}

TEST_F(ReplicasTest, GrownIsTheLargerJob) {
  const Graph small = Hybrid(2), truth = Hybrid(6);
  const auto grown = WithReplicas(small, Number(small, {0, 2}), 3, 4);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->world, truth.world);
  EXPECT_EQ(grown->ops, truth.ops);
  EXPECT_EQ(Groups(*grown), Groups(truth));
  ASSERT_EQ(grown->ranks.size(), truth.ranks.size());
  for (size_t r = 0; r < truth.ranks.size(); ++r) {
    EXPECT_EQ(grown->ranks[r].rank, r);
    EXPECT_EQ(Calls(*grown, r), Calls(truth, r)) << r;
  }
  EXPECT_THAT(CheckStructure(*grown), ::testing::IsEmpty());
  // Any of the groups over replicas says which those are.
  const auto other = WithReplicas(small, Number(small, {5, 7}), 3, 4);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(Groups(*other), Groups(truth));
}

TEST_F(ReplicasTest, ShardsShrink) {
  const Graph small = Hybrid(2);
  const auto grown = WithReplicas(small, Number(small, {0, 2}), 4, 4);
  ASSERT_TRUE(grown.ok()) << grown.status();
  const Program &before = small.program_of(small.ranks[0]),
                &after = grown->program_of(grown->ranks[0]);
  size_t smaller = 0;
  for (size_t i = 0; i < before.calls.size(); ++i) {
    const Call &x = before.calls[i], &y = after.calls[i];
    const uint32_t members = before.participants[x.participant].size;
    const bool of_tensors = small.communicators[small.ranks[0].comm[x.participant]].world_ranks ==
                            std::vector<uint32_t>{0, 1};
    const bool shard = x.op == trace::CommOp::kReduceScatter || x.op == trace::CommOp::kAllGather;
    EXPECT_EQ(after.participants[x.participant].size,
              of_tensors || !IsCollective(x.op) ? members : 4 * members);
    EXPECT_EQ(y.count, shard && !of_tensors ? (x.count + 3) / 4 : x.count);
    smaller += y.count < x.count;
  }
  EXPECT_EQ(smaller, 2u);
}

TEST_F(ReplicasTest, FailedReplicaIsGone) {
  const Graph job = Hybrid(3);
  const auto left = WithoutReplicaOf(job, Number(job, {0, 2, 4}), 9);
  ASSERT_TRUE(left.ok()) << left.status();
  std::vector<uint32_t> ranks;
  for (const Rank& rank : left->ranks) ranks.push_back(rank.rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 4, 5, 6, 7, 10, 11));
  EXPECT_THAT(Groups(*left), ::testing::IsSupersetOf(std::vector<std::vector<uint32_t>>{
                                 {0, 4}, {1, 5}, {6, 10}, {7, 11}, {4, 5}, {4, 10}, ranks}));
  EXPECT_THAT(CheckStructure(*left), ::testing::IsEmpty());
  EXPECT_EQ(WithoutReplicaOf(job, Number(job, {0, 2, 4}), 12).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ReplicasTest, TheLastReplicaReducesNothing) {
  const Graph job = Hybrid(2);
  const auto left = WithoutReplicaOf(job, Number(job, {0, 2}), 0);
  ASSERT_TRUE(left.ok()) << left.status();
  ASSERT_EQ(left->ranks.size(), 4u);
  for (size_t r = 0; r < left->ranks.size(); ++r) {
    for (const std::string& call : Calls(*left, r))
      EXPECT_THAT(call, ::testing::Not(::testing::ContainsRegex(": [0-9]+$"))) << "of one rank";
  }
  EXPECT_THAT(CheckStructure(*left), ::testing::IsEmpty());
  // Nor does its host: before a ReduceScatter and an AllGather the group's stream is brought in
  // order, which is two calls with host work each, and one more behind both.
  const auto host_ns = [](const Graph& graph) {
    uint64_t ns = 0;
    for (const Sequence& sequence : graph.program_of(graph.ranks[0]).sequences)
      for (const Op& op : sequence.ops) ns += op.kind == OpKind::kHost ? op.b : 0;
    return ns;
  };
  EXPECT_EQ(host_ns(job) - host_ns(*left), 2 * 5 * testing::SyntheticJob().host_ns_per_call);
}

TEST_F(ReplicasTest, MessagesBetweenAllReplicasAreRefused) {
  const Graph experts = Load({.kind = JobKind::kExpertParallel});
  const auto grown = WithReplicas(experts, experts.communicators[0].number, 2, 8);
  ASSERT_EQ(grown.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(grown.status().message()), HasSubstr("exchanges messages between all"));
}

TEST_F(ReplicasTest, CommunicatorsThatNumberNoReplicasAreRefused) {
  const Graph job = Hybrid(2);
  EXPECT_THAT(std::string(WithReplicas(job, 999, 2, 8).status().message()),
              HasSubstr("communicator 999 is none"));
}

}  // namespace
}  // namespace prism::graph
