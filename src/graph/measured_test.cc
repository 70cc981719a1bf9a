#include "src/graph/measured.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"
#include "src/graph/testing/synthetic.h"
#include "src/trace/writer.h"

namespace prism::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RecordedJob;
using trace::CallRecord;
using trace::CommOp;
using trace::ValueSource;
using trace::Writer;

class MeasuredTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/measured_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Graph Load() {
    absl::StatusOr<Graph> graph = LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : Graph();
  }

  struct Part {
    CommOp op;
    int32_t peer;
    uint64_t order;
  };
  // A rank that makes one group of calls after another on one stream.
  void WriteRank(uint32_t rank, uint32_t world, const std::vector<std::vector<Part>>& groups,
                 const std::vector<int64_t>& measured) {
    Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, world), 0);
    const uint32_t stream = w.AddStream(0, 0, "s");
    std::vector<uint32_t> ranks(world);
    std::iota(ranks.begin(), ranks.end(), 0);
    w.Communicator({1, world, rank, 0, 0}, ranks.data());
    for (const std::vector<Part>& group : groups) {
      for (const Part& part : group) {
        CallRecord call{};
        call.comm = 1;
        call.op = static_cast<uint32_t>(part.op);
        call.peer = part.peer;
        call.bytes = part.op == CommOp::kRecv ? 0 : uint64_t{64} << 20;
        call.group = static_cast<uint32_t>(group.size());
        w.Comm(stream, w.Call(call), part.order, ValueSource::kExact);
      }
    }
    w.Flush();
    if (!measured.empty()) w.Timing(stream, 0, measured.data(), measured.size());
    ASSERT_EQ(w.Close(0), 0);
  }

  std::string directory_;
};

TEST_F(MeasuredTest, CollectivesTakeWhatTheLastToComeMeasured) {
  const std::vector<std::vector<Part>> calls = {
      {{CommOp::kAllReduce, -1, 0}}, {{CommOp::kAllReduce, -1, 1}}, {{CommOp::kAllReduce, -1, 2}}};
  WriteRank(0, 3, calls, {900, 200, -1});
  WriteRank(1, 3, calls, {150, 800, -1});
  WriteRank(2, 3, calls, {500, -1, -1});
  const Graph graph = Load();
  EXPECT_THAT(graph.ranks[0].measured_ns[0], ElementsAre(150, 200, -1));
  EXPECT_THAT(graph.ranks[1].measured_ns[0], ElementsAre(150, 200, -1));
  // Who has measured nothing is not given anything; the engine asks those who have.
  EXPECT_THAT(graph.ranks[2].measured_ns[0], ElementsAre(150, -1, -1));
}

TEST_F(MeasuredTest, MessagesAreAlignedByChannelAndOrder) {
  // Rank 0 waits for the second message's receive, rank 1 for the first message.
  WriteRank(0, 2, {{{CommOp::kSend, 1, 0}}, {{CommOp::kSend, 1, 1}}}, {70, 400});
  WriteRank(1, 2, {{{CommOp::kRecv, 0, 0}}, {{CommOp::kRecv, 0, 1}}}, {300, 80});
  const Graph graph = Load();
  EXPECT_THAT(graph.ranks[0].measured_ns[0], ElementsAre(70, 80));
  EXPECT_THAT(graph.ranks[1].measured_ns[0], ElementsAre(70, 80));
}

// An exchange of three ranks, each with itself too: all of it is one interval.
TEST_F(MeasuredTest, GroupsAreAlignedAsAWhole) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    std::vector<Part> exchange;
    for (int32_t peer = 0; peer < 3; ++peer) {
      exchange.push_back({CommOp::kSend, peer, 0});
      exchange.push_back({CommOp::kRecv, peer, 0});
    }
    const int64_t own[] = {900, 150, 500};
    WriteRank(rank, 3, {exchange}, {own[rank], -1, -1, -1, -1, -1});
  }
  const Graph graph = Load();
  for (const Rank& rank : graph.ranks)
    EXPECT_THAT(rank.measured_ns[0], ElementsAre(150, 150, 150, 150, 150, 150));
}

