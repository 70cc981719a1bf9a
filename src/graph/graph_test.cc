#include "src/graph/graph.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"
#include "src/graph/check.h"
#include "src/graph/testing/synthetic.h"
#include "src/trace/writer.h"

namespace prism::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobKind;
using ::testing::SizeIs;
using testing::SyntheticJob;
using testing::WriteJob;
using trace::CallRecord;
using trace::CommOp;
using trace::ValueSource;
using trace::Writer;

class GraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/graph_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Graph Load(const SyntheticJob& job) {
    EXPECT_EQ(WriteJob(directory_, job), 0);
    absl::StatusOr<Graph> graph = LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : Graph();
  }

  // A rank that makes the given calls on one stream, of two communicators of `world` ranks each.
  struct CallSpec {
    CommOp op;
    uint64_t count = 4;
    int32_t peer = -1;
    uint32_t dtype = 7;
    uint32_t comm = 1;
  };
  void WriteRank(uint32_t rank, uint32_t world, const std::vector<CallSpec>& calls,
                 bool two_streams = false) {
    std::filesystem::create_directory(directory_ + "/trace");
    Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, world), 0);
    const uint32_t streams[] = {w.AddStream(0, 0, "a"), w.AddStream(0, 0, "b")};
    std::vector<uint32_t> ranks(world);
    std::iota(ranks.begin(), ranks.end(), 0);
    for (const uint32_t comm : {1, 2}) w.Communicator({comm, world, rank, 0, 0}, ranks.data());
    std::map<std::pair<CommOp, int32_t>, uint64_t> order;
    std::map<uint32_t, uint64_t> collectives;  // of each communicator
    for (size_t i = 0; i < calls.size(); ++i) {
      CallRecord call{};
      call.comm = calls[i].comm;
      call.op = static_cast<uint32_t>(calls[i].op);
      call.dtype = calls[i].dtype;
      call.count = calls[i].count;
      if (calls[i].op == CommOp::kSend) call.bytes = calls[i].count * sizeof(float);
      call.peer = calls[i].peer;
      call.group = 1;
      call.call_site = w.String("line" + std::to_string(i));
      const uint64_t sequence = IsCollective(calls[i].op) ? collectives[call.comm]++
                                                          : order[{calls[i].op, calls[i].peer}]++;
      w.Comm(streams[two_streams ? i % 2 : 0], w.Call(call), sequence, ValueSource::kExact);
    }
    ASSERT_EQ(w.Close(0), 0);
  }

  // A rank as `prism record` leaves it: of each communicator (number, positions of the ranks;
  // kNone: its member does not know) it makes one all-reduce.
  struct GroupSpec {
    uint32_t number;
    std::vector<uint32_t> world_ranks;
    uint32_t position;
  };
  void WriteRecordedRank(uint32_t rank, uint32_t world, const std::vector<GroupSpec>& groups) {
    std::filesystem::create_directory(directory_ + "/trace");
    Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, world), 0);
    const uint32_t stream = w.AddStream(0, 0, "s");
    for (const GroupSpec& group : groups) {
      const auto size = static_cast<uint32_t>(group.world_ranks.size());
      w.Communicator({group.number, size, group.position, 0, 0}, group.world_ranks.data());
      CallRecord call{};
      call.comm = group.number;
      call.op = static_cast<uint32_t>(CommOp::kAllReduce);
      call.peer = -1;
      call.count = call.group = 1;
      w.Comm(stream, w.Call(call), 0, ValueSource::kExact);
    }
    ASSERT_EQ(w.Close(0), 0);
  }

  std::string directory_;
};

