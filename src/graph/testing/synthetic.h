// Synthetic jobs: traces with the communication structure of common training programs, written by
// the real writer. For tests and benchmarks; sizes are free, values are round.
//
//   SyntheticJob job = {.kind = JobKind::kPipeline, .world = 4, .steps = 3};
//   ASSERT_EQ(WriteJob(directory, job), 0);
#ifndef PRISM_GRAPH_TESTING_SYNTHETIC_H_
#define PRISM_GRAPH_TESTING_SYNTHETIC_H_

#include <cstdint>
#include <string>

namespace prism::graph::testing {

enum class JobKind {
  kDataParallel,    // layers forward, layers backward; an all-reduce after each backward layer on a
                    // second stream
  kFullyShardedDP,  // gathers before layers, scatters after backward layers, on a communication
                    // stream
  kPipeline,        // 1F1B of micro_batches over world stages
  kExpertParallel,  // grouped send/receive all-to-all around expert layers
  kSingle,          // no communication
};

struct SyntheticJob {
  JobKind kind = JobKind::kDataParallel;
  uint32_t world = 4;
  uint32_t steps = 4;
  uint32_t layers = 4;
  uint32_t micro_batches = 4;
  uint32_t kernels_per_layer = 3;
  uint64_t bytes = 1 << 20;  // of a communication
  uint32_t host_ns_per_call = 1000;
  uint32_t warm_up_kernels = 0;  // extra kernels in the first step
  uint32_t evaluate_every = 0;  // steps between evaluations (forward only, other kernels); 0: never
  bool synchronize = true;      // the host waits for the step's end
  bool seal = true;
};

/// Writes directory/trace/rank-*.prt. Returns 0, or an errno value.
int WriteJob(const std::string& directory, const SyntheticJob& job);

}  // namespace prism::graph::testing

#endif  // PRISM_GRAPH_TESTING_SYNTHETIC_H_
