// The order in which a pipeline stage runs the passes of its micro-batches. Pure functions.
//
// One chunk a stage: 1F1B. Several (Megatron-LM's interleaved 1F1B): stage s holds the layers of
// the virtual stages s, s + stages, s + 2 stages, ..., and micro-batches go through the chunks in
// groups of `stages`, which must divide their number.
//
//   for (const Pass& pass : PipelineSchedule({.stages = 4, .chunks = 2, .micro_batches = 8}, 0))
//     pass.backward ? Backward(pass.chunk, pass.micro_batch) : Forward(...);
#ifndef MOE_TRAINER_SCHEDULE_H_
#define MOE_TRAINER_SCHEDULE_H_

#include <vector>

namespace moe_trainer {

struct PipelineShape {
  int stages = 1, chunks = 1, micro_batches = 1;
};

struct Pass {
  bool backward = false;
  int chunk = 0, micro_batch = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

/// The passes of `stage` in order: each micro-batch forward and backward through each chunk.
/// With several chunks `micro_batches` must be a multiple of `stages`.
std::vector<Pass> PipelineSchedule(const PipelineShape& shape, int stage);

/// How many forward passes of `stage` precede those that alternate with backward passes.
int WarmUpPasses(const PipelineShape& shape, int stage);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_SCHEDULE_H_
