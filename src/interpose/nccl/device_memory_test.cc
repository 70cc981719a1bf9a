// Against two H200s (bench/results/h200/figures-*.json.gz): what programs took beside PyTorch's
// allocator. Programs differ in the modules that they load, so differences between programs are
// compared, which the model's one fitted constant does not enter; then sums.
#include "src/interpose/nccl/device_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

namespace prism::interpose::nccl {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

DeviceMemory Member(uint32_t rank, uint32_t size, uint32_t per_node, uint32_t stride = 1,
                    const DeviceMemory::Settings& settings = {}) {
  std::vector<uint32_t> ranks(size);
  for (uint32_t i = 0; i < size; ++i) ranks[i] = i * stride;
  return {ranks, per_node, rank, settings};
}

int64_t Mib(uint64_t bytes) {
  EXPECT_EQ(bytes % (2 * kMib), 0u);
  return static_cast<int64_t>(bytes) / kMib;
}

struct TwoRanks {
  DeviceMemory first = Member(0, 2, 8), second = Member(1, 2, 8);
  int64_t both(wire::Op op, int peer) {
    const int64_t bytes = Mib(first.Connect(op, peer < 0 ? -1 : 1));
    EXPECT_EQ(Mib(second.Connect(op, peer < 0 ? -1 : 0)), bytes);
    return bytes;
  }
};

// device_bytes_used - max_memory_reserved.
constexpr int64_t kDdp = 1691222016, kDtensor0 = 1800273920, kDtensor1 = 2068709376,
                  kPipeline = 1833828352, kTensor0 = 1821310976, kMoe0 = 2156855296,
                  kMlpAlone = 787349504;

TEST(DeviceMemoryTest, ScatterTakesWhatTheReceivingRankTookMoreOnTwoH200s) {
  // DTensor distributes its parameters by a scatter from rank 0.
  TwoRanks ranks;
  const int64_t sends = Mib(ranks.first.Connect(wire::Op::kScatter, 0));
  const int64_t receives = Mib(ranks.second.Connect(wire::Op::kScatter, 0));
  EXPECT_EQ((receives - sends) * kMib, kDtensor1 - kDtensor0);
}

TEST(DeviceMemoryTest, PipelineAgainstDTensorOnTwoH200s) {
  // Pipeline: sends and receives between the two, no collective. DTensor, rank 0: rings, a scatter.
  TwoRanks pipeline, dtensor;
  const int64_t p2p = pipeline.both(wire::Op::kSend, 0) + pipeline.both(wire::Op::kRecv, 0);
  const int64_t rings = Mib(dtensor.first.Connect(wire::Op::kAllGather, -1)) +
                        Mib(dtensor.first.Connect(wire::Op::kScatter, 0));
  EXPECT_EQ((p2p - rings) * kMib, kPipeline - kDtensor0);
}

TEST(DeviceMemoryTest, ExpertAgainstTensorParallelOnTwoH200s) {
  TwoRanks expert, tensor;
  const int64_t all = expert.both(wire::Op::kAllReduce, -1) + expert.both(wire::Op::kAllToAll, -1);
  const int64_t rings = Mib(tensor.first.Connect(wire::Op::kAllReduce, -1)) +
                        Mib(tensor.first.Connect(wire::Op::kScatter, 0));
  EXPECT_EQ((all - rings) * kMib, kMoe0 - kTensor0);
}

TEST(DeviceMemoryTest, DataParallelAgainstOneDevice) {
  TwoRanks ranks;
  const int64_t bytes =
      static_cast<int64_t>(DeviceMemory::kKernelBytes + ranks.first.communicator_bytes() +
                           ranks.first.Connect(wire::Op::kAllReduce, -1));
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(kDdp - kMlpAlone), 2.0 * kMib);
}

