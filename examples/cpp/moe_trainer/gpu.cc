#include "examples/cpp/moe_trainer/gpu.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace moe_trainer {

void Check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error) + ": " +
                             cudaGetErrorString(error));
}

void Check(ncclResult_t result, const char* call) {
  if (result != ncclSuccess)
    throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(result) + ": " +
                             ncclGetLastError(nullptr));
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Buffer::Reset() {
  if (data_ != nullptr) pool_->Free(data_, bytes_);
  data_ = nullptr;
}

DevicePool::~DevicePool() {
  for (void* data : all_) cudaFree(data);
}

Buffer DevicePool::Allocate(size_t bytes) {
  const size_t unit = bytes > size_t{1} << 20 ? size_t{2} << 20 : 512;
  bytes = std::max<size_t>((bytes + unit - 1) / unit, 1) * unit;
  void* data = nullptr;
  if (const auto found = free_.find(bytes); found != free_.end()) {
    data = found->second;
    free_.erase(found);
  } else {
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error != cudaSuccess)
      throw std::runtime_error("cudaMalloc of " + std::to_string(bytes) + " bytes, after " +
                               std::to_string(allocated_bytes_) +
                               " bytes: " + cudaGetErrorString(error) +
                               "; more ranks of --tp, --pp or --dp hold less each");
    all_.push_back(data);
    allocated_bytes_ += bytes;
  }
  return Buffer(this, data, bytes);
}

void DevicePool::Free(void* data, size_t bytes) { free_.emplace(bytes, data); }

Gpu::Gpu(const Options& options, int rank, int device) : options_(options), rank_(rank) {
  int devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&devices);  // opens the driver
  if (!OnHostcuda())
    throw std::runtime_error(
        std::string(options.real ? "--real" : "--timed") + " needs hostcuda, and the CUDA driver " +
        (counted == cudaSuccess ? "here is another" : "is missing") +
        ": the kernels are CPU bodies and stated durations only. Run it by `hostcuda run -- "
        "moe_trainer ...`");
  Check(counted, "cudaGetDeviceCount");
  if (device >= devices)
    throw std::runtime_error("LOCAL_RANK " + std::to_string(device) + " of " +
                             std::to_string(devices) +
                             " devices: start at most as many processes on a node as it has");
  MOE_TRAINER_CHECK(cudaSetDevice(device));
  MOE_TRAINER_CHECK(cudaFree(nullptr));
  RegisterKernels(options.real);
  compute_ = NewStream();
  MOE_TRAINER_CHECK(cudaEventCreateWithFlags(&order_, cudaEventDisableTiming));
}

Gpu::~Gpu() {
  cudaEventDestroy(order_);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

float* Gpu::At(float* data, size_t elements) const {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(data) + elements * element_bytes());
}

cudaStream_t Gpu::NewStream() {
  cudaStream_t stream = nullptr;
  MOE_TRAINER_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  streams_.push_back(stream);
  return stream;
}

void Gpu::Order(cudaStream_t first, cudaStream_t then) {
  if (first == then) return;
  MOE_TRAINER_CHECK(cudaEventRecord(order_, first));
  MOE_TRAINER_CHECK(cudaStreamWaitEvent(then, order_, 0));
}

void Gpu::HostTime(uint64_t duration_ns) const {
  HostWork(
      static_cast<uint64_t>(std::llround(static_cast<double>(duration_ns) * options_.host_scale)));
}

unsigned Gpu::Blocks(double outputs) {
  return static_cast<unsigned>(std::clamp(std::ceil(outputs / 256), 1.0, 2147483647.0));
}

uint64_t Gpu::Duration(const Kernel& kernel, const Work& work) {
  // Launches of the same kernel within an occasion are told apart by their count.
  if (last_ != occasion) {
    last_ = occasion;
    launches_.clear();
  }
  const auto number = static_cast<size_t>(kernel.number());
  if (launches_.size() <= number) launches_.resize(number + 1, 0);
  constexpr int kMostLaunches = 1 << 16;
  return DurationNs(options_, rank_, occasion, kernel.name(),
                    kernel.number() * kMostLaunches + launches_[number]++, work);
}

}  // namespace moe_trainer
