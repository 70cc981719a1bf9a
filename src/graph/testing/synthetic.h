// Synthetic jobs: traces with the communication structure of common training programs, written by
// the real writer. For tests and benchmarks; sizes are free, values are round.
//
//   SyntheticJob job = {.kind = JobKind::kPipeline, .world = 4, .steps = 3};
//   ASSERT_EQ(WriteJob(directory, job), 0);
#ifndef PRISM_GRAPH_TESTING_SYNTHETIC_H_
#define PRISM_GRAPH_TESTING_SYNTHETIC_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace prism::graph::testing {

enum class JobKind {
  kDataParallel,    // layers forward, layers backward; an all-reduce after each backward layer on a
                    // second stream
  kFullyShardedDP,  // gathers before layers, scatters after backward layers, on a communication
                    // stream
  kPipeline,        // 1F1B of micro_batches over world stages
  kExpertParallel,  // grouped send/receive all-to-all around expert layers
  kSingle,          // no communication
  kHybrid,  // 1F1B over stages of layers; a gather and a scatter of the tensor-parallel group
            // around each layer, a reduce-scatter and a gather of the data-parallel group and
            // an all-reduce of all at the end of a step
};

struct SyntheticJob {
  JobKind kind = JobKind::kDataParallel;
  uint32_t world = 4;
  uint32_t steps = 4;
  uint32_t layers = 4;
  uint32_t micro_batches = 4;
  uint32_t tensor = 1, data = 1;  // kHybrid: sizes of the groups; world / (tensor * data) stages
  uint32_t kernels_per_layer = 3;
  uint64_t bytes = 1 << 20;  // of a communication
  uint32_t host_ns_per_call = 1000;
  uint32_t host_ns_of_rank = 0;  // more for each rank than for the one before: no two are equal
  uint32_t warm_up_kernels = 0;  // extra kernels in the first step
  uint32_t evaluate_every = 0;  // steps between evaluations (forward only, other kernels); 0: never
  bool synchronize = true;      // the host waits for the step's end
  bool seal = true;
};

/// Writes directory/trace/rank-*.prt. Returns 0, or an errno value.
int WriteJob(const std::string& directory, const SyntheticJob& job);

/// A job as it is recorded: every host segment, span and communication is measured, a communication
/// from when its rank was ready. A step on one stream: host time, a span, an all-reduce, the
/// optimizer's span (kOptimizerNs). Nothing else takes time, so when all ends is known.
struct RecordedJob {
  static constexpr int64_t kOptimizerNs = 10'000;
  uint32_t world = 2;
  uint32_t steps = 8;
  std::function<int64_t(uint32_t rank, uint32_t step)> host_ns, span_ns;
  std::function<int64_t(uint32_t step)> transfer_ns;
  bool synchronize = true;  // the host waits for the end of each step
  /// More host time of a rank at the beginning of each step: what a what-if must predict.
  uint32_t delayed_rank = 0;
  int64_t delay_ns = 0;
};

/// Writes its traces and returns when each step ends on the last rank; empty: an error.
std::vector<int64_t> WriteRecordedJob(const std::string& directory, const RecordedJob& job);

}  // namespace prism::graph::testing

#endif  // PRISM_GRAPH_TESTING_SYNTHETIC_H_