TEST(DeviceMemoryTest, ChannelsAreThoseOfNcclsLogs) {
  // "24 coll channels, ... 32 p2p channels, 32 p2p channels per peer": 2 and 8 GPUs of a node.
  for (const uint32_t size : {2u, 8u}) {
    const DeviceMemory node = Member(0, size, 8);
    EXPECT_EQ(node.channels(), 24);
    EXPECT_EQ(node.point_to_point_channels(), 32);
    EXPECT_EQ(node.channels_per_peer(), 32);
  }
  // "16 coll channels, ... 16 p2p channels, 2 p2p channels per peer": 2 nodes of 8.
  const DeviceMemory nodes = Member(0, 16, 8);
  EXPECT_EQ(nodes.nodes(), 2);
  EXPECT_EQ(nodes.channels(), 16);
  EXPECT_EQ(nodes.point_to_point_channels(), 16);
  EXPECT_EQ(nodes.channels_per_peer(), 2);
  EXPECT_EQ(Member(0, 128, 8).channels_per_peer(), 1);
  // One GPU of each node.
  const DeviceMemory across = Member(0, 16, 8, /*stride=*/8);
  EXPECT_EQ(across.nodes(), 16);
  EXPECT_EQ(across.ranks_per_node(), 1);
  EXPECT_EQ(across.channels(), 4);
}

TEST(DeviceMemoryTest, ConnectionsAreMadeOnce) {
  DeviceMemory member = Member(3, 8, 8);
  EXPECT_EQ(Mib(member.Connect(wire::Op::kAllGather, -1)), 24 * 12);
  EXPECT_EQ(member.Connect(wire::Op::kReduceScatter, -1), 0u);
  EXPECT_EQ(member.Connect(wire::Op::kAllReduce, -1), 0u);
  EXPECT_EQ(Mib(member.Connect(wire::Op::kSend, 5)), 32 * 2);
  EXPECT_EQ(member.Connect(wire::Op::kSend, 5), 0u);
  EXPECT_EQ(Mib(member.Connect(wire::Op::kRecv, 5)), 32 * 10);
  EXPECT_EQ(Mib(member.Connect(wire::Op::kAllToAll, -1)), 6 * 32 * 12);
  EXPECT_EQ(member.Connect(wire::Op::kGather, 3), 0u);
  EXPECT_EQ(member.Connect(wire::Op::kSend, 3), 0u);  // to itself
}

TEST(DeviceMemoryTest, BetweenNodes) {
  DeviceMemory member = Member(1, 16, 8);
  // Rings: 2 of 16 channels enter and leave the node here.
  EXPECT_EQ(Mib(member.Connect(wire::Op::kAllGather, -1)), 2 * 20 + 14 * 12);
  // Trees: 7 of 8 ranks of a chain have a way back; 16 edges between the nodes, 2 ends here.
  EXPECT_EQ(Mib(member.Connect(wire::Op::kAllReduce, -1)), 14 * 12 + 2 * 20);
  // All peers of another node share a pool: 16 channels, 16 steps, 128 KiB.
  EXPECT_EQ(Mib(member.Connect(wire::Op::kSend, 9)), 32);
  EXPECT_EQ(member.Connect(wire::Op::kSend, 10), 0u);
  EXPECT_EQ(Mib(member.Connect(wire::Op::kSend, 2)), 2 * 2);
}

TEST(DeviceMemoryTest, TablesGrowWithTheCommunicator) {
  EXPECT_EQ(Mib(Member(0, 2, 8).communicator_bytes()), 32 * 6 + 4);
  // 608 x 8,192 bytes a channel: 4.75 MiB, rounded to 6.
  EXPECT_EQ(Mib(Member(0, 8192, 8).communicator_bytes()), 16 * (6 + 2 + 2) + 4);
}

TEST(DeviceMemoryTest, SettingsComeFromTheEnvironment) {
  setenv("NCCL_BUFFSIZE", "8388608", 1);
  setenv("NCCL_MAX_NCHANNELS", "8", 1);
  setenv("NCCL_LL128_BUFFSIZE", "many", 1);  // ignored, as NCCL does
  const auto settings = DeviceMemory::Settings::FromEnvironment();
  unsetenv("NCCL_BUFFSIZE");
  unsetenv("NCCL_MAX_NCHANNELS");
  unsetenv("NCCL_LL128_BUFFSIZE");
  DeviceMemory member = Member(0, 2, 8, 1, settings);
  EXPECT_EQ(member.channels(), 8);
  EXPECT_EQ(Mib(member.Connect(wire::Op::kAllReduce, -1)), 8 * (14 + 2));
}

TEST(DeviceMemoryTest, AloneNothingIsConnected) {
  DeviceMemory member = Member(0, 1, 8);
  EXPECT_EQ(member.Connect(wire::Op::kAllReduce, -1), 0u);
  EXPECT_EQ(member.Connect(wire::Op::kAllToAll, -1), 0u);
}

}  // namespace
}  // namespace prism::interpose::nccl
