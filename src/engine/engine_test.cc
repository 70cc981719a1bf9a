#include "src/engine/engine.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/graph/check.h"
#include "src/graph/step.h"
#include "src/graph/testing/synthetic.h"
#include "src/trace/writer.h"

namespace prism::engine {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::Op;
using graph::OpKind;
using graph::testing::JobKind;
using graph::testing::RecordedJob;
using graph::testing::SyntheticJob;
using graph::testing::WriteRecordedJob;
using ::testing::HasSubstr;
using trace::CallRecord;
using trace::CommOp;
using trace::KernelKind;
using trace::ValueSource;
using trace::Writer;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/engine_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Graph Job(const SyntheticJob& job) {
    std::filesystem::remove_all(directory_ + "/trace");
    EXPECT_EQ(graph::testing::WriteJob(directory_, job), 0);
    return Load();
  }
  Graph Load() {
    absl::StatusOr<Graph> graph = graph::LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  std::string Path(uint32_t rank) { return directory_ + "/" + graph::TraceName(rank); }

  // Kernels whose names begin with `prefix` take `ns`; others nothing. No latencies.
  static Durations Simple(const Graph& graph, const std::map<std::string, int64_t>& kernels,
                          int64_t call_ns) {
    Durations d;
    for (const graph::Program& p : graph.programs) {
      std::vector<SpanTime> times;
      for (const graph::Span& s : p.spans) {
        SpanTime t;
        for (uint32_t k : s.kernels) {
          for (const auto& [prefix, ns] : kernels) {
            if (p.kernels[k].name.starts_with(prefix)) t.ns += ns;
          }
        }
        times.push_back(t);
      }
      d.spans.push_back(times);
    }
    for (const graph::Rank& r : graph.ranks) {
      d.calls.emplace_back(graph.program_of(r).calls.size(),
                           CallTime{call_ns, TimeSource::kModelled});
    }
    return d;
  }

  // Every call takes some time, and adds to the loads of one or two of a few links.
  static Durations Sharing(const Graph& graph, std::mt19937* random) {
    Durations d = Simple(graph, {{"forward", 900}, {"backward", 2100}}, 0);
    d.links = 3;
    d.receive_ns = 40;
    for (std::vector<CallTime>& calls : d.calls) {
      for (CallTime& call : calls) {
        call.ns = 100 + static_cast<int64_t>((*random)() % 5000);
        call.first_share = static_cast<uint32_t>(d.shares.size());
        call.shares = 1 + (*random)() % 2;
        for (uint32_t i = 0; i < call.shares; ++i) {
          d.shares.push_back({static_cast<uint32_t>((*random)() % d.links),
                              static_cast<uint32_t>(1 + (*random)() % kWholeLink)});
        }
      }
    }
    return d;
  }

  std::string directory_;
};

constexpr JobKind kKinds[] = {JobKind::kDataParallel, JobKind::kFullyShardedDP, JobKind::kPipeline,
                              JobKind::kExpertParallel};

// The published bubble of 1F1B (Narayanan et al. 2019): a step takes (m + p - 1)(tf + tb).
TEST_F(EngineTest, PipelineTakesTheOneForwardOneBackwardTime) {
  for (const auto& [stages, micro_batches] :
       {std::pair<uint32_t, uint32_t>{2, 4}, {4, 4}, {4, 16}, {8, 32}}) {
    Graph graph = Job({.kind = JobKind::kPipeline,
                       .world = stages,
                       .steps = 1,
                       .micro_batches = micro_batches,
                       .kernels_per_layer = 1,
                       .host_ns_per_call = 0});
    const auto outcome = Evaluate(graph, Simple(graph, {{"forward", 1000}, {"backward", 2000}}, 0));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->finish_ns, (micro_batches + stages - 1) * 3000)
        << stages << " " << micro_batches;
    for (const RankOutcome& r : outcome->ranks) EXPECT_EQ(r.span_ns, micro_batches * 3000);
  }
}

TEST_F(EngineTest, DataParallelHidesAllButTheLastAllReduce) {
  constexpr int64_t kLayers = 6, kForward = 100, kBackward = 200;
  Graph graph = Job({.kind = JobKind::kDataParallel,
                     .world = 4,
                     .steps = 1,
                     .layers = kLayers,
                     .kernels_per_layer = 1,
                     .host_ns_per_call = 0});
  const int64_t first = kLayers * kForward + kBackward;  // until the first gradient is there
  for (int64_t all_reduce : {50, 150, 400}) {
    const auto outcome = Evaluate(
        graph, Simple(graph, {{"forward", kForward}, {"backward", kBackward}}, all_reduce));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const int64_t expected = all_reduce <= kBackward
                                 ? first + (kLayers - 1) * kBackward + all_reduce
                                 : first + kLayers * all_reduce;
    EXPECT_EQ(outcome->finish_ns, expected) << all_reduce;
  }
}

TEST_F(EngineTest, SlowestRankSetsThePaceOfACollective) {
  {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Writer w;
      ASSERT_EQ(w.Open(Path(rank).c_str(), rank, 2), 0);
      const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1}, world[] = {0, 1};
      w.Communicator({1, 2, rank, 0, 0}, world);
      w.Launch(s, w.Kernel(KernelKind::kKernel, rank == 0 ? "fast" : "slow", one, one, 0, 0));
      CallRecord call{};
      call.comm = 1;
      call.peer = -1;
      call.group = 1;
      w.Comm(s, w.Call(call), 0, ValueSource::kExact);
      ASSERT_EQ(w.Close(0), 0);
    }
  }
  Graph graph = Load();
  const auto outcome =
      Evaluate(graph, Simple(graph, {{"fast", 10}, {"slow", 70}}, 5), {.timeline = {1, 1}});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->finish_ns, 75);
  EXPECT_EQ(outcome->ranks[0].wait_ns, 60);
  EXPECT_EQ(outcome->ranks[1].wait_ns, 0);
  EXPECT_EQ(outcome->ranks[0].transfer_ns, 5);
  EXPECT_EQ(outcome->timeline.size(), 4u);
}

