// This process's GPU: streams, memory, launches, and errors as exceptions.
//
// Gpu::Launch says what a kernel works on, from which its grid and its duration follow. Buffers
// come from a pool that gives memory back in the order of the compute stream: free a buffer only
// when the compute stream already waits for everybody else who uses it. Not thread-safe.
//
//   Buffer x = gpu.Elements(rows * columns);
//   gpu.Launch(kAdd, count, gpu.Moved(3 * count), x.data(), a, b, count);
#ifndef MOE_TRAINER_GPU_H_
#define MOE_TRAINER_GPU_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/cpp/moe_trainer/durations.h"
#include "examples/cpp/moe_trainer/kernels.h"
#include "examples/cpp/moe_trainer/options.h"

namespace moe_trainer {

/// Throws std::runtime_error: which call, which error.
void Check(cudaError_t error, const char* call);
void Check(ncclResult_t result, const char* call);
#define MOE_TRAINER_CHECK(call) ::moe_trainer::Check((call), #call)

class DevicePool;

/// Device memory of a pool; gives it back when it ends. Movable.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DevicePool* pool, void* data, size_t bytes) : pool_(pool), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { Reset(); }
  void Reset();
  float* data() const { return static_cast<float*>(data_); }
  int* integers() const { return static_cast<int*>(data_); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  DevicePool* pool_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Keeps freed memory by size. Sizes are rounded up to 512 bytes, above 1 MiB to 2 MiB.
class DevicePool {
 public:
  ~DevicePool();
  Buffer Allocate(size_t bytes);
  size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  friend class Buffer;
  void Free(void* data, size_t bytes);

  std::multimap<size_t, void*> free_;
  std::vector<void*> all_;
  size_t allocated_bytes_ = 0;
};

class Gpu {
 public:
  /// Takes CUDA device `device` and registers the kernels. Throws where this is not hostcuda.
  Gpu(const Options& options, int rank, int device);
  ~Gpu();

  const Options& options() const { return options_; }
  cudaStream_t compute() const { return compute_; }
  size_t element_bytes() const { return options_.element_bytes(); }
  ncclDataType_t type() const { return options_.real ? ncclFloat32 : ncclBfloat16; }
  float* At(float* data, size_t elements) const;
  /// A kernel that moves so many elements of the model's type.
  Work Moved(double elements) const {
    return {.flops = 0, .bytes = elements * static_cast<double>(element_bytes())};
  }

  Buffer Allocate(size_t bytes) { return pool_.Allocate(bytes); }
  /// Memory for elements of the model's type.
  Buffer Elements(size_t count) { return pool_.Allocate(count * element_bytes()); }
  size_t allocated_bytes() const { return pool_.allocated_bytes(); }

  cudaStream_t NewStream();
  /// What is queued on `then` from now on runs after what is queued on `first` by now.
  void Order(cudaStream_t first, cudaStream_t then);

  /// What the launches that follow belong to.
  Occasion occasion;
  /// Launches on the compute stream, with as many blocks as `outputs` need.
  template <class... Parameters, class... Arguments>
  void Launch(const KernelOf<Parameters...>& kernel, double outputs, const Work& work,
              Arguments... arguments) {
    HostTime(HostCosts::kLaunch);
    kernel.Launch(Blocks(outputs), compute_, Duration(kernel, work), arguments...);
  }
  /// Host work of a stated duration.
  void HostTime(uint64_t duration_ns) const;

 private:
  static unsigned Blocks(double outputs);
  uint64_t Duration(const Kernel& kernel, const Work& work);

  const Options& options_;
  int rank_;
  cudaStream_t compute_ = nullptr;
  std::vector<cudaStream_t> streams_;
  cudaEvent_t order_ = nullptr;
  DevicePool pool_;
  Occasion last_;
  std::vector<int> launches_;  // of each kernel since the occasion changed
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_GPU_H_
