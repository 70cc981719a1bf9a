#include "src/graph/step.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"
#include "src/graph/testing/synthetic.h"
#include "src/trace/writer.h"

namespace prism::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::JobKind;
using testing::SyntheticJob;

// One token a letter; capital letters contain the optimizer.
std::vector<Token> Word(const std::string& text) {
  std::vector<Token> tokens;
  for (char c : text) {
    Token t;
    t.span = static_cast<uint64_t>(c);
    t.optimizer = c >= 'A' && c <= 'Z';
    tokens.push_back(t);
  }
  return tokens;
}

std::string Found(const std::string& text) {
  const std::vector<Token> tokens = Word(text);
  const auto r = FindRepetition(tokens);
  return r.has_value() ? text.substr(r->first, r->period) : "";
}

TEST(FindRepetitionTest, ShortestPeriodAfterAWarmUp) {
  EXPECT_EQ(Found("xyabcabcabc"), "abc");
  EXPECT_EQ(Found("aaaa"), "a");
  EXPECT_EQ(Found("abcd"), "");
  EXPECT_EQ(Found(""), "");
}

TEST(FindRepetitionTest, PlainTensorParallelismIsToldByWhatHappensOnce) {
  EXPECT_EQ(Found("aaaaaabaaaaaabaaaaaab"), "aaaaaab");
}

TEST(FindRepetitionTest, MicroBatchesAreNotSteps) {
  EXPECT_EQ(Found("fbfbfbfbOfbfbfbfbO"), "fbfbfbfbO");
  EXPECT_EQ(Found("fbfbfbfbofbfbfbfbo"), "fbfbfbfbo");
}

TEST(FindRepetitionTest, RegularEvaluationIsNotPartOfTheStep) {
  EXPECT_EQ(Found("abOabOabOeeabOabOabOeeabOabOabOee"), "abO");
}

TEST(FindRepetitionTest, LayersAreNotStepsWhereStepsDiffer) {
  EXPECT_EQ(Found("lllllxOlllllyOlllllzO"), "");
  EXPECT_EQ(Found("ijklmnopqrstuvwxyzabOabOabO"), "abO");  // a long beginning does not count
}

TEST(FindRepetitionTest, WhatEndsTheRunDoesNotMatter) { EXPECT_EQ(Found("wabOabOabOzz"), "abO"); }

// The definition, by trying everything.
std::optional<Repetition> BruteForce(const std::vector<Token>& tokens) {
  std::optional<Repetition> best;
  for (size_t p = 1; 2 * p <= tokens.size(); ++p) {
    for (size_t first = 0; first + 2 * p <= tokens.size(); ++first) {
      size_t length = p;
      while (first + length < tokens.size() && tokens[first + length] == tokens[first + length - p])
        ++length;
      if (length < 2 * p) continue;
      if (first > 0 && tokens[first - 1] == tokens[first - 1 + p]) continue;  // not the longest
      std::map<uint64_t, int> count;
      for (size_t i = first; i < first + p; ++i) ++count[tokens[i].span];
      if (std::none_of(count.begin(), count.end(), [](const auto& c) { return c.second == 1; }))
        continue;
      if (!best.has_value() || length > best->length) best = Repetition{first, length, p};
    }
  }
  return best;
}

TEST(FindRepetitionTest, AgreesWithBruteForce) {
  std::mt19937_64 random(7);
  int repeating = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const auto letter = [&] { return static_cast<char>('a' + random() % 4); };
    for (uint64_t i = random() % 6; i > 0; --i) text += letter();
    std::string word;
    for (uint64_t i = 1 + random() % 6; i > 0; --i) word += letter();
    for (uint64_t i = random() % 5; i > 0; --i) text += word;
    for (uint64_t i = random() % 6; i > 0; --i) text += letter();
    const std::vector<Token> tokens = Word(text);
    const auto expected = BruteForce(tokens), actual = FindRepetition(tokens);
    ASSERT_EQ(actual.has_value(), expected.has_value()) << text;
    if (!expected.has_value()) continue;
    ++repeating;
    ASSERT_EQ(actual->period, expected->period) << text;
    ASSERT_EQ(actual->first, expected->first) << text;
    ASSERT_EQ(actual->length, expected->length) << text;
  }
  EXPECT_GT(repeating, 1000);
}

class StepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/step_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  absl::StatusOr<Steps> Detect(const SyntheticJob& job, const StepOptions& options = {}) {
    std::filesystem::remove_all(directory_ + "/trace");
    EXPECT_EQ(testing::WriteJob(directory_, job), 0);
    graph_ = *LoadJob(directory_);
    return DetectSteps(&graph_, options);
  }

  std::string directory_;
  Graph graph_;
};

TEST_F(StepTest, EveryKindOfJobHasItsSteps) {
  for (JobKind kind : {JobKind::kSingle, JobKind::kDataParallel, JobKind::kFullyShardedDP,
                       JobKind::kPipeline, JobKind::kExpertParallel, JobKind::kHybrid}) {
    const uint32_t world = kind == JobKind::kSingle ? 1 : 4;
    const auto steps = Detect({.kind = kind, .world = world, .steps = 5, .micro_batches = 8});
    ASSERT_TRUE(steps.ok()) << static_cast<int>(kind) << steps.status();
    EXPECT_EQ(steps->count(), 5u) << static_cast<int>(kind);
    EXPECT_THAT(steps->notes, ::testing::IsEmpty());
    for (size_t p = 0; p < graph_.programs.size(); ++p) {
      ASSERT_EQ(steps->ends[p].size(), 6u);
      for (const Place place : steps->ends[p]) {
        if (place.sequence == kNone) continue;
        EXPECT_NE(graph_.programs[p].sequences[place.sequence].ops[place.op].slot, kNone);
      }
    }
    std::filesystem::remove_all(directory_ + "/trace");
  }
}

TEST_F(StepTest, FirstStepMayDiffer) {
  const auto steps =
      Detect({.kind = JobKind::kFullyShardedDP, .world = 2, .steps = 4, .warm_up_kernels = 5});
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->count(), 4u);
}

TEST_F(StepTest, EvaluationIsAClassOfItsOwn) {
  const auto steps =
      Detect({.kind = JobKind::kDataParallel, .world = 2, .steps = 6, .evaluate_every = 2});
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_THAT(steps->classes, ElementsAre(0, 0, 1, 0, 0, 1, 0, 0));
  EXPECT_EQ(steps->class_names.size(), 2u);
}

TEST_F(StepTest, TwoStepsSufficeAndOneDoesNot) {
  EXPECT_EQ(Detect({.kind = JobKind::kFullyShardedDP, .world = 2, .steps = 2})->count(), 2u);
  const auto one = Detect({.kind = JobKind::kSingle, .world = 1, .steps = 1});
  EXPECT_EQ(one.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(HintOf(one.status()), HasSubstr("--step-mark"));
}

TEST_F(StepTest, CallsOfACommunicatorDelimitSteps) {
  const auto steps = Detect({.kind = JobKind::kDataParallel, .world = 2, .steps = 6, .layers = 4},
                            {.comm = 1, .every = 8});
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->count(), 2u);  // 24 all-reduces: ends after 8, 16, 24
  EXPECT_EQ(Detect({.world = 2}, {.comm = 9}).status().code(), absl::StatusCode::kNotFound);
}

// Routing by value: the number of kernels and of messages differs in every step.
TEST_F(StepTest, OptimizerDelimitsStepsThatDifferInEverything) {
  std::filesystem::create_directory(directory_ + "/trace");
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trace::Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, 2), 0);
    const uint32_t stream = w.AddStream(0, 0, "default"), one[3] = {1, 1, 1}, world[] = {0, 1};
    w.Communicator({1, 2, rank, 0, 0}, world);
    const auto launch = [&](const std::string& name) {
      w.Launch(stream, w.Kernel(trace::KernelKind::kKernel, name, one, one, 0, 0));
    };
    trace::CallRecord call{};
    call.comm = 1;
    call.peer = -1;
    call.group = 1;
    for (uint32_t step = 0; step < 5; ++step) {
      for (uint32_t expert = 0; expert < 2 + step % 3 + rank * step; ++expert) launch("expert");
      call.count = 10 + step * step;
      w.Comm(stream, w.Call(call), step, trace::ValueSource::kExact);
      launch("multi_tensor_apply_adam");
      w.SyncStream(stream);
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  graph_ = *LoadJob(directory_);
  const auto steps = DetectSteps(&graph_);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->method, Steps::Method::kOptimizer);
  EXPECT_EQ(steps->count(),
            3u);  // between four ends: the optimizer's last run has no communication after it
}