TEST_F(GraphTest, ProgramsOfOneScriptAreJobsOfTheirOwn) {
  // As a script leaves them that prepares with one process, then trains twice with two ranks.
  const auto path = [&](const char* name) { return directory_ + "/trace/" + name; };
  const std::string second = path("rank-00000-1.prt"), third = path("rank-00000-2.prt");
  WriteRank(0, 1, {});
  std::filesystem::rename(path("rank-00000.prt"), path("first"));
  for (const std::string& name : {second, third}) {
    WriteRank(0, 2, {{CommOp::kAllReduce}});
    std::filesystem::rename(path("rank-00000.prt"), name);
    WriteRank(1, 2, {{CommOp::kAllReduce}});
    if (name == second) std::filesystem::rename(path("rank-00001.prt"), path("kept"));
  }
  std::filesystem::rename(path("first"), path("rank-00000.prt"));
  std::filesystem::rename(path("rank-00001.prt"), path("rank-00001-1.prt"));
  std::filesystem::rename(path("kept"), path("rank-00001.prt"));
  const std::vector<std::vector<std::string>> expected{
      {path("rank-00000.prt")},
      {second, path("rank-00001.prt")},
      {third, path("rank-00001-1.prt")},
  };
  for (uint32_t launch = 1; launch <= 3; ++launch) {
    const absl::StatusOr<Graph> graph = LoadJob(directory_, {.launch = launch});
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->launches, 3u);
    std::vector<std::string> paths;
    for (const Rank& rank : graph->ranks) paths.push_back(rank.path);
    EXPECT_EQ(paths, expected[launch - 1]);
    EXPECT_THAT(CheckStructure(*graph), IsEmpty());
  }
  EXPECT_EQ(LoadJob(directory_)->launch, 3u);
  EXPECT_EQ(LoadJob(directory_, {.launch = 4}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GraphTest, DevicesOfOneProcessAnswerEachOtherOnOneStream) {
  // Two devices of one process are members of a communicator; their default streams have one
  // handle, so their calls are on one stream.
  std::filesystem::create_directory(directory_ + "/trace");
  Writer w;
  ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
  const uint32_t stream = w.AddStream(0, 0, "default stream");
  const uint32_t ranks[] = {0, 0};
  w.Communicator({1, 2, 0, 0, 0}, ranks);
  w.Communicator({1, 2, 1, 1, 0}, ranks);
  for (uint64_t sequence = 0; sequence < 3; ++sequence) {
    for (const uint64_t bytes : {16, 0}) {  // the root contributes, the other does not
      CallRecord call{};
      call.comm = 1;
      call.op = static_cast<uint32_t>(CommOp::kBroadcast);
      call.dtype = 7;
      call.count = 4;
      call.bytes = bytes;
      call.group = 1;
      w.Comm(stream, w.Call(call), sequence, ValueSource::kExact);
    }
    w.Record(stream, 1, sequence + 1);
  }
  w.SyncStream(stream);
  ASSERT_EQ(w.Close(0), 0);
  const absl::StatusOr<Graph> graph = LoadJob(directory_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(CheckStructure(*graph), IsEmpty());
  ASSERT_THAT(graph->programs[0].participants, SizeIs(2));
  for (const Participant& p : graph->programs[0].participants) EXPECT_EQ(p.collectives, 3u);
}

// Ranks 0 and 2, 1 and 3 are groups; each rank knows of its group only itself.
TEST_F(GraphTest, MembersOfRecordedGroupsAreNamedByTheirOwnTraces) {
  const std::vector<uint32_t> all = {0, 1, 2, 3};
  WriteRecordedRank(0, 4, {{7, all, 0}, {20, {0, kNone}, 0}});
  WriteRecordedRank(1, 4, {{7, all, 1}, {21, {1, kNone}, 0}});
  WriteRecordedRank(2, 4, {{7, all, 2}, {20, {kNone, 2}, 1}});
  WriteRecordedRank(3, 4, {{7, all, 3}, {21, {kNone, 3}, 1}});
  const absl::StatusOr<Graph> graph = LoadJob(directory_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_THAT(graph->communicators, SizeIs(3));
  EXPECT_EQ(graph->communicators[0].world_ranks, all);
  EXPECT_EQ(graph->communicators[1].world_ranks, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(graph->communicators[2].world_ranks, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(graph->communicators[2].members[1].rank, 3u);
  EXPECT_THAT(graph->warnings, IsEmpty());
  EXPECT_THAT(CheckStructure(*graph), IsEmpty());
}

TEST_F(GraphTest, AMemberThatNoTraceNamesIsReported) {
  WriteRecordedRank(0, 2, {{20, {0, kNone}, 0}});
  WriteRecordedRank(1, 2, {});
  const absl::StatusOr<Graph> graph = LoadJob(directory_);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(graph.status().message()),
            "communicator 20 of ranks 0,?: no trace names its member 1 of 2");
  EXPECT_THAT(HintOf(graph.status()), HasSubstr("--allow-incomplete"));

  const absl::StatusOr<Graph> partial = LoadJob(directory_, {.allow_incomplete = true});
  ASSERT_TRUE(partial.ok()) << partial.status();
  EXPECT_THAT(partial->warnings, ::testing::Contains(HasSubstr("no trace names its member 1")));
  EXPECT_THAT(CheckStructure(*partial), IsEmpty());
}

TEST_F(GraphTest, RecordedTracesThatContradictEachOtherAreRefused) {
  WriteRecordedRank(0, 3, {{20, {0, 2}, 0}});
  WriteRecordedRank(1, 3, {{20, {kNone, 1}, 1}});
  WriteRecordedRank(2, 3, {});
  const absl::StatusOr<Graph> graph = LoadJob(directory_);
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(graph.status().message()),
              HasSubstr("rank 1 knows communicator 20 as one of ranks ?,1, others as one of 0,2"));

  // Two ranks at one position, none of whom knows of the other.
  WriteRecordedRank(0, 3, {{20, {0, kNone}, 0}});
  WriteRecordedRank(1, 3, {{20, {1, kNone}, 0}});
  EXPECT_THAT(std::string(LoadJob(directory_).status().message()),
              HasSubstr("communicator 20 as one of ranks 1,?"));
}

TEST_F(GraphTest, EquivalentRanksShareOneProgram) {
  const Graph graph = Load({.kind = JobKind::kDataParallel, .world = 32});
  EXPECT_THAT(graph.ranks, SizeIs(32));
  EXPECT_THAT(graph.programs, SizeIs(1));
  ASSERT_THAT(graph.communicators, SizeIs(1));
  EXPECT_EQ(graph.communicators[0].size(), 32u);
  EXPECT_EQ(graph.communicators[0].members[7].rank, 7u);
  EXPECT_EQ(graph.communicators[0].expected_init, 32u);
  EXPECT_EQ(graph.ops, 32 * graph.programs[0].op_count);
  EXPECT_THAT(CheckStructure(graph), IsEmpty());
}

TEST_F(GraphTest, AllToAllRanksShareThoughTheirPeersDiffer) {
  const Graph graph = Load({.kind = JobKind::kExpertParallel, .world = 8, .steps = 2});
  EXPECT_THAT(graph.programs, SizeIs(1));
  EXPECT_THAT(graph.channels, SizeIs(64));
  EXPECT_THAT(CheckStructure(graph), IsEmpty());
}

// Two ranks of one role on a real machine: another thread name, another number of polls that
// happened to succeed.
TEST_F(GraphTest, RanksThatDifferInPollingShareAProgram) {
  std::filesystem::create_directory(directory_ + "/trace");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, 2), 0);
    const uint32_t stream = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
    w.String("rank " + std::to_string(rank));
    for (uint64_t i = 1; i <= 3; ++i) {
      w.HostCall(0);
      if (rank == 1) w.HostCall(0);
      w.Launch(stream, w.Kernel(trace::KernelKind::kKernel, "k", one, one, 0, 0));
      w.Record(stream, 1, i);
      for (uint32_t poll = 0; poll < rank * i; ++poll) w.SyncEvent(1, i, /*query=*/true);
    }
    w.SyncStream(stream);
    ASSERT_EQ(w.Close(0), 0);
  }
  const Graph graph = *LoadJob(directory_);
  EXPECT_THAT(graph.programs, SizeIs(1));
  size_t waits = 0;
  for (const Sequence& s : graph.programs[0].sequences) {
    for (const Op& op : s.ops) waits += op.kind == OpKind::kWait;
  }
  EXPECT_EQ(waits, 1u);  // a poll is none
}

