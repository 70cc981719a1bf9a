// Cost model: durations of a graph's operations on a target, each with its source.
//
//   communication  NCCL's formulas (communication_cost.h), modelled
//   products, convolutions, attention  roofline of the GPU by the shapes in the kernel's name
//                  (docs/reference/kernel-names.md), modelled
//   copies, sets   bytes over bandwidth, modelled
//   elementwise    grid x block x the bytes a thread moves by the types in the kernel's name,
//   assumed other kernels  grid x block x a stated number of bytes, assumed host           the
//   trace's own time, else calls x a stated time, assumed
// A duration that the trace has measured is used instead (by the engine). Immutable; thread-safe.
//
//   CostModel model(target);
//   Durations d = model.DurationsOf(graph);
#ifndef PRISM_ENGINE_COST_MODEL_H_
#define PRISM_ENGINE_COST_MODEL_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "src/engine/engine.h"
#include "src/engine/target.h"

namespace prism::engine {

/// Factors on durations: what-if, ranges, shares.
struct Factors {
  double by_source[4] = {1, 1, 1, 1};  // by TimeSource
  double compute = 1;
  double communication = 1;
  double host = 1;
};

struct KernelTime {
  int64_t ns;
  TimeSource source;
};

/// Work of a kernel by its name, where the name says it; `type` is a part of that name and lives as
/// long.
struct KernelWork {
  double flops;
  double bytes;
  std::string_view type;  // of the inputs, "bf16"
  double tiles;           // independent 128 x 128 pieces of output; 0: not known
  double depth;           // of the sum in each
};
std::optional<KernelWork> ParseKernelWork(const graph::Kernel& kernel);

class CostModel {
 public:
  explicit CostModel(Target target) : target_(std::move(target)) {}

  const Target& target() const { return target_; }
  KernelTime TimeOf(const graph::Kernel& kernel) const;
  Durations DurationsOf(const graph::Graph& graph, const Factors& factors = {}) const;

 private:
  Target target_;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_COST_MODEL_H_