// What doubling the micro-batch until memory runs out leaves: two steps of each size, of layers
// that communicate alike; the last step ends in the middle.
class GrowingStepTest : public StepTest {
 protected:
  void Write(const std::string& optimizer, uint32_t sizes, uint32_t steps_of_a_size,
             const std::string& growing = "forward") {
    std::filesystem::create_directory(directory_ + "/trace");
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trace::Writer w;
      ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, 2), 0);
      const uint32_t stream = w.AddStream(0, 0, "default"), world[] = {0, 1};
      w.Communicator({1, 2, rank, 0, 0}, world);
      uint64_t calls = 0;
      const auto launch = [&](const std::string& name, uint32_t grid) {
        const uint32_t one[3] = {1, 1, 1}, blocks[3] = {grid, 1, 1};
        w.Launch(stream, w.Kernel(trace::KernelKind::kKernel, name, blocks, one, 0, 0));
      };
      const auto communicate = [&](trace::CommOp op, uint64_t count) {
        trace::CallRecord call{};
        call.comm = 1;
        call.op = static_cast<uint32_t>(op);
        call.peer = -1;
        call.group = 1;
        call.count = count;
        w.Comm(stream, w.Call(call), calls++, trace::ValueSource::kExact);
      };
      for (uint32_t size = 0; size < sizes; ++size) {
        for (uint32_t step = 0; step < steps_of_a_size; ++step) {
          for (int layer = 0; layer < 8; ++layer) {
            // Kernels that come more often in each step, twice in it.
            for (uint32_t i = 0; growing != "forward" && layer % 4 == 1 && i <= size; ++i)
              launch(growing, 1);
            communicate(trace::CommOp::kAllGather, 1000);
            launch("forward", 1u << size);
          }
          if (size + 1 == sizes && step + 1 == steps_of_a_size) break;  // out of memory
          for (int layer = 0; layer < 8; ++layer) {
            launch("backward", 1u << size);
            communicate(trace::CommOp::kReduceScatter, 1000);
          }
          launch(optimizer, 7);
          communicate(trace::CommOp::kAllReduce, 1);
        }
      }
      ASSERT_EQ(w.Close(0), 0);
    }
    graph_ = *LoadJob(directory_);
  }
};

TEST_F(GrowingStepTest, StepsAreToldByNamesWhereEachSizeComesTwice) {
  Write("multi_tensor_apply_FusedAdam", 5, 2);
  const auto steps = DetectSteps(&graph_);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->method, Steps::Method::kNames);
  EXPECT_EQ(steps->count(), 8u);  // of nine, the first has no optimizer before it
  EXPECT_THAT(steps->notes, ElementsAre(HasSubstr("shapes differ from step to step")));
}

TEST_F(GrowingStepTest, LayersAreNoStepsWhereEveryStepDiffers) {
  Write("multi_tensor_apply_FusedAdam", 6, 1);
  const auto steps = DetectSteps(&graph_);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->method, Steps::Method::kNames);
  EXPECT_EQ(steps->count(), 4u);
}

TEST_F(GrowingStepTest, UnknownOptimizerAndStepsThatDifferInTheirKernelsHaveNoPeriod) {
  Write("my_own_update", 6, 1, "augment");
  const auto steps = DetectSteps(&graph_);
  EXPECT_EQ(steps.status().code(), absl::StatusCode::kNotFound)
      << static_cast<int>(steps->method) << ": " << steps->count();
  EXPECT_THAT(HintOf(steps.status()), HasSubstr("--step-mark"));
}

