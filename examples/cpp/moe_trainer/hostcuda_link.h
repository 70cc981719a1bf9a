// All that this program uses of hostcuda beyond CUDA: bodies and durations for its kernels, the
// duration of host work, the time. The only file that names hostcuda; on a GPU none of it is there.
//
// Thread-safe after the first call.
#ifndef MOE_TRAINER_HOSTCUDA_LINK_H_
#define MOE_TRAINER_HOSTCUDA_LINK_H_

#include <cstdint>

#include "hostcuda/hostcuda.h"

namespace moe_trainer {

using KernelBody = hostcudaKernelBody;
using KernelTime = hostcudaKernelTime;

/// Whether the CUDA driver of this process is hostcuda. Call it after the first use of CUDA.
bool OnHostcuda();

/// Registers a kernel's body (null: it computes nothing) and what tells a launch's duration, which
/// counts on the virtual clock. Throws std::runtime_error where the driver is not hostcuda.
void RegisterWithHostcuda(const char* kernel, KernelBody body, KernelTime time);

/// Says that the calling thread works for `duration_ns`; returns at once on a clock that is free.
void HostWork(uint64_t duration_ns);

/// Nanoseconds of the job's clock.
uint64_t HostNow();

}  // namespace moe_trainer

#endif  // MOE_TRAINER_HOSTCUDA_LINK_H_