TEST_F(EngineTest, LaunchGapsVanishWhereTheHostRunsAhead) {
  constexpr int kKernels = 20;
  {
    Writer w;
    ASSERT_EQ(w.Open(Path(0).c_str(), 0, 1), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
    for (int i = 0; i < kKernels; ++i) {
      w.HostCall(1000);
      w.Launch(s, w.Kernel(KernelKind::kKernel, "k", one, one, 0, 0));
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  Graph graph = Load();
  Durations d = Simple(graph, {}, 0);
  d.launch_latency_ns = 300;
  d.spans[0][0] = {kKernels * 5000, 5000, TimeSource::kMeasured};  // bound by the GPU
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, 1000 + 300 + kKernels * 5000);
  d.spans[0][0] = {kKernels * 50, 50, TimeSource::kMeasured};  // bound by the host
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, kKernels * 1000 + 300 + 50);
}

TEST_F(EngineTest, HostWithoutTimesOfItsOwnTakesTheStatedOnes) {
  {
    Writer w;
    ASSERT_EQ(w.Open(Path(0).c_str(), 0, 1), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
    for (int i = 0; i < 5; ++i) w.Launch(s, w.Kernel(KernelKind::kKernel, "k", one, one, 0, 0));
    w.Record(s, 1, 1);
    w.SyncStream(s);
    ASSERT_EQ(w.Close(0), 0);
  }
  Graph graph = Load();
  Durations d = Simple(graph, {}, 0);
  d.host = {.launch = 100, .communication = 10000, .event = 30, .synchronize = 7};
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, 5 * 100 + 30 + 7);
  d.host_scale[0] = 2;
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, 2 * (5 * 100 + 30 + 7));
}

TEST_F(EngineTest, UnmatchedCommunicationIsNamed) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Writer w;
    ASSERT_EQ(w.Open(Path(rank).c_str(), rank, 2), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), world[] = {0, 1};
    w.Communicator({7, 2, rank, 0, 0}, world);
    CallRecord call{};
    call.comm = 7;
    call.peer = -1;
    call.group = 1;
    call.call_site = w.String("train.py:3");
    if (rank == 0) w.Comm(s, w.Call(call), 0, ValueSource::kExact);
    ASSERT_EQ(w.Close(0), 0);
  }
  Graph graph = Load();
  const auto status = Evaluate(graph, Simple(graph, {}, 0)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("AllReduce 0 of communicator 7 at train.py:3"));
  EXPECT_TRUE(Evaluate(graph, Simple(graph, {}, 0), {.tolerate_missing = true}).ok());
}

TEST_F(EngineTest, MissingRanksAreTolerated) {
  Graph full = Job({.kind = JobKind::kPipeline, .world = 4});
  std::filesystem::remove(Path(2));
  Graph graph = *graph::LoadJob(directory_, {.allow_incomplete = true});
  EXPECT_FALSE(Evaluate(graph, Simple(graph, {}, 0)).ok());
  EXPECT_TRUE(Evaluate(graph, Simple(graph, {}, 0), {.tolerate_missing = true}).ok());
}

TEST_F(EngineTest, DrawsDependOnRankAndSeedAlone) {
  const LogNormalDraw draw(1, 0.1), other(2, 0.1);
  const auto at = [](const DurationDraw& d, uint32_t rank, uint32_t op) {
    return d.Draw(rank, 0, 0, op, 1'000'000, TimeSource::kMeasured);
  };
  EXPECT_EQ(at(draw, 3, 4), at(draw, 3, 4));
  EXPECT_NE(at(draw, 3, 4), at(draw, 2, 4));
  EXPECT_NE(at(draw, 3, 4), at(draw, 3, 5));
  EXPECT_NE(at(draw, 3, 4), at(other, 3, 4));
  std::vector<double> logs;
  for (uint32_t i = 0; i < 20000; ++i)
    logs.push_back(std::log(static_cast<double>(at(draw, 0, i)) / 1e6));
  const double mean =
      std::accumulate(logs.begin(), logs.end(), 0.0) / static_cast<double>(logs.size());
  double variance = 0;
  for (double x : logs) variance += (x - mean) * (x - mean) / static_cast<double>(logs.size());
  EXPECT_NEAR(mean, 0, 0.003);
  EXPECT_NEAR(std::sqrt(variance), 0.1, 0.003);
}

// measured.md: the expected maximum of N normal samples is +2.35 sigma at 64 ranks.
TEST_F(EngineTest, JitterOfManyRanksRaisesTheStep) {
  Graph graph = Job({.kind = JobKind::kDataParallel,
                     .world = 64,
                     .steps = 1,
                     .layers = 1,
                     .kernels_per_layer = 1,
                     .host_ns_per_call = 0});
  const Durations d = Simple(graph, {{"forward", 1'000'000}}, 0);
  double sum = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const LogNormalDraw draw(seed, 0.01);
    sum += static_cast<double>(Evaluate(graph, d, {.draw = &draw})->finish_ns) / 1e6;
  }
  EXPECT_NEAR(sum / 200, 1 + 0.01 * 2.35, 0.002);
}

// A communication that is long is so for all that meet in it: its mean is that of one draw, not of
// the longest of 64. What is told from one figure is off together.
TEST_F(EngineTest, CommunicationsSpreadAlikeOnAllThatMeet) {
  constexpr double kSigma = 0.05;
  constexpr int64_t kNs = 1'000'000;
  constexpr uint32_t kLayers = 4, kDraws = 400;
  Graph graph = Job({.kind = JobKind::kDataParallel,
                     .world = 64,
                     .steps = 1,
                     .layers = kLayers,
                     .kernels_per_layer = 1,
                     .host_ns_per_call = 0});
  // Of the all-reduces' sum, over the sum.
  const auto mean_and_deviation = [&](double spread, double doubt) {
    Durations d = Simple(graph, {}, kNs);
    for (std::vector<CallTime>& calls : d.calls) {
      for (CallTime& call : calls) {
        call.spread = spread;
        call.doubt = doubt;
      }
    }
    const auto undrawn = static_cast<double>(Evaluate(graph, Simple(graph, {}, kNs))->finish_ns);
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < kDraws; ++i) {
      const auto outcome = Evaluate(graph, d, {.iteration = i, .seed = 5, .doubts = doubt > 0});
      const double x = static_cast<double>(outcome->finish_ns) / undrawn;
      sum += x / kDraws;
      squares += x * x / kDraws;
    }
    return std::pair(sum, std::sqrt(squares - sum * sum));
  };
  // Means within four standard errors, deviations within a sixth (their standard error is 3.5 %).
  const auto [mean, deviation] = mean_and_deviation(kSigma, 0);
  EXPECT_NEAR(mean, std::exp(kSigma * kSigma / 2), 4 * kSigma / std::sqrt(kLayers * kDraws));
  EXPECT_NEAR(deviation, kSigma / std::sqrt(kLayers), kSigma / std::sqrt(kLayers) / 6);
  EXPECT_NEAR(mean_and_deviation(0, kSigma).second, kSigma, kSigma / 6);
}

