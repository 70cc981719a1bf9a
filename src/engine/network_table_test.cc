#include "src/engine/network_table.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <random>
#include <set>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/engine/cost_model.h"
#include "src/graph/testing/synthetic.h"

namespace prism::engine {
namespace {

using trace::CommOp;

constexpr uint32_t kFp32 = 7, kFp16 = 6, kFp64 = 8, kBf16 = 9, kInt8 = 0;
constexpr uint64_t kKiB = 1024, kMiB = 1 << 20, kGiB = 1 << 30;

const Gpu& H200() {
  static const Gpu* const gpu = new Gpu(ParseTarget("h200x8:4")->gpu);
  return *gpu;
}

Placement OnNode(uint32_t ranks) { return {ranks, 1, ranks}; }

NetworkEntry Entry(CommOp op, std::optional<uint32_t> type, Placement at, uint64_t bytes, double ns,
                   bool isolated = true) {
  return {op, type, at.ranks, at.nodes, bytes, isolated, ns, ns, ns, 1};
}

// A profile of one curve, at `factor`-spaced sizes.
NetworkProfile Sampled(const std::function<double(double)>& ns_of_bytes, double factor = 4,
                       Placement at = OnNode(2), CommOp op = CommOp::kAllGather) {
  NetworkProfile profile;
  for (double bytes = kKiB; bytes <= static_cast<double>(kGiB); bytes *= factor)
    profile.entries.push_back(
        Entry(op, std::nullopt, at, static_cast<uint64_t>(bytes), ns_of_bytes(bytes)));
  return profile;
}

double Ns(const std::optional<NetworkTime>& time) {
  EXPECT_TRUE(time.has_value());
  return time.has_value() ? static_cast<double>(time->ns) : NAN;
}

TEST(NetworkTableTest, LatencyAndBandwidthAreExactEverywhereAboveTheLatency) {
  const auto affine = [](double bytes) { return 12'000 + bytes / 300e9 * 1e9; };
  const NetworkTable table(Sampled(affine));
  for (double bytes = kKiB; bytes < 16.0 * kGiB; bytes *= 1.37) {
    const auto time =
        table.TimeOf(H200(), CommOp::kAllGather, kInt8, static_cast<uint64_t>(bytes), OnNode(2));
    EXPECT_NEAR(Ns(time), affine(std::floor(bytes)), 1) << bytes;
  }
  // Below the smallest size: as long as that.
  EXPECT_NEAR(Ns(table.TimeOf(H200(), CommOp::kAllGather, kInt8, 1, OnNode(2))), affine(kKiB), 1);
}

TEST(NetworkTableTest, MeasuredSizesAreMeasuredAndOthersInterpolated) {
  const NetworkTable table(Sampled([](double bytes) { return 9'000 + bytes / 100; }));
  const auto source = [&](uint64_t bytes) {
    return table.TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, OnNode(2))->source;
  };
  EXPECT_EQ(source(4 * kKiB), TimeSource::kMeasured);
  EXPECT_EQ(source(4 * kKiB + 1), TimeSource::kInterpolated);
  EXPECT_EQ(source(1), TimeSource::kInterpolated);
  EXPECT_EQ(source(2 * kGiB), TimeSource::kInterpolated);
}

TEST(NetworkTableTest, LastTwoSizesGiveTheBandwidthBeyond) {
  NetworkProfile profile;
  profile.entries = {Entry(CommOp::kAllGather, std::nullopt, OnNode(2), 1000, 5000),
                     Entry(CommOp::kAllGather, std::nullopt, OnNode(2), 2000, 6000),
                     Entry(CommOp::kAllGather, std::nullopt, OnNode(2), 4000, 6400)};
  const auto at = [&](uint64_t bytes) {
    return Ns(NetworkTable(profile).TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, OnNode(2)));
  };
  EXPECT_EQ(at(14'000), 6400 + 10'000 * 0.2);
  profile.entries[2].median_ns = 5900;  // noise: in proportion to the bytes
  EXPECT_EQ(at(8000), 2 * 5900);
  profile.entries.resize(1);
  EXPECT_EQ(at(3000), 3 * 5000);
  EXPECT_EQ(at(10), 5000);
}

TEST(NetworkTableTest, OtherGroupsFollowTheFormulas) {
  // A machine that is what the formulas say, but for a factor, is known from any one group.
  const auto model = [](CommOp op, uint64_t bytes, Placement at) {
    return static_cast<double>(CollectiveNs(H200(), op, bytes, at));
  };
  for (CommOp op :
       {CommOp::kAllReduce, CommOp::kAllGather, CommOp::kBroadcast, CommOp::kAllToAll}) {
    for (const double factor : {1.0, 1.7}) {
      NetworkProfile profile;
      const std::optional<uint32_t> type =
          IsReduction(op) ? std::optional<uint32_t>(kBf16) : std::nullopt;
      for (uint64_t bytes : {kKiB, 64 * kKiB, kMiB, 64 * kMiB})
        profile.entries.push_back(
            Entry(op, type, OnNode(2), bytes, factor * model(op, bytes, OnNode(2))));
      const NetworkTable table(profile);
      for (uint64_t bytes : {kKiB, 64 * kKiB, kMiB, 64 * kMiB}) {
        const auto time = table.TimeOf(H200(), op, kBf16, bytes, OnNode(8));
        EXPECT_NEAR(Ns(time) / (factor * model(op, bytes, OnNode(8))), 1, 1e-3);
        EXPECT_EQ(time->source, TimeSource::kInterpolated);
      }
    }
  }
}

TEST(NetworkTableTest, GroupBetweenTwoMeasuredOnesIsWeightedByItsDistance) {
  const auto model = [](Placement at) {
    return static_cast<double>(CollectiveNs(H200(), CommOp::kAllGather, kMiB, at));
  };
  // Measured: 1.2 times the formulas with 2 ranks, 1.8 times with 8; 4 lies halfway.
  NetworkProfile profile;
  profile.entries = {
      Entry(CommOp::kAllGather, std::nullopt, OnNode(8), kMiB, 1.8 * model(OnNode(8))),
      Entry(CommOp::kAllGather, std::nullopt, OnNode(2), kMiB, 1.2 * model(OnNode(2)))};
  const NetworkTable table(profile);
  const auto at = [&](uint32_t ranks) {
    return Ns(table.TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, OnNode(ranks))) /
           model(OnNode(ranks));
  };
  EXPECT_NEAR(at(4), std::sqrt(1.2 * 1.8), 1e-3);
  EXPECT_NEAR(at(16), 1.8, 1e-3);
  EXPECT_NEAR(at(8), 1.8, 1e-3);
}

TEST(NetworkTableTest, NodeAndNetworkAreDifferentThings) {
  const Placement two_nodes{16, 2, 8}, four_nodes{32, 4, 8}, one_a_node{2, 2, 1};
  NetworkProfile profile = Sampled([](double bytes) { return 1'000 + bytes; }, 4, OnNode(8));
  EXPECT_EQ(NetworkTable(profile).TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, two_nodes),
            std::nullopt);
  profile.entries.push_back(Entry(CommOp::kAllGather, std::nullopt, two_nodes, kMiB, 7e6));
  const NetworkTable table(profile);
  EXPECT_EQ(Ns(table.TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, two_nodes)), 7e6);
  EXPECT_EQ(Ns(table.TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, OnNode(8))), 1'000 + kMiB);
  for (const Placement& at : {four_nodes, one_a_node}) {
    const double ratio =
        static_cast<double>(CollectiveNs(H200(), CommOp::kAllGather, kMiB, at)) /
        static_cast<double>(CollectiveNs(H200(), CommOp::kAllGather, kMiB, two_nodes));
    EXPECT_NEAR(Ns(table.TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, at)), 7e6 * ratio, 1);
  }
}

TEST(NetworkTableTest, EqualRanksOnAnotherNumberOfNodesTakeTheNearest) {
  const Placement wide{16, 16, 1}, narrow{16, 2, 8}, wanted{16, 4, 4};
  NetworkProfile profile;
  for (const auto& [at, ns] : {std::pair{wide, 9e6}, std::pair{narrow, 1e6}})
    profile.entries.push_back(Entry(CommOp::kAllGather, std::nullopt, at, kMiB, ns));
  const double ratio = static_cast<double>(CollectiveNs(H200(), CommOp::kAllGather, kMiB, wanted)) /
                       static_cast<double>(CollectiveNs(H200(), CommOp::kAllGather, kMiB, narrow));
  EXPECT_NEAR(Ns(NetworkTable(profile).TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, wanted)),
              1e6 * ratio, 1);
}

TEST(NetworkTableTest, IsolatedTimesWinWhereThereAreSome) {
  NetworkProfile profile;
  profile.entries = {Entry(CommOp::kAllGather, std::nullopt, OnNode(2), kKiB, 5'000, false),
                     Entry(CommOp::kAllGather, std::nullopt, OnNode(2), kMiB, 9'000, false),
                     Entry(CommOp::kAllGather, std::nullopt, OnNode(2), kKiB, 12'000, true),
                     Entry(CommOp::kSend, std::nullopt, OnNode(2), kKiB, 4'000, false)};
  const NetworkTable table(profile);
  EXPECT_TRUE(table.isolated());
  EXPECT_EQ(Ns(table.TimeOf(H200(), CommOp::kAllGather, kInt8, kKiB, OnNode(2))), 12'000);
  EXPECT_EQ(Ns(table.TimeOf(H200(), CommOp::kSend, kInt8, kKiB, OnNode(2))), 4'000);
  EXPECT_EQ(Ns(table.TimeOf(H200(), CommOp::kRecv, kInt8, kKiB, OnNode(2))), 4'000);
  profile.entries.erase(profile.entries.begin() + 2);
  EXPECT_FALSE(NetworkTable(profile).isolated());
}

TEST(NetworkTableTest, ReductionsOfAnotherTypeTakeOneOfEqualSize) {
  NetworkProfile profile;
  profile.entries = {Entry(CommOp::kAllReduce, kFp32, OnNode(2), kKiB, 8'000),
                     Entry(CommOp::kAllReduce, kBf16, OnNode(2), kKiB, 9'000)};
  const NetworkTable table(profile);
  const auto at = [&](uint32_t type) {
    return *table.TimeOf(H200(), CommOp::kAllReduce, type, kKiB, OnNode(2));
  };
  EXPECT_EQ(at(kBf16).ns, 9'000);
  EXPECT_EQ(at(kBf16).source, TimeSource::kMeasured);
  EXPECT_EQ(at(kFp16).ns, 9'000);
  EXPECT_EQ(at(kFp16).source, TimeSource::kInterpolated);
  EXPECT_EQ(at(kFp64).source, TimeSource::kInterpolated);
}

TEST(NetworkTableTest, WhatIsNotMeasuredIsNotKnown) {
  const NetworkTable table(Sampled([](double) { return 1'000; }));
  EXPECT_EQ(table.TimeOf(H200(), CommOp::kBroadcast, kInt8, kKiB, OnNode(2)), std::nullopt);
  EXPECT_EQ(table.TimeOf(H200(), CommOp::kSend, kInt8, kKiB, OnNode(2)), std::nullopt);
  EXPECT_EQ(table.TimeOf(H200(), CommOp::kAllGather, kInt8, kKiB, OnNode(1)), std::nullopt);
}

class NetworkDurationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/network_table_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  graph::Graph Job(graph::testing::JobKind kind, uint32_t world) {
    EXPECT_EQ(graph::testing::WriteJob(directory_, {.kind = kind, .world = world}), 0);
    absl::StatusOr<graph::Graph> graph = graph::LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }
  static Durations DurationsOf(const graph::Graph& graph, NetworkProfile profile,
                               const Factors& factors = {}) {
    return CostModel(*ParseTarget("h200x2:2"),
                     std::make_shared<const NetworkTable>(std::move(profile)))
        .DurationsOf(graph, factors);
  }
  // Calls `check` with each call of each rank, its bytes and what it was given.
  static void ForEachCall(
      const graph::Graph& graph, const Durations& durations,
      const std::function<void(const graph::Rank&, uint32_t, uint64_t, CallTime)>& check) {
    size_t count = 0;
    for (size_t r = 0; r < graph.ranks.size(); ++r) {
      const graph::Program& program = graph.program_of(graph.ranks[r]);
      for (uint32_t call = 0; call < program.calls.size(); ++call, ++count) {
        const graph::Call& c = program.calls[call];
        check(graph.ranks[r], call, c.count * ElementBytes(c.dtype), durations.calls[r][call]);
      }
    }
    EXPECT_GT(count, 0u);
  }

  std::string directory_;
};

NetworkProfile Curves(const std::vector<std::tuple<CommOp, Placement, double, double>>& lines) {
  NetworkProfile profile;
  for (const auto& [op, at, ns, ns_per_byte] : lines) {
    const std::vector<std::optional<uint32_t>> types =
        IsReduction(op) ? std::vector<std::optional<uint32_t>>{kFp32, kBf16}
                        : std::vector<std::optional<uint32_t>>{std::nullopt};
    for (const auto& type : types) {
      for (uint64_t bytes : {uint64_t{64}, 256 * kMiB})
        profile.entries.push_back(
            Entry(op, type, at, bytes, ns + ns_per_byte * static_cast<double>(bytes)));
    }
  }
  return profile;
}

TEST_F(NetworkDurationsTest, CollectivesTakeWhatWasMeasured) {
  const graph::Graph graph = Job(graph::testing::JobKind::kDataParallel, 4);
  // Four ranks lie on two nodes of two.
  const NetworkProfile profile = Curves({{CommOp::kAllReduce, {4, 2, 2}, 30'000, 0.01}});
  ForEachCall(graph, DurationsOf(graph, profile),
              [](const graph::Rank&, uint32_t, uint64_t bytes, CallTime time) {
                EXPECT_EQ(time.ns, std::llround(30'000 + 0.01 * static_cast<double>(bytes)));
                EXPECT_EQ(time.source, TimeSource::kInterpolated);
              });
  // A factor on interpolated durations meets them, one on modelled ones does not.
  Factors factors;
  factors.by_source[static_cast<size_t>(TimeSource::kInterpolated)] = 2;
  factors.by_source[static_cast<size_t>(TimeSource::kModelled)] = 7;
  ForEachCall(graph, DurationsOf(graph, profile, factors),
              [](const graph::Rank&, uint32_t, uint64_t bytes, CallTime time) {
                EXPECT_NEAR(static_cast<double>(time.ns),
                            2 * (30'000 + 0.01 * static_cast<double>(bytes)), 2);
              });
}

TEST_F(NetworkDurationsTest, WithoutAnEntryTheFormulasHold) {
  const graph::Graph graph = Job(graph::testing::JobKind::kDataParallel, 4);
  const Durations formulas = CostModel(*ParseTarget("h200x2:2")).DurationsOf(graph);
  const Durations durations =
      DurationsOf(graph, Curves({{CommOp::kAllGather, {4, 2, 2}, 30'000, 0.01}}));
  for (size_t r = 0; r < graph.ranks.size(); ++r) {
    for (size_t call = 0; call < durations.calls[r].size(); ++call) {
      EXPECT_EQ(durations.calls[r][call].ns, formulas.calls[r][call].ns);
      EXPECT_EQ(durations.calls[r][call].source, TimeSource::kModelled);
    }
  }
}

TEST_F(NetworkDurationsTest, MessagesToEveryPeerAreAnAllToAll) {
  const graph::Graph graph = Job(graph::testing::JobKind::kExpertParallel, 4);
  NetworkProfile profile = Curves({{CommOp::kAllToAll, {4, 2, 2}, 40'000, 3},
                                   {CommOp::kSend, {2, 1, 2}, 5'000, 1},
                                   {CommOp::kSend, {2, 2, 1}, 9'000, 2}});
  ForEachCall(graph, DurationsOf(graph, profile),
              [](const graph::Rank& rank, uint32_t call, uint64_t bytes, CallTime time) {
                ASSERT_NE(rank.channel[call], graph::kNone);
                EXPECT_EQ(time.ns, 40'000 + 3 * static_cast<int64_t>(bytes));
              });
  // Without all-to-alls: of the two peers on the other node, whose messages share the way there.
  std::erase_if(profile.entries, [](const NetworkEntry& e) { return e.op == CommOp::kAllToAll; });
  ForEachCall(graph, DurationsOf(graph, profile),
              [](const graph::Rank&, uint32_t, uint64_t bytes, CallTime time) {
                EXPECT_EQ(time.ns, 9'000 + 2 * 2 * static_cast<int64_t>(bytes));
              });
}

TEST_F(NetworkDurationsTest, MessagesOfAPipelineAreSends) {
  const graph::Graph graph = Job(graph::testing::JobKind::kPipeline, 4);
  const Target target = *ParseTarget("h200x2:2");
  const NetworkProfile profile = Curves({{CommOp::kAllToAll, {4, 2, 2}, 40'000, 3},
                                         {CommOp::kSend, {2, 1, 2}, 5'000, 1},
                                         {CommOp::kSend, {2, 2, 1}, 9'000, 2}});
  bool near = false, far = false;
  ForEachCall(graph, DurationsOf(graph, profile),
              [&](const graph::Rank& rank, uint32_t call, uint64_t bytes, CallTime time) {
                ASSERT_NE(rank.channel[call], graph::kNone);
                const bool other_node = target.node_of(static_cast<uint32_t>(rank.peer[call])) !=
                                        target.node_of(rank.rank);
                const auto size = static_cast<int64_t>(bytes);
                EXPECT_EQ(time.ns, other_node ? 9'000 + 2 * size : 5'000 + size);
                (other_node ? far : near) = true;
              });
  EXPECT_TRUE(near && far);
}

// A machine whose links are known by construction: ports of 100 GB/s and NICs of 25 GB/s, a quick
// protocol that takes twice the bytes and a dense one with a longer latency.
TEST(NetworkTableTest, SharesOfLinksFollowFromTheCurves) {
  constexpr double kPort = 0.01, kNic = 0.04;  // ns a byte
  NetworkProfile profile;
  const auto add = [&](CommOp op, const Placement& at, double ns_per_byte) {
    for (uint64_t bytes = kKiB; bytes <= 64 * kMiB; bytes *= 2) {
      const double b = static_cast<double>(bytes) * ns_per_byte;
      profile.entries.push_back(
          Entry(op, std::nullopt, at, bytes, std::min(10'000 + 2 * b, 30'000 + b)));
      profile.entries.back().rails = at.rails;
    }
  };
  const Placement node = OnNode(4), one_nic{4, 2, 2, 1}, two_nics{4, 2, 2, 2}, spread{2, 2, 1, 1};
  add(CommOp::kSend, OnNode(2), kPort);
  add(CommOp::kSend, spread, kNic);
  // A ring passes three parts on. It leaves a node by one NIC, or half of it by each of two.
  add(CommOp::kAllGather, node, 3 * kPort);
  add(CommOp::kAllGather, one_nic, 3 * kNic);
  add(CommOp::kAllGather, two_nics, 3 * kNic / 2);
  const auto time = [&](const Placement& at, uint64_t bytes) {
    return *NetworkTable(profile).TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, at);
  };
  EXPECT_EQ(time(node, kMiB).port, 0);  // nothing is known of what is shared
  profile.links = NetworkLinks{1000, {0, 1}};
  for (const uint64_t bytes : {4 * kKiB, 32 * kKiB, 48 * kKiB, 16 * kMiB, 256 * kMiB}) {
    for (const auto& [at, port, nic] : {std::tuple{node, 3 * kPort, 0.0},
                                        {one_nic, 3 * kPort, 3 * kNic},
                                        {two_nics, 3 * kPort, 1.5 * kNic}}) {
      const NetworkTime found = time(at, bytes);
      const double most = static_cast<double>(bytes) * std::max(port, nic);
      const double protocol = 10'000 + 2 * most < 30'000 + most ? 2 : 1;
      const double ns = std::min(10'000 + 2 * most, 30'000 + most);
      EXPECT_NEAR(found.port, protocol * port * static_cast<double>(bytes) / ns, 1e-6) << bytes;
      EXPECT_NEAR(found.nic, protocol * nic * static_cast<double>(bytes) / ns, 1e-6) << bytes;
    }
  }
}

// The same machine with latencies: a base of 6 us, 0.7 us a step by ports, 4 us by NICs, five times
// as much with the dense protocol. Groups of many nodes are told from one of two nodes.
TEST(NetworkTableTest, OtherGroupsFollowFromTheMachinesOwnLinks) {
  constexpr double kBase = 6000, kPortStep = 700, kNicStep = 4000, kPort = 0.01, kNic = 0.04;
  const auto least = [](double steps_ns, double bytes_ns) {
    return kBase + std::min(steps_ns + 2 * bytes_ns, 5 * steps_ns + bytes_ns);
  };
  NetworkProfile profile;
  const auto add = [&](CommOp op, const Placement& at, double steps_ns, double ns_per_byte) {
    for (uint64_t bytes = 64; bytes <= 256 * kMiB; bytes *= 2) {
      const std::optional<uint32_t> type =
          IsReduction(op) ? std::optional<uint32_t>(kBf16) : std::nullopt;
      profile.entries.push_back(
          Entry(op, type, at, bytes, least(steps_ns, static_cast<double>(bytes) * ns_per_byte)));
      profile.entries.back().rails = at.rails;
    }
  };
  const Placement two{4, 2, 2, 2}, many{32, 16, 2, 2}, few_nics{32, 16, 2, 1};
  add(CommOp::kSend, OnNode(2), kPortStep, kPort);
  add(CommOp::kSend, {2, 2, 1, 1}, kNicStep, kNic);
  add(CommOp::kAllGather, two, 2 * kPortStep + kNicStep, 3 * kNic / 2);
  // Over two nodes by trees: a step in the node and one between, there and back; all bytes once.
  add(CommOp::kAllReduce, two, 2 * (kPortStep + kNicStep), kNic / 2);
  profile.links = NetworkLinks{kBase, {0, 1}};
  const NetworkTable table(profile);
  for (const Placement& at : {many, few_nics}) {
    for (uint64_t bytes = kKiB; bytes <= 64 * kMiB; bytes *= 4) {
      const double b = static_cast<double>(bytes), nics = at.rails;
      const auto close = [&](CommOp op, double ns) {
        EXPECT_NEAR(Ns(table.TimeOf(H200(), op, kBf16, bytes, at)) / ns, 1, 1e-3)
            << at.rails << " " << bytes;
      };
      // A ring of 32: 16 steps in nodes, 15 between them, 31 parts by as many NICs as there are.
      close(CommOp::kAllGather, least(16 * kPortStep + 15 * kNicStep, 31 * b * kNic / nics));
      const double ring =
          least(2 * (16 * kPortStep + 15 * kNicStep), 2 * 31.0 / 32 * b * kNic / nics);
      const double tree = least(2 * (kPortStep + 4 * kNicStep), 2 * b * kNic / nics);
      close(CommOp::kAllReduce, std::min(ring, tree));
    }
  }
}

// A slower NIC is put into the quickest algorithm and protocol that there then is.
TEST(NetworkTableTest, SlowerLinksChooseTheirProtocolAnew) {
  constexpr double kBase = 6000, kPortStep = 700, kNicStep = 4000, kPort = 0.01, kNic = 0.04;
  struct Job {
    double steps_ns, port, nic;  // of all steps; of a byte on the links
  };
  struct Taken {
    double ns, protocol;
  };
  const auto least = [](const Job& job, double bytes, double slower) {
    const double b = bytes * std::max(job.port, job.nic * slower);
    const double quick = kBase + job.steps_ns + 2 * b, dense = kBase + 5 * job.steps_ns + b;
    return quick < dense ? Taken{quick, 2} : Taken{dense, 1};
  };
  NetworkProfile profile;
  profile.links = NetworkLinks{kBase, {0, 1}};
  const Placement one_nic{2, 2, 1, 1}, two{4, 2, 2, 2};
  const Job ring{2 * kPortStep + kNicStep, 3 * kPort, 3 * kNic / 2};
  for (const auto& [op, at, job] : {std::tuple{CommOp::kSend, OnNode(2), Job{kPortStep, kPort, 0}},
                                    {CommOp::kSend, one_nic, Job{kNicStep, 0, kNic}},
                                    {CommOp::kAllGather, two, ring}}) {
    for (uint64_t bytes = 64; bytes <= 256 * kMiB; bytes *= 2) {
      profile.entries.push_back(
          Entry(op, std::nullopt, at, bytes, least(job, static_cast<double>(bytes), 1).ns));
      profile.entries.back().rails = at.rails;
    }
  }
  const NetworkTable table(profile);
  EXPECT_NEAR(*table.NicBytesPerS(), 1e9 / kNic, 1e6);
  for (const double speed : {0.25, 0.5, 1.0, 8.0}) {
    for (uint64_t bytes = kKiB; bytes <= 64 * kMiB; bytes *= 2) {
      const auto b = static_cast<double>(bytes);
      const Taken taken = least(ring, b, 1 / speed);
      const NetworkTime time =
          *table.TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, two, {.nic = speed});
      EXPECT_NEAR(static_cast<double>(time.ns) / taken.ns, 1, 1e-3) << speed << " " << bytes;
      EXPECT_NEAR(time.stretch, taken.ns / least(ring, b, 1).ns, 1e-3) << speed << " " << bytes;
      // As the link was.
      const double of_time = taken.protocol * b / taken.ns;
      EXPECT_NEAR(time.nic, of_time * ring.nic, 2e-3) << speed << " " << bytes;
      EXPECT_NEAR(time.port, of_time * ring.port, 2e-3) << speed << " " << bytes;
    }
  }
}

// Of eight nodes two are on a leaf, whose way to the others is as wide as one NIC. Eight nodes are
// told from two of one leaf, and a message between leaves.
TEST(NetworkTableTest, GroupsOfSeveralLeavesFollowFromMessagesBetweenThem) {
  constexpr double kBase = 6000, kNear = 4000, kFar = 5500, kNic = 0.04;
  const auto least = [](double steps_ns, double bytes_ns) {
    return kBase + std::min(steps_ns + 2 * bytes_ns, 5 * steps_ns + bytes_ns);
  };
  NetworkProfile profile;
  const auto add = [&](CommOp op, const Placement& at, double steps_ns, double ns_per_byte) {
    for (uint64_t bytes = 64; bytes <= 256 * kMiB; bytes *= 2) {
      const std::optional<uint32_t> type =
          IsReduction(op) ? std::optional<uint32_t>(kBf16) : std::nullopt;
      profile.entries.push_back(
          Entry(op, type, at, bytes, least(steps_ns, static_cast<double>(bytes) * ns_per_byte)));
      profile.entries.back().rails = at.rails;
      profile.entries.back().leaves = at.leaves;
    }
  };
  const Placement near{2, 2, 1, 1, 1}, far{2, 2, 1, 1, 2}, eight{8, 8, 1, 1, 4};
  add(CommOp::kSend, near, kNear, kNic);
  add(CommOp::kSend, far, kFar, kNic);
  add(CommOp::kAllGather, near, kNear, kNic);
  add(CommOp::kAllReduce, near, 2 * kNear, kNic);
  profile.links = NetworkLinks{kBase, {0}, {}, 2, 1.0};
  const NetworkTable table(profile);
  for (uint64_t bytes = kKiB; bytes <= 64 * kMiB; bytes *= 4) {
    const double b = static_cast<double>(bytes);
    const auto close = [&](CommOp op, double ns) {
      EXPECT_NEAR(Ns(table.TimeOf(H200(), op, kBf16, bytes, eight)) / ns, 1, 1e-3) << bytes;
    };
    // A ring leaves each leaf once. Of two trees' fourteen edges up to six leave one, half of the
    // bytes on each.
    close(CommOp::kAllGather, least(7 * kFar, 7 * b * kNic));
    close(CommOp::kAllReduce,
          std::min(least(14 * kFar, 2 * 7.0 / 8 * b * kNic), least(2 * 3 * kFar, 3 * b * kNic)));
  }
  // A long message fills its NICs and their leaves' ways as much.
  const NetworkTime message = *table.TimeOf(H200(), CommOp::kSend, kBf16, 256 * kMiB, far);
  EXPECT_GT(message.leaf, 0.99);
  EXPECT_DOUBLE_EQ(message.leaf, message.nic);
  EXPECT_EQ(table.TimeOf(H200(), CommOp::kSend, kBf16, 256 * kMiB, near)->leaf, 0);
}

// What was measured once has the doubt of how far sizes are off that are told from the others.
TEST(NetworkTableTest, SingleSamplesAreAsSureAsTheirNeighboursTellThem) {
  const auto doubt = [](double sigma) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal(0, sigma);
    double sum = 0;
    for (int run = 0; run < 20; ++run) {
      NetworkProfile profile;
      for (uint64_t bytes = kKiB; bytes <= 256 * kMiB; bytes *= 2) {
        const double ns = (10'000 + static_cast<double>(bytes) * 0.01) * std::exp(normal(random));
        profile.entries.push_back(Entry(CommOp::kAllGather, std::nullopt, OnNode(4), bytes, ns));
      }
      sum +=
          NetworkTable(profile).TimeOf(H200(), CommOp::kAllGather, kInt8, kMiB, OnNode(4))->doubt /
          20;
    }
    return sum;
  };
  EXPECT_LT(doubt(0), 1e-4);
  // What it is told from has noise of its own.
  EXPECT_GT(doubt(0.02), 0.02);
  EXPECT_LT(doubt(0.02), 0.04);
}

// A curve that bends between all its sizes: what is between two of them is on no line, on one side
// of it everywhere, and within what the table says of it. The measured ones have no part in that.
TEST(NetworkTableTest, SizesThatWereNotMeasuredAreOffAlike) {
  const auto truth = [](double bytes) { return 10'000 + 3 * std::sqrt(bytes); };
  NetworkProfile profile;
  for (uint64_t bytes = kKiB; bytes <= 256 * kMiB; bytes *= 4) {
    profile.entries.push_back(Entry(CommOp::kAllGather, std::nullopt, OnNode(4), bytes,
                                    truth(static_cast<double>(bytes))));
  }
  const NetworkTable table(profile);
  int sizes = 0, within = 0;
  for (uint64_t bytes = 4 * kKiB; bytes < 64 * kMiB; bytes *= 4) {
    EXPECT_EQ(table.TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, OnNode(4))->size_doubt, 0);
    for (const uint64_t between : {bytes * 3 / 2, bytes * 2, bytes * 3}) {
      const NetworkTime time = *table.TimeOf(H200(), CommOp::kAllGather, kInt8, between, OnNode(4));
      const double off =
          std::log(static_cast<double>(time.ns) / truth(static_cast<double>(between)));
      EXPECT_GT(off, 0) << between;
      within += std::abs(off) < 1.645 * time.size_doubt;
      ++sizes;
    }
  }
  EXPECT_EQ(within, sizes);
}

// Shares are bytes times slope over time, and a slope is as sure as the two sizes that tell it.
TEST(NetworkTableTest, SharesAreAsSureAsTheSlopesThatTellThem) {
  constexpr double kBase = 10'000, kNsPerByte = 0.01, kSigma = 0.02;
  constexpr size_t kSamples = 21;
  std::mt19937 random(5);
  std::normal_distribution<double> normal(0, kSigma);
  double squares = 0, told = 0;
  int within = 0, shares = 0;
  for (int run = 0; run < 200; ++run) {
    NetworkProfile profile;
    profile.links = NetworkLinks{kBase, {}};
    // Two sizes: a straight line through more would be surer than they are.
    for (const uint64_t bytes : {kMiB, 4 * kMiB}) {
      std::vector<double> ns;
      for (size_t i = 0; i < kSamples; ++i)
        ns.push_back((kBase + static_cast<double>(bytes) * kNsPerByte) * std::exp(normal(random)));
      std::sort(ns.begin(), ns.end());
      NetworkEntry e = Entry(CommOp::kSend, std::nullopt, {2, 1, 2}, bytes, ns[kSamples / 2]);
      e.p10_ns = ns[2];
      e.p90_ns = ns[18];
      e.samples = kSamples;
      profile.entries.push_back(e);
    }
    const NetworkTable table(profile);
    const double bytes = static_cast<double>(kMiB);
    const NetworkTime time = *table.TimeOf(H200(), CommOp::kSend, kInt8, kMiB, {2, 1, 2});
    const double slope = kNsPerByte * bytes / (kBase + bytes * kNsPerByte);
    ASSERT_GT(time.share_doubt, 0);
    const double off = time.port / slope - 1;
    within += std::abs(off) < 1.645 * time.share_doubt;
    squares += off * off;
    told += time.share_doubt;
    ++shares;
  }
  // Nine of ten or more, as far as 200 tell (three standard errors): two errors may be one size's.
  EXPECT_GT(static_cast<double>(within) / shares, 0.9 - 3 * std::sqrt(0.09 / shares));
  EXPECT_LT(told / shares, std::numbers::sqrt2 * std::sqrt(squares / shares));
}

// A clock tells small sizes of a curve apart by nothing: their bytes cross the links all the same,
// and are held up by what is there.
TEST(NetworkTableTest, WhatCrossesALinkHasAShareOfIt) {
  NetworkProfile profile;
  profile.links = NetworkLinks{1000, {}};
  const auto add = [&](CommOp op, const Placement& at, uint64_t bytes, int64_t ns) {
    profile.entries.push_back(Entry(op, std::nullopt, at, bytes, static_cast<double>(ns)));
  };
  for (uint64_t bytes = 4; bytes <= 4 * kMiB; bytes *= 4) {
    const auto b = static_cast<int64_t>(bytes);
    add(CommOp::kSend, OnNode(2), bytes, 5'000 + b / 200);
    add(CommOp::kAllGather, OnNode(4), bytes, 9'000 + 3 * b / 200);
  }
  const NetworkTable table(profile);
  // As measured, between measured sizes, told from a smaller group.
  for (const auto& [ranks, bytes] : {std::pair{4u, 4}, {4u, 6}, {8u, 4}}) {
    const auto time = table.TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, OnNode(ranks));
    ASSERT_TRUE(time.has_value());
    EXPECT_GT(time->port, 0) << ranks << " " << bytes;
    EXPECT_LT(time->port, 1e-4) << ranks << " " << bytes;
    EXPECT_GE(std::llround(time->port * kWholeLink), 1) << ranks << " " << bytes;
    EXPECT_EQ(time->nic, 0);
  }
}

// Two nodes of two GPUs that share a NIC.
TEST_F(NetworkDurationsTest, MembersAddTheirLinksOnceAndSendersThoseOfTheirMessages) {
  NetworkProfile profile = Curves({{CommOp::kAllReduce, {4, 2, 2}, 30'000, 0.1},
                                   {CommOp::kSend, {2, 1, 2}, 5'000, 1},
                                   {CommOp::kSend, {2, 2, 1}, 9'000, 2}});
  profile.links = NetworkLinks{700, {0, 0}};
  const auto loads = [](const Durations& d, const CallTime& call) {
    std::vector<uint32_t> links;
    for (uint32_t i = 0; i < call.shares; ++i) {
      EXPECT_LT(d.shares[call.first_share + i].link, d.links);
      links.push_back(d.shares[call.first_share + i].link);
    }
    return links;
  };
  {
    const graph::Graph graph = Job(graph::testing::JobKind::kDataParallel, 4);
    const Durations d = DurationsOf(graph, profile);
    std::map<uint32_t, int> uses;
    for (const std::vector<CallTime>& calls : d.calls) {
      for (const uint32_t link : loads(d, calls.at(0))) ++uses[link];
    }
    // Both ways of four ports and of a NIC of each node, whose two members share it.
    EXPECT_EQ(uses.size(), 2u * 4 + 2 * 2);
    for (const auto& [link, count] : uses) EXPECT_EQ(count, 1) << link;
  }
  std::filesystem::remove_all(directory_ + "/trace");
  const graph::Graph graph = Job(graph::testing::JobKind::kExpertParallel, 4);
  const Durations d = DurationsOf(graph, profile);
  EXPECT_EQ(d.receive_ns, 700);
  std::map<uint32_t, int> uses;  // of the messages of one all-to-all
  for (size_t r = 0; r < graph.ranks.size(); ++r) {
    const graph::Program& program = graph.program_of(graph.ranks[r]);
    std::set<int32_t> seen;
    for (uint32_t call = 0; call < program.calls.size(); ++call) {
      const std::vector<uint32_t> links = loads(d, d.calls[r][call]);
      const bool itself = graph.ranks[r].peer[call] == static_cast<int32_t>(r);
      const bool send = program.calls[call].op == CommOp::kSend;
      EXPECT_EQ(links.size(), send && !itself ? 2u : 0u);
      if (itself) {
        EXPECT_EQ(d.calls[r][call].ns, 700);
      }
      if (!send || !seen.insert(graph.ranks[r].peer[call]).second) continue;
      for (const uint32_t link : links) ++uses[link];
    }
  }
  // Each port has one message in each direction, each NIC those of two GPUs to two others.
  std::map<int, int> how_often;
  for (const auto& [link, count] : uses) ++how_often[count];
  EXPECT_THAT(how_often,
              ::testing::UnorderedElementsAre(::testing::Pair(1, 8), ::testing::Pair(4, 4)));
}

// Two protocols, each a latency and a bandwidth, and calls that spread by 2 %, seven of each size:
// what the table tells is nearer to the truth than each size's median is, and it knows how near.
TEST(NetworkTableTest, NoiseOfOneSizeIsThatOfItsLine) {
  constexpr double kSigma = 0.02;
  constexpr size_t kSamples = 7;
  const auto truth = [](double bytes) {
    return std::min(10'000 + bytes * 0.02, 30'000 + bytes * 0.01);
  };
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0, kSigma);
  double of_medians = 0, of_table = 0, spread = 0;
  int sizes = 0, within = 0;
  for (int run = 0; run < 40; ++run) {
    NetworkProfile profile;
    for (uint64_t bytes = 4; bytes <= 256 * kMiB; bytes *= 2) {
      std::vector<double> ns;
      for (size_t i = 0; i < kSamples; ++i)
        ns.push_back(truth(static_cast<double>(bytes)) * std::exp(normal(random)));
      std::sort(ns.begin(), ns.end());
      profile.entries.push_back(Entry(CommOp::kAllGather, std::nullopt, OnNode(4), bytes, ns[3]));
      // The percentiles of seven values lie between the first and last two.
      profile.entries.back().p10_ns = ns[0] + 0.6 * (ns[1] - ns[0]);
      profile.entries.back().p90_ns = ns[6] - 0.6 * (ns[6] - ns[5]);
      profile.entries.back().samples = kSamples;
    }
    const NetworkTable table(profile);
    for (const NetworkEntry& e : profile.entries) {
      const double right = truth(static_cast<double>(e.bytes));
      const auto time = *table.TimeOf(H200(), CommOp::kAllGather, kInt8, e.bytes, OnNode(4));
      EXPECT_EQ(time.source, TimeSource::kMeasured);
      const double off = std::log(static_cast<double>(time.ns) / right);
      of_table += off * off;
      of_medians += std::log(e.median_ns / right) * std::log(e.median_ns / right);
      within += std::abs(off) < 1.645 * time.doubt;
      spread += time.spread;
      ++sizes;
    }
  }
  EXPECT_LT(std::sqrt(of_table), 0.5 * std::sqrt(of_medians));
  EXPECT_NEAR(spread / sizes, kSigma, 0.1 * kSigma);
  // Nine of ten; sizes of one line are off together, so 1,080 of them are some hundred.
  EXPECT_NEAR(static_cast<double>(within) / sizes, 0.9, 0.08);
}

// Whatever somebody measured or wrote: a line through it is no reason for a time of nothing or
// less.
TEST(NetworkTableTest, TimesOfACurveThatIsNoneStayTimes) {
  for (const double first_ns : {1e3, 1e-300}) {
    NetworkProfile profile;
    const double ns[] = {first_ns, 10, 100};
    for (const uint64_t mib : {1, 2, 3}) {
      profile.entries.push_back(
          Entry(CommOp::kAllGather, std::nullopt, OnNode(4), mib * kMiB, ns[mib - 1]));
      profile.entries.back().p10_ns = 0.7 * ns[mib - 1];
      profile.entries.back().p90_ns = 1.4 * ns[mib - 1];
      profile.entries.back().samples = 3;
    }
    const NetworkTable table(profile);
    for (uint64_t bytes = kMiB; bytes <= 3 * kMiB; bytes += kMiB / 2) {
      const auto time = *table.TimeOf(H200(), CommOp::kAllGather, kInt8, bytes, OnNode(4));
      EXPECT_GE(time.ns, 0) << bytes;
      EXPECT_TRUE(std::isfinite(time.doubt)) << bytes << " " << first_ns;
    }
  }
}

// Why sizes are interpolated as they are: each size left out in turn and told from the others, on
// curves as NCCL has them (its formulas: the fastest of three protocols) with noise.
TEST(NetworkTableTest, StraightLinesBeatLogarithmicOnesOnNcclsCurves) {
  const auto logarithmic = [](double b0, double t0, double b1, double t1, double b) {
    const double w = std::log(b / b0) / std::log(b1 / b0);
    return std::exp((1 - w) * std::log(t0) + w * std::log(t1));
  };
  for (const double noise : {0.0, 0.02}) {
    double straight_error = 0, logarithmic_error = 0;
    int count = 0;
    std::mt19937 random(7);
    std::normal_distribution<double> normal(0, noise);
    for (CommOp op : {CommOp::kAllReduce, CommOp::kAllGather, CommOp::kBroadcast}) {
      for (const Placement& at : {OnNode(2), OnNode(8), Placement{16, 2, 8}}) {
        std::vector<std::pair<double, double>> points;
        std::vector<double> truth;
        for (double bytes = kKiB; bytes <= static_cast<double>(kGiB); bytes *= 2) {
          truth.push_back(
              static_cast<double>(CollectiveNs(H200(), op, static_cast<uint64_t>(bytes), at)));
          points.emplace_back(bytes, truth.back() * std::exp(normal(random)));
        }
        for (size_t i = 1; i + 1 < points.size(); ++i) {
          NetworkProfile profile;
          for (size_t k = 0; k < points.size(); ++k) {
            if (k == i) continue;
            profile.entries.push_back(
                Entry(op, IsReduction(op) ? std::optional(kBf16) : std::nullopt, at,
                      static_cast<uint64_t>(points[k].first), points[k].second));
          }
          const double told = Ns(NetworkTable(profile).TimeOf(
              H200(), op, kBf16, static_cast<uint64_t>(points[i].first), at));
          straight_error += std::abs(std::log(told / truth[i]));
          const auto& [b0, t0] = points[i - 1];
          const auto& [b1, t1] = points[i + 1];
          logarithmic_error +=
              std::abs(std::log(logarithmic(b0, t0, b1, t1, points[i].first) / truth[i]));
          ++count;
        }
      }
    }
    RecordProperty("noise_" + std::to_string(noise),
                   "straight " + std::to_string(straight_error / count) + ", logarithmic " +
                       std::to_string(logarithmic_error / count));
    std::printf("noise %.2f: mean error of straight lines %.2f %%, of logarithmic ones %.2f %%\n",
                noise, 100 * straight_error / count, 100 * logarithmic_error / count);
    EXPECT_LT(straight_error, logarithmic_error) << "noise " << noise;
  }
}

}  // namespace
}  // namespace prism::engine