// Two of three ranks are one measurement. Steps of one are all alike, or only every other one.
TEST_F(MeasuredTest, CopiesOfOneMeasurementTakeTurnsInItsSteps) {
  constexpr uint32_t kSteps = 9;
  const auto span = [](uint32_t rank, uint32_t step) {
    return int64_t{1'000'000} + 1'000 * step + (rank == 2 ? 1 : 0);
  };
  ASSERT_FALSE(
      testing::WriteRecordedJob(directory_, {.world = 3,
                                             .steps = kSteps,
                                             .host_ns = [](uint32_t, uint32_t) { return 2000; },
                                             .span_ns = span,
                                             .transfer_ns = [](uint32_t) { return 5000; }})
          .empty());
  Graph graph = Load();
  const absl::StatusOr<Steps> steps = DetectSteps(&graph, {});
  ASSERT_TRUE(steps.ok()) << steps.status();
  const auto spans = [](const Rank& rank) {
    std::vector<int64_t> ns;
    for (const std::vector<int64_t>& sequence : rank.measured_ns)
      std::copy_if(sequence.begin(), sequence.end(), std::back_inserter(ns),
                   [](int64_t value) { return value >= 1'000'000; });
    return ns;
  };
  const auto of_rank = [&](uint32_t rank, std::vector<uint32_t> from) {
    std::vector<int64_t> ns;
    for (const uint32_t step : from) ns.push_back(span(rank, step));
    return ns;
  };
  const std::vector<uint32_t> own = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_EQ(spans(graph.ranks[1]), of_rank(1, own));
  EXPECT_EQ(TakeTurns(&graph, *steps), 1u);
  EXPECT_EQ(spans(graph.ranks[0]), of_rank(0, own));
  EXPECT_EQ(spans(graph.ranks[2]), of_rank(2, own));
  // The first iteration is in no step, the two that follow are warm-up.
  EXPECT_EQ(spans(graph.ranks[1]), of_rank(1, {0, 1, 2, 4, 5, 6, 7, 8, 3}));
  // Nobody is a copy any more.
  EXPECT_EQ(TakeTurns(&graph, *steps), 0u);

  // Steps that do other work keep to themselves.
  Graph mixed = Load();
  ASSERT_TRUE(DetectSteps(&mixed, {}).ok());
  Program& program = mixed.programs[mixed.ranks[0].program];
  uint32_t step = 0;
  for (Sequence& sequence : program.sequences) {
    for (size_t i = 0; i < sequence.ops.size(); ++i) {
      const bool stream = sequence.kind != trace::SequenceKind::kThread;
      if (!stream || sequence.ops[i].kind != OpKind::kSpan) continue;
      const size_t s = static_cast<size_t>(&sequence - program.sequences.data());
      if (mixed.ranks[0].measured_ns[s][i] >= 1'000'000 && step++ % 2 == 1)
        sequence.ops[i].a = static_cast<uint32_t>(program.spans.size());
    }
  }
  EXPECT_EQ(TakeTurns(&mixed, *steps), 1u);
  EXPECT_EQ(spans(mixed.ranks[1]), of_rank(1, {0, 1, 2, 5, 6, 7, 8, 3, 4}));
}

TEST_F(MeasuredTest, WithoutMeasurementsNothingIsAdded) {
  WriteRank(0, 2, {{{CommOp::kAllReduce, -1, 0}}}, {});
  WriteRank(1, 2, {{{CommOp::kAllReduce, -1, 0}}}, {});
  const Graph graph = Load();
  EXPECT_TRUE(graph.ranks[0].measured_ns.empty());
}

// What the steps of a program measured: [iteration][fwd, comm, adam, -1]. The detected steps run
// from all-reduce to all-reduce: training step n holds the forward of iteration n + 1.
class ResampleTest : public MeasuredTest {
 protected:
  static constexpr uint32_t kSteps = 10;
  RecordedJob job_ = {
      .steps = kSteps,
      .host_ns = [](uint32_t r, uint32_t s) { return int64_t{1000} * (r + 1) + 10 * s; },
      .span_ns = [](uint32_t r, uint32_t s) { return int64_t{5000} * (r + 1) + s * s; },
      .transfer_ns = [](uint32_t s) { return int64_t{300} + s; }};

  int64_t Forward(const Graph& graph, uint32_t rank, uint32_t iteration) {
    return graph.ranks[rank].measured_ns[0][4 * iteration];
  }
};

