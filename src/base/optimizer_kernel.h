// Optimizer kernels: which launches update a model's weights, by their names. Needs nothing but
// libc.
#ifndef PRISM_BASE_OPTIMIZER_KERNEL_H_
#define PRISM_BASE_OPTIMIZER_KERNEL_H_

#include <string_view>

namespace prism {

/// Kernels that only optimizers launch: PyTorch's fused ones, the pointwise and ternary operations
/// of its foreach Adam family (foreach copies and scalings also serve gathering and clipping), Apex
/// and others.
inline bool IsOptimizerKernel(std::string_view name) {
  for (const std::string_view part : {"ForeachPointwiseOp", "ForeachTernaryOp", "addcdiv", "adam",
                                      "Adam", "FusedSgd", "fused_sgd", "lamb", "Lamb"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

/// The same for who sees them one by one, while the program runs, and has no repetition to go by:
/// plain gradient descent too.
inline bool UpdatesWeights(std::string_view name) {
  return IsOptimizerKernel(name) || name.find("sgd") != std::string_view::npos ||
         name.find("Sgd") != std::string_view::npos;
}

}  // namespace prism

#endif  // PRISM_BASE_OPTIMIZER_KERNEL_H_
