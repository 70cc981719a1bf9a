#include "src/engine/critical_path.h"

#include <stdlib.h>

#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "src/graph/testing/synthetic.h"

namespace prism::engine {
namespace {

using graph::Graph;
using graph::Op;
using graph::OpKind;
using graph::testing::JobKind;

class CriticalPathTest : public ::testing::TestWithParam<JobKind> {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/critical_path_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
    ASSERT_EQ(graph::testing::WriteJob(directory_, {.kind = GetParam(), .world = 4, .steps = 3}),
              0);
    absl::StatusOr<Graph> graph = graph::LoadJob(directory_);
    ASSERT_TRUE(graph.ok()) << graph.status();
    graph_ = *std::move(graph);
    // Odd numbers, so that few sums are equal.
    std::mt19937 random(7);
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    for (const graph::Program& p : graph_.programs) {
      std::vector<SpanTime> spans;
      for (size_t i = 0; i < p.spans.size(); ++i) {
        const int64_t ns = draw(1'000, 200'000);
        spans.push_back({ns, draw(1, ns), TimeSource::kModelled});
      }
      durations_.spans.push_back(spans);
    }
    for (const graph::Rank& r : graph_.ranks) {
      std::vector<CallTime> calls;
      for (size_t i = 0; i < graph_.program_of(r).calls.size(); ++i)
        calls.push_back({draw(1'000, 100'000), TimeSource::kModelled});
      durations_.calls.push_back(calls);
    }
    durations_.host = {
        .launch = 5'011, .communication = 9'013, .event = 1'009, .synchronize = 2'003};
    durations_.launch_latency_ns = 4'001;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Outcome Run() const {
    absl::StatusOr<Outcome> outcome = Evaluate(graph_, durations_, {.history = true});
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    return *std::move(outcome);
  }

  // To whatever ends last.
  static std::vector<PathStep> Longest(const Outcome& outcome, int64_t since_ns) {
    for (uint32_t r = 0; r < outcome.history.size(); ++r) {
      for (uint32_t s = 0; s < outcome.history[r].size(); ++s) {
        const std::vector<Completion>& ops = outcome.history[r][s];
        if (!ops.empty() && ops.back().end_ns == outcome.finish_ns)
          return CriticalPath(outcome.history, r, {s, static_cast<uint32_t>(ops.size() - 1)},
                              since_ns);
      }
    }
    return {};
  }

  const Op& OpOf(const PathStep& step) const {
    return graph_.program_of(graph_.ranks[step.rank])
        .sequences[step.place.sequence]
        .ops[step.place.op];
  }

  std::string directory_;
  Graph graph_;
  Durations durations_;
};

TEST_P(CriticalPathTest, PathHasNoGaps) {
  const Outcome outcome = Run();
  for (const int64_t since_ns : {int64_t{0}, outcome.finish_ns / 3}) {
    const std::vector<PathStep> path = Longest(outcome, since_ns);
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(path.front().begin_ns, since_ns);
    EXPECT_EQ(path.back().end_ns, outcome.finish_ns);
    for (size_t i = 1; i < path.size(); ++i) EXPECT_EQ(path[i].begin_ns, path[i - 1].end_ns);
  }
}

// What is on the path makes the end later by as much; what is not does not when it is shorter.
TEST_P(CriticalPathTest, DurationsOnThePathAreTheOnesThatMatter) {
  const Outcome outcome = Run();
  // How often each span is waited for in full: not where the host's last launch decides.
  std::map<std::pair<uint32_t, uint32_t>, int64_t> spans;
  std::set<std::pair<uint32_t, uint32_t>> touched;
  for (const PathStep& step : Longest(outcome, 0)) {
    const Op& op = OpOf(step);
    const uint32_t program = graph_.ranks[step.rank].program;
    if (op.kind == OpKind::kSpan) {
      touched.insert({program, op.a});
      if (step.end_ns - step.begin_ns >= durations_.spans[program][op.a].ns)
        ++spans[{program, op.a}];
    }
  }
  ASSERT_FALSE(touched.empty());
  for (const auto& [span, count] : spans) {
    int64_t& ns = durations_.spans[span.first][span.second].ns;
    ns += 1;
    EXPECT_EQ(Run().finish_ns, outcome.finish_ns + count);
    ns -= 1;
  }
  for (uint32_t p = 0; p < durations_.spans.size(); ++p) {
    for (uint32_t i = 0; i < durations_.spans[p].size(); ++i) {
      if (touched.count({p, i}) != 0) continue;
      const SpanTime saved = std::exchange(durations_.spans[p][i], {1, 1, TimeSource::kModelled});
      EXPECT_EQ(Run().finish_ns, outcome.finish_ns) << "span " << i << " of program " << p;
      durations_.spans[p][i] = saved;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, CriticalPathTest,
                         ::testing::Values(JobKind::kDataParallel, JobKind::kFullyShardedDP,
                                           JobKind::kPipeline, JobKind::kExpertParallel));

}  // namespace
}  // namespace prism::engine
