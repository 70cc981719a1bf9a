#include "hostcuda/runtime/thread_state.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_set>

#include "hostcuda/runtime/driver_calls.h"

namespace hostcuda {
namespace {

constexpr int kMaxDevices = 64;

struct Contexts {
  std::mutex mutex;
  CUcontext primary[kMaxDevices] = {};
  std::atomic<unsigned> generation{1};  // counts resets: what threads know of earlier ones is void
};

Contexts& All() {
  static Contexts* const contexts = new Contexts;
  return *contexts;
}

struct State {
  int device = 0;
  unsigned bound = 0;  // generation in which a context was made current; 0: never
  cudaError_t last = cudaSuccess;
  bool per_thread_default = false;
};

thread_local State state;

}  // namespace

cudaError_t UseDriver() {
  static std::atomic<bool> initialized{false};
  if (initialized.load(std::memory_order_acquire)) return cudaSuccess;
  const DriverCalls* driver = Calls();
  if (driver == nullptr) return cudaErrorInsufficientDriver;
  const CUresult result = driver->cuInit(0);
  if (result == CUDA_SUCCESS) initialized.store(true, std::memory_order_release);
  return static_cast<cudaError_t>(result);
}

cudaError_t UseContext() {
  if (state.bound == All().generation.load(std::memory_order_acquire)) return cudaSuccess;
  if (const cudaError_t error = UseDriver(); error != cudaSuccess) return error;
  CUcontext current = nullptr;
  const CUresult result = Calls()->cuCtxGetCurrent(&current);
  if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
  if (current != nullptr && state.bound == 0) {
    state.bound = All().generation.load(std::memory_order_acquire);
    return cudaSuccess;
  }
  return SelectDevice(state.device);
}

cudaError_t SelectDevice(int device) {
  if (const cudaError_t error = UseDriver(); error != cudaSuccess) return error;
  const DriverCalls* driver = Calls();
  int count = 0;
  if (const CUresult result = driver->cuDeviceGetCount(&count); result != CUDA_SUCCESS)
    return static_cast<cudaError_t>(result);
  if (device < 0 || device >= count || device >= kMaxDevices) return cudaErrorInvalidDevice;
  Contexts& all = All();
  CUcontext context = nullptr;
  unsigned generation = 0;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    generation = all.generation.load(std::memory_order_relaxed);
    if (all.primary[device] == nullptr) {
      const CUresult result = driver->cuDevicePrimaryCtxRetain(&all.primary[device], device);
      if (result != CUDA_SUCCESS) {
        all.primary[device] = nullptr;
        return static_cast<cudaError_t>(result);
      }
    }
    context = all.primary[device];
  }
  if (const CUresult result = driver->cuCtxSetCurrent(context); result != CUDA_SUCCESS)
    return static_cast<cudaError_t>(result);
  state.device = device;
  state.bound = generation;
  return cudaSuccess;
}

cudaError_t CurrentDevice(int* device) {
  *device = state.device;
  if (state.bound == 0) {
    // The program may use the driver API in this thread; asking must not create a context.
    const DriverCalls* driver = Calls();
    CUcontext current = nullptr;
    if (driver == nullptr || driver->cuCtxGetCurrent(&current) != CUDA_SUCCESS ||
        current == nullptr)
      return cudaSuccess;
  }
  CUdevice own = 0;
  if (Calls()->cuCtxGetDevice(&own) == CUDA_SUCCESS) *device = own;
  return cudaSuccess;
}

cudaError_t ResetDevice() {
  if (const cudaError_t error = UseContext(); error != cudaSuccess) return error;
  CUdevice device = 0;
  if (const CUresult result = Calls()->cuCtxGetDevice(&device); result != CUDA_SUCCESS)
    return static_cast<cudaError_t>(result);
  Contexts& all = All();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.primary[device] = nullptr;
  all.generation.fetch_add(1, std::memory_order_release);
  return static_cast<cudaError_t>(Calls()->cuDevicePrimaryCtxReset(device));
}

cudaError_t Note(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) state.last = error;
  return error;
}

cudaError_t TakeLastError() {
  const cudaError_t last = state.last;
  state.last = cudaSuccess;
  return last;
}

cudaError_t PeekLastError() { return state.last; }

PerThreadStreamScope::PerThreadStreamScope() : previous_(state.per_thread_default) {
  state.per_thread_default = true;
}
PerThreadStreamScope::~PerThreadStreamScope() { state.per_thread_default = previous_; }

bool PerThreadDefault() { return state.per_thread_default; }

CUstream Handle(cudaStream_t stream) {
  if (stream == nullptr && state.per_thread_default) return CU_STREAM_PER_THREAD;
  return reinterpret_cast<CUstream>(stream);
}

cudaError_t NotImplemented(const char* function) {
  struct Said {
    std::mutex mutex;
    std::unordered_set<std::string> functions;
  };
  static Said* const said = new Said;
  std::lock_guard<std::mutex> lock(said->mutex);
  if (said->functions.insert(function).second) {
    fprintf(stderr,
            "hostcuda: libcudart.so.13: %s is not implemented; it returns cudaErrorNotSupported\n",
            function);
  }
  return Note(cudaErrorNotSupported);
}

}  // namespace hostcuda
