#include "examples/cpp/moe_trainer/schedule.h"

#include <algorithm>

namespace moe_trainer {
namespace {

// The i-th forward (or backward) pass of any stage: groups of `stages` micro-batches take the
// chunks one after the other, backward from the last.
Pass PassAt(const PipelineShape& shape, int i, bool backward) {
  const int group = shape.stages * shape.chunks;
  const int chunk = i % group / shape.stages;
  return {backward, backward ? shape.chunks - 1 - chunk : chunk,
          i / group * shape.stages + i % shape.stages};
}

}  // namespace

int WarmUpPasses(const PipelineShape& shape, int stage) {
  const int behind = shape.stages - 1 - stage;
  const int passes = shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * shape.stages;
  return std::min(passes, shape.micro_batches * shape.chunks);
}

std::vector<Pass> PipelineSchedule(const PipelineShape& shape, int stage) {
  const int passes = shape.micro_batches * shape.chunks;
  const int warm_up = WarmUpPasses(shape, stage);
  std::vector<Pass> order;
  for (int i = 0; i < warm_up; ++i) order.push_back(PassAt(shape, i, false));
  for (int i = warm_up; i < passes; ++i) {
    order.push_back(PassAt(shape, i, false));
    order.push_back(PassAt(shape, i - warm_up, true));
  }
  for (int i = passes - warm_up; i < passes; ++i) order.push_back(PassAt(shape, i, true));
  return order;
}

}  // namespace moe_trainer
