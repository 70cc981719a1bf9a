#include "src/engine/what_if.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"
#include "src/graph/testing/synthetic.h"

namespace prism::engine {
namespace {

using graph::Graph;
using ::testing::HasSubstr;

TEST(WhatIfTest, FormsAreRead) {
  const auto nic = ParseWhatIf("nic:1.3=0.5");
  ASSERT_TRUE(nic.ok()) << nic.status();
  EXPECT_EQ(nic->number, 1u);
  EXPECT_EQ(nic->nic, 3u);
  EXPECT_EQ(nic->Text(), "NIC 3 of node 1 has 0.5 times its bandwidth");
  const auto wide = ParseWhatIf("nic:1.3=24.5GB/s");
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->bytes_per_s, 24.5e9);
  EXPECT_EQ(wide->Text(), "NIC 3 of node 1 lets no more than 24.5 GB/s through");
  const auto kernel = ParseWhatIf("kernel:a:b=c=1.5");
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ(kernel->kernel, "a:b=c");
  const auto replicas = ParseWhatIf("replicas:2=3");
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  EXPECT_EQ(replicas->number, 2u);
  EXPECT_EQ(replicas->factor, 3);
  EXPECT_TRUE(replicas->changes_job());
  const auto failed = ParseWhatIf("failed:3.2");
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->number, 3u);
  EXPECT_EQ(failed->communicator, 2u);
  const auto micro_batches = ParseWhatIf("micro-batches=2");
  ASSERT_TRUE(micro_batches.ok()) << micro_batches.status();
  EXPECT_EQ(micro_batches->Text(), "steps have 2 times as many micro-batches");
}

TEST(WhatIfTest, BadFormsAreExplained) {
  for (const auto& [text, why] : {std::pair("rank:3", "is not WHAT:WHICH=FACTOR"),
                                  {"rank=3:1", "is not WHAT:WHICH=FACTOR"},
                                  {"gpu:3=2", "'gpu' is nothing that can be changed"},
                                  {"rank:x=2", "'x' is not a number"},
                                  {"rank:-1=2", "'-1' is not a number"},
                                  {"nic:3=2", "'3' is not NODE.NIC"},
                                  {"nic:1.0=0GB/s", "a bandwidth is a number"},
                                  {"nic:1.0=xGB/s", "a bandwidth is a number"},
                                  {"port:1=24GB/s", "the factor is a number"},
                                  {"kernel:=2", "no name is given"},
                                  {"rank:3=0", "the factor is a number"},
                                  {"rank:3=nan", "the factor is a number"},
                                  {"rank:3=1e9", "the factor is a number"},
                                  {"replicas=2", "is not WHAT:WHICH=FACTOR"},
                                  {"replicas:2=1.5", "the factor is a whole number"},
                                  {"replicas:2=1", "the factor is a whole number"},
                                  {"failed:3", "'3' is not RANK.COMMUNICATOR"},
                                  {"micro-batches:1=2", "is not WHAT=FACTOR"}}) {
    EXPECT_THAT(std::string(ParseWhatIf(text).status().message()), HasSubstr(why)) << text;
  }
}

class WhatIfJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/what_if_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
    // The host runs far ahead, and ranks wait for each other in every step.
    ASSERT_FALSE(graph::testing::WriteRecordedJob(
                     directory_, {.steps = 4,
                                  .host_ns = [](uint32_t, uint32_t) { return 1000; },
                                  .span_ns = [](uint32_t, uint32_t) { return 1'000'000; },
                                  .transfer_ns = [](uint32_t) { return 300'000; }})
                     .empty());
    absl::StatusOr<Graph> graph = graph::LoadJob(directory_);
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  absl::StatusOr<int64_t> Finish(const std::string& what_if) const {
    const CostModel model(*ParseTarget("h200x8"));
    std::vector<WhatIf> what_ifs;
    if (!what_if.empty()) {
      PRISM_ASSIGN_OR_RETURN(what_ifs.emplace_back(), ParseWhatIf(what_if));
    }
    PRISM_ASSIGN_OR_RETURN(const Durations durations, DurationsIf(what_ifs, graph_, model));
    PRISM_ASSIGN_OR_RETURN(const Outcome outcome, Evaluate(graph_, durations));
    return outcome.finish_ns;
  }
  // How much later the job ends.
  int64_t Later(const std::string& what_if) const { return *Finish(what_if) - *Finish(""); }

  std::string directory_;
  Graph graph_;
};

TEST_F(WhatIfJobTest, OneRankIsEnoughToMakeStepsLonger) {
  const int64_t optimizer = graph::testing::RecordedJob::kOptimizerNs;
  // Four steps, each with a span before the meeting and the optimizer behind it, which the next
  // step's span follows on the slow rank alone.
  EXPECT_EQ(Later("rank:1=1.3"), 4 * (300'000 + optimizer * 3 / 10));
  EXPECT_EQ(Later("rank:0=1.3"), Later("rank:1=1.3"));
  EXPECT_EQ(Later("rank:1=0.5"), 0);  // the other one is waited for
}

TEST_F(WhatIfJobTest, CommunicatorsAndKernels) {
  EXPECT_EQ(Later("communicator:1=2"), 4 * 300'000);
  const int64_t adam = Later("kernel:adam=2");
  EXPECT_EQ(adam, 4 * graph::testing::RecordedJob::kOptimizerNs);
}

TEST_F(WhatIfJobTest, HostWorkHidesBehindTheGpu) {
  // Only what the GPU waits for: the first launch, and after each synchronization.
  EXPECT_GT(Later("host:0=2"), 0);
  EXPECT_LE(Later("host:0=2"), 4 * 2 * 1000);
}

// A collective waits for its slowest link once, however many links are as slow.
TEST_F(WhatIfJobTest, BothEndsOfASlowerRail) {
  const graph::Call& call = graph_.programs[0].calls[0];
  NetworkProfile profile;
  profile.links = NetworkLinks{1000, {0}};
  for (uint64_t bytes = 64; bytes <= 1 << 30; bytes *= 2) {
    for (const auto& [op, nodes] : {std::pair{trace::CommOp::kSend, 1u},
                                    std::pair{trace::CommOp::kSend, 2u}, std::pair{call.op, 2u}}) {
      const double ns = 10'000 + static_cast<double>(bytes) * (nodes == 1 ? 0.01 : 0.04);
      NetworkEntry entry;
      entry.op = op;
      if (IsReduction(op)) entry.type = call.dtype;
      entry.ranks = 2;
      entry.nodes = nodes;
      entry.rails = nodes - 1;
      entry.bytes = bytes;
      entry.isolated = true;
      entry.median_ns = entry.p10_ns = entry.p90_ns = ns;
      entry.samples = 1;
      profile.entries.push_back(entry);
    }
  }
  const CostModel model(*ParseTarget("h200x1:2"), std::make_shared<const NetworkTable>(profile));
  const auto scale = [&](const std::vector<std::string>& texts) {
    std::vector<WhatIf> what_ifs;
    for (const std::string& text : texts) what_ifs.push_back(*ParseWhatIf(text));
    const Durations durations = *DurationsIf(what_ifs, graph_, model);
    EXPECT_GT(durations.calls[0][0].shares, 0u);
    EXPECT_EQ(durations.call_scale[0][0], durations.call_scale[1][0]);
    return durations.call_scale[0][0];
  };
  const double one = scale({"nic:0.0=0.5"});
  EXPECT_GT(one, 1.1);
  EXPECT_LE(one, 2);
  EXPECT_NEAR(scale({"nic:0.0=0.5", "nic:1.0=0.5"}), one, 1e-6);
  EXPECT_NEAR(scale({"nic:0.0=0.5", "nic:0.0=2"}), 1, 1e-6);
  // Messages reach 25 GB/s; what lets more through is not what limits them.
  EXPECT_NEAR(scale({"nic:0.0=12.5GB/s"}), one, 1e-6);
  EXPECT_NEAR(scale({"nic:0.0=50GB/s"}), 1, 1e-6);
}

TEST_F(WhatIfJobTest, MoreReplicasTakeMoreNodes) {
  Graph graph = graph_;
  Target target = *ParseTarget("h200x2");
  ASSERT_TRUE(ChangeReplicas(*ParseWhatIf("replicas:1=3"), &graph, &target).ok());
  EXPECT_EQ(graph.world, 6u);
  EXPECT_EQ(target.nodes, 3u);
  EXPECT_EQ(target.text, "h200x2:3");
  // Where there is room there are no more of them.
  ASSERT_TRUE(ChangeReplicas(*ParseWhatIf("failed:5.1"), &graph, &target).ok());
  EXPECT_EQ(graph.ranks.size(), 5u);
  EXPECT_EQ(target.nodes, 3u);
  const CostModel model(target);
  const Durations durations = model.DurationsOf(graph);
  const auto outcome = Evaluate(graph, durations);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  // What took 300 us on one node is not known of three; all else is as it was.
  const auto alone = Evaluate(graph_, CostModel(*ParseTarget("h200x2")).DurationsOf(graph_));
  const int64_t call_ns = durations.calls[0][0].ns;
  EXPECT_EQ(outcome->finish_ns - alone->finish_ns, 4 * (call_ns - 300'000));
}

TEST_F(WhatIfJobTest, WhatIsNotThereIsRefused) {
  EXPECT_THAT(std::string(Finish("rank:2=2").status().message()), HasSubstr("there is no rank 2"));
  EXPECT_THAT(std::string(Finish("communicator:9=2").status().message()),
              HasSubstr("communicator 9"));
  EXPECT_THAT(std::string(Finish("kernel:zzz=2").status().message()), HasSubstr("'zzz'"));
  EXPECT_THAT(std::string(Finish("port:0=2").status().message()),
              HasSubstr("nothing is known of the links"));
}

}  // namespace
}  // namespace prism::engine
