#include "hostcuda/driver/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/value_layer.h"

namespace hostcuda {
namespace {

/// A launch's parameters, copied; kernelParams-style pointers are made for every run.
struct Arguments {
  std::vector<char> bytes;
  std::vector<uint32_t> offsets;
};

hostcudaLaunch DescribeLaunch(const Kernel& kernel, const LaunchShape& shape, void** pointers) {
  hostcudaLaunch launch = {};
  launch.name = kernel.name;
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = shape.grid[i];
    launch.block[i] = shape.block[i];
  }
  launch.shared_bytes = shape.shared_bytes;
  launch.args = pointers;
  return launch;
}

void RunBody(hostcudaKernelBody body, const Kernel& kernel, const LaunchShape& shape,
             void** pointers) {
  const hostcudaLaunch launch = DescribeLaunch(kernel, shape, pointers);
  body(&launch);
}

/// How long it takes on the virtual clock. `pointers` as kernelParams; null where the caller gave
/// none.
uint64_t DurationOf(const Kernel& kernel, const LaunchShape& shape, void** pointers) {
  const WorkTimes* const times = Driver::Get()->engine().times();
  if (times == nullptr) return 0;
  if (const auto registered = FindTime(kernel.name)) {
    if (registered->function == nullptr) return registered->ns;
    const hostcudaLaunch launch = DescribeLaunch(kernel, shape, pointers);
    return registered->function(&launch);
  }
  return times->KernelNs(kernel.name, shape.grid, shape.block);
}

}  // namespace

int BlocksPerMultiprocessor(const LaunchShape& shape) {
  const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  const uint64_t warps = std::max<uint64_t>((threads + 31) / 32, 1);
  uint64_t blocks = std::min<uint64_t>(2048 / (warps * 32), 32);
  if (shape.shared_bytes > static_cast<unsigned>(Gpu().shared_per_block_optin)) return 0;
  blocks = std::min<uint64_t>(blocks, static_cast<uint64_t>(Gpu().shared_per_multiprocessor) /
                                          (shape.shared_bytes + 1024u));
  return static_cast<int>(blocks);
}

namespace {

/// Runs a body on copied parameters.
struct BodyRun {
  hostcudaKernelBody body;
  const Kernel* kernel;
  LaunchShape shape;
  std::shared_ptr<const Arguments> arguments;

