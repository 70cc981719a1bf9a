// Runs work in the order of a CUDA stream, through the driver's internal table.
//
// Owner of: the pointer to the driver's table. An operation on an idle stream runs at once on the
// calling thread; behind a stalled stream (a collective whose peers have not come, a wait value) it
// is queued, so that the host runs ahead as it does on a GPU. Work holds raw aliases: the caching
// allocator reuses memory in stream order.
//
// Threading: every function may be called from any thread.
//
//   RunInStreamOrder(device, "aten::mm", [invocation = std::move(invocation)] { invocation->Run();
//   });
#ifndef HOSTCUDA_VALUES_STREAM_ORDER_H_
#define HOSTCUDA_VALUES_STREAM_ORDER_H_

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "hostcuda/internal_table.h"

namespace hostcuda::values {

// Finds the driver's table. Returns false when the process's libcuda.so.1 is not hostcuda's (or a
// shim before it).
bool ConnectDriver();

// Returns HOSTCUDA_VALUES as the driver read it.
HostcudaValues ModeOfDriver();

// True when every earlier operation of the current stream of `device` has completed.
bool CurrentStreamIdle(c10::Device device);

// Appends `work` to the current stream of `device`. `name` must have static lifetime. An exception
// of `work` is written to stderr and becomes the context's sticky error.
void EnqueueOnCurrentStream(c10::Device device, const char* name, std::function<void()> work);

// Blocks until the current stream of `device` is idle.
void WaitForCurrentStream(c10::Device device);

// Launches a kernel that exists by name only: the operation took no part of the CUDA kernel's path.
void LaunchNamed(c10::Device device, const std::string& name);

}  // namespace hostcuda::values

#endif  // HOSTCUDA_VALUES_STREAM_ORDER_H_