// Times by a longest path over the explicit edges: no queues, no waiting, another data structure.
std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int64_t> LongestPath(const Graph& graph,
                                                                        const Durations& d) {
  using Role = graph::ExplicitGraph::Role;
  const graph::ExplicitGraph g = graph::ExpandEdges(graph);
  const size_t n = g.vertices.size();
  std::vector<std::vector<uint32_t>> before(n), after(n);
  std::vector<size_t> degree(n, 0);
  for (const auto& [from, to] : g.edges) {
    before[to].push_back(from);
    after[from].push_back(to);
    ++degree[to];
  }
  const auto op_of = [&](uint32_t v) -> const Op& {
    const NodeId node = g.vertices[v].node;
    return graph.program_of(graph.ranks[node.rank]).sequences[node.sequence].ops[node.op];
  };
  std::vector<int64_t> time(n, 0);
  std::vector<uint32_t> queue;
  for (uint32_t v = 0; v < n; ++v) {
    if (degree[v] == 0) queue.push_back(v);
  }
  size_t done = 0;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, int64_t> result;
  for (; done < queue.size(); ++done) {
    const uint32_t v = queue[done];
    const NodeId node = g.vertices[v].node;
    const graph::Rank& rank = graph.ranks[node.rank];
    const Op& op = op_of(v);
    const bool stream =
        graph.program_of(rank).sequences[node.sequence].kind == trace::SequenceKind::kStream;
    int64_t start = 0, last = 0;
    for (uint32_t u : before[v]) {
      const Op& from = op_of(u);
      if (from.kind == OpKind::kEnqueueLast && stream) {
        last = time[u] - from.detail;
        continue;
      }
      const bool launch =
          stream && from.kind == OpKind::kEnqueue && g.vertices[v].role != Role::kMeeting;
      start = std::max(start, time[u] + (launch ? d.launch_latency_ns : 0));
      if (launch) last = std::max(last, time[u]);
    }
    switch (g.vertices[v].role) {
      case Role::kReady:
        time[v] = start;
        break;
      case Role::kMeeting: {
        int64_t cost = 0;
        for (uint32_t w : after[v]) {
          if (op_of(w).kind == OpKind::kComm)
            cost = std::max(cost, d.calls[g.vertices[w].node.rank][op_of(w).a].ns);
        }
        time[v] = start + cost;
        break;
      }
      case Role::kDone:
        time[v] = start;
        if (op.kind == OpKind::kHost) time[v] += op.b;
        if (op.kind == OpKind::kComm && g.vertices[before[v].front()].role == Role::kReady) {
          time[v] += d.calls[node.rank][op.a].ns;  // a send that ends before its receive comes
        }
        if (op.kind == OpKind::kSpan) {
          const SpanTime& span = d.spans[rank.program][op.a];
          time[v] = std::max(start + span.ns,
                             last + d.launch_latency_ns + std::min(span.tail_ns, span.ns));
        }
        result[{node.rank, node.sequence, node.op}] = time[v];
        break;
    }
    for (uint32_t w : after[v]) {
      if (--degree[w] == 0) queue.push_back(w);
    }
  }
  EXPECT_EQ(done, n);
  return result;
}

// A random program of several ranks, streams and threads that can run: built in one global order,
// so that nothing waits for the future, but with every kind of dependency.
void WriteRandomJob(const std::string& directory, uint32_t world, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Writer>> w;
  struct State {
    std::vector<uint32_t> streams;
    std::vector<std::pair<uint32_t, uint64_t>> records;
    uint64_t version = 0;
  };
  std::vector<State> state(world);
  std::vector<uint32_t> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (uint32_t r = 0; r < world; ++r) {
    w.push_back(std::make_unique<Writer>());
    ASSERT_EQ(w[r]->Open((directory + "/" + graph::TraceName(r)).c_str(), r, world), 0);
    for (int i = 0; i < 3; ++i)
      state[r].streams.push_back(w[r]->AddStream(0, 0, "s" + std::to_string(i)));
    w[r]->Communicator({1, world, r, 0, 0}, ranks.data());
    w[r]->CommInit(1);
  }
  uint64_t collectives = 0;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> messages;
  const auto call = [&](uint32_t r, CommOp op, int32_t peer, uint32_t group, uint64_t count) {
    CallRecord c{};
    c.comm = 1;
    c.op = static_cast<uint32_t>(op);
    c.peer = peer;
    c.count = count;
    c.group = group;
    if (op == CommOp::kSend) c.bytes = count << 20;
    return w[r]->Call(c);
  };
  for (int event = 0; event < 400; ++event) {
    const auto r = static_cast<uint32_t>(random() % world);
    State& s = state[r];
    const uint32_t stream = s.streams[random() % 3];
    switch (random() % 10) {
      case 0:
      case 1:
      case 2: {
        const uint32_t grid[3] = {static_cast<uint32_t>(1 + random() % 9), 1, 1},
                       one[3] = {1, 1, 1};
        for (uint64_t i = 1 + random() % 3; i > 0; --i) {
          w[r]->HostCall(random() % 50);
          w[r]->Launch(stream, w[r]->Kernel(KernelKind::kKernel, "k", grid, one, 0, 0));
        }
        break;
      }
      case 3:
        w[r]->Record(stream, static_cast<uint32_t>(random() % 3) + 1, ++s.version);
        break;
      case 4:
        if (s.version > 0) {
          // Which event a version was of does not matter: most guesses are of records that never
          // happened.
          w[r]->Wait(stream, static_cast<uint32_t>(random() % 3) + 1, 1 + random() % s.version);
        }
        break;
      case 5:
        w[r]->SyncStream(stream);
        break;
      case 6:
        w[r]->HostCall(random() % 500);
        w[r]->StreamNode(stream, trace::NodeKind::kHostFunc);
        break;
      case 7:
        for (uint32_t q = 0; q < world; ++q) {
          w[q]->Comm(state[q].streams[random() % 3],
                     call(q, CommOp::kAllReduce, -1, 1, random() % 4), collectives,
                     ValueSource::kExact);
        }
        ++collectives;
        break;
      case 8: {
        const auto to = static_cast<uint32_t>(random() % world);
        if (to == r) break;
        const uint64_t order = messages[{r, to}]++, mib = 1 + random() % 8;  // above 4 it waits
        w[r]->Comm(stream, call(r, CommOp::kSend, static_cast<int32_t>(to), 1, mib), order,
                   ValueSource::kExact);
        w[to]->Comm(state[to].streams[random() % 3],
                    call(to, CommOp::kRecv, static_cast<int32_t>(r), 1, mib), order,
                    ValueSource::kExact);
        break;
      }
      case 9:  // all to all, in one group each
        for (uint32_t q = 0; q < world; ++q) {
          const uint32_t on = state[q].streams[random() % 3];
          for (uint32_t p = 0; p < world; ++p) {
            w[q]->Comm(on, call(q, CommOp::kSend, static_cast<int32_t>(p), 2 * world, 7),
                       messages[{q, p}], ValueSource::kExact);
            w[q]->Comm(on, call(q, CommOp::kRecv, static_cast<int32_t>(p), 2 * world, 7),
                       messages[{p, q}], ValueSource::kExact);
          }
        }
        for (uint32_t q = 0; q < world; ++q) {
          for (uint32_t p = 0; p < world; ++p) ++messages[{q, p}];
        }
        break;
    }
  }
  for (auto& writer : w) ASSERT_EQ(writer->Close(0), 0);
}