  int operator()(PollState&) const {
    // Bodies may write to their parameters, as kernels may: every run gets a copy.
    std::vector<char> copy = arguments->bytes;
    std::vector<void*> pointers;
    for (const uint32_t offset : arguments->offsets) pointers.push_back(copy.data() + offset);
    RunBody(body, *kernel, shape, pointers.data());
    return kDone;
  }
};

CUresult CheckShape(const Kernel& kernel, const LaunchShape& shape) {
  const unsigned *grid = shape.grid, *block = shape.block;
  const bool valid =
      grid[0] != 0 && grid[1] != 0 && grid[2] != 0 && grid[0] <= 2147483647u && grid[1] <= 65535 &&
      grid[2] <= 65535 && block[0] != 0 && block[1] != 0 && block[2] != 0 && block[0] <= 1024 &&
      block[1] <= 1024 && block[2] <= 64 && uint64_t{block[0]} * block[1] * block[2] <= 1024 &&
      shape.shared_bytes <=
          static_cast<unsigned>(kernel.max_dynamic_shared.load(std::memory_order_relaxed));
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

Label LabelOf(Kernel& kernel, const LaunchShape& shape, void** pointers) {
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_KERNEL;
  label.activity = HOSTCUDA_ACTIVITY_KERNEL;
  label.name = kernel.name;
  for (int i = 0; i < 3; ++i) {
    label.grid[i] = shape.grid[i];
    label.block[i] = shape.block[i];
  }
  label.shared_bytes = shape.shared_bytes;
  label.handle = &kernel;
  label.call = HostCall::kLaunch;
  label.duration_ns = DurationOf(kernel, shape, pointers);
  return label;
}

/// Copies the parameters; null where a kernelParams launch gives none.
std::shared_ptr<const Arguments> CopyArguments(const Kernel& kernel, void** parameters,
                                               void** extra) {
  const char* buffer = nullptr;
  size_t buffer_bytes = 0;
  for (void** option = extra; option != nullptr && *option != CU_LAUNCH_PARAM_END; option += 2) {
    if (*option == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char*>(option[1]);
    if (*option == CU_LAUNCH_PARAM_BUFFER_SIZE) buffer_bytes = *static_cast<size_t*>(option[1]);
  }
  auto arguments = std::make_shared<Arguments>();
  const size_t count = kernel.parameter_sizes.size();
  const size_t bytes =
      count == 0 ? 0 : kernel.parameter_offsets[count - 1] + kernel.parameter_sizes[count - 1];
  arguments->bytes.resize(bytes);
  arguments->offsets = kernel.parameter_offsets;
  if (buffer != nullptr) {
    memcpy(arguments->bytes.data(), buffer, std::min(bytes, buffer_bytes));
  } else if (count > 0) {
    if (parameters == nullptr) return nullptr;
    for (size_t i = 0; i < count; ++i) {
      memcpy(arguments->bytes.data() + arguments->offsets[i], parameters[i],
             kernel.parameter_sizes[i]);
    }
  }
  return arguments;
}

CUresult UnknownSizes(const Kernel& kernel) {
  fprintf(stderr,
          "hostcuda: kernel %s has a CPU body, is launched on a busy or capturing stream (on the "
          "virtual clock every launch counts as such), and neither its image nor its "
          "name tells its parameters' sizes; call hostcudaRegisterKernelParameters\n",
          kernel.name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult PrepareKernel(Kernel& kernel, const LaunchShape& shape, void** parameters, void** extra,
                       Label* label, std::shared_ptr<Work>* work) {
  if (const CUresult checked = CheckShape(kernel, shape); checked != CUDA_SUCCESS) return checked;
  *label = LabelOf(kernel, shape, parameters);
  work->reset();
  const hostcudaKernelBody body = FindBody(kernel.name);
  if (body == nullptr) return CUDA_SUCCESS;
  LearnParameters(kernel);
  if (!kernel.sizes_known) return UnknownSizes(kernel);
  const auto arguments = CopyArguments(kernel, parameters, extra);
  if (arguments == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *work = std::make_shared<FunctionWork<BodyRun>>(BodyRun{body, &kernel, shape, arguments});
  return CUDA_SUCCESS;
}

CUresult LaunchKernel(Stream& stream, Kernel& kernel, const LaunchShape& shape, void** parameters,
                      void** extra) {
  if (const CUresult checked = CheckShape(kernel, shape); checked != CUDA_SUCCESS) return checked;
  Engine& engine = Driver::Get()->engine();
  const hostcudaKernelBody body = FindBody(kernel.name);
  if (body == nullptr) {
    if (const CUresult checked = CheckLaunchHasValues(kernel.name); checked != CUDA_SUCCESS)
      return checked;
    return engine.SubmitNothing(stream, LabelOf(kernel, shape, parameters));
  }
  LearnParameters(kernel);
  if (!kernel.sizes_known) {
    if (extra != nullptr || engine.takes_time() || !engine.Idle(stream))
      return UnknownSizes(kernel);
    // Runs before the call returns, so the caller's own copies serve.
    const Kernel* const own = &kernel;
    return engine.Submit(stream, LabelOf(kernel, shape, parameters), [=](PollState&) {
      RunBody(body, *own, shape, parameters);
      return kDone;
    });
  }
  const auto arguments = CopyArguments(kernel, parameters, extra);
  if (arguments == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return engine.Submit(stream, LabelOf(kernel, shape, parameters),
                       BodyRun{body, &kernel, shape, arguments});
}

}  // namespace hostcuda
