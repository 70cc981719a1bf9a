#include "src/engine/cost_model.h"

#include <cmath>
#include <fstream>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"
#include "src/engine/communication_cost.h"

namespace prism::engine {
namespace {

using graph::Kernel;
using ::testing::HasSubstr;
using trace::CommOp;
using trace::KernelKind;

Target H200(const char* text = "h200x8:2") { return *ParseTarget(text); }

Placement OnNode(uint32_t ranks) { return {ranks, 1, ranks}; }

TEST(TargetTest, ParsesGpuNodesAndSize) {
  const Target t = H200();
  EXPECT_EQ(t.gpu.name, "NVIDIA H200");
  EXPECT_EQ(t.gpus_per_node, 8u);
  EXPECT_EQ(t.nodes, 2u);
  EXPECT_EQ(t.gpus(), 16u);
  EXPECT_EQ(t.node_of(7), 0u);
  EXPECT_EQ(t.node_of(8), 1u);
  EXPECT_EQ(ParseTarget("a100")->nodes, 1u);
  EXPECT_EQ(ParseTarget("b200x4:3")->gpus(), 12u);
}

TEST(TargetTest, EveryBuiltInTableParses) {
  EXPECT_THAT(KnownGpus(), ::testing::ElementsAre("a100", "b200", "h100", "h200"));
  for (const std::string& name : KnownGpus()) EXPECT_TRUE(ParseTarget(name).ok()) << name;
}

TEST(TargetTest, BadTargetsAreExplained) {
  for (const char* text :
       {"", "h20", "h200x8:", "h200x8:0", "h200x8:-1", "h200xx", "h200:two", ":2"}) {
    const auto target = ParseTarget(text);
    EXPECT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(HintOf(target.status()), HasSubstr("h200x8:2")) << text;
  }
  EXPECT_THAT(ParseTarget("h20").status().ToString(), HasSubstr("did you mean \"h200\""));
}

TEST(TargetTest, TableOfTheUsersOwn) {
  const std::string path = ::testing::TempDir() + "/own_gpu.json";
  std::ofstream(path) << "{\"name\": \"x\"}";
  EXPECT_THAT(ParseTarget(path + "x4").status().ToString(), HasSubstr("memory_bytes"));
  std::remove(path.c_str());
}

// measured.md: NCCL all-reduce on two H200s, NVLink: 12.3 us at 4 KB, 14.4 at 1 MB, 76.6 at 16 MB,
// 900 at 256 MB.
TEST(CommunicationCostTest, FollowsTheMeasuredCurveOfTwoGpus) {
  const Gpu gpu = H200().gpu;
  const auto us = [&](uint64_t bytes) {
    return static_cast<double>(CollectiveNs(gpu, CommOp::kAllReduce, bytes, OnNode(2))) / 1e3;
  };
  EXPECT_NEAR(us(4 << 10), 12.3, 5);
  EXPECT_NEAR(us(1 << 20), 14.4, 3);
  EXPECT_NEAR(us(16 << 20), 76.6, 10);
  EXPECT_NEAR(us(256 << 20), 900, 40);
}

TEST(CommunicationCostTest, LargeRingsApproachTheBandwidthBound) {
  const Gpu gpu = H200().gpu;
  const double bytes = 4.0 * (uint64_t{1} << 30);
  for (uint32_t n : {2, 4, 8}) {
    const double bound = 2.0 * (n - 1) / n * bytes / gpu.link_bandwidth * 1e9;
    const auto ns = static_cast<double>(
        CollectiveNs(gpu, CommOp::kAllReduce, static_cast<uint64_t>(bytes), OnNode(n)));
    EXPECT_GT(ns, bound);
    EXPECT_LT(ns, bound * 1.01);
    const auto gather = static_cast<double>(
        CollectiveNs(gpu, CommOp::kAllGather, static_cast<uint64_t>(bytes / n), OnNode(n)));
    EXPECT_NEAR(gather, bound / 2, bound * 0.01);
  }
}

TEST(CommunicationCostTest, NetworkIsTheBottleneckAcrossNodes) {
  const Target t = H200();
  const uint64_t bytes = uint64_t{1} << 30;
  // One rank a node: 45 GB/s of its adapter, not the link's 300.
  const int64_t two =
      CollectiveNs(t.gpu, CommOp::kAllReduce, bytes, PlacementOf(t, std::vector<uint32_t>{0, 8}));
  EXPECT_NEAR(static_cast<double>(two), static_cast<double>(bytes) / 45e9 * 1e9, 1e6);
  // Eight adapters feed a ring of all sixteen.
  std::vector<uint32_t> all(16);
  std::iota(all.begin(), all.end(), 0);
  const Placement placement = PlacementOf(t, all);
  EXPECT_EQ(placement.nodes, 2u);
  EXPECT_EQ(placement.ranks_per_node, 8u);
  EXPECT_LT(CollectiveNs(t.gpu, CommOp::kAllReduce, bytes, placement), two);
}

TEST(CommunicationCostTest, TimeGrowsWithBytesAndRanks) {
  const Gpu gpu = H200().gpu;
  for (CommOp op : {CommOp::kAllReduce, CommOp::kReduce, CommOp::kBroadcast, CommOp::kAllGather,
                    CommOp::kReduceScatter, CommOp::kAllToAll, CommOp::kGather, CommOp::kScatter}) {
    int64_t before = 0;
    for (uint64_t bytes = 1024; bytes < (uint64_t{1} << 32); bytes *= 4) {
      const int64_t ns = CollectiveNs(gpu, op, bytes, OnNode(8));
      EXPECT_GE(ns, before);
      EXPECT_GE(ns, CollectiveNs(gpu, op, bytes, OnNode(4)));
      before = ns;
    }
  }
}

TEST(CommunicationCostTest, TreesWinForSmallMessagesOverManyNodes) {
  const Gpu gpu = H200().gpu;
  const int64_t ns = CollectiveNs(gpu, CommOp::kAllReduce, 1024, {1024, 128, 8});
  // A ring of 1,024 would pay 2 x 1,023 steps: more than a millisecond even by LL.
  EXPECT_LT(ns, 200'000);
}

Kernel Named(const char* name) { return {name, KernelKind::kKernel, {1, 1, 1}, {128, 1, 1}, 0, 0}; }

TEST(CostModelTest, ProductIsParsedFromItsName) {
  const Kernel kernel = Named("hostcublas_gemm_bf16_bf16_f32_tn_m4096_n1024_k512_b1");
  const auto work = ParseKernelWork(kernel);
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(work->flops, 2.0 * 4096 * 1024 * 512);
  EXPECT_EQ(work->bytes, 2.0 * (4096 * 512 + 512 * 1024 + 4096 * 1024));
  EXPECT_EQ(work->type, "bf16");
  const Kernel mixed_kernel =
      Named("hostcublasLt_matmul_e4m3xe5m2_bf16_f32_tn_m64_n32_k16_b3_epigelu");
  const auto mixed = ParseKernelWork(mixed_kernel);
  ASSERT_TRUE(mixed.has_value());
  EXPECT_EQ(mixed->type, "e4m3");
  EXPECT_EQ(mixed->bytes, 3.0 * (64 * 16 + 16 * 32 + 2 * 64 * 32));
  EXPECT_EQ(ParseKernelWork(Named("hostcublas_gemm_f32_f32_tf32_nn_m8_n8_k8_b1"))->type, "tf32");
}

TEST(CostModelTest, OtherLibraryKernelsAreParsed) {
  const auto conv =
      ParseKernelWork(Named("hostcudnn_convfwd_f16_f32_n8_c64_k128_in56x56_ker3x3_out56x56_g1"));
  ASSERT_TRUE(conv.has_value());
  EXPECT_EQ(conv->flops, 2.0 * 8 * 128 * 64 * 9 * 56 * 56);
  const auto sdpa =
      ParseKernelWork(Named("hostcudnn_sdpafwd_bf16_b2_h16_hkv4_sq4096_skv4096_d128_dv128"));
  ASSERT_TRUE(sdpa.has_value());
  EXPECT_EQ(sdpa->flops, 4.0 * 2 * 16 * 4096 * 4096 * 128);
  EXPECT_EQ(ParseKernelWork(Named("hostcublas_gemmgrouped_bf16_bf16_f32_g8_flops1000000_bytes2000"))
                ->flops,
            1e6);
  EXPECT_FALSE(ParseKernelWork(Named("void at::native::reduce_kernel<512, 1>()")).has_value());
  EXPECT_FALSE(ParseKernelWork(Named("hostcublas_gemm")).has_value());
  EXPECT_FALSE(ParseKernelWork(Named("")).has_value());
}

TEST(CostModelTest, LargeProductRunsAtTheStatedShareOfThePeak) {
  const CostModel model(H200());
  const KernelTime t =
      model.TimeOf(Named("hostcublas_gemm_bf16_bf16_f32_tn_m16896_n16384_k8192_b1"));
  EXPECT_EQ(t.source, TimeSource::kModelled);
  const double flops = 2.0 * 16896 * 16384 * 8192;
  EXPECT_NEAR(flops / static_cast<double>(t.ns) / 1e3, 989 * model.target().gpu.gemm_efficiency,
              10);
}

TEST(CostModelTest, SmallProductDoesNotFillTheGpu) {
  const CostModel model(H200());
  const auto one_tile = model.TimeOf(Named("hostcublas_gemm_bf16_bf16_f32_tn_m128_n128_k1024_b1"));
  EXPECT_GE(one_tile.ns, model.target().gpu.kernel_floor_ns);
  const auto wave = model.TimeOf(Named("hostcublas_gemm_bf16_bf16_f32_tn_m16896_n1024_k65536_b1"));
  const auto wave_and_one =
      model.TimeOf(Named("hostcublas_gemm_bf16_bf16_f32_tn_m17024_n1024_k65536_b1"));
  EXPECT_NEAR(static_cast<double>(wave_and_one.ns) / static_cast<double>(wave.ns), 9.0 / 8, 0.01);
}

TEST(CostModelTest, ElementwiseAndUnknownKernelsAreAssumed) {
  const CostModel model(H200());
  Kernel add = Named(
      "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
      "addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_");
  add.grid[0] = 1 << 20;
  const KernelTime t = model.TimeOf(add);
  EXPECT_EQ(t.source, TimeSource::kAssumed);
  const double bytes = 128.0 * (1 << 20) * 3 * 2 * 8;
  EXPECT_NEAR(static_cast<double>(t.ns), bytes / (4.8e12 * 0.85) * 1e9, 10);
  EXPECT_EQ(model.TimeOf(Named("triton_poi_fused_0")).source, TimeSource::kAssumed);
}

TEST(CostModelTest, CopiesTakeTheirBandwidth) {
  const CostModel model(H200());
  const Kernel copy{"HtoD", KernelKind::kCopy, {0, 0, 0}, {0, 0, 0}, 0, 53'000'000};
  EXPECT_EQ(model.TimeOf(copy).ns, 1'000'000 + model.target().gpu.copy_floor_ns);
  EXPECT_EQ(model.TimeOf(copy).source, TimeSource::kModelled);
}

}  // namespace
}  // namespace prism::engine
