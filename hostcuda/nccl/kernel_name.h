// The names that profilers show: those of NCCL's device kernels.
#ifndef HOSTCUDA_NCCL_KERNEL_NAME_H_
#define HOSTCUDA_NCCL_KERNEL_NAME_H_

#include <string>
#include <vector>

#include "hostcuda/nccl/operation.h"

namespace hostnccl {

/// Returns the kernel that NCCL 2.28 launches for a group, without its parameters:
/// "ncclDevKernel_AllReduce_Sum_f32_RING_LL".
std::string KernelName(const std::vector<Operation>& operations);

/// Returns the same, mangled as CUPTI reports it. The text lives as long as the process.
const char* MangledKernelName(const std::vector<Operation>& operations);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_KERNEL_NAME_H_
