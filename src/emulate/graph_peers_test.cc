// A rank of a synthetic job that visits when the whole evaluation says it comes.
#include "src/emulate/graph_peers.h"

#include <stdlib.h>

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/graph/testing/synthetic.h"

namespace prism::emulate {
namespace {

using graph::Graph;
using graph::OpKind;
using graph::testing::JobKind;

class GraphPeersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/graph_peers_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Graph Job(const graph::testing::SyntheticJob& job) {
    EXPECT_EQ(graph::testing::WriteJob(directory_, job), 0);
    absl::StatusOr<Graph> graph = graph::LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  static engine::Durations Fixed(const Graph& graph, int64_t span_ns, int64_t call_ns) {
    engine::Durations d;
    for (const graph::Program& p : graph.programs) {
      d.spans.emplace_back(p.spans.size(),
                           engine::SpanTime{span_ns, 0, trace::TimeSource::kModelled});
    }
    for (const graph::Rank& r : graph.ranks) {
      d.calls.emplace_back(graph.program_of(r).calls.size(),
                           engine::CallTime{call_ns, trace::TimeSource::kModelled});
    }
    return d;
  }
  std::string directory_;
};

wire::OpRecord RecordOf(const graph::Rank& rank, const graph::Program& program, uint32_t call) {
  wire::OpRecord record{};
  record.op = static_cast<wire::Op>(program.calls[call].op);
  record.dtype = program.calls[call].dtype;
  record.reduction = program.calls[call].reduction;
  record.count = program.calls[call].count;
  record.peer = rank.peer[call];
  return record;
}

TEST_F(GraphPeersTest, RankThatKeepsTimeMeetsAsTheWholeEvaluationSays) {
  for (const JobKind kind : {JobKind::kDataParallel, JobKind::kFullyShardedDP, JobKind::kPipeline,
                             JobKind::kExpertParallel}) {
    const Graph graph = Job({.kind = kind, .world = 4, .steps = 2});
    const engine::Durations durations = Fixed(graph, 700, 90);
    const auto whole = engine::Evaluate(graph, durations, {.timeline = {0, 0, 1, 0}});
    ASSERT_TRUE(whole.ok()) << whole.status();
    GraphPeers peers(graph, durations, {2});
    const graph::Rank& rank = graph.ranks[2];
    const graph::Program& program = graph.program_of(rank);
    std::map<uint32_t, uint32_t> member;  // by communicator
    for (uint32_t p = 0; p < rank.comm.size(); ++p) {
      const auto group = peers.Join(2, 0, 0, 0);
      ASSERT_TRUE(group.ok()) << group.status();
      EXPECT_EQ(group->world_ranks, graph.communicators[rank.comm[p]].world_ranks);
      member[group->comm] = group->rank;
    }
    std::map<uint64_t, int64_t> expected, met;
    uint64_t token = 0;
    for (const engine::Interval& i : whole->timeline) {
      const std::vector<graph::Op>& ops = program.sequences[i.sequence].ops;
      const graph::Op& op = ops[i.op];
      if (op.kind != OpKind::kComm) continue;
      const uint32_t comm = rank.comm[program.calls[op.a].participant];
      const wire::OpRecord record = RecordOf(rank, program, op.a);
      // What the others pass is what the graph says, and exists.
      if (record.op == wire::Op::kSend || record.op == wire::Op::kRecv) {
        const bool send = record.op == wire::Op::kSend;
        const auto peer = static_cast<uint32_t>(record.peer);
        const auto other =
            peers.Message(comm, peer, send ? wire::Op::kRecv : wire::Op::kSend, member[comm], op.b);
        ASSERT_TRUE(other.has_value());
        EXPECT_EQ(other->record.count, record.count);
        EXPECT_FALSE(peers
                         .Message(comm, peer, send ? wire::Op::kRecv : wire::Op::kSend,
                                  member[comm], 1'000'000)
                         .has_value());
      } else {
        const auto other = peers.Collective(comm, (member[comm] + 1) % 4, op.b);
        ASSERT_TRUE(other.has_value());
        EXPECT_EQ(other->record.op, record.op);
        EXPECT_EQ(other->record.count, record.count);
      }
      expected[token] = i.end_ns;
      peers.Arrive(comm, member[comm], record, op.b, token, token, i.start_ns);
      ++token;
      for (const auto& meeting : peers.Advance(INT64_MAX)) met[meeting.token] = meeting.end_ns;
    }
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(met.size(), token);
    for (const auto& [which, end_ns] : expected) EXPECT_EQ(met[which], end_ns) << which;
    EXPECT_EQ(peers.visits(), token);
    EXPECT_EQ(peers.resized(), 0u);
  }
}

TEST_F(GraphPeersTest, InstantPeersAreThereBeforeTheRank) {
  const Graph graph = Job({.kind = JobKind::kDataParallel, .world = 4, .steps = 1, .layers = 3});
  GraphPeers peers(graph, InstantPeers(Fixed(graph, 1'000'000, 70)), {0});
  ASSERT_TRUE(peers.Join(0, 4, 0, 0).ok());
  const graph::Program& program = graph.program_of(graph.ranks[0]);
  for (uint32_t i = 0; i < 3; ++i) {
    const int64_t now_ns = 100 + 10 * i;  // long before they would have computed anything
    peers.Arrive(graph.ranks[0].comm[0], 0, RecordOf(graph.ranks[0], program, 0), i, i, i, now_ns);
    const auto met = peers.Advance(INT64_MAX);
    ASSERT_EQ(met.size(), 1u);
    EXPECT_EQ(met[0].met_ns, i == 0 ? now_ns : std::max<int64_t>(now_ns, 100 + 70 * i));
    EXPECT_EQ(met[0].end_ns, met[0].met_ns + 70);
  }
}

TEST_F(GraphPeersTest, CommunicatorThatTheGraphDoesNotHaveIsRefused) {
  const Graph graph = Job({.kind = JobKind::kDataParallel, .world = 4, .steps = 1});
  GraphPeers peers(graph, Fixed(graph, 1, 1), {1});
  EXPECT_EQ(peers.Join(9, 4, 1, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(peers.Join(1, 2, 1, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(peers.Join(1, 4, 0, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(peers.Join(1, 4, 1, 0).ok());
  EXPECT_EQ(peers.Join(1, 4, 1, 0).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GraphPeersTest, MessageOfAnotherSizeIsCounted) {
  const Graph graph = Job({.kind = JobKind::kDataParallel, .world = 2, .steps = 1});
  GraphPeers peers(graph, Fixed(graph, 1, 1), {0});
  ASSERT_TRUE(peers.Join(0, 2, 0, 0).ok());
  wire::OpRecord record = RecordOf(graph.ranks[0], graph.program_of(graph.ranks[0]), 0);
  record.count += 1;
  peers.Arrive(graph.ranks[0].comm[0], 0, record, 0, 1, 1, 0);
  EXPECT_EQ(peers.resized(), 1u);
}

}  // namespace
}  // namespace prism::emulate
