// Launching a kernel: checks its shape, runs its CPU body (where it has one) in stream order, tells
// profilers.
#ifndef HOSTCUDA_DRIVER_LAUNCH_H_
#define HOSTCUDA_DRIVER_LAUNCH_H_

#include <cuda.h>

#include <memory>

#include "hostcuda/driver/engine.h"
#include "hostcuda/driver/module.h"

namespace hostcuda {

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
};

/// Enqueues one launch. `parameters` and `extra` as cuLaunchKernel's; they are copied before the
/// call returns.
CUresult LaunchKernel(Stream& stream, Kernel& kernel, const LaunchShape& shape, void** parameters,
                      void** extra);

/// The label and the work of a launch, for a node of a graph. No work: the kernel has no body.
CUresult PrepareKernel(Kernel& kernel, const LaunchShape& shape, void** parameters, void** extra,
                       Label* label, std::shared_ptr<Work>* work);

/// How many blocks of this shape a multiprocessor holds, from threads, slots and shared memory
/// (registers are not known).
int BlocksPerMultiprocessor(const LaunchShape& shape);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_LAUNCH_H_