TEST_F(EngineTest, AgreesWithTheLongestPathOfRandomGraphs) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto world = static_cast<uint32_t>(1 + seed % 4);
    std::filesystem::remove_all(directory_ + "/trace");
    std::filesystem::create_directory(directory_ + "/trace");
    WriteRandomJob(directory_, world, seed);
    Graph graph = Load();
    std::mt19937_64 random(seed);
    Durations d = Simple(graph, {}, 0);
    d.launch_latency_ns = static_cast<int64_t>(random() % 30);
    for (auto& spans : d.spans) {
      for (SpanTime& s : spans) {
        s.ns = static_cast<int64_t>(random() % 200);
        s.tail_ns = static_cast<int64_t>(random() % 50);
      }
    }
    for (auto& calls : d.calls) {
      for (CallTime& c : calls) c.ns = static_cast<int64_t>(random() % 100);
    }
    // Every operation is probed.
    std::vector<std::vector<graph::Place>> probes(graph.programs.size());
    for (size_t p = 0; p < graph.programs.size(); ++p) {
      for (uint32_t s = 0; s < graph.programs[p].sequences.size(); ++s) {
        for (uint32_t i = 0; i < graph.programs[p].sequences[s].ops.size(); ++i) {
          probes[p].push_back({s, i});
          graph.programs[p].AddSlot({s, i});
        }
      }
    }
    const auto expected = LongestPath(graph, d);
    const auto outcome = Evaluate(graph, d, {.probes = &probes});
    ASSERT_TRUE(outcome.ok()) << seed << outcome.status();
    size_t compared = 0;
    for (uint32_t r = 0; r < graph.ranks.size(); ++r) {
      const auto& places = probes[graph.ranks[r].program];
      for (size_t i = 0; i < places.size(); ++i) {
        const auto& ops = graph.program_of(graph.ranks[r]).sequences[places[i].sequence].ops;
        // Calls of a group complete together; the explicit graph gives each its own completion.
        uint32_t first = places[i].op;
        while (ops[first].kind == OpKind::kComm && ops[first].detail == 0) --first;
        int64_t want = 0;
        const uint32_t count = ops[first].kind == OpKind::kComm ? ops[first].detail : 1;
        for (uint32_t k = first; k < first + count; ++k) {
          want = std::max(want, expected.at({r, places[i].sequence, k}));
        }
        ASSERT_EQ(outcome->ranks[r].probes[i], want)
            << "seed " << seed << " rank " << r << " sequence " << places[i].sequence << " op "
            << places[i].op;
        ++compared;
      }
    }
    EXPECT_EQ(compared, graph.ops);
    EXPECT_EQ(outcome->operations, graph.ops);
  }
}

// The host's work of two threads that take turns is done once, one after the other.
TEST_F(EngineTest, ThreadsThatTakeTurnsDoNotRunSideBySide) {
  {
    Writer w;
    ASSERT_EQ(w.Open(Path(0).c_str(), 0, 1), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
    const uint32_t k = w.Kernel(KernelKind::kKernel, "k", one, one, 0, 0);
    const uint32_t main = w.ThisThread();
    uint32_t engine = 0;
    for (uint64_t step = 1; step <= 3; ++step) {
      w.HostCall(100);
      w.Launch(s, k);
      w.HostCall(20);
      std::thread([&] {
        engine = w.ThisThread();
        w.Handoff(main);
        w.HostCall(300);
        w.Launch(s, k);
        w.HostCall(40);
      }).join();
      w.Handoff(engine);
    }
    w.HostCall(1);
    ASSERT_EQ(w.Close(0), 0);
  }
  Graph graph = Load();
  const auto outcome = Evaluate(graph, Simple(graph, {}, 0));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->finish_ns, 3 * (100 + 20 + 300 + 40) + 1);
  EXPECT_EQ(outcome->ranks[0].host_ns, outcome->finish_ns);
  EXPECT_EQ(graph::CheckStructure(graph).size(), 0u);
}

