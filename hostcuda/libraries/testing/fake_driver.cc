#include "hostcuda/libraries/testing/fake_driver.h"

#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::vector<FakeLaunch> g_launches;
HostcudaActivityObserver g_observer = nullptr;
uint64_t g_now_ns = 1000;
int g_context;

CUresult LaunchNamed(CUstream stream, const char* name, const uint32_t grid[3],
                     const uint32_t block[3], uint32_t) {
  FakeLaunch launch{stream, name, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}};
  g_launches.push_back(launch);
  return CUDA_SUCCESS;
}
CUresult StreamEnqueue(CUstream, const char*, HostcudaTaskPoll poll, HostcudaTaskRelease release,
                       void* (*)(void*), void* context) {
  uint64_t wake_at_ns = UINT64_MAX;
  poll(context, g_now_ns, &wake_at_ns);
  release(context);
  return CUDA_SUCCESS;
}
uint64_t NowNs() { return g_now_ns; }
HostcudaActivityObserver SetObserver(HostcudaActivityObserver observer) {
  HostcudaActivityObserver old = g_observer;
  g_observer = observer;
  return old;
}
int DeviceCount() { return 2; }
CUresult DeviceInfo(int device, HostcudaDeviceInfo* info) {
  if (device < 0 || device >= DeviceCount()) return CUDA_ERROR_INVALID_DEVICE;
  *info = {};
  strcpy(info->name, "NVIDIA H200");
  info->uuid.bytes[0] = 0x12;
  info->uuid.bytes[15] = static_cast<char>(device);
  strcpy(info->pci_bus_id, device == 0 ? "0000:10:00.0" : "0000:11:00.0");
  info->major = 9;
  info->multiprocessors = 132;
  info->clock_khz = 1980000;
  info->memory_clock_khz = 3201000;
  info->total_bytes = 1000;
  return CUDA_SUCCESS;
}
int DeviceProcesses(int device, HostcudaDeviceProcess* processes, int capacity) {
  if (device != 0) return 0;
  if (capacity > 0) processes[0] = {4711, 300};
  return 1;
}

HostcudaTable MakeTable() {
  HostcudaTable table{};
  table.size = sizeof table;
  table.version = HOSTCUDA_TABLE_VERSION;
  table.stream_enqueue = StreamEnqueue;
  table.launch_named = LaunchNamed;
  table.now_ns = NowNs;
  table.set_activity_observer = SetObserver;
  table.device_count = DeviceCount;
  table.device_info = DeviceInfo;
  table.device_processes = DeviceProcesses;
  return table;
}

CUresult GetExportTable(const void** out, const CUuuid* id) {
  static const HostcudaTable table = MakeTable();
  if (memcmp(id, &kHostcudaTableUuid, sizeof *id) != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = &table;
  return CUDA_SUCCESS;
}
CUresult CtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(&g_context);
  return CUDA_SUCCESS;
}

}  // namespace

EXPORT std::vector<FakeLaunch>* fake_launches(void) { return &g_launches; }
EXPORT HostcudaActivityObserver fake_observer(void) { return g_observer; }
EXPORT void fake_set_now_ns(uint64_t now_ns) { g_now_ns = now_ns; }

EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult*) {
  *function = nullptr;
  if (strcmp(name, "cuGetExportTable") == 0) *function = reinterpret_cast<void*>(GetExportTable);
  if (strcmp(name, "cuCtxGetCurrent") == 0) *function = reinterpret_cast<void*>(CtxGetCurrent);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
