#include "hostcuda/nccl/driver.h"

#include <dlfcn.h>

#include <cstring>
#include <mutex>
#include <string>

#include "hostcuda/nccl/futex.h"

namespace hostnccl {
namespace {

const DriverFunctions* testing_driver = nullptr;

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*);

Status Load(DriverFunctions* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Error(Code::kCudaError, "no CUDA driver: %s", dlerror());
  GetProcAddress get_proc_address = nullptr;
  void* symbol = dlsym(library, "cuGetProcAddress_v2");
  if (symbol == nullptr) return Error(Code::kCudaError, "libcuda.so.1 has no cuGetProcAddress_v2");
  get_proc_address = reinterpret_cast<GetProcAddress>(symbol);
  Status status;
  const auto find = [&](const char* name, auto* function) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found;
    // Version 13.0 added a form of it with another parameter.
    const int version = strcmp(name, "cuCtxGetDevice") == 0 ? 12080 : CUDA_VERSION;
    if (get_proc_address(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) !=
            CUDA_SUCCESS ||
        address == nullptr) {
      if (status.ok()) status = Error(Code::kCudaError, "libcuda.so.1 does not have %s", name);
      return;
    }
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(address);
  };
  CUresult (*get_export_table)(const void**, const CUuuid*) = nullptr;
  find("cuGetExportTable", &get_export_table);
  find("cuInit", &driver->init);
  find("cuCtxGetCurrent", &driver->ctx_get_current);
  find("cuCtxSetCurrent", &driver->ctx_set_current);
  find("cuCtxPushCurrent", &driver->ctx_push_current);
  find("cuCtxPopCurrent", &driver->ctx_pop_current);
  find("cuCtxGetDevice", &driver->ctx_get_device);
  find("cuDeviceGet", &driver->device_get);
  find("cuDeviceGetCount", &driver->device_get_count);
  find("cuDeviceGetPCIBusId", &driver->device_get_pci_bus_id);
  find("cuDevicePrimaryCtxRetain", &driver->device_primary_ctx_retain);
  find("cuDevicePrimaryCtxRelease", &driver->device_primary_ctx_release);
  find("cuMemAlloc", &driver->mem_alloc);
  find("cuMemFree", &driver->mem_free);
  find("cuStreamIsCapturing", &driver->stream_is_capturing);
  if (!status.ok()) return status;
  if (const CUresult result = driver->init(0); result != CUDA_SUCCESS) {
    return Error(Code::kCudaError, "cuInit failed with CUDA error %d", static_cast<int>(result));
  }
  const void* table = nullptr;
  if (get_export_table(&table, &kHostcudaTableUuid) != CUDA_SUCCESS || table == nullptr) {
    return Error(Code::kCudaError,
                 "this libnccl.so.2 is hostnccl and works on hostcuda's driver only, but the "
                 "process's libcuda.so.1 is another one");
  }
  driver->table = static_cast<const HostcudaTable*>(table);
  if (driver->table->version != HOSTCUDA_TABLE_VERSION) {
    return Error(Code::kCudaError,
                 "hostcuda's driver has interface version %u, this libnccl.so.2 needs %d; install "
                 "both from one build",
                 driver->table->version, HOSTCUDA_TABLE_VERSION);
  }
  // Drivers of the first version end before these.
  driver->takes_time =
      driver->table->size >= sizeof(HostcudaTable) && driver->table->clock_takes_time() != 0;
  if (driver->takes_time) await_on_clock.store(driver->table->await_word);
  return {};
}

}  // namespace

void SetDriverForTesting(const DriverFunctions* driver) { testing_driver = driver; }

Status LoadDriver(const DriverFunctions** out) {
  if (testing_driver != nullptr) {
    *out = testing_driver;
    return {};
  }
  static std::mutex mutex;
  static DriverFunctions driver;
  static bool loaded = false;
  std::lock_guard lock(mutex);
  if (!loaded) {
    DriverFunctions candidate;
    if (Status status = Load(&candidate); !status.ok()) return status;
    driver = candidate;
    loaded = true;
  }
  *out = &driver;
  return {};
}

}  // namespace hostnccl
