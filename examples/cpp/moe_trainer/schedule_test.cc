// Oracles: a brute-force execution of all stages that knows nothing of how a schedule is made, and
// the closed form of the bubble: (stages - 1) (forward + backward) of a chunk, on every stage.
#include "examples/cpp/moe_trainer/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

namespace moe_trainer {
namespace {

std::vector<PipelineShape> Shapes() {
  std::vector<PipelineShape> shapes;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micro_batches = 1; micro_batches <= 13; ++micro_batches)
      shapes.push_back({stages, 1, micro_batches});
    for (int chunks = 2; chunks <= 4; ++chunks)
      for (int groups = 1; groups <= 4; ++groups)
        shapes.push_back({stages, chunks, groups * stages});
  }
  return shapes;
}

std::string Name(const PipelineShape& shape) {
  return std::to_string(shape.stages) + " stages, " + std::to_string(shape.chunks) + " chunks, " +
         std::to_string(shape.micro_batches) + " micro-batches";
}

struct Execution {
  long makespan = 0;
  std::vector<long> idle;       // of each stage, up to the makespan
  std::vector<int> most_alive;  // forward passes whose backward pass has not run, at most
};

// Runs every stage's list in order, each pass as soon as its inputs exist; nullopt where the stages
// wait for each other. Virtual stage v = chunk * stages + stage: forward v needs forward v - 1,
// backward v needs backward v + 1 and its own forward pass.
std::optional<Execution> Execute(const PipelineShape& shape, long forward, long backward) {
  const int last = shape.stages * shape.chunks - 1;
  std::vector<std::vector<Pass>> orders;
  for (int stage = 0; stage < shape.stages; ++stage)
    orders.push_back(PipelineSchedule(shape, stage));
  std::map<std::tuple<bool, int, int>, long> done;  // backward, virtual stage, micro-batch -> when
  const auto stages = static_cast<size_t>(shape.stages);
  std::vector<size_t> at(stages, 0);
  std::vector<long> free_at(stages, 0), busy(stages, 0);
  Execution execution;
  execution.most_alive.resize(stages, 0);
  std::vector<int> alive(stages, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t stage = 0; stage < stages; ++stage) {
      while (at[stage] < orders[stage].size()) {
        const Pass pass = orders[stage][at[stage]];
        const int v = pass.chunk * shape.stages + static_cast<int>(stage);
        std::vector<std::tuple<bool, int, int>> needs;
        if (!pass.backward && v > 0) needs.emplace_back(false, v - 1, pass.micro_batch);
        if (pass.backward) needs.emplace_back(false, v, pass.micro_batch);
        if (pass.backward && v < last) needs.emplace_back(true, v + 1, pass.micro_batch);
        long start = free_at[stage];
        bool ready = true;
        for (const auto& need : needs) {
          const auto found = done.find(need);
          ready &= found != done.end();
          if (ready) start = std::max(start, found->second);
        }
        if (!ready) break;
        const long took = pass.backward ? backward : forward;
        free_at[stage] = start + took;
        busy[stage] += took;
        done[{pass.backward, v, pass.micro_batch}] = start + took;
        alive[stage] += pass.backward ? -1 : 1;
        execution.most_alive[stage] = std::max(execution.most_alive[stage], alive[stage]);
        ++at[stage];
        moved = true;
      }
    }
  }
  for (size_t stage = 0; stage < stages; ++stage)
    if (at[stage] != orders[stage].size()) return std::nullopt;
  execution.makespan = *std::max_element(free_at.begin(), free_at.end());
  for (const long time : busy) execution.idle.push_back(execution.makespan - time);
  return execution;
}

TEST(ScheduleTest, EveryMicroBatchPassesEveryChunkForwardThenBackwardOnce) {
  for (const PipelineShape& shape : Shapes()) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::set<std::pair<int, int>> forward, backward;
      for (const Pass& pass : PipelineSchedule(shape, stage)) {
        const std::pair key(pass.chunk, pass.micro_batch);
        if (pass.backward) {
          EXPECT_TRUE(forward.count(key)) << Name(shape);
          EXPECT_TRUE(backward.insert(key).second) << Name(shape);
        } else {
          EXPECT_TRUE(forward.insert(key).second) << Name(shape);
        }
      }
      const auto passes = static_cast<size_t>(shape.chunks * shape.micro_batches);
      EXPECT_EQ(forward.size(), passes) << Name(shape);
      EXPECT_EQ(backward.size(), passes) << Name(shape);
    }
  }
}

TEST(ScheduleTest, StagesNeverWaitForEachOther) {
  for (const PipelineShape& shape : Shapes())
    EXPECT_TRUE(Execute(shape, 1, 2).has_value()) << Name(shape);
}

TEST(ScheduleTest, BubbleIsItsClosedForm) {
  for (const PipelineShape& shape : Shapes()) {
    const long forward = 3, backward = 5;
    const auto execution = Execute(shape, forward, backward);
    ASSERT_TRUE(execution.has_value());
    for (const long idle : execution->idle)
      EXPECT_EQ(idle, (shape.stages - 1) * (forward + backward)) << Name(shape);
  }
}

TEST(ScheduleTest, ActivationsAliveAreTheWarmUpAndOneMore) {
  for (const PipelineShape& shape : Shapes()) {
    const auto execution = Execute(shape, 1, 2);
    ASSERT_TRUE(execution.has_value());
    for (int stage = 0; stage < shape.stages; ++stage)
      EXPECT_EQ(execution->most_alive[static_cast<size_t>(stage)],
                std::min(WarmUpPasses(shape, stage) + 1, shape.chunks * shape.micro_batches))
          << Name(shape);
  }
}

// A link carries the messages of all chunks in one order: the sender's must be the receiver's.
TEST(ScheduleTest, EndsOfALinkAgreeOnTheOrderOfMessages) {
  for (const PipelineShape& shape : Shapes()) {
    const int last = shape.stages * shape.chunks - 1;
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (const bool backward : {false, true}) {
        using Message = std::pair<int, int>;  // virtual stage of the receiver, micro-batch
        std::vector<Message> sent, received;
        const int peer = (stage + (backward ? shape.stages - 1 : 1)) % shape.stages;
        for (const Pass& pass : PipelineSchedule(shape, stage)) {
          const int to = pass.chunk * shape.stages + stage + (backward ? -1 : 1);
          if (pass.backward == backward && to >= 0 && to <= last)
            sent.emplace_back(to, pass.micro_batch);
        }
        for (const Pass& pass : PipelineSchedule(shape, peer)) {
          const int to = pass.chunk * shape.stages + peer;
          const int from = to + (backward ? 1 : -1);
          if (pass.backward == backward && from >= 0 && from <= last)
            received.emplace_back(to, pass.micro_batch);
        }
        EXPECT_EQ(sent, received) << Name(shape) << ", stage " << stage;
      }
    }
  }
}

TEST(ScheduleTest, OfTwoChunksOnTwoStagesIsAsWrittenOutByHand) {
  const auto f = [](int chunk, int micro_batch) { return Pass{false, chunk, micro_batch}; };
  const auto b = [](int chunk, int micro_batch) { return Pass{true, chunk, micro_batch}; };
  const PipelineShape shape = {.stages = 2, .chunks = 2, .micro_batches = 2};
  EXPECT_EQ(PipelineSchedule(shape, 1), (std::vector<Pass>{f(0, 0), f(0, 1), f(1, 0), b(1, 0),
                                                           f(1, 1), b(1, 1), b(0, 0), b(0, 1)}));
}

}  // namespace
}  // namespace moe_trainer
