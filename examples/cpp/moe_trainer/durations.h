// How long kernels and host work take under --timed: a stated table, by kind and size.
//
// A kernel takes its fixed time and the longer of its arithmetic and its memory traffic, at the
// rates of its kind (of the order of an H200's in bf16); that times a factor drawn for (rank, step,
// layer, micro-batch, direction, kernel), and the straggler's. Pure.
#ifndef MOE_TRAINER_DURATIONS_H_
#define MOE_TRAINER_DURATIONS_H_

#include <cstdint>
#include <string_view>

#include "examples/cpp/moe_trainer/options.h"

namespace moe_trainer {

/// What a launch does, whatever its kind.
struct Work {
  double flops = 0, bytes = 0;
};

/// What a launch belongs to. -1: to no layer, to no micro-batch.
struct Occasion {
  int step = 0, layer = -1, micro_batch = -1;
  bool backward = false;
  friend bool operator==(const Occasion&, const Occasion&) = default;
};

/// Host work between CUDA calls, in nanoseconds.
struct HostCosts {
  static constexpr uint64_t kLaunch = 3'000;       // arguments of a kernel
  static constexpr uint64_t kCommunicate = 6'000;  // buffers and counts of a communication
  static constexpr uint64_t kPass = 20'000;        // of the pipeline: bookkeeping of a pass
  static constexpr uint64_t kRouting = 15'000;     // offsets from the counts that were read
  static constexpr uint64_t kStep = 500'000;       // the next batch
};

/// Nanoseconds of one launch without jitter: the table. Throws std::out_of_range for a kernel that
/// it does not list.
double TableNs(std::string_view kernel, const Work& work);

/// Nanoseconds of one launch. `kernel_number` tells kernels of an occasion apart.
uint64_t DurationNs(const Options& options, int rank, const Occasion& occasion,
                    std::string_view kernel, int kernel_number, const Work& work);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_DURATIONS_H_
