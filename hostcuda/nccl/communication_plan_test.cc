// Times and link loads against closed forms, written out by hand for a few clusters.
#include "hostcuda/nccl/communication_plan.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>

namespace hostnccl {
namespace {

constexpr double kPort = 300, kRail = 40;  // bytes a nanosecond
constexpr double kBase = 5000, kPortNs = 600, kRailNs = 2500, kSpineNs = 1000;

/// Nodes of eight GPUs and eight NICs; one protocol, so that times can be written down.
LinkTopology Cluster(uint32_t nodes_per_leaf = 32) {
  LinkTopology t;
  t.base_ns = kBase;
  t.port = {kPortNs, kPort * 1e9};
  t.rail = {kRailNs, kRail * 1e9};
  t.spine_latency_ns = kSpineNs;
  t.nodes_per_leaf = nodes_per_leaf;
  t.protocols = {{1, 1}};
  return t;
}

std::vector<Place> Nodes(uint32_t nodes, uint32_t gpus) {
  std::vector<Place> places;
  for (uint32_t node = 0; node < nodes; ++node) {
    for (uint32_t gpu = 0; gpu < gpus; ++gpu) places.push_back({node, gpu});
  }
  return places;
}

double TimeNs(const LinkTopology& t, const std::vector<Place>& places, OpKind kind, uint64_t bytes,
              int root = 0) {
  return PlanOf(t, CollectivePatterns(t, places, kind, root), bytes).ns;
}

/// Bytes on each link for each byte of the communication.
std::map<uint32_t, double> Bytes(const LinkTopology& t, const LinkPattern& pattern) {
  std::map<uint32_t, double> bytes;
  for (const auto& use : pattern.uses)
    bytes[use.link] = use.ns_per_byte * t.BytesPerS(use.link) / 1e9;
  return bytes;
}
double On(const std::map<uint32_t, double>& bytes, LinkKind kind, uint32_t index) {
  const auto found = bytes.find(LinkNumber(kind, index));
  return found == bytes.end() ? 0 : found->second;
}

TEST(CommunicationPlanTest, RingOfTwoRanks_TakesAStepThereAndAStepBack) {
  const LinkTopology t = Cluster();
  const double mib = 1 << 20;
  EXPECT_NEAR(TimeNs(t, Nodes(1, 2), OpKind::kAllReduce, 1 << 20),
              kBase + 2 * kPortNs + mib / kPort, 1e-6);
  EXPECT_NEAR(TimeNs(t, Nodes(1, 2), OpKind::kAllGather, 1 << 20), kBase + kPortNs + mib / kPort,
              1e-6);
}

TEST(CommunicationPlanTest, RingOfEightRanks_SendsTwoTimesSevenEighthsOverEachPort) {
  const LinkTopology t = Cluster();
  const double s = 64 << 20;
  EXPECT_NEAR(TimeNs(t, Nodes(1, 8), OpKind::kAllReduce, 64 << 20),
              kBase + 14 * kPortNs + 2 * s * 7 / 8 / kPort, 1e-3);
  EXPECT_NEAR(TimeNs(t, Nodes(1, 8), OpKind::kReduceScatter, 64 << 20),
              kBase + 7 * kPortNs + 7 * s / kPort, 1e-3);
  EXPECT_NEAR(TimeNs(t, Nodes(1, 8), OpKind::kBroadcast, 64 << 20), kBase + 7 * kPortNs + s / kPort,
              1e-3);
  EXPECT_NEAR(TimeNs(t, Nodes(1, 8), OpKind::kAllToAll, 64 << 20), kBase + kPortNs + 7 * s / kPort,
              1e-3);
}

TEST(CommunicationPlanTest, RingOfTwoNodes_UsesEveryRailForAnEighth) {
  const LinkTopology t = Cluster();
  const double s = 1 << 30;
  const double rail_ns = 2 * s * 15 / 16 / 8 / kRail, port_ns = 2 * s * 15 / 16 / kPort;
  ASSERT_GT(port_ns, rail_ns);  // 8 x 40 bytes a nanosecond are more than 300
  const auto patterns = CollectivePatterns(t, Nodes(2, 8), OpKind::kAllReduce, 0);
  ASSERT_EQ(patterns.size(), 2u);
  EXPECT_NEAR(PlanOf(t, {patterns[0]}, 1 << 30).ns, kBase + 28 * kPortNs + 2 * kRailNs + port_ns,
              1);
  // Chains of eight put less on the ports, and so does the tree of two nodes on the rails.
  EXPECT_NEAR(TimeNs(t, Nodes(2, 8), OpKind::kAllReduce, 1 << 30),
              kBase + 14 * kPortNs + 2 * kRailNs + 2 * s * 7 / 8 / kPort, 1);
  const auto bytes = Bytes(t, patterns[0]);
  EXPECT_EQ(bytes.size(), 2 * 16 + 2 * 16u);
  for (uint32_t i = 0; i < 16; ++i) {
    EXPECT_NEAR(On(bytes, LinkKind::kPortOut, i), 2 * 15.0 / 16, 1e-12) << i;
    EXPECT_NEAR(On(bytes, LinkKind::kPortIn, i), 2 * 15.0 / 16, 1e-12) << i;
    EXPECT_NEAR(On(bytes, LinkKind::kRailOut, i), 2 * 15.0 / 16 / 8, 1e-12) << i;
    EXPECT_NEAR(On(bytes, LinkKind::kRailIn, i), 2 * 15.0 / 16 / 8, 1e-12) << i;
  }
}

TEST(CommunicationPlanTest, SmallAllReduceOverNodes_GoesByTheTree) {
  const LinkTopology t = Cluster();
  // Chains of eight, up and down, and between four nodes two levels.
  EXPECT_NEAR(TimeNs(t, Nodes(4, 8), OpKind::kAllReduce, 0),
              kBase + 2 * (7 * kPortNs + 2 * kRailNs), 1e-6);
  // The ring's latency: 31 steps each way, 3 of them between nodes.
  const double ring_ns = 2 * (28 * kPortNs + 3 * kRailNs);
  const auto patterns = CollectivePatterns(t, Nodes(4, 8), OpKind::kAllReduce, 0);
  EXPECT_NEAR(patterns[0].latency_ns, ring_ns, 1e-6);
  // One level between two nodes.
  EXPECT_NEAR(TimeNs(t, Nodes(2, 8), OpKind::kAllReduce, 0), kBase + 2 * (7 * kPortNs + kRailNs),
              1e-6);
}

TEST(CommunicationPlanTest, TreesOfFourNodes_HaveTheEdgesOfTheDoubleBinaryTree) {
  const LinkTopology t = Cluster();
  // One GPU a node, so one channel. First tree: 0 - 2, 2 - 1, 2 - 3; the second is its mirror
  // image: 3 - 1, 1 - 2, 1 - 0. Each edge carries half of the bytes both ways.
  const auto patterns = CollectivePatterns(t, Nodes(4, 1), OpKind::kAllReduce, 0);
  ASSERT_EQ(patterns.size(), 2u);
  const auto bytes = Bytes(t, patterns[1]);
  const double edges[] = {2, 4, 4, 2};
  for (uint32_t node = 0; node < 4; ++node) {
    EXPECT_NEAR(On(bytes, LinkKind::kRailOut, node * 8), edges[node] / 2, 1e-12) << node;
    EXPECT_NEAR(On(bytes, LinkKind::kRailIn, node * 8), edges[node] / 2, 1e-12) << node;
  }
  EXPECT_EQ(bytes.size(), 8u);
}

TEST(CommunicationPlanTest, GroupWithOneRankANode_UsesThatRanksRailOnly) {
  const LinkTopology t = Cluster();
  std::vector<Place> places;
  for (uint32_t node = 0; node < 4; ++node) places.push_back({node, 5});
  const double s = 1 << 20;
  EXPECT_NEAR(TimeNs(t, places, OpKind::kReduceScatter, 1 << 20),
              kBase + 3 * kRailNs + 3 * s / kRail, 1e-3);
  const auto bytes = Bytes(t, CollectivePatterns(t, places, OpKind::kReduceScatter, 0)[0]);
  EXPECT_EQ(bytes.size(), 8u);
  EXPECT_NEAR(On(bytes, LinkKind::kRailOut, 2 * 8 + 5), 3, 1e-12);
}

TEST(CommunicationPlanTest, RootsOfBroadcastAndReduce_ReceiveOrSendNothing) {
  const LinkTopology t = Cluster();
  const auto broadcast = Bytes(t, CollectivePatterns(t, Nodes(1, 4), OpKind::kBroadcast, 2)[0]);
  const auto reduce = Bytes(t, CollectivePatterns(t, Nodes(1, 4), OpKind::kReduce, 2)[0]);
  EXPECT_EQ(On(broadcast, LinkKind::kPortIn, 2), 0);
  EXPECT_NEAR(On(broadcast, LinkKind::kPortOut, 2), 1, 1e-12);
  EXPECT_EQ(On(broadcast, LinkKind::kPortOut, 1), 0);  // the chain 2 3 0 1 ends there
  EXPECT_EQ(On(reduce, LinkKind::kPortOut, 2), 0);
  EXPECT_NEAR(On(reduce, LinkKind::kPortIn, 2), 1, 1e-12);
  EXPECT_EQ(On(reduce, LinkKind::kPortIn, 3), 0);
}

TEST(CommunicationPlanTest, AllToAllOverNodes_EntersByTheReceiversRail) {
  const LinkTopology t = Cluster();
  const auto bytes = Bytes(t, CollectivePatterns(t, Nodes(2, 8), OpKind::kAllToAll, 0)[0]);
  // A rail carries what eight GPUs send to the one behind it. A port carries seven bytes to the
  // node's own, seven to GPUs at rails of others and, for others', seven arrive to be sent on.
  EXPECT_NEAR(On(bytes, LinkKind::kRailIn, 3), 8, 1e-12);
  EXPECT_NEAR(On(bytes, LinkKind::kRailOut, 3), 8, 1e-12);
  EXPECT_NEAR(On(bytes, LinkKind::kPortOut, 3), 14, 1e-12);
  EXPECT_NEAR(On(bytes, LinkKind::kPortIn, 3), 14, 1e-12);
  const double s = 1 << 20;
  EXPECT_NEAR(TimeNs(t, Nodes(2, 8), OpKind::kAllToAll, 1 << 20),
              kBase + kPortNs + kRailNs + 8 * s / kRail, 1e-3);
}

TEST(CommunicationPlanTest, MessageToAnotherLeaf_CrossesTheOversubscribedSpine) {
  LinkTopology t = Cluster(/*nodes_per_leaf=*/2);
  t.oversubscription = 4;  // a leaf's way up has half of a NIC's bandwidth
  const LinkPattern near = MessagePattern(t, {0, 3}, {1, 3});
  const LinkPattern far = MessagePattern(t, {0, 3}, {2, 3});
  EXPECT_NEAR(near.latency_ns, kRailNs, 1e-9);
  EXPECT_NEAR(near.ns_per_byte, 1 / kRail, 1e-12);
  EXPECT_NEAR(far.latency_ns, kRailNs + kSpineNs, 1e-9);
  EXPECT_NEAR(far.ns_per_byte, 2 / kRail, 1e-12);
  EXPECT_NEAR(On(Bytes(t, far), LinkKind::kLeafUp, 3), 1, 1e-12);
  EXPECT_NEAR(On(Bytes(t, far), LinkKind::kLeafDown, 8 + 3), 1, 1e-12);
}

TEST(CommunicationPlanTest, OfTwoProtocols_TheQuickerIsTaken) {
  LinkTopology t = Cluster();
  t.protocols = {{1, 2}, {5, 1}};
  const auto quick = [&](double s) { return kBase + 2 * kPortNs + 2 * s / kPort; };
  const auto dense = [&](double s) { return kBase + 10 * kPortNs + s / kPort; };
  const double even = 8 * kPortNs * kPort;
  EXPECT_NEAR(TimeNs(t, Nodes(1, 2), OpKind::kAllReduce, static_cast<uint64_t>(even / 2)),
              quick(even / 2), 1e-3);
  EXPECT_NEAR(TimeNs(t, Nodes(1, 2), OpKind::kAllReduce, static_cast<uint64_t>(even * 2)),
              dense(even * 2), 1e-3);
}

TEST(CommunicationPlanTest, SharesOfLinks_AreTheirBytesOverWhatTheyCouldCarryMeanwhile) {
  const LinkTopology t = Cluster();
  const uint64_t bytes = 1 << 20;
  const Plan plan = PlanOf(t, {MessagePattern(t, {0, 0}, {0, 1})}, bytes);
  ASSERT_EQ(plan.shares.size(), 2u);
  const double share = bytes / kPort / (kBase + kPortNs + bytes / kPort);
  for (const LinkShare& use : plan.shares) EXPECT_NEAR(use.share, share * kWholeLink, 2);
}

TEST(CommunicationPlanTest, SlowNic_HoldsUpTheRingThatUsesIt) {
  LinkTopology t = Cluster();
  t.slow = {{LinkKind::kRailOut, LinkKind::kRailIn, 1 * 8 + 2, 0.25}};
  const double s = 1 << 30;
  EXPECT_NEAR(TimeNs(t, Nodes(2, 8), OpKind::kAllGather, 1 << 30),
              kBase + 14 * kPortNs + kRailNs + 15 * s / 8 / (kRail / 4), 1);
}

TEST(CommunicationPlanTest, OneRank_TakesTheBaseOnly) {
  const LinkTopology t = Cluster();
  for (int kind = 0; kind <= static_cast<int>(OpKind::kScatter); ++kind)
    EXPECT_EQ(TimeNs(t, Nodes(1, 1), static_cast<OpKind>(kind), 1 << 20), kBase);
}

// What H200 nodes do, by nccl-tests' published figures: some 350 to 400 GB/s of bus bandwidth, in a
// node and with a 400 Gb/s NIC a GPU; some ten to thirty microseconds for the smallest.
TEST(CommunicationPlanTest, BuiltInTopology_IsLikeH200Nodes) {
  const LinkTopology t;
  const double s = 4.0 * (1 << 30);
  for (const uint32_t nodes : {1u, 2u, 16u}) {
    const double n = nodes * 8;
    const double ns = TimeNs(t, Nodes(nodes, 8), OpKind::kAllReduce, uint64_t{4} << 30);
    const double bus = 2 * (n - 1) / n * s / ns;
    EXPECT_GT(bus, 340) << nodes;
    EXPECT_LT(bus, 400) << nodes;
    const double small_ns = TimeNs(t, Nodes(nodes, 8), OpKind::kAllReduce, 8);
    EXPECT_GT(small_ns, 10'000) << nodes;
    EXPECT_LT(small_ns, 45'000) << nodes;
  }
}

class LinkTopologyTest : public ::testing::Test {
 protected:
  /// Returns what is wrong with the table, "" where it was read.
  std::string Read(const std::string& text) {
    const std::string path = ::testing::TempDir() + "/links-" + std::to_string(getpid()) + ".json";
    std::ofstream(path) << text;
    std::string error;
    topology_ = {};
    LinkTopology::Read(path, &topology_, &error);
    unlink(path.c_str());
    return error;
  }
  LinkTopology topology_;
};

TEST_F(LinkTopologyTest, Table_IsApplied) {
  EXPECT_EQ(Read(R"({"schema": 1, "gpus_per_node": 4, "base_ns": 1,
    "port": {"latency_ns": 2, "bytes_per_s": 1e9},
    "rail": {"nics_per_node": 2, "latency_ns": 3, "bytes_per_s": 2e9},
    "spine": {"nodes_per_leaf": 4, "latency_ns": 4, "oversubscription": 2},
    "protocols": [{"latency_factor": 2, "bytes_factor": 3}], "jitter": {"sigma": 0.1, "seed": 9},
    "slow": [{"node": 3, "rail": 1, "factor": 0.5}, {"node": 2, "gpu": 3, "factor": 0.25}]})"),
            "");
  EXPECT_EQ(topology_.RailOf(1), 0u);
  EXPECT_EQ(topology_.RailOf(2), 1u);
  EXPECT_EQ(topology_.BytesPerS(LinkNumber(LinkKind::kRailOut, 3 * 2 + 1)), 1e9);
  EXPECT_EQ(topology_.BytesPerS(LinkNumber(LinkKind::kRailOut, 3 * 2)), 2e9);
  EXPECT_EQ(topology_.BytesPerS(LinkNumber(LinkKind::kPortIn, 2 * 4 + 3)), 0.25e9);
  EXPECT_EQ(topology_.BytesPerS(LinkNumber(LinkKind::kLeafUp, 0)), 2e9 * 4 / 2);
}

TEST_F(LinkTopologyTest, WrongTable_IsRefusedWithTheKeyAndTheValue) {
  EXPECT_NE(Read(R"({"schema": 1, "ports": {}})").find("\"ports\""), std::string::npos);
  EXPECT_NE(Read(R"({"schema": 1, "rail": {"nics_per_node": 9}})").find("from 1 to 8"),
            std::string::npos);
  EXPECT_NE(Read(R"({"schema": 1, "slow": [{"node": 1, "factor": 0.5}]})").find("slow[0]"),
            std::string::npos);
  EXPECT_NE(Read(R"({"schema": 2})").find("schema"), std::string::npos);
  EXPECT_NE(Read("{").find("parse"), std::string::npos);
}

TEST_F(LinkTopologyTest, Digest_TellsTopologiesApart) {
  const uint64_t built_in = LinkTopology{}.Digest();
  ASSERT_EQ(Read(R"({"schema": 1})"), "");
  EXPECT_EQ(topology_.Digest(), built_in);
  ASSERT_EQ(Read(R"({"schema": 1, "slow": [{"node": 1, "rail": 0, "factor": 0.5}]})"), "");
  EXPECT_NE(topology_.Digest(), built_in);
}

class PlaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  static constexpr const char* kNames[] = {
      "GROUP_RANK",       "SLURM_NODEID", "LOCAL_WORLD_SIZE",     "OMPI_COMM_WORLD_LOCAL_SIZE",
      "HOSTCUDA_PROCESS", "RANK",         "OMPI_COMM_WORLD_RANK", "SLURM_PROCID",
      "PMI_RANK"};
  Place PlaceOf(uint32_t device) { return PlaceOfProcess(LinkTopology{}, device); }
};

TEST_F(PlaceTest, NodeIsTheLaunchers) {
  setenv("GROUP_RANK", "3", 1);
  setenv("LOCAL_WORLD_SIZE", "4", 1);
  setenv("RANK", "14", 1);
  EXPECT_EQ(PlaceOf(2), (Place{3, 2}));
}

TEST_F(PlaceTest, LauncherOfMoreRanksThanANodeHasGpus_PlaysSeveralNodes) {
  setenv("GROUP_RANK", "1", 1);
  setenv("LOCAL_WORLD_SIZE", "16", 1);
  EXPECT_EQ(PlaceOf(11), (Place{3, 3}));
}

TEST_F(PlaceTest, WithoutALaunchersNode_RanksFillNodes) {
  setenv("RANK", "9", 1);
  EXPECT_EQ(PlaceOf(1), (Place{1, 1}));
  EXPECT_EQ(PlaceOf(9), (Place{1, 1}));
}

TEST_F(PlaceTest, WithoutRank_DevicesFillNodes) { EXPECT_EQ(PlaceOf(17), (Place{2, 1})); }

}  // namespace
}  // namespace hostnccl
