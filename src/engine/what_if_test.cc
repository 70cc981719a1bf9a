#include "src/engine/what_if.h"

#include <stdlib.h>

#include <filesystem>
#include <string>

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
  const auto kernel = ParseWhatIf("kernel:a:b=c=1.5");
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ(kernel->kernel, "a:b=c");
}

TEST(WhatIfTest, BadFormsAreExplained) {
  for (const auto& [text, why] : {std::pair("rank:3", "is not WHAT:WHICH=FACTOR"),
                                  {"rank=3:1", "is not WHAT:WHICH=FACTOR"},
                                  {"gpu:3=2", "'gpu' is nothing that can be changed"},
                                  {"rank:x=2", "'x' is not a number"},
                                  {"rank:-1=2", "'-1' is not a number"},
                                  {"nic:3=2", "'3' is not NODE.NIC"},
                                  {"kernel:=2", "no name is given"},
                                  {"rank:3=0", "the factor is a number"},
                                  {"rank:3=nan", "the factor is a number"},
                                  {"rank:3=1e9", "the factor is a number"}}) {
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
    Durations durations = model.DurationsOf(graph_);
    if (!what_if.empty()) {
      PRISM_ASSIGN_OR_RETURN(const WhatIf parsed, ParseWhatIf(what_if));
      PRISM_RETURN_IF_ERROR(Apply(parsed, graph_, model, &durations));
    }
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