TEST_F(EngineTest, EnqueuesOfThreadsThatTakeTurnsAreInTheirOrder) {
  uint32_t streams[2];
  {
    Writer w;
    ASSERT_EQ(w.Open(Path(0).c_str(), 0, 1), 0);
    streams[0] = w.AddStream(0, 0, "a");
    streams[1] = w.AddStream(0, 0, "b");
    const uint32_t main = w.ThisThread();
    for (uint64_t step = 1; step <= 3; ++step) {
      w.Record(streams[0], 1, step);
      uint32_t engine = 0;
      std::thread([&] {
        engine = w.ThisThread();
        w.Handoff(main);
        w.Record(streams[1], 2, step);
      }).join();
      w.Handoff(engine);
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  const Graph graph = Load();
  std::vector<uint32_t> order;
  for (const graph::Place place : graph.programs[0].EnqueueOrder()) order.push_back(place.sequence);
  EXPECT_THAT(order, ::testing::ElementsAre(streams[0], streams[1], streams[0], streams[1],
                                            streams[0], streams[1]));
}

// What was recorded comes out again: who was late, for how long the others waited, and when.
TEST_F(EngineTest, RecordedJobsRunAsTheyDid) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 12; ++round) {
    std::vector<int64_t> host(64), span(64);
    for (int64_t& ns : host) ns = static_cast<int64_t>(random() % 40'000);
    for (int64_t& ns : span) ns = static_cast<int64_t>(random() % 60'000);
    const RecordedJob job = {.world = 2 + static_cast<uint32_t>(round) % 3,
                             .steps = 8,
                             .host_ns = [&](uint32_t r, uint32_t s) { return host[r * 8 + s]; },
                             .span_ns = [&](uint32_t r, uint32_t s) { return span[r * 8 + s]; },
                             .transfer_ns = [](uint32_t s) { return int64_t{3000} + s; },
                             .synchronize = round % 2 == 0};
    std::filesystem::remove_all(directory_ + "/trace");
    const std::vector<int64_t> ends = WriteRecordedJob(directory_, job);
    ASSERT_EQ(ends.size(), 8u);
    const Graph graph = Load();
    // The model's figures would be others.
    const auto outcome = Evaluate(graph, Simple(graph, {{"", 1'000'000}}, 1'000'000));
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->finish_ns, ends.back()) << round;
    for (const RankOutcome& r : outcome->ranks) EXPECT_EQ(r.transfer_ns, 8 * 3000 + 7 * 8 / 2);
  }
}

// Each rank alone measures only how long it waited; the model is not asked for what one has
// measured.
TEST_F(EngineTest, WhatOneMemberHasMeasuredBeatsTheModelOfTheOthers) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Writer w;
    ASSERT_EQ(w.Open(Path(rank).c_str(), rank, 2), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), world[] = {0, 1};
    w.Communicator({1, 2, rank, 0, 0}, world);
    CallRecord call{};
    call.comm = 1;
    call.peer = -1;
    call.group = 1;
    w.Comm(s, w.Call(call), 0, ValueSource::kExact);
    w.Comm(s, w.Call(call), 1, ValueSource::kExact);
    const int64_t ns[] = {70, -1};
    if (rank == 1) w.Timing(s, 0, ns, 2);
    ASSERT_EQ(w.Close(0), 0);
  }
  const Graph graph = Load();
  Durations d = Simple(graph, {}, 500);
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, 70 + 500);
  d.measured_call_scale = 2;
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, 140 + 500);
}

TEST_F(EngineTest, MeasuredSpansFollowTheirFactorAlone) {
  const RecordedJob job = {.world = 1,
                           .steps = 3,
                           .host_ns = [](uint32_t, uint32_t) { return 100; },
                           .span_ns = [](uint32_t, uint32_t) { return 50'000; },
                           .transfer_ns = [](uint32_t) { return 0; }};
  const std::vector<int64_t> ends = WriteRecordedJob(directory_, job);
  const Graph graph = Load();
  Durations d = Simple(graph, {}, 0);
  d.measured_span_scale = 1.5;
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, ends.back() + 3 * (25'000 + 5'000));
  d = Simple(graph, {}, 0);
  for (double& scale : d.host_scale) scale = 3;
  d.host_scale[static_cast<size_t>(TimeSource::kMeasured)] = 2;
  EXPECT_EQ(Evaluate(graph, d)->finish_ns, ends.back() + 3 * 100);
}

// A what-if against the job that did it: when its steps end, by the writer's own account.
TEST_F(EngineTest, DelaysDoWhatARunWithThemDoes) {
  struct Case {
    const char* what;
    int64_t span[2];
    bool synchronize;
    int64_t delay, moves;  // of rank 1, and how much longer a step takes
  };
  constexpr int64_t kHost = 2000, kTransfer = 1000, kUs = 1000;
  for (const Case& c : {
           Case{"the last rank: exposed", {20 * kUs, 80 * kUs}, true, 50 * kUs, 50 * kUs},
           Case{"the first rank: hidden", {80 * kUs, 20 * kUs}, true, 50 * kUs, 0},
           Case{"partly hidden", {80 * kUs, 20 * kUs}, true, 75 * kUs, 15 * kUs},
           Case{"a host that runs ahead: hidden", {80 * kUs, 80 * kUs}, false, 50 * kUs, 0},
           Case{"too much for that",
                {80 * kUs, 80 * kUs},
                false,
                100 * kUs,
                100 * kUs + kHost - 91 * kUs},
       }) {
    RecordedJob job = {.steps = 30,
                       .host_ns = [](uint32_t, uint32_t) { return kHost; },
                       .span_ns = [&](uint32_t r, uint32_t) { return c.span[r]; },
                       .transfer_ns = [](uint32_t) { return kTransfer; },
                       .synchronize = c.synchronize,
                       .delayed_rank = 1};
    std::filesystem::remove_all(directory_ + "/trace");
    const std::vector<int64_t> before = WriteRecordedJob(directory_, job);
    Graph graph = Load();
    job.delay_ns = c.delay;
    const std::vector<int64_t> truth = WriteRecordedJob(directory_ + "/with", job);
    ASSERT_EQ(truth.size(), 30u);

    const auto steps = graph::DetectSteps(&graph);
    ASSERT_TRUE(steps.ok()) << steps.status();
    Options options{.probes = &steps->ends};
    const uint32_t program = graph.ranks[1].program;
    for (const graph::Place place :
         graph::StepBeginnings(graph.programs[program], steps->ends[program])) {
      ASSERT_NE(place.sequence, kNone);
      options.delays.push_back({1, place, c.delay});
    }
    const auto outcome = Evaluate(graph, Simple(graph, {}, 0), options);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    // The last step runs from one all-reduce to the next, as do the writer's in a steady state.
    const std::vector<int64_t>& probes = outcome->ranks[0].probes;
    EXPECT_EQ(probes.back() - probes[probes.size() - 2], truth[29] - truth[28]) << c.what;
    EXPECT_EQ(truth[29] - truth[28] - (before[29] - before[28]), c.moves) << c.what;
  }
}

