// The value layer (libhostcuda_values.so, beside this library): opened for a process that computes
// with PyTorch.
//
// Owns: the handle of the layer and the question whether a launch has values. Opened once, at the
// first context that is made while libtorch_cuda is in the process and HOSTCUDA_VALUES is not none.
// Thread-safe.
#ifndef HOSTCUDA_DRIVER_VALUE_LAYER_H_
#define HOSTCUDA_DRIVER_VALUE_LAYER_H_

#include <cuda.h>

namespace hostcuda {

/// Opens the value layer where it is due. CUDA_ERROR_SYSTEM_NOT_READY, after a line on stderr,
/// where it cannot be had. Must be called without locks.
CUresult OpenValueLayer();

/// Under values cpu, a kernel of a PyTorch process that is launched outside every operation that
/// the layer computes (a Triton kernel, an extension's) would leave memory as it is without anybody
/// noticing: it is an error that names the kernel. CUDA_SUCCESS for everything else.
CUresult CheckLaunchHasValues(const char* kernel);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_VALUE_LAYER_H_
