// Kernel parameters: what tells launches apart whose name and grid are the same, because the
// problem's size is in the parameters (NVIDIA's matrix products on a GPU).
//
// A launch's parameters are hashed without the pointers among them: words that are addresses of
// device memory. Only where PRISM_KERNEL_PARAMETERS=1 asks for it; otherwise a launch costs one
// branch. A launch shape with more than kMostParameters different ones is said to vary from then
// on: a learning rate or a seed among them would make every step's kernels new ones. Thread-safe.
//
//   uint32_t parameters = KernelParameters({function, {8, 8, 1}, {128, 1, 1}, 0}, params, extra);
#ifndef PRISM_INTERPOSE_DRIVER_KERNEL_PARAMETERS_H_
#define PRISM_INTERPOSE_DRIVER_KERNEL_PARAMETERS_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace prism::interpose::driver {

inline constexpr size_t kMostParameters = 32;

struct LaunchShape {
  CUfunction function;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
};

/// trace::KernelRecord::parameters of a launch: kParametersUnknown where it is not asked for, or
/// the driver does not tell where the parameters are (before CUDA 12.4).
uint32_t KernelParameters(const LaunchShape& shape, void** parameters, void** extra);

/// Handles of kernels may be reused from here on.
void ForgetKernelParameters();

/// FNV-1a 64, continued from `hash`, over bytes in which each aligned word of eight for which
/// `is_pointer` holds stands for a pointer, whatever it is.
uint64_t HashWithoutPointers(uint64_t hash, const void* data, size_t bytes,
                             bool (*is_pointer)(uint64_t word));

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_KERNEL_PARAMETERS_H_
