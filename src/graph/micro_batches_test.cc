#include "src/graph/micro_batches.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/graph/testing/synthetic_job_test.h"

namespace prism::graph {
namespace {

using ::testing::HasSubstr;
using testing::JobKind;
using testing::SyntheticJob;

// The period that is found in a step of one launch a letter, and how often. Capital letters
// communicate, numbers are of ten kernels.
std::string Found(const std::string& step) {
  const std::vector<uint64_t> names(step.begin(), step.end());
  std::vector<uint32_t> kernels;
  for (const char c : step) kernels.push_back(c >= 'a' ? 1 : c <= '9' ? 10 : 0);
  const auto found = FindStepPeriod(names, kernels);
  if (!found.has_value()) return "";
  return step.substr(found->first, found->period) + " " + std::to_string(found->count);
}

TEST(FindStepPeriodTest, MicroBatchesNotLayers) {
  EXPECT_EQ(Found("sabababcddabababcddabababcddu"), "abababcdd 3");
  EXPECT_EQ(Found("aabbaabbaabb"), "aabb 3");
}

TEST(FindStepPeriodTest, TheLastMicroBatchMayReduceInBetween) {
  EXPECT_EQ(Found("abcdxyzwabcdxryrzrwu"), "abcdxyzw 2");
}

TEST(FindStepPeriodTest, SteadyStateOfAPipeline) {
  // Two forward passes ahead.
  EXPECT_EQ(Found("abcabcabcxyzabcxyzabcxyzabcxyzxyzxyzu"), "abcxyz 6");
}

TEST(FindStepPeriodTest, OneMicroBatchIsNone) {
  EXPECT_EQ(Found("eabababadxyxyxyxyu"), "");  // layers forward, layers backward
  EXPECT_EQ(Found("fCfCfCfCbCbCbCbC"), "");  // nor is a pipeline that is never in its steady state
  // Layers that are sharded: all of them gather and pack alike, but for what they compute.
  EXPECT_EQ(Found("sCp1Cp1Cp1Cp1Cp2Cp3rRCp3rRCp3rRCp3rR3rRu"), "");
  EXPECT_EQ(Found("abcdefgh"), "");
  EXPECT_EQ(Found(""), "");
}

using RepeatMicroBatchesTest = testing::SyntheticJobTest;

// Where a program's waits wait, without regard to how its slots are numbered.
std::vector<std::string> Described(const Program& program) {
  std::vector<std::string> place_of(program.slots, "nothing");
  for (size_t s = 0; s < program.sequences.size(); ++s) {
    for (size_t i = 0; i < program.sequences[s].ops.size(); ++i) {
      const uint32_t slot = program.sequences[s].ops[i].slot;
      if (slot != kNone) place_of[slot] = std::to_string(s) + "#" + std::to_string(i);
    }
  }
  std::vector<std::string> lines;
  for (size_t s = 0; s < program.sequences.size(); ++s) {
    for (const Op& op : program.sequences[s].ops) {
      std::string line = std::to_string(s) + ": " + std::to_string(static_cast<int>(op.kind)) +
                         " " + std::to_string(op.detail);
      // Of what waits, `b` is left from its trace.
      if (op.kind != OpKind::kWait) line += " " + std::to_string(op.b);
      if (op.kind == OpKind::kSpan) {
        for (const uint32_t k : program.spans[op.a].kernels) line += " " + program.kernels[k].name;
      } else if (op.kind == OpKind::kComm) {
        line += " " + std::string(CommOpName(program.calls[op.a].op)) + " of " +
                std::to_string(program.calls[op.a].participant);
      } else if (op.kind == OpKind::kWait) {
        line += " for " + place_of[op.a];
      } else if (op.kind == OpKind::kEnqueue || op.kind == OpKind::kEnqueueLast) {
        line += " on " + std::to_string(op.a);
      }
      lines.push_back(line);
    }
  }
  return lines;
}

TEST_F(RepeatMicroBatchesTest, IsTheJobWithMoreOfThem) {
  for (const uint32_t stages : {1, 2, 4}) {
    for (const uint32_t micro_batches : {6, 7}) {
      SyntheticJob job{.kind = JobKind::kHybrid,
                       .world = stages * 4,
                       .steps = 3,
                       .layers = 2,
                       .micro_batches = micro_batches,
                       .tensor = 2,
                       .data = 2};
      Graph graph = Load(job);
      absl::StatusOr<Steps> steps = DetectSteps(&graph);
      ASSERT_TRUE(steps.ok()) << steps.status();
      const auto found = RepeatMicroBatches(3, &graph, &*steps);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->fewest, micro_batches);
      EXPECT_EQ(found->most, micro_batches);

      job.micro_batches *= 3;
      Graph truth = Load(job);
      ASSERT_EQ(graph.ranks.size(), truth.ranks.size());
      EXPECT_EQ(graph.ops, truth.ops);
      for (size_t r = 0; r < graph.ranks.size(); ++r) {
        const std::vector<std::string> is = Described(graph.program_of(graph.ranks[r])),
                                       should = Described(truth.program_of(truth.ranks[r]));
        ASSERT_EQ(is.size(), should.size()) << stages << " stages, rank " << r;
        for (size_t i = 0; i < is.size(); ++i)
          ASSERT_EQ(is[i], should[i]) << stages << " stages, rank " << r << ", line " << i;
      }
      // Steps end where they are found in that job.
      const absl::StatusOr<Steps> true_steps = DetectSteps(&truth);
      ASSERT_TRUE(true_steps.ok()) << true_steps.status();
      for (size_t r = 0; r < graph.ranks.size(); ++r) {
        const std::vector<Place>& ends = steps->ends[graph.ranks[r].program];
        const std::vector<Place>& true_ends = true_steps->ends[truth.ranks[r].program];
        ASSERT_EQ(ends.size(), true_ends.size());
        for (size_t k = 0; k < ends.size(); ++k) {
          EXPECT_EQ(ends[k].sequence, true_ends[k].sequence);
          EXPECT_EQ(ends[k].op, true_ends[k].op);
        }
      }
    }
  }
}

TEST_F(RepeatMicroBatchesTest, WhatCannotBeToldApartIsRefused) {
  for (const SyntheticJob& job :
       {SyntheticJob{
            .kind = JobKind::kHybrid, .world = 4, .micro_batches = 1, .tensor = 2, .data = 2},
        SyntheticJob{.kind = JobKind::kDataParallel},
        // One pass of each kind in the steady state of the first stage.
        SyntheticJob{.kind = JobKind::kPipeline, .world = 4, .micro_batches = 4}}) {
    Graph graph = Load(job);
    absl::StatusOr<Steps> steps = DetectSteps(&graph);
    ASSERT_TRUE(steps.ok()) << steps.status();
    const auto found = RepeatMicroBatches(2, &graph, &*steps);
    ASSERT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(found.status().message()), HasSubstr("cannot be told apart"));
  }
}

}  // namespace
}  // namespace prism::graph