// The visits of a rank that is outside, as the whole evaluation has them, and by token when each
// ends there.
std::pair<std::vector<Visit>, std::vector<int64_t>> VisitsOf(const Graph& graph, uint32_t outside,
                                                             const Outcome& whole) {
  const graph::Program& program = graph.program_of(graph.ranks[outside]);
  std::vector<Visit> visits;
  std::vector<int64_t> ends;
  for (const Interval& i : whole.timeline) {
    const std::vector<Op>& ops = program.sequences[i.sequence].ops;
    if (ops[i.op].kind != OpKind::kComm) continue;
    uint32_t first = i.op;
    while (ops[first].detail == 0) --first;
    visits.push_back({.rank = outside,
                      .call = ops[i.op].a,
                      .sequence = ops[i.op].b,
                      .ready_ns = i.start_ns,
                      .token = ends.size(),
                      .group = uint64_t{i.sequence} << 32 | first,
                      .waits = !graph::EndsEarly(program, &ops[first]),
                      .early = graph::BeginsEarly(program.calls[ops[i.op].a])});
    ends.push_back(i.end_ns);
  }
  return {visits, ends};
}

// A rank that comes when the whole evaluation says it comes meets when that says it meets: in the
// order of time, and in any other.
TEST_F(EngineTest, OutsideRankThatKeepsTimeMeetsAsTheWholeEvaluationSays) {
  std::mt19937 random(7);
  for (const JobKind kind : kKinds) {
    Graph graph = Job({.kind = kind, .world = 4, .steps = 3});
    Durations d = Simple(graph, {{"forward", 900}, {"backward", 2100}}, 0);
    for (std::vector<CallTime>& calls : d.calls) {
      for (CallTime& call : calls) call.ns = 100 + static_cast<int64_t>(random() % 5000);
    }
    for (uint32_t outside = 0; outside < 4; ++outside) {
      std::vector<uint8_t> only(4, 0);
      only[outside] = 1;
      const auto whole = Evaluate(graph, d, {.timeline = only});
      ASSERT_TRUE(whole.ok()) << whole.status();
      const graph::Program& program = graph.program_of(graph.ranks[outside]);
      auto [visits, ends] = VisitsOf(graph, outside, *whole);
      ASSERT_FALSE(visits.empty());
      for (const bool in_order : {true, false}) {
        if (in_order) {
          std::stable_sort(visits.begin(), visits.end(),
                           [](const Visit& x, const Visit& y) { return x.ready_ns < y.ready_ns; });
        } else {
          std::shuffle(visits.begin(), visits.end(), random);
        }
        LiveEvaluation live(graph, d, {}, only);
        for (uint32_t p = 0; p < program.participants.size(); ++p) live.Initialise(outside, p, 0);
        std::vector<int> met(ends.size(), 0);
        const auto take = [&, &ends = ends] {
          for (const Meeting& meeting : live.Run()) {
            ++met[meeting.token];
            EXPECT_EQ(meeting.end_ns, ends[meeting.token]) << meeting.token;
          }
        };
        for (const Visit& visit : visits) {
          live.Visit(visit);
          take();
        }
        EXPECT_THAT(met, ::testing::Each(1));
        EXPECT_TRUE(live.Done());
      }
    }
  }
}

// Two communicators whose transfers overlap by a closed form: both fill the link, so while both are
// under way they take twice as long.
TEST_F(EngineTest, CommunicatorsThatShareALinkSlowEachOther) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Writer w;
    ASSERT_EQ(w.Open(Path(rank).c_str(), rank, 4), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
    const uint32_t pair = rank / 2, world[] = {2 * pair, 2 * pair + 1};
    w.Communicator({1 + pair, 2, rank % 2, 0, 0}, world);
    w.Launch(s, w.Kernel(KernelKind::kKernel, pair == 0 ? "early" : "late", one, one, 0, 0));
    CallRecord call{};
    call.comm = 1 + pair;
    call.peer = -1;
    call.group = 1;
    w.Comm(s, w.Call(call), 0, ValueSource::kExact);
    ASSERT_EQ(w.Close(0), 0);
  }
  Graph graph = Load();
  Durations d = Simple(graph, {{"early", 100}, {"late", 400}}, 1000);
  d.links = 1;
  const auto finish = [&](uint32_t share) {
    d.shares = {{0, share}};
    for (uint32_t rank : {0u, 2u}) d.calls[rank][0].shares = 1;
    const auto outcome = Evaluate(graph, d);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->ranks[0].finish_ns, outcome->ranks[1].finish_ns);
    return std::pair(outcome->ranks[0].finish_ns, outcome->ranks[2].finish_ns);
  };
  // From 400 to 1800 both; 700 of the second's time were done then.
  EXPECT_EQ(finish(kWholeLink), std::pair(int64_t{1800}, int64_t{2100}));
  EXPECT_EQ(finish(kWholeLink / 2), std::pair(int64_t{1100}, int64_t{1400}));
}

// A rank's messages to another, one after the other: each comes when the kernel before it is over,
// on either side.
struct Sent {
  uint64_t half_mib;
  int64_t sender_ns, receiver_ns;  // kernels before
};

// When each rank ends: a send begins at the first time at which its receive has come, or at which
// it fits into eight steps beside those before it whose receives have not.
std::pair<int64_t, int64_t> EndsOf(const std::vector<Sent>& messages, int64_t cost_ns,
                                   int64_t receive_ns) {
  std::vector<int64_t> came;
  int64_t sender = 0, receiver = 0;
  for (size_t k = 0; k < messages.size(); ++k) {
    const int64_t ready = sender + messages[k].sender_ns;
    came.push_back(receiver + messages[k].receiver_ns);
    const auto begins = [&](int64_t ns) {
      uint64_t used = messages[k].half_mib;
      for (size_t i = 0; i < k; ++i) used += came[i] > ns ? messages[i].half_mib : 0;
      return ns >= came[k] || used <= 8;
    };
    int64_t begin = std::max(ready, came[k]);
    if (begins(ready)) begin = ready;
    for (const int64_t ns : came) {
      if (ns >= ready && begins(ns)) begin = std::min(begin, ns);
    }
    sender = begin + cost_ns;
    // A message that cannot be early has waited for its receive.
    receiver = messages[k].half_mib > 8 ? sender : std::max(sender, came[k] + receive_ns);
  }
  return {sender, receiver};
}

