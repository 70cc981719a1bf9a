#include "hostcuda/values/stream_order.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace hostcuda::values {
namespace {

const HostcudaTable* g_table = nullptr;

CUstream NativeStream(const c10::impl::VirtualGuardImpl& cuda, c10::Device device) {
  return static_cast<CUstream>(cuda.getStreamNativeHandle(cuda.getStream(device)));
}

// One queued CPU form. A captured stream clones it for every replay of the graph.
struct Task {
  const char* name;
  std::shared_ptr<const std::function<void()>> work;
};

int PollTask(void* context, uint64_t /*now_ns*/, uint64_t* /*wake_at_ns*/) {
  auto* task = static_cast<Task*>(context);
  try {
    (*task->work)();
    return HOSTCUDA_TASK_DONE;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hostcuda values: %s failed behind a stalled stream: %s\n", task->name,
                 error.what());
  } catch (...) {
    std::fprintf(stderr, "hostcuda values: %s failed behind a stalled stream\n", task->name);
  }
  return -static_cast<int>(CUDA_ERROR_LAUNCH_FAILED);
}

void ReleaseTask(void* context) { delete static_cast<Task*>(context); }

void* CloneTask(void* context) { return new Task(*static_cast<Task*>(context)); }

}  // namespace

bool ConnectDriver() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  auto export_table = reinterpret_cast<CUresult (*)(const void**, const CUuuid*)>(
      dlsym(driver, "cuGetExportTable"));
  const void* table = nullptr;
  if (export_table == nullptr || export_table(&table, &kHostcudaTableUuid) != CUDA_SUCCESS)
    return false;
  g_table = static_cast<const HostcudaTable*>(table);
  return g_table != nullptr && g_table->version == HOSTCUDA_TABLE_VERSION;
}

HostcudaValues ModeOfDriver() {
  if (g_table != nullptr) return g_table->values();
  const char* mode = std::getenv("HOSTCUDA_VALUES");
  if (mode == nullptr || std::strcmp(mode, "none") == 0) return HOSTCUDA_VALUES_NONE;
  return std::strcmp(mode, "control") == 0 ? HOSTCUDA_VALUES_CONTROL : HOSTCUDA_VALUES_CPU;
}

bool CurrentStreamIdle(c10::Device device) {
  if (g_table == nullptr) return true;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::DeviceGuard guard(device);
  int idle = 0;
  const CUresult result = g_table->stream_idle(NativeStream(cuda, device), &idle);
  TORCH_CHECK(result == CUDA_SUCCESS, "hostcuda values: the current stream of ", device,
              " cannot be asked whether it is idle (CUresult ", static_cast<int>(result), ")");
  return idle != 0;
}

void EnqueueOnCurrentStream(c10::Device device, const char* name, std::function<void()> work) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::DeviceGuard guard(device);
  auto* task = new Task{name, std::make_shared<const std::function<void()>>(std::move(work))};
  const CUresult result = g_table->stream_enqueue(NativeStream(cuda, device), nullptr, PollTask,
                                                  ReleaseTask, CloneTask, task);
  TORCH_CHECK(result == CUDA_SUCCESS, "hostcuda values: ", name,
              " cannot be queued on the current stream of ", device, " (CUresult ",
              static_cast<int>(result), ")");
}

void WaitForCurrentStream(c10::Device device) {
  if (g_table == nullptr || CurrentStreamIdle(device)) return;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  cuda.synchronizeStream(cuda.getStream(device));
}

void LaunchNamed(c10::Device device, const std::string& name) {
  if (g_table == nullptr) return;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::DeviceGuard guard(device);
  const uint32_t one[3] = {1, 1, 1};
  const CUresult result =
      g_table->launch_named(NativeStream(cuda, device), name.c_str(), one, one, 0);
  TORCH_CHECK(result == CUDA_SUCCESS, "hostcuda values: the launch of ", name, " failed (CUresult ",
              static_cast<int>(result), ")");
}

}  // namespace hostcuda::values
