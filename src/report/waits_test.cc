#include "src/report/waits.h"

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/graph/testing/synthetic.h"

namespace prism::report {
namespace {

using graph::testing::RecordedJob;
using graph::testing::SyntheticJob;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kHostNs = 50'000, kSpanNs = 1'000'000, kTransferNs = 100'000;

class WaitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/waits_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Four ranks, eight steps, all alike.
  static RecordedJob Even() {
    RecordedJob job;
    job.world = 4;
    job.host_ns = [](uint32_t, uint32_t) { return kHostNs; };
    job.span_ns = [](uint32_t, uint32_t) { return kSpanNs; };
    job.transfer_ns = [](uint32_t) { return kTransferNs; };
    return job;
  }

  Waits WaitsOf(const RecordedJob& job) {
    EXPECT_THAT(graph::testing::WriteRecordedJob(directory_, job), SizeIs(job.steps));
    return Analyze();
  }

  Waits Analyze() {
    auto graph = graph::LoadJob(directory_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    auto target = engine::ParseTarget("h200x8");
    EXPECT_TRUE(target.ok()) << target.status();
    auto waits = AnalyzeWaits(&*graph, {.target = *target});
    EXPECT_TRUE(waits.ok()) << waits.status();
    return *std::move(waits);
  }

  std::string directory_;
};

TEST_F(WaitsTest, EqualRanksWaitForNobody) {
  const Waits waits = WaitsOf(Even());
  EXPECT_EQ(waits.unknown_because, "");
  EXPECT_GT(waits.steps, 4u);
  EXPECT_THAT(waits.rows, IsEmpty());
  EXPECT_THAT(waits.stragglers, IsEmpty());
}

TEST_F(WaitsTest, RankWithSlowerKernelsIsNamedWithTheFactor) {
  RecordedJob job = Even();
  job.span_ns = [](uint32_t rank, uint32_t) { return rank == 2 ? kSpanNs * 13 / 10 : kSpanNs; };
  const Waits waits = WaitsOf(job);
  ASSERT_THAT(waits.stragglers, SizeIs(1));
  const Straggler& straggler = waits.stragglers[0];
  EXPECT_EQ(straggler.rank, 2u);
  EXPECT_EQ(straggler.cause, Cause::kCompute);
  EXPECT_EQ(straggler.wait_ns, kSpanNs * 3 / 10);
  EXPECT_EQ(straggler.steps, waits.steps);
  const double own = kSpanNs + RecordedJob::kOptimizerNs;
  EXPECT_NEAR(straggler.time, (own + 0.3 * kSpanNs) / own, 1e-9);
  EXPECT_EQ(straggler.work, 1);
  EXPECT_THAT(straggler.peers, ElementsAre(0, 1, 3));
  const WaitRow& row = waits.rows[straggler.row];
  EXPECT_THAT(row.waiting, ElementsAre(0, 1, 3));
  EXPECT_EQ(row.operation, "AllReduce");
  EXPECT_EQ(row.calls, waits.steps);
  EXPECT_EQ(row.first_call, job.steps - waits.steps + 1);
  EXPECT_THAT(waits.Text(), HasSubstr("straggler: rank 2: others wait 0.3 ms a step for it"));
  EXPECT_EQ(
      straggler.Why(),
      "its kernels take 1.30 times as long as on ranks 0-1, 3, for 1.00 times the work (0.3 ms)");
}

TEST_F(WaitsTest, RankWhoseHostIsSlowIsNamedAsThat) {
  RecordedJob job = Even();
  job.host_ns = [](uint32_t rank, uint32_t) { return rank == 1 ? kHostNs + 400'000 : kHostNs; };
  const Waits waits = WaitsOf(job);
  ASSERT_THAT(waits.stragglers, SizeIs(1));
  EXPECT_EQ(waits.stragglers[0].rank, 1u);
  EXPECT_EQ(waits.stragglers[0].cause, Cause::kHost);
  EXPECT_EQ(waits.stragglers[0].wait_ns, 400'000);
}

TEST_F(WaitsTest, HostThatRunsAheadOfItsStreamHidesItsTime) {
  RecordedJob job = Even();
  job.synchronize = false;
  job.host_ns = [](uint32_t rank, uint32_t) { return rank == 1 ? kHostNs + 400'000 : kHostNs; };
  EXPECT_THAT(WaitsOf(job).stragglers, IsEmpty());
}

TEST_F(WaitsTest, WhoIsLateNowAndThenIsNoStraggler) {
  RecordedJob job = Even();
  job.span_ns = [](uint32_t rank, uint32_t step) {
    return step % 4 == rank ? kSpanNs * 13 / 10 : kSpanNs;
  };
  const Waits waits = WaitsOf(job);
  EXPECT_THAT(waits.stragglers, IsEmpty());
  EXPECT_THAT(waits.rows, SizeIs(4));
  int64_t wait_ns = 0;
  for (const WaitRow& row : waits.rows) wait_ns += row.wait_ns;
  EXPECT_EQ(wait_ns, static_cast<int64_t>(waits.steps) * kSpanNs * 3 / 10);
}

TEST_F(WaitsTest, TwoThatAreLateTogetherAreBothNamed) {
  RecordedJob job = Even();
  job.span_ns = [](uint32_t rank, uint32_t) { return rank >= 2 ? kSpanNs * 13 / 10 : kSpanNs; };
  const Waits waits = WaitsOf(job);
  ASSERT_THAT(waits.stragglers, SizeIs(2));
  EXPECT_EQ(waits.stragglers[0].rank + waits.stragglers[1].rank, 5u);
  for (const Straggler& straggler : waits.stragglers)
    EXPECT_EQ(straggler.wait_ns, kSpanNs * 3 / 10);
}

TEST_F(WaitsTest, NothingIsSaidOfAJobWithoutTimes) {
  ASSERT_EQ(graph::testing::WriteJob(directory_, SyntheticJob{}), 0);
  const Waits waits = Analyze();
  EXPECT_THAT(waits.unknown_because, HasSubstr("no times"));
  EXPECT_THAT(waits.rows, IsEmpty());
}

}  // namespace
}  // namespace prism::report