TEST_F(StepTest, MarksDelimitSteps) {
  std::filesystem::create_directory(directory_ + "/trace");
  {
    trace::Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
    const uint32_t stream = w.AddStream(0, 0, "default"), one[3] = {1, 1, 1};
    for (int step = 0; step < 3; ++step) {
      w.Mark(trace::MarkKind::kRangePush, "iteration");
      w.Mark(trace::MarkKind::kRangePush, "inner");
      w.Launch(stream,
               w.Kernel(trace::KernelKind::kKernel, "k" + std::to_string(step), one, one, 0, 0));
      w.Mark(trace::MarkKind::kRangePop, "");
      w.SyncStream(stream);
      w.Mark(trace::MarkKind::kRangePop, "");
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  graph_ = *LoadJob(directory_);
  const auto steps = DetectSteps(&graph_, {.mark = "iteration"});
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->count(), 3u);
  EXPECT_EQ(steps->method, Steps::Method::kMark);
  EXPECT_EQ(DetectSteps(&graph_, {.mark = "other"}).status().code(), absl::StatusCode::kNotFound);
}

// Of each step of a recorded job the thread's operations are host, launch, all-reduce, optimizer,
// record and, where it synchronizes, a wait.
TEST_F(StepTest, HostBeginsStepsBehindTheOptimizerAndItsSynchronization) {
  testing::RecordedJob job = {.world = 1,
                              .steps = 5,
                              .host_ns = [](uint32_t, uint32_t) { return 1; },
                              .span_ns = [](uint32_t, uint32_t) { return 1; },
                              .transfer_ns = [](uint32_t) { return 1; }};
  for (const bool synchronize : {true, false}) {
    job.synchronize = synchronize;
    ASSERT_FALSE(testing::WriteRecordedJob(directory_, job).empty());
    absl::StatusOr<Graph> graph = LoadJob(directory_);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto steps = DetectSteps(&*graph);
    ASSERT_TRUE(steps.ok()) << steps.status();
    std::vector<uint32_t> begins;
    for (const Place place : StepBeginnings(graph->programs[0], steps->ends[0])) {
      EXPECT_EQ(place.sequence, 1u);
      begins.push_back(place.op);
    }
    if (synchronize) {
      EXPECT_THAT(begins, ElementsAre(6, 12, 18, 24));
    } else {
      EXPECT_THAT(begins, ElementsAre(4, 9, 14, 19));
    }
  }
}

// Sharded and replicated parameters are updated one kind after the other, with communications
// between: the step begins behind the last part.
TEST_F(StepTest, HostBeginsStepsBehindTheLastPartOfTheOptimizer) {
  std::filesystem::create_directories(directory_ + "/trace");
  uint32_t stream = 0, thread = 0;
  {
    trace::Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
    stream = w.AddStream(0, 0, "s");
    thread = w.ThisThread();
    const uint32_t one[3] = {1, 1, 1}, world[] = {0};
    w.Communicator({1, 1, 0, 0, 0}, world);
    trace::CallRecord call{};
    call.comm = 1;
    call.peer = -1;
    call.group = 1;
    uint64_t calls = 0;
    const auto communicate = [&] {
      w.Comm(stream, w.Call(call), calls++, trace::ValueSource::kExact);
    };
    const auto launch = [&](const char* name) {
      w.Launch(stream, w.Kernel(trace::KernelKind::kKernel, name, one, one, 0, 0));
    };
    for (int step = 0; step < 5; ++step) {
      for (int layer = 0; layer < 6; ++layer) {
        launch("layer");
        communicate();
      }
      launch("adam_sharded");
      communicate();
      communicate();
      launch("adam_replicated");
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  absl::StatusOr<Graph> graph = LoadJob(directory_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto steps = DetectSteps(&*graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  const Program& program = graph->programs[0];
  size_t checked = 0;
  for (const Place place : StepBeginnings(program, steps->ends[0])) {
    ASSERT_EQ(place.sequence, thread);
    const Op& before = program.sequences[thread].ops[place.op - 1];
    // "adam_replicated" and the next step's first layer are one span.
    ASSERT_EQ(before.kind, OpKind::kEnqueueLast);
    const Op& span = program.sequences[stream].ops[before.b];
    EXPECT_EQ(program.kernels[program.spans[span.a].kernels[0]].name, "adam_replicated");
    ++checked;
  }
  EXPECT_GE(checked, 3u);
}

// The result is copied and waited for behind the optimizer: that is the step's end still.
TEST_F(StepTest, CopiesOfResultsBelongToTheStepBefore) {
  std::filesystem::create_directories(directory_ + "/trace");
  {
    trace::Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
    const uint32_t stream = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1};
    const auto launch = [&](trace::KernelKind kind, const char* name) {
      w.HostCall(10);
      w.Launch(stream, w.Kernel(kind, name, one, one, 0, 0));
    };
    for (uint64_t step = 1; step <= 4; ++step) {
      launch(trace::KernelKind::kKernel, "forward");
      w.Record(stream, 1, step);
      launch(trace::KernelKind::kKernel, "adam");
      launch(trace::KernelKind::kKernel, "adam");
      w.Record(stream, 2, step);
      launch(trace::KernelKind::kCopy, "DtoH");
      w.SyncCopy(stream);
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  absl::StatusOr<Graph> graph = LoadJob(directory_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto steps = DetectSteps(&*graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  const std::vector<Place> begins = StepBeginnings(graph->programs[0], steps->ends[0]);
  ASSERT_EQ(begins.size(), steps->count());
  const std::vector<Op>& ops = graph->programs[0].sequences[1].ops;
  size_t behind_waits = 0;
  for (const Place place : begins) {
    if (place.op == 0) continue;
    EXPECT_EQ(ops[place.op - 1].kind, OpKind::kWait) << place.op;
    ++behind_waits;
  }
  EXPECT_GE(behind_waits, 2u);
}

// The mean of the loss over the ranks is read behind the optimizer; the next step's first
// communication, which nothing is waited for, is not.
TEST_F(StepTest, MeanOfTheLossBelongsToTheStepBefore) {
  std::filesystem::create_directories(directory_ + "/trace");
  uint32_t thread = 0;
  {
    trace::Writer w;
    ASSERT_EQ(w.Open((directory_ + "/" + TraceName(0)).c_str(), 0, 1), 0);
    const uint32_t stream = w.AddStream(0, 0, "s"), one[3] = {1, 1, 1}, world[] = {0};
    thread = w.ThisThread();
    w.Communicator({1, 1, 0, 0, 0}, world);
    trace::CallRecord call{};
    call.comm = 1;
    call.peer = -1;
    call.group = 1;
    uint64_t calls = 0;
    const auto communicate = [&] {
      w.Comm(stream, w.Call(call), calls++, trace::ValueSource::kExact);
    };
    const auto launch = [&](trace::KernelKind kind, const char* name) {
      w.HostCall(10);
      w.Launch(stream, w.Kernel(kind, name, one, one, 0, 0));
    };
    for (int step = 0; step < 5; ++step) {
      for (int layer = 0; layer < 6; ++layer) {
        communicate();
        launch(trace::KernelKind::kKernel, "layer");
      }
      launch(trace::KernelKind::kKernel, "adam");
      communicate();
      launch(trace::KernelKind::kKernel, "divide");
      launch(trace::KernelKind::kCopy, "DtoH");
      w.SyncCopy(stream);
    }
    ASSERT_EQ(w.Close(0), 0);
  }
  absl::StatusOr<Graph> graph = LoadJob(directory_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto steps = DetectSteps(&*graph);
  ASSERT_TRUE(steps.ok()) << steps.status();
  const Program& program = graph->programs[0];
  size_t checked = 0;
  for (const Place place : StepBeginnings(program, steps->ends[0])) {
    if (place.op == 0) continue;
    ASSERT_EQ(place.sequence, thread);
    EXPECT_EQ(program.sequences[thread].ops[place.op - 1].kind, OpKind::kWait) << place.op;
    ++checked;
  }
  EXPECT_GE(checked, 3u);
}

}  // namespace
}  // namespace prism::graph