TEST_F(ResampleTest, MediansOfOddAndEvenStepsWithoutWarmUp) {
  ASSERT_FALSE(WriteRecordedJob(directory_, job_).empty());
  // Nine training steps, 0 to 8: odd ones 3, 5, 7 are iterations 4, 6, 8; even ones 2, 4, 6, 8 are
  // 3, 5, 7, 9; all: 3 to 9.
  struct Case {
    Samples samples;
    size_t steps;
    int64_t square, host, transfer;  // medians of s * s, 10 * s, 300 + s
  };
  for (const Case& c :
       {Case{Samples::kOdd, 3, 36, 60, 306}, Case{Samples::kEven, 4, (25 + 49) / 2, 60, 306},
        Case{Samples::kAll, 7, 36, 60, 306}}) {
    Graph graph = Load();
    const auto steps = DetectSteps(&graph);
    ASSERT_TRUE(steps.ok()) << steps.status();
    ASSERT_EQ(steps->count(), kSteps - 1);
    const auto resampled = Resample(&graph, *steps, c.samples);
    ASSERT_TRUE(resampled.ok()) << resampled.status();
    EXPECT_EQ(resampled->steps, c.steps);
    EXPECT_EQ(resampled->kept, 0u);
    for (uint32_t r : {0u, 1u}) {
      EXPECT_EQ(Forward(graph, r, 0), 5000 * (r + 1));  // outside all steps
      const Sequence& thread = graph.program_of(graph.ranks[r]).sequences[1];
      std::vector<uint32_t> host;
      for (const Op& op : thread.ops) {
        if (op.kind == OpKind::kHost) host.push_back(op.b);
      }
      ASSERT_EQ(host.size(), kSteps);
      EXPECT_EQ(host[0], 1000 * (r + 1));
      for (uint32_t s = 1; s < kSteps; ++s) {
        EXPECT_EQ(Forward(graph, r, s), 5000 * (r + 1) + c.square) << s;
        EXPECT_EQ(host[s], 1000 * (r + 1) + c.host) << s;
        EXPECT_EQ(graph.ranks[r].measured_ns[0][4 * s + 1], c.transfer) << s;
        EXPECT_EQ(graph.ranks[r].measured_ns[0][4 * s + 3], -1);
      }
    }
  }
}

