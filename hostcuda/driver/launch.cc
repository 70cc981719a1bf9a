#include "hostcuda/driver/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/gpu.h"

namespace hostcuda {
namespace {

/// A launch's parameters, copied; kernelParams-style pointers are made for every run.
struct Arguments {
  std::vector<char> bytes;
  std::vector<uint32_t> offsets;
};

void RunBody(hostcudaKernelBody body, const Kernel& kernel, const LaunchShape& shape, void** pointers) {
  hostcudaLaunch launch = {};
  launch.name = kernel.name;
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = shape.grid[i];
    launch.block[i] = shape.block[i];
  }
  launch.shared_bytes = shape.shared_bytes;
  launch.args = pointers;
  body(&launch);
}

}  // namespace

int BlocksPerMultiprocessor(const LaunchShape& shape) {
  const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  const uint64_t warps = std::max<uint64_t>((threads + 31) / 32, 1);
  uint64_t blocks = std::min<uint64_t>(2048 / (warps * 32), 32);
  if (shape.shared_bytes > static_cast<unsigned>(Gpu().shared_per_block_optin)) return 0;
  blocks = std::min<uint64_t>(blocks, static_cast<uint64_t>(Gpu().shared_per_multiprocessor) / (shape.shared_bytes + 1024u));
  return static_cast<int>(blocks);
}

CUresult LaunchKernel(Stream& stream, Kernel& kernel, const LaunchShape& shape, void** parameters, void** extra) {
  const unsigned *grid = shape.grid, *block = shape.block;
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535 ||
      block[0] == 0 || block[1] == 0 || block[2] == 0 || block[0] > 1024 || block[1] > 1024 || block[2] > 64 ||
      uint64_t{block[0]} * block[1] * block[2] > 1024 ||
      shape.shared_bytes > static_cast<unsigned>(kernel.max_dynamic_shared.load(std::memory_order_relaxed))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_KERNEL;
  label.activity = HOSTCUDA_ACTIVITY_KERNEL;
  label.name = kernel.name;
  for (int i = 0; i < 3; ++i) {
    label.grid[i] = grid[i];
    label.block[i] = block[i];
  }
  label.shared_bytes = shape.shared_bytes;
  label.handle = &kernel;
  Engine& engine = Driver::Get()->engine();
  const hostcudaKernelBody body = FindBody(kernel.name);
  if (body == nullptr) return engine.SubmitNothing(stream, label);

  const Kernel* const own = &kernel;
  const char* buffer = nullptr;
  size_t buffer_bytes = 0;
  for (void** option = extra; option != nullptr && *option != CU_LAUNCH_PARAM_END; option += 2) {
    if (*option == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(option[1]);
    if (*option == CU_LAUNCH_PARAM_BUFFER_SIZE) buffer_bytes = *static_cast<size_t*>(option[1]);
  }
  if (!kernel.sizes_known) {
    if (buffer == nullptr && engine.Idle(stream)) {
      return engine.Submit(stream, label, [=](PollState&) {
        RunBody(body, *own, shape, parameters);
        return kDone;
      });
    }
    fprintf(stderr,
            "hostcuda: kernel %s has a CPU body, is launched on a busy or capturing stream, and neither its image nor its "
            "name tells its parameters' sizes; call hostcudaRegisterKernelParameters\n",
            kernel.name);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto arguments = std::make_shared<Arguments>();
  const size_t count = kernel.parameter_sizes.size();
  const size_t bytes = count == 0 ? 0 : kernel.parameter_offsets[count - 1] + kernel.parameter_sizes[count - 1];
  arguments->bytes.resize(bytes);
  arguments->offsets = kernel.parameter_offsets;
  if (buffer != nullptr) {
    memcpy(arguments->bytes.data(), buffer, std::min(bytes, buffer_bytes));
  } else if (count > 0) {
    if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      memcpy(arguments->bytes.data() + arguments->offsets[i], parameters[i], kernel.parameter_sizes[i]);
    }
  }
  return engine.Submit(stream, label, [=](PollState&) {
    // Bodies may write to their parameters, as kernels may: every run gets a copy.
    std::vector<char> copy = arguments->bytes;
    std::vector<void*> pointers;
    for (const uint32_t offset : arguments->offsets) pointers.push_back(copy.data() + offset);
    RunBody(body, *own, shape, pointers.data());
    return kDone;
  });
}

}  // namespace hostcuda
