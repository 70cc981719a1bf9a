#include "hostcuda/driver/value_layer.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "hostcuda/driver/options.h"

namespace hostcuda {
namespace {

using InOperation = int (*)();

std::atomic<InOperation> g_in_operation{nullptr};

/// The path of `name` in the folder of this library.
std::string Beside(const char* name) {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&OpenValueLayer), &self) == 0 || self.dli_fname == nullptr)
    return name;
  const std::string path = self.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
}

bool PyTorchIsLoaded() {
  void* handle = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

CUresult Open() {
  const std::string path = Beside("libhostcuda_values.so");
  void* layer = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (layer == nullptr) {
    fprintf(stderr,
            "hostcuda: HOSTCUDA_VALUES=%s needs the value layer, %s, which cannot be opened: %s\n"
            "hint: build and install hostcuda for this PyTorch (cmake -DPRISM_BUILD_VALUES=ON, "
            "target hostcuda_install), or set HOSTCUDA_VALUES=none\n",
            Options().values == HOSTCUDA_VALUES_CPU ? "cpu" : "control", path.c_str(), dlerror());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  const auto install = reinterpret_cast<int (*)()>(dlsym(layer, "hostcuda_values_install"));
  const auto in_operation =
      reinterpret_cast<InOperation>(dlsym(layer, "hostcuda_values_in_operation"));
  if (install == nullptr || in_operation == nullptr) {
    fprintf(stderr,
            "hostcuda: %s is not hostcuda's value layer of this version; install hostcuda again\n",
            path.c_str());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (install() != 0) return CUDA_ERROR_SYSTEM_NOT_READY;  // the layer has said why
  g_in_operation.store(in_operation, std::memory_order_release);
  return CUDA_SUCCESS;
}

/// Kernels that write nothing: torch.cuda._sleep.
bool WritesNothing(const char* kernel) { return strstr(kernel, "spin_kernel") != nullptr; }

}  // namespace

CUresult OpenValueLayer() {
  if (Options().values == HOSTCUDA_VALUES_NONE) return CUDA_SUCCESS;
  if (g_in_operation.load(std::memory_order_acquire) != nullptr) return CUDA_SUCCESS;
  static std::mutex* const mutex = new std::mutex;
  static CUresult failure = CUDA_SUCCESS;
  std::lock_guard<std::mutex> lock(*mutex);
  if (g_in_operation.load(std::memory_order_acquire) != nullptr || failure != CUDA_SUCCESS)
    return failure;
  if (!PyTorchIsLoaded()) return CUDA_SUCCESS;
  failure = Open();
  return failure;
}

CUresult CheckLaunchHasValues(const char* kernel) {
  const InOperation in_operation = g_in_operation.load(std::memory_order_acquire);
  if (in_operation == nullptr || Options().values != HOSTCUDA_VALUES_CPU || in_operation() != 0 ||
      WritesNothing(kernel)) {
    return CUDA_SUCCESS;
  }
  static std::mutex* const mutex = new std::mutex;
  static auto* const named = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  if (named->insert(kernel).second) {
    fprintf(stderr,
            "hostcuda: kernel %s is launched outside every ATen operation, so its values are "
            "unknown under "
            "HOSTCUDA_VALUES=cpu; disable what launches it (torch.compile, a custom kernel), or "
            "use HOSTCUDA_VALUES=none "
            "or control\n",
            kernel);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace hostcuda
