// Overrides ATen operations at dispatch key CUDA.
//
// Owner of: one OperationRecord per overridden operation (its saved CUDA kernel, its rule, its
// counters) and the registrations, for the life of the process.
//
// Nesting: the outermost overridden operation computes. Operations that its CUDA kernel calls in
// turn launch only, but for those that answer the host (Rule::kComputeFirst). Composite operations
// have no CUDA kernel of their own: what they call is outermost and computes.
//
// Threading: wrappers run on any thread (autograd has its own); records are immutable but for
// atomic counters.
#ifndef HOSTCUDA_VALUES_OPERATION_H_
#define HOSTCUDA_VALUES_OPERATION_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "hostcuda/values/table/table.h"

namespace hostcuda::values {

struct Settings {
  bool control = false;             // compute only what is small
  int64_t control_bytes = 1 << 20;  // "small" (noise.h says for which types)
  int threads = 1;                  // ATen threads of CPU forms
};

struct OperationRecord {
  std::string name;     // "aten::mm"
  std::string display;  // "aten::mm.dtype"
  TableEntry entry;
  c10::SafeKernelFunction cuda_kernel;
  bool random = false;  // takes a generator, or draws from the default one

  std::atomic<uint64_t> computed{0};  // CPU forms run
  std::atomic<uint64_t> queued{0};    // of these, behind a stalled stream
  std::atomic<uint64_t> noise{0};     // results filled with seeded noise (control)
  std::atomic<uint64_t> kept{0};      // calls whose results were left as they were (control)
};

// Overrides every operation of namespace aten that has a CUDA kernel, and those composite ones that
// launch by themselves. Returns how many.
int OverrideOperations(const Settings& settings);

const std::vector<OperationRecord*>& Operations();
const Settings& CurrentSettings();

// Depth of computing operations on this thread.
int OperationDepth();

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_OPERATION_H_