TEST_F(ResampleTest, WholeStepsAreTheNearestOfTheSampled) {
  ASSERT_FALSE(WriteRecordedJob(directory_, job_).empty());
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  const auto resampled = Resample(&graph, *steps, Samples::kOddSteps);
  ASSERT_TRUE(resampled.ok()) << resampled.status();
  EXPECT_EQ(resampled->kept, 0u);
  // Training steps 0 to 8 (iterations 1 to 9) become 3, 3, 3, 3, 3, 5, 5, 7, 7: iteration 4, 6, 8.
  const uint32_t from[] = {0, 4, 4, 4, 4, 4, 6, 6, 8, 8};
  for (uint32_t s = 0; s < kSteps; ++s) {
    EXPECT_EQ(Forward(graph, 1, s), 10'000 + from[s] * from[s]) << s;
    const uint32_t host = graph.program_of(graph.ranks[1]).sequences[1].ops[6 * s].b;
    EXPECT_EQ(host, 2000 + 10 * from[s]) << s;
    EXPECT_EQ(graph.ranks[0].measured_ns[0][4 * s + 1], 300 + from[s]) << s;
  }
}

TEST_F(ResampleTest, OwnChangesNothing) {
  ASSERT_FALSE(WriteRecordedJob(directory_, job_).empty());
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(Resample(&graph, *steps, Samples::kOwn).ok());
  for (uint32_t s = 0; s < kSteps; ++s) EXPECT_EQ(Forward(graph, 1, s), 10'000 + s * s);
}

TEST_F(ResampleTest, DrawsAreWholeMeasuredStepsOfARank) {
  ASSERT_FALSE(WriteRecordedJob(directory_, job_).empty());
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  const auto samples = StepSamples::Of(graph, *steps);
  ASSERT_TRUE(samples.ok()) << samples.status();
  EXPECT_EQ(samples->count(), 7u);  // iterations 3 to 9
  // Which iteration's time the operation takes.
  const auto of_span = [&](uint32_t r, uint32_t s, uint64_t key) {
    const double own = 5000.0 * (r + 1) + s * s;
    return std::lround(std::sqrt(own * samples->Ratio(r, 0, 4 * s, key) - 5000.0 * (r + 1)));
  };
  const auto of_host = [&](uint32_t r, uint32_t s, uint64_t key) {
    const double own = 1000.0 * (r + 1) + 10 * s;
    return std::lround((own * samples->Ratio(r, 1, 6 * s, key) - 1000.0 * (r + 1)) / 10);
  };
  const auto of_transfer = [&](uint32_t r, uint32_t s, uint64_t key) {
    return std::lround((300.0 + s) * samples->Ratio(r, 0, 4 * s + 1, key)) - 300;
  };
  std::map<long, int> drawn;
  int equal_of_ranks = 0;
  for (uint64_t key = 0; key < 300; ++key) {
    for (uint32_t s = 1; s < kSteps; ++s) {
      ++drawn[of_span(0, s, key)];
      EXPECT_EQ(of_host(0, s, key), of_span(0, s, key));
      EXPECT_EQ(of_transfer(0, s, key), of_transfer(1, s, key));
      equal_of_ranks += of_span(0, s, key) == of_span(1, s, key);
    }
  }
  ASSERT_EQ(drawn.size(), 7u);
  EXPECT_EQ(drawn.begin()->first, 3);
  EXPECT_EQ(drawn.rbegin()->first, 9);
  const int draws = 300 * (kSteps - 1);
  // Binomial with p = 1/7: six standard deviations are 0.04.
  for (const auto& [iteration, count] : drawn) EXPECT_NEAR(count, draws / 7.0, 0.04 * draws);
  EXPECT_NEAR(equal_of_ranks, draws / 7.0, 0.04 * draws);
  EXPECT_EQ(samples->Ratio(0, 0, 0, 5), 1);  // outside all steps
  EXPECT_EQ(samples->Ratio(0, 0, 7, 5), 1);  // not measured
}

TEST_F(ResampleTest, TooFewStepsAndNothingMeasuredAreErrors) {
  job_.steps = 4;  // three training steps: 0, 1, 2
  ASSERT_FALSE(WriteRecordedJob(directory_, job_).empty());
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_TRUE(Resample(&graph, *steps, Samples::kEven).ok());
  const auto status = Resample(&graph, *steps, Samples::kOdd).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("has 3 training steps"));
  EXPECT_THAT(HintOf(status), HasSubstr("record more steps"));

  std::filesystem::remove_all(directory_ + "/trace");
  ASSERT_EQ(testing::WriteJob(directory_, {.steps = 6, .host_ns_per_call = 0}), 0);
  Graph captured = Load();
  const auto captured_steps = DetectSteps(&captured);
  ASSERT_TRUE(captured_steps.ok());
  EXPECT_THAT(Resample(&captured, *captured_steps, Samples::kAll).status().ToString(),
              HasSubstr("nothing in this job is measured"));
}

// Every step is interrupted somewhere, each time elsewhere: every part's median knows of none, yet
// a step takes what it takes.
TEST_F(ResampleTest, PartsAddUpToTheMedianStep) {
  Writer w;
  ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
  const uint32_t stream = w.AddStream(0, 0, "s"), thread = w.ThisThread(), one[3] = {1, 1, 1};
  constexpr uint32_t kParts = 4;
  std::vector<int64_t> ns;
  for (uint32_t step = 0; step < 10; ++step) {
    for (uint32_t part = 0; part < kParts; ++part) {
      const bool interrupted = step % kParts == part;
      w.HostCall(interrupted ? 500 : 100);
      const std::string name = part + 1 == kParts ? "adam" : "layer" + std::to_string(part);
      w.Launch(stream, w.Kernel(trace::KernelKind::kKernel, name, one, one, 0, 0));
      w.Record(stream, 1, 1 + step * kParts + part);
      ns.insert(ns.end(), {interrupted ? 3000 : 1000, -1});
    }
  }
  w.Flush();
  w.Timing(stream, 0, ns.data(), ns.size());
  ASSERT_EQ(w.Close(0), 0);
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_TRUE(Resample(&graph, *steps, Samples::kAll).ok());
  int64_t spans = 0, host = 0;
  for (uint32_t i = 4 * kParts; i < 5 * kParts; ++i)
    spans += graph.ranks[0].measured_ns[stream][2 * i];
  const std::vector<Op>& ops = graph.programs[0].sequences[thread].ops;
  for (uint32_t i = 4 * kParts * 3; i < 5 * kParts * 3; ++i)
    host += ops[i].kind == OpKind::kHost ? ops[i].b : 0;
  EXPECT_EQ(spans, 3000 + 3 * 1000);
  EXPECT_EQ(host, 500 + 3 * 100);
}

// How often the host was interrupted between two launches does not matter: what it took in all
// does.
TEST_F(ResampleTest, HostTimeBetweenTwoLaunchesIsOneDuration) {
  Writer w;
  ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
  const uint32_t stream = w.AddStream(0, 0, "s"), thread = w.ThisThread(), one[3] = {1, 1, 1};
  const uint32_t adam = w.Kernel(trace::KernelKind::kKernel, "adam", one, one, 0, 0);
  const uint32_t forward = w.Kernel(trace::KernelKind::kKernel, "forward", one, one, 0, 0);
  for (uint32_t step = 0; step < 8; ++step) {
    w.HostCall(10 * step);
    // A successful query is no operation, but it ends a segment.
    if (step % 3 == 0) w.SyncEvent(1, step, /*query=*/true);
    w.HostCall(100);
    w.Launch(stream, forward);
    w.HostCall(step);
    w.Launch(stream, adam);
    w.HostCall(7);
    w.Record(stream, 1, step + 1);
  }
  ASSERT_EQ(w.Close(0), 0);
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->count(), 8u);
  const auto resampled = Resample(&graph, *steps, Samples::kAll);
  ASSERT_TRUE(resampled.ok()) << resampled.status();
  EXPECT_EQ(resampled->kept, 1u);  // the first step, which has no step before it
  // A step of the thread runs from one span's first launch to the next one's: step k has k - 1 + 7
  // before the last launch of the span before and 100 + 10 k behind it. Samples are steps 2 to 7.
  constexpr uint64_t kBefore = (10 + 11) / 2, kBehind = (140 + 150) / 2;
  uint64_t ns = 0;
  std::vector<uint64_t> gaps;
  for (const Op& op : graph.programs[0].sequences[thread].ops) {
    if (op.kind == OpKind::kHost) ns += op.b;
    if (op.kind == OpKind::kEnqueue) {
      const bool span = graph.programs[0].sequences[stream].ops[op.b].kind == OpKind::kSpan;
      if (span) gaps.push_back(std::exchange(ns, 0));
    }
  }
  ASSERT_EQ(gaps.size(), 8u);
  EXPECT_EQ(gaps[0], 100u);
  for (size_t i = 1; i < 8; ++i) EXPECT_EQ(gaps[i], kBefore + kBehind) << i;
}