// The local rank decides on the device, chance on which events are free and which of two threads
// comes first.
TEST_F(GraphTest, RanksOfANodeShareAProgram) {
  std::filesystem::create_directory(directory_ + "/trace");
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, 3), 0);
    const uint32_t one[3] = {1, 1, 1}, ranks[] = {0, 1, 2};
    const uint32_t streams[] = {w.AddStream(0, 0, "s"), w.AddStream(0, 0, "t"),
                                w.AddStream(3, 0, "s")};
    w.Communicator({1, 3, rank, rank, 0}, ranks);
    const auto polls = [&] { std::thread([&] { w.SyncEvent(1, 1, /*query=*/true); }).join(); };
    if (rank == 1) polls();
    w.CommInit(1);
    w.Launch(streams[0], w.Kernel(trace::KernelKind::kKernel, "k", one, one, 0, 0));
    w.Record(streams[0], 1 + rank, 7 + rank);
    w.Wait(streams[1], 1 + rank, 7 + rank);
    w.Wait(streams[2], 9, rank);  // that nobody recorded
    if (rank == 0) polls();       // those of rank 2 come too late
    std::thread([&] {
      w.Launch(streams[1], w.Kernel(trace::KernelKind::kKernel, "l", one, one, 0, 0));
      w.Memory(trace::MemoryKind::kDevice, 8, 0x100);
    }).join();
    ASSERT_EQ(w.Close(0), 0);
  }
  const Graph graph = *LoadJob(directory_);
  ASSERT_THAT(graph.programs, SizeIs(1));
  const Program& program = graph.programs[0];
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(graph.ranks[rank].devices, ElementsAre(rank));
    const auto trace = trace::Reader::Open(graph.ranks[rank].path);
    ASSERT_TRUE(trace.ok());
    size_t idle = 0;
    for (uint32_t s = 0; s < trace->sequences().size(); ++s) {
      const uint32_t in_program = SequenceOf(program, *trace, s);
      idle += in_program == kNone;
      if (in_program == kNone) continue;
      EXPECT_EQ(program.sequences[in_program].kind, trace->sequences()[s].kind);
      EXPECT_EQ(program.sequences[in_program].ops.empty(), trace->nodes(s).size() == 0);
    }
    EXPECT_EQ(idle, rank < 2 ? 1u : 0u);
  }
}

