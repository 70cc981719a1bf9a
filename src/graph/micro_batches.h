// Micro-batches: the job as it would be with more of them in each step.
//
// A step repeats a period: what a rank launches for one micro-batch (in a pipeline's steady state
// a forward pass of one and a backward pass of another; interleaved, those of a round). It is found
// in the names of what is launched, in order: the period at which most is as it was a period
// before, in one stretch, such that most of the step's kernels are in launches that the period has,
// too, and fewer than half a period of others come before the stretch. How often the step has the
// period is counted over the whole step, with the parts that are apart (warm-up and cool-down of a
// pipeline, a last micro-batch with reductions in between). So many are put in again at the end of
// the stretch, copies of those that are there, one after the other; what waited for something a
// period before waits for that of the period that is now before it.
//
// What cannot be seen is refused: one micro-batch in a step, a pipeline whose stages hold so few
// that no period comes twice, or micro-batches that one span of kernels runs over.
//
// Stateless; thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(const RepeatedPeriods found, RepeatMicroBatches(2, &graph, &steps));
#ifndef PRISM_GRAPH_MICRO_BATCHES_H_
#define PRISM_GRAPH_MICRO_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "src/graph/graph.h"
#include "src/graph/step.h"

namespace prism::graph {

/// What repeats in a step: `length` launches from `first` on, at least two periods but for what the
/// last one lacks; the whole step has `count` periods.
struct StepPeriod {
  size_t first = 0, length = 0, period = 0;
  uint64_t count = 0;
};
/// `names` of a step's launches in order: equal numbers for equal names; `kernels` of each, 0 for
/// communications. None: there is no period.
std::optional<StepPeriod> FindStepPeriod(std::span<const uint64_t> names,
                                         std::span<const uint32_t> kernels);

struct RepeatedPeriods {
  uint64_t fewest = 0, most = 0;  // periods that a step of a rank had
};

/// Gives every training step `factor` times its micro-batches, and moves the steps' ends along.
/// FailedPrecondition: no period is found, or communications no longer fit each other; the graph is
/// then in pieces.
absl::StatusOr<RepeatedPeriods> RepeatMicroBatches(uint32_t factor, Graph* graph, Steps* steps);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_MICRO_BATCHES_H_