TEST_F(EngineTest, SendsBeginWhenTheFifoOfTheirPeerHasRoom) {
  constexpr int64_t kCost = 1000, kReceive = 40;
  const auto evaluate = [&](const std::vector<Sent>& messages) {
    std::filesystem::remove_all(directory_ + "/trace");
    std::filesystem::create_directories(directory_ + "/trace");
    std::map<std::string, int64_t> kernels;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Writer w;
      EXPECT_EQ(w.Open(Path(rank).c_str(), rank, 2), 0);
      const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1}, world[] = {0, 1};
      w.Communicator({1, 2, rank, 0, 0}, world);
      for (size_t k = 0; k < messages.size(); ++k) {
        const std::string name = "rank" + std::to_string(rank) + "at" + std::to_string(k) + "-";
        kernels[name] = rank == 0 ? messages[k].sender_ns : messages[k].receiver_ns;
        w.Launch(s, w.Kernel(KernelKind::kKernel, name, one, one, 0, 0));
        CallRecord call{};
        call.comm = 1;
        call.op = static_cast<uint32_t>(rank == 0 ? CommOp::kSend : CommOp::kRecv);
        call.peer = 1 - static_cast<int32_t>(rank);
        call.bytes = rank == 0 ? messages[k].half_mib << 19 : 0;
        call.group = 1;
        w.Comm(s, w.Call(call), k, ValueSource::kExact);
      }
      EXPECT_EQ(w.Close(0), 0);
    }
    const Graph graph = Load();
    Durations d = Simple(graph, kernels, kCost);
    d.links = 1;
    d.shares = {{0, kWholeLink / 16}};
    d.receive_ns = kReceive;
    for (CallTime& call : d.calls[0]) call.shares = 1;
    const auto outcome = Evaluate(graph, d);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return std::pair(outcome->ranks[0].finish_ns, outcome->ranks[1].finish_ns);
  };
  // The second begins when the first is received, at 5000, and is there before its own receive.
  EXPECT_EQ(evaluate({{8, 0, 5000}, {1, 0, 3000}}), std::pair(int64_t{6000}, int64_t{8080}));
  // One of nine steps waits for its own.
  EXPECT_EQ(evaluate({{8, 0, 5000}, {9, 0, 3000}}), std::pair(int64_t{9040}, int64_t{9040}));
  // Both fit.
  EXPECT_EQ(evaluate({{4, 0, 5000}, {4, 0, 3000}}), std::pair(int64_t{2000}, int64_t{8080}));
  std::mt19937 random(17);
  for (int round = 0; round < 20; ++round) {
    std::vector<Sent> messages(40);
    for (Sent& sent : messages) {
      sent = {1 + random() % (round % 2 == 0 ? 10 : 3), static_cast<int64_t>(random() % 1500),
              static_cast<int64_t>(random() % 3000)};
    }
    EXPECT_EQ(evaluate(messages), EndsOf(messages, kCost, kReceive)) << round;
  }
}