TEST_F(GraphTest, PipelineStagesDiffer) {
  const Graph graph = Load({.kind = JobKind::kPipeline, .world = 4, .micro_batches = 8});
  EXPECT_GE(graph.programs.size(), 3u);
  EXPECT_THAT(graph.channels, SizeIs(6));  // three links, both ways
  EXPECT_THAT(CheckStructure(graph), IsEmpty());
}

TEST_F(GraphTest, RanksOfAStageOfAHybridJobShareAProgram) {
  const Graph graph = Load({.kind = JobKind::kHybrid,
                            .world = 24,
                            .steps = 2,
                            .layers = 2,
                            .micro_batches = 6,
                            .tensor = 2,
                            .data = 3});
  EXPECT_THAT(graph.programs, SizeIs(4));  // of so many stages
  for (const Rank& rank : graph.ranks)
    EXPECT_EQ(rank.program, graph.ranks[rank.rank / 6 * 6].program);
  // All; tensor, data and pipeline groups.
  EXPECT_THAT(graph.communicators, SizeIs(1 + 12 + 8 + 6));
  EXPECT_THAT(graph.channels, SizeIs(6 * 3 * 2));
  EXPECT_THAT(CheckStructure(graph), IsEmpty());
}

TEST_F(GraphTest, WaitsNameTheRecordsTheyWaitFor) {
  const Graph graph = Load({.kind = JobKind::kFullyShardedDP, .world = 2, .steps = 1});
  const Program& p = graph.programs[0];
  ASSERT_GT(p.slots, 0u);
  std::vector<int> producers(p.slots, 0), consumers(p.slots, 0);
  for (const Sequence& s : p.sequences) {
    for (const Op& op : s.ops) {
      if (op.slot != kNone) ++producers[op.slot];
      if (op.kind == OpKind::kWait) ++consumers[op.a];
    }
  }
  EXPECT_THAT(producers, ::testing::Each(1));
  EXPECT_THAT(consumers, ::testing::Each(::testing::Ge(1)));
}

