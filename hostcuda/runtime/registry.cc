#include "hostcuda/runtime/registry.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "hostcuda/runtime/driver_calls.h"
#include "hostcuda/runtime/thread_state.h"

namespace hostcuda {

struct FatBinary {
  const void* image = nullptr;
  CUlibrary library = nullptr;
  bool gone = false;
};

namespace {

struct Function {
  const void* host;
  const char* name;
  FatBinary* binary;
};

struct Variable {
  const char* name;
  FatBinary* binary;
  size_t bytes;
  CUdeviceptr address;
  void** managed;  // where the program's pointer is; null for others
};

struct Registry {
  std::shared_mutex mutex;
  std::deque<FatBinary> binaries;
  std::deque<Function> functions;  // sorted by host address up to `sorted`
  size_t sorted = 0;
  std::unordered_map<const void*, CUkernel> resolved;
  std::unordered_map<CUkernel, bool> kernels;
  std::unordered_map<const void*, Variable> variables;
};

// Made by the first registration, which runs before main; never destroyed, since unregistration
// runs after it.
Registry& All() {
  static Registry* const registry = new Registry;
  return *registry;
}

// With the registry's mutex held.
cudaError_t Load(FatBinary* binary) {
  if (binary->library != nullptr) return cudaSuccess;
  const DriverCalls* driver = Calls();
  return static_cast<cudaError_t>(driver->cuLibraryLoadData(
      &binary->library, binary->image, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

}  // namespace

FatBinary* RegisterFatBinary(const void* image) {
  Registry& all = All();
  std::unique_lock lock(all.mutex);
  all.binaries.emplace_back().image = image;
  return &all.binaries.back();
}

void UnregisterFatBinary(FatBinary* binary) {
  // At exit or dlclose: the host addresses may mean something else from now on. The device side
  // stays.
  Registry& all = All();
  std::unique_lock lock(all.mutex);
  binary->gone = true;
}

void RegisterFunction(FatBinary* binary, const void* host, const char* name) {
  Registry& all = All();
  std::unique_lock lock(all.mutex);
  all.functions.push_back({host, name, binary});
}

void RegisterVariable(FatBinary* binary, const void* host, const char* name, size_t bytes) {
  Registry& all = All();
  std::unique_lock lock(all.mutex);
  all.variables[host] = {name, binary, bytes, 0, nullptr};
}

void RegisterManagedVariable(FatBinary* binary, void** host, const char* name, size_t bytes) {
  Registry& all = All();
  std::unique_lock lock(all.mutex);
  all.variables[host] = {name, binary, bytes, 0, host};
}

cudaError_t FindKernel(const void* host, CUkernel* kernel) {
  Registry& all = All();
  {
    std::shared_lock lock(all.mutex);
    const auto known = all.resolved.find(host);
    if (known != all.resolved.end()) {
      *kernel = known->second;
      return cudaSuccess;
    }
    const auto handle = reinterpret_cast<CUkernel>(const_cast<void*>(host));
    if (all.kernels.count(handle) != 0) {
      *kernel = handle;
      return cudaSuccess;
    }
  }
  if (const cudaError_t error = UseContext(); error != cudaSuccess) return error;
  std::unique_lock lock(all.mutex);
  const auto before = [](const Function& a, const Function& b) { return a.host < b.host; };
  if (all.sorted != all.functions.size()) {
    // Later registrations of an address (a library loaded where another one was) win.
    std::stable_sort(all.functions.begin(), all.functions.end(), before);
    all.sorted = all.functions.size();
  }
  auto range = std::equal_range(all.functions.begin(), all.functions.end(),
                                Function{host, nullptr, nullptr}, before);
  while (range.first != range.second && std::prev(range.second)->binary->gone) --range.second;
  if (range.first == range.second) return cudaErrorInvalidDeviceFunction;
  const Function& function = *std::prev(range.second);
  if (const cudaError_t error = Load(function.binary); error != cudaSuccess) return error;
  const CUresult found =
      Calls()->cuLibraryGetKernel(kernel, function.binary->library, function.name);
  if (found == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidDeviceFunction;
  if (found != CUDA_SUCCESS) return static_cast<cudaError_t>(found);
  all.resolved[host] = *kernel;
  all.kernels[*kernel] = true;
  return cudaSuccess;
}

cudaError_t FindVariable(const void* host, CUdeviceptr* address, size_t* bytes) {
  if (const cudaError_t error = UseContext(); error != cudaSuccess) return error;
  Registry& all = All();
  std::unique_lock lock(all.mutex);
  const auto found = all.variables.find(host);
  if (found == all.variables.end()) return cudaErrorInvalidSymbol;
  Variable& variable = found->second;
  if (variable.address == 0) {
    if (const cudaError_t error = Load(variable.binary); error != cudaSuccess) return error;
    // Passed in, the size helps a driver that cannot read it from a compressed image.
    size_t size = variable.bytes;
    const CUresult result = Calls()->cuLibraryGetGlobal(&variable.address, &size,
                                                        variable.binary->library, variable.name);
    if (result == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidSymbol;
    if (result != CUDA_SUCCESS) return static_cast<cudaError_t>(result);
    if (variable.managed != nullptr) *variable.managed = reinterpret_cast<void*>(variable.address);
  }
  *address = variable.address;
  *bytes = variable.bytes;
  return cudaSuccess;
}

}  // namespace hostcuda