// A step with other operations in one sequence keeps its own there, and gives no samples.
TEST_F(ResampleTest, StepsThatDifferKeepTheirOwn) {
  Writer w;
  ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
  const uint32_t stream = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
  w.Communicator({1, 1, 0, 0, 0}, &stream);
  CallRecord call{};
  call.comm = 1;
  call.peer = -1;
  call.group = 1;
  std::vector<int64_t> ns;
  for (uint32_t step = 0; step < 8; ++step) {
    w.HostCall(100 + step);
    w.Launch(stream, w.Kernel(trace::KernelKind::kKernel, "adam", one, one, 0, 0));
    ns.push_back(1000 + step);
    if (step == 5) {
      w.Record(stream, 1, 1);
      ns.push_back(-1);
    }
    w.Comm(stream, w.Call(call), step, ValueSource::kExact);
    ns.push_back(50);
  }
  w.Flush();
  w.Timing(stream, 0, ns.data(), ns.size());
  ASSERT_EQ(w.Close(0), 0);
  Graph graph = Load();
  const auto steps = DetectSteps(&graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->count(), 8u);
  const auto resampled = Resample(&graph, *steps, Samples::kAll);
  ASSERT_TRUE(resampled.ok()) << resampled.status();
  // Samples are steps 2, 3, 4, 6, 7; step 5's span, communication and host time are its own.
  EXPECT_EQ(resampled->kept, 3u);
  const std::vector<int64_t>& after = graph.ranks[0].measured_ns[0];
  EXPECT_EQ(after[0], 1004);
  EXPECT_EQ(after[10], 1005);
  EXPECT_EQ(after[13], 1004);
}

}  // namespace
}  // namespace prism::graph