TEST_F(GraphTest, EnqueueOrderIsThatOfTheHost) {
  const Graph graph = Load({.kind = JobKind::kFullyShardedDP, .world = 2, .steps = 2});
  const Program& p = graph.programs[0];
  const std::vector<Place> order = p.EnqueueOrder();
  size_t units = 0;
  for (const Sequence& s : p.sequences) {
    if (s.kind == trace::SequenceKind::kStream) units += s.ops.size();
  }
  EXPECT_EQ(order.size(), units);
  std::vector<uint32_t> next(p.sequences.size(), 0);
  for (const Place& place : order) EXPECT_EQ(place.op, next[place.sequence]++);
}

TEST_F(GraphTest, MissingDirectoryIsNotFoundWithAHint) {
  const auto status = LoadJob(directory_ + "/nothing").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(HintOf(status), HasSubstr("prism capture"));
}

TEST_F(GraphTest, EmptyJobIsAFailedPrecondition) {
  EXPECT_EQ(LoadJob(directory_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GraphTest, MissingRanksAreNamed) {
  ASSERT_EQ(WriteJob(directory_, {.world = 8}), 0);
  for (uint32_t rank : {2, 3, 6}) std::filesystem::remove(directory_ + "/" + TraceName(rank));
  const auto strict = LoadJob(directory_).status();
  EXPECT_EQ(strict.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(strict.ToString(), HasSubstr("3 of 8 ranks have no trace: 2-3, 6"));
  const auto graph = LoadJob(directory_, {.allow_incomplete = true});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(graph->ranks, SizeIs(5));
  EXPECT_THAT(graph->warnings, SizeIs(1));
}

TEST_F(GraphTest, UnsealedTraceIsDataLossUnlessAllowed) {
  ASSERT_EQ(WriteJob(directory_, {.world = 2, .seal = false}), 0);
  EXPECT_EQ(LoadJob(directory_).status().code(), absl::StatusCode::kDataLoss);
  const auto graph = LoadJob(directory_, {.allow_incomplete = true});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(graph->warnings, SizeIs(1));
}

TEST_F(GraphTest, TornTracesLoadWhateverTheCut) {
  ASSERT_EQ(WriteJob(directory_,
                     {.kind = JobKind::kFullyShardedDP, .world = 2, .steps = 2, .seal = false}),
            0);
  const std::string path = directory_ + "/" + TraceName(1);
  const auto size = std::filesystem::file_size(path);
  for (uintmax_t cut = size; cut > 100; cut -= std::min<uintmax_t>(cut, 97)) {
    std::filesystem::resize_file(path, cut);
    const auto graph = LoadJob(directory_, {.allow_incomplete = true});
    ASSERT_TRUE(graph.ok()) << cut << ": " << graph.status();
  }
}

TEST_F(GraphTest, DamagedNodesAreDataLossThoughTheirRankLooksLikeAnother) {
  ASSERT_EQ(WriteJob(directory_, {.world = 3}), 0);
  const std::string path = directory_ + "/" + TraceName(1);
  const auto size = std::filesystem::file_size(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(size) - 300);  // inside the last chunk of nodes
  file.put('\x55');
  file.close();
  EXPECT_EQ(LoadJob(directory_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(GraphTest, TracesOfTwoJobsAreRefused) {
  ASSERT_EQ(WriteJob(directory_, {.world = 2}), 0);
  WriteRank(0, 3, {});
  EXPECT_EQ(LoadJob(directory_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(GraphTest, MismatchNamesBothSidesAndTheirCallSites) {
  WriteRank(0, 2, {{CommOp::kAllReduce}, {CommOp::kAllReduce, 8}});
  WriteRank(1, 2, {{CommOp::kAllReduce}, {CommOp::kAllReduce, 9}});
  const auto findings = CheckStructure(*LoadJob(directory_));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, FindingKind::kMismatch);
  EXPECT_THAT(findings[0].text, HasSubstr("collective #2: rank 0: AllReduce of 8"));
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1: AllReduce of 9"));
  EXPECT_THAT(findings[0].text, HasSubstr("line1"));
}

TEST_F(GraphTest, MissingCollectiveIsUnmatched) {
  WriteRank(0, 2, {{CommOp::kAllReduce}, {CommOp::kAllGather}});
  WriteRank(1, 2, {{CommOp::kAllReduce}});
  const auto findings = CheckStructure(*LoadJob(directory_));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, FindingKind::kUnmatched);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 1 ends after 1 collectives"));
}

TEST_F(GraphTest, UnmatchedSendAndWrongCountAreFound) {
  WriteRank(0, 3, {{CommOp::kSend, 4, 1}, {CommOp::kSend, 5, 2}});
  WriteRank(1, 3, {{CommOp::kRecv, 4, 0}, {CommOp::kRecv, 4, 0}});
  WriteRank(2, 3, {{CommOp::kRecv, 6, 0}});
  const auto findings = CheckStructure(*LoadJob(directory_));
  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_EQ(findings[0].kind, FindingKind::kUnmatched);
  EXPECT_EQ(findings[1].kind, FindingKind::kMismatch);
}

TEST_F(GraphTest, CrossedSendsThatFitIntoTheFifosAreNone) {
  WriteRank(0, 2, {{CommOp::kSend, 1 << 20, 1}, {CommOp::kRecv, 1 << 20, 1}});
  WriteRank(1, 2, {{CommOp::kSend, 1 << 20, 0}, {CommOp::kRecv, 1 << 20, 0}});
  EXPECT_THAT(CheckStructure(*LoadJob(directory_)), IsEmpty());
}

TEST_F(GraphTest, CrossedSendsThatDoNotFitAreACycle) {
  WriteRank(0, 2, {{CommOp::kSend, 2 << 20, 1}, {CommOp::kRecv, 2 << 20, 1}});
  WriteRank(1, 2, {{CommOp::kSend, 2 << 20, 0}, {CommOp::kRecv, 2 << 20, 0}});
  const auto findings = CheckStructure(*LoadJob(directory_));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, FindingKind::kCycle);
  EXPECT_THAT(findings[0].text, HasSubstr("Send"));
  EXPECT_THAT(findings[0].ranks, ::testing::UnorderedElementsAre(0, 1));
}

TEST_F(GraphTest, CrossedSendsOnTwoStreamsAreNone) {
  WriteRank(0, 2, {{CommOp::kSend, 2 << 20, 1}, {CommOp::kRecv, 2 << 20, 1}}, true);
  WriteRank(1, 2, {{CommOp::kSend, 2 << 20, 0}, {CommOp::kRecv, 2 << 20, 0}}, true);
  EXPECT_THAT(CheckStructure(*LoadJob(directory_)), IsEmpty());
}

TEST_F(GraphTest, CommunicatorsInDifferentOrdersAreFoundThoughNothingWaits) {
  const GraphTest::CallSpec first = {.op = CommOp::kAllReduce},
                            second = {.op = CommOp::kAllGather, .comm = 2};
  WriteRank(0, 2, {first, second, first, second}, true);
  WriteRank(1, 2, {first, second, second, first}, true);
  const auto findings = CheckStructure(*LoadJob(directory_));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, FindingKind::kOrder);
  EXPECT_EQ(findings[0].text,
            "communicators 1 and 2 are used in different orders: rank 0 launches AllReduce #2 of "
            "communicator 1 (line2) before AllGather #2 of communicator 2 (line3); rank 1 launches "
            "AllGather #2 of communicator 2 (line2) before AllReduce #2 of communicator 1 (line3); "
            "on GPUs this may hang");
}

TEST_F(GraphTest, CommunicatorsInDifferentOrdersOnOneStreamAreACycle) {
  const GraphTest::CallSpec first = {.op = CommOp::kAllReduce},
                            second = {.op = CommOp::kAllGather, .comm = 2};
  WriteRank(0, 2, {first, second});
  WriteRank(1, 2, {second, first});
  const auto findings = CheckStructure(*LoadJob(directory_));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].kind, FindingKind::kCycle);
}

TEST_F(GraphTest, CommunicatorsInOneOrderAreSoundWhateverTheirCallsOnOthers) {
  const GraphTest::CallSpec first = {.op = CommOp::kAllReduce},
                            second = {.op = CommOp::kAllGather, .comm = 2};
  const GraphTest::CallSpec send = {CommOp::kSend, 4, 1}, receive = {CommOp::kRecv, 4, 0};
  WriteRank(0, 2, {send, first, second, first}, true);
  WriteRank(1, 2, {first, second, receive, first}, true);
  EXPECT_THAT(CheckStructure(*LoadJob(directory_)), IsEmpty());
}

}  // namespace
}  // namespace prism::graph
