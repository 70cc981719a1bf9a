#include "hostcuda/libraries/driver_link.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <unordered_map>

namespace hostcuda {
namespace {

constexpr int kCudaVersion = 13000;

void Say(const char* message, const char* detail) noexcept {
  char line[400];
  int n = snprintf(line, sizeof line, "hostcuda: %s%s\n", message, detail ? detail : "");
  ssize_t written =
      write(STDERR_FILENO, line, static_cast<size_t>(std::clamp<int>(n, 0, sizeof line - 1)));
  static_cast<void>(written);
}

// The function's type in the headers is a macro that names a version; this one is stable.
using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);

GetProcAddress Resolver() noexcept {
  static const GetProcAddress resolver = []() -> GetProcAddress {
    // No RTLD_GLOBAL: the driver's names must not become the program's. Never closed: others hold
    // pointers into it.
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
      Say("libcuda.so.1 cannot be opened; run `hostcuda doctor`: ", dlerror());
      return nullptr;
    }
    void* resolve = dlsym(driver, "cuGetProcAddress_v2");
    if (!resolve)
      Say("libcuda.so.1 has no cuGetProcAddress_v2: it is older than CUDA 12 or not a driver",
          nullptr);
    return reinterpret_cast<GetProcAddress>(resolve);
  }();
  return resolver;
}

// Memory that a task of a stream clears. hostcuda's device memory is the process's own, so it is
// written directly.
struct Clearing {
  void* memory;
  size_t bytes;
};
int Clear(void* context, uint64_t, uint64_t*) {
  const auto* clearing = static_cast<Clearing*>(context);
  memset(clearing->memory, 0, clearing->bytes);
  return HOSTCUDA_TASK_DONE;
}
void ReleaseClearing(void* context) { delete static_cast<Clearing*>(context); }
void* CloneClearing(void* context) {
  return new (std::nothrow) Clearing(*static_cast<Clearing*>(context));
}

}  // namespace

void* DriverSymbol(const char* symbol) noexcept {
  static std::mutex mutex;
  // Keyed by content: call sites are spread over several objects, so equal literals may differ in
  // address.
  try {
    static auto* const cache = new std::unordered_map<std::string, void*>;
    std::lock_guard<std::mutex> lock(mutex);
    if (auto found = cache->find(symbol); found != cache->end()) return found->second;
    void* function = nullptr;
    CUdriverProcAddressQueryResult result;
    if (GetProcAddress resolve = Resolver();
        resolve && resolve(symbol, &function, kCudaVersion, 0, &result) != CUDA_SUCCESS)
      function = nullptr;
    cache->emplace(symbol, function);
    return function;
  } catch (const std::exception&) {
    return nullptr;
  }
}

const HostcudaTable* Table() noexcept {
  static const HostcudaTable* const table = []() -> const HostcudaTable* {
    auto get = reinterpret_cast<CUresult (*)(const void**, const CUuuid*)>(
        DriverSymbol("cuGetExportTable"));
    const void* found = nullptr;
    if (!get || get(&found, &kHostcudaTableUuid) != CUDA_SUCCESS || !found) {
      Say("the process's libcuda.so.1 is not hostcuda's, but one of its CUDA libraries is; run "
          "`hostcuda doctor`",
          nullptr);
      return nullptr;
    }
    auto candidate = static_cast<const HostcudaTable*>(found);
    if (candidate->version != HOSTCUDA_TABLE_VERSION) {
      Say("libcuda.so.1 is of another hostcuda release than the CUDA libraries; install them "
          "together: `hostcuda install`",
          nullptr);
      return nullptr;
    }
    return candidate;
  }();
  return table;
}

CUresult EnsureContext() noexcept {
  CUcontext current = nullptr;
  CUresult status = HOSTCUDA_DRIVER(cuCtxGetCurrent, &current);
  if (status == CUDA_ERROR_NOT_INITIALIZED) {
    if (status = HOSTCUDA_DRIVER(cuInit, 0u); status != CUDA_SUCCESS) return status;
    status = HOSTCUDA_DRIVER(cuCtxGetCurrent, &current);
  }
  if (status != CUDA_SUCCESS || current) return status;
  if (status = HOSTCUDA_DRIVER(cuDevicePrimaryCtxRetain, &current, 0); status != CUDA_SUCCESS)
    return status;
  return HOSTCUDA_DRIVER(cuCtxSetCurrent, current);
}

Grid GridFor(uint64_t elements) noexcept {
  Grid grid;
  grid.grid[0] =
      static_cast<uint32_t>(std::clamp<uint64_t>((elements + 1023) / 1024, 1, 0x7fffffff));
  return grid;
}

CUresult LaunchNamed(CUstream stream, const std::string& name, const Grid& grid) noexcept {
  const HostcudaTable* table = Table();
  if (!table) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  if (CUresult status = EnsureContext(); status != CUDA_SUCCESS) return status;
  return table->launch_named(stream, name.c_str(), grid.grid, grid.block, grid.shared_bytes);
}

CUresult ClearOnStream(CUstream stream, void* memory, size_t bytes) noexcept {
  const HostcudaTable* table = Table();
  if (!table) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  auto* clearing = new (std::nothrow) Clearing{memory, bytes};
  if (!clearing) return CUDA_ERROR_OUT_OF_MEMORY;
  return table->stream_enqueue(stream, nullptr, Clear, ReleaseClearing, CloneClearing, clearing);
}

}  // namespace hostcuda