// Every peer has a FIFO of its own, so all of a group's sends to others have gone when these come.
TEST_F(EngineTest, SendsOfAGroupDoNotWaitForEachOther) {
  constexpr uint32_t kWorld = 4;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    Writer w;
    ASSERT_EQ(w.Open(Path(rank).c_str(), rank, kWorld), 0);
    const uint32_t s = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1}, world[] = {0, 1, 2, 3};
    w.Communicator({1, kWorld, rank, 0, 0}, world);
    w.Launch(s, w.Kernel(KernelKind::kKernel, rank == 3 ? "late" : "early", one, one, 0, 0));
    for (uint32_t peer = 0; peer < kWorld; ++peer) {
      if (peer == rank) continue;
      CallRecord call{};
      call.comm = 1;
      call.group = 2 * (kWorld - 1);
      call.peer = static_cast<int32_t>(peer);
      call.op = static_cast<uint32_t>(CommOp::kSend);
      call.bytes = trace::kEarlySendBytes;
      w.Comm(s, w.Call(call), 0, ValueSource::kExact);
      call.op = static_cast<uint32_t>(CommOp::kRecv);
      w.Comm(s, w.Call(call), 0, ValueSource::kExact);
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  const Graph graph = Load();
  Durations d = Simple(graph, {{"late", 10'000}}, 1000);
  d.links = kWorld;
  d.receive_ns = 40;
  // A message fills its sender's port: three of them take three times as long.
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    d.shares.push_back({rank, kWholeLink});
    const graph::Program& program = graph.program_of(graph.ranks[rank]);
    for (size_t call = 0; call < program.calls.size(); ++call) {
      if (program.calls[call].op != CommOp::kSend) continue;
      d.calls[rank][call].first_share = rank;
      d.calls[rank][call].shares = 1;
    }
  }
  const auto outcome = Evaluate(graph, d);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  // What was sent to the late one is there when it comes; what it sends takes its time.
  for (const RankOutcome& rank : outcome->ranks) EXPECT_EQ(rank.finish_ns, 13'000);
  EXPECT_EQ(outcome->ranks[3].transfer_ns, 3 * 3000 + 3 * 40);
}

// Ranks are numbers: in whichever order they are evaluated, all happens at the same times.
TEST_F(EngineTest, OrderOfRanksDoesNotMatterToFlows) {
  std::mt19937 random(11);
  for (const JobKind kind : kKinds) {
    const Graph graph = Job({.kind = kind, .world = 6, .steps = 2});
    const Durations d = Sharing(graph, &random);
    const auto outcome = Evaluate(graph, d);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    for (int round = 0; round < 5; ++round) {
      std::vector<uint32_t> order(graph.ranks.size());  // new index -> old
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Graph other = graph;
      Durations of_other = d;
      for (uint32_t i = 0; i < order.size(); ++i) {
        other.ranks[i] = graph.ranks[order[i]];
        of_other.calls[i] = d.calls[order[i]];
        for (size_t c = 0; c < graph.communicators.size(); ++c) {
          for (size_t m = 0; m < graph.communicators[c].members.size(); ++m) {
            if (graph.communicators[c].members[m].rank == order[i])
              other.communicators[c].members[m].rank = i;
          }
        }
      }
      const auto shuffled = Evaluate(other, of_other);
      ASSERT_TRUE(shuffled.ok()) << shuffled.status();
      for (uint32_t i = 0; i < order.size(); ++i) {
        const RankOutcome &x = shuffled->ranks[i], &y = outcome->ranks[order[i]];
        EXPECT_EQ(std::tie(x.finish_ns, x.transfer_ns, x.wait_ns),
                  std::tie(y.finish_ns, y.transfer_ns, y.wait_ns));
      }
    }
  }
}

// On a clock that waits for the evaluation: a rank that comes when the whole evaluation says it
// comes is told of each end when it has come, or, with a look ahead, of all of a group's by when
// the last of them has come; and it is the whole evaluation's.
TEST_F(EngineTest, OutsideRankOnAClockThatWaitsIsToldOfEndsWhenTheyHaveCome) {
  std::mt19937 random(13);
  for (const JobKind kind : kKinds) {
    Graph graph = Job({.kind = kind, .world = 4, .steps = 3});
    const Durations d = Sharing(graph, &random);
    for (uint32_t outside = 0; outside < 4; ++outside) {
      std::vector<uint8_t> only(4, 0);
      only[outside] = 1;
      const auto whole = Evaluate(graph, d, {.timeline = only});
      ASSERT_TRUE(whole.ok()) << whole.status();
      const graph::Program& program = graph.program_of(graph.ranks[outside]);
      auto [visits, ends] = VisitsOf(graph, outside, *whole);
      std::stable_sort(visits.begin(), visits.end(), [](const Visit& x, const Visit& y) {
        return std::pair(x.ready_ns, x.group) < std::pair(y.ready_ns, y.group);
      });
      std::map<uint64_t, int64_t> group_ends;
      for (const Visit& visit : visits) {
        int64_t& end_ns = group_ends[visit.group];
        end_ns = std::max(end_ns, ends[visit.token]);
      }
      std::map<uint64_t, uint64_t> group_of;
      for (const Visit& visit : visits) group_of[visit.token] = visit.group;
      for (const bool ahead : {false, true}) {
        LiveEvaluation live(graph, d, {}, only, ahead ? 0 : UINT32_MAX);
        for (uint32_t p = 0; p < program.participants.size(); ++p) live.Initialise(outside, p, 0);
        std::vector<int> met(ends.size(), 0);
        size_t waits = 0;
        const auto go_to = [&, &ends = ends](int64_t now_ns) {
          for (const Meeting& meeting : live.Run(now_ns)) {
            ++met[meeting.token];
            EXPECT_EQ(meeting.end_ns, ends[meeting.token]);
            if (ahead) {
              EXPECT_LE(now_ns, group_ends[group_of[meeting.token]]);
            } else {
              // Nothing can move the end of a receive whose message is there.
              EXPECT_GE(meeting.end_ns, now_ns);
            }
            EXPECT_LE(meeting.end_ns, now_ns + d.receive_ns);
          }
        };
        for (size_t i = 0; i < visits.size();) {
          const Visit& first = visits[i];
          for (; i < visits.size() && visits[i].group == first.group; ++i) live.Visit(visits[i]);
          go_to(first.ready_ns);
          const int64_t next_visit_ns = i < visits.size() ? visits[i].ready_ns : Flows::kNever;
          int64_t now_ns = first.ready_ns;
          for (int64_t next = live.NextNs(); next < next_visit_ns; next = live.NextNs(), ++waits) {
            // Something else may wake the caller before.
            go_to(now_ns + (next - now_ns) / 2);
            go_to(next);
            now_ns = next;
          }
        }
        EXPECT_THAT(met, ::testing::Each(1));
        if (ahead) {
          EXPECT_LE(waits, group_ends.size());
        }
        live.Run();
        EXPECT_TRUE(live.Done());
      }
    }
  }
}

TEST_F(EngineTest, OutsideRankThatIsLateDelaysTheOthersByAsMuch) {
  Graph graph = Job({.kind = JobKind::kDataParallel, .world = 2, .steps = 1, .layers = 1});
  const Durations d = Simple(graph, {{"forward", 100}, {"backward", 100}}, 50);
  LiveEvaluation live(graph, d, {}, {1, 0});
  live.Initialise(0, 0, 0);
  EXPECT_TRUE(live.Run().empty());
  live.Visit({.rank = 0, .call = 0, .sequence = 0, .ready_ns = 1'000'000, .token = 9});
  const std::vector<Meeting> met = live.Run();
  ASSERT_EQ(met.size(), 1u);
  EXPECT_EQ(met[0].token, 9u);
  EXPECT_EQ(met[0].met_ns, 1'000'000);
  EXPECT_EQ(met[0].end_ns, 1'000'050);
  EXPECT_TRUE(live.Done());
}

TEST_F(EngineTest, TimelineCoversEverySpanAndCommunication) {
  Graph graph = Job({.kind = JobKind::kFullyShardedDP, .world = 4, .steps = 2});
  const auto outcome = Evaluate(graph, Simple(graph, {{"forward", 100}, {"backward", 100}}, 10),
                                {.timeline = {0, 1, 0, 0}});
  ASSERT_TRUE(outcome.ok());
  size_t expected = 0, listed = 0;
  const graph::Program& p = graph.program_of(graph.ranks[1]);
  for (const graph::Sequence& s : p.sequences) {
    for (const Op& op : s.ops) expected += op.kind == OpKind::kSpan || op.kind == OpKind::kComm;
  }
  int64_t spans = 0;
  for (const Interval& i : outcome->timeline) {
    EXPECT_EQ(i.rank, 1u);
    EXPECT_LE(i.start_ns, i.end_ns);
    const Op& op = p.sequences[i.sequence].ops[i.op];
    listed += op.kind == OpKind::kSpan || op.kind == OpKind::kComm;
    if (op.kind == OpKind::kSpan) spans += i.end_ns - i.start_ns;
  }
  EXPECT_EQ(listed, expected);
  EXPECT_EQ(spans, outcome->ranks[1].span_ns);
}

}  // namespace
}  // namespace prism::engine
