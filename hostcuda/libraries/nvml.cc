// NVML (libnvidia-ml.so.1): devices, memory, processes and topology, as torch, nvidia-smi-like
// tools and pynvml ask for them.
//
// The header is not part of the CUDA toolkit's runtime headers, so the few structures of its ABI
// are written out here. Everything is answered without initializing CUDA in the process: a program
// may ask NVML and fork afterwards.
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/driver_link.h"

namespace hostcuda {
namespace {

enum NvmlReturn {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kArgumentVersionMismatch = 25,
};

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlMemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct NvmlUtilization {
  unsigned int gpu, memory;
};
struct NvmlProcessV1 {
  unsigned int pid;
  unsigned long long used_bytes;
};
struct NvmlProcessV2 {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
static_assert(sizeof(NvmlMemoryV2) == 40 && sizeof(NvmlPciInfo) == 68 &&
                  sizeof(NvmlProcessV1) == 16 && sizeof(NvmlProcessV2) == 24,
              "ABI of NVML 13");

constexpr unsigned kNoInstance = 0xffffffffu;
constexpr unsigned kNvidiaVendor = 0x10de;
constexpr int kMaxDevices = 64;

HostcudaLibrary kLibrary = {"libnvidia-ml.so.1",
                            "hostnvml",
                            kNotSupported,
                            kUninitialized,
                            kInvalidArgument,
                            kNotSupported,
                            "NVML_ERROR_NOT_SUPPORTED",
                            {13, 0, 0}};
HostcudaTailCall g_no_accounting = {&kLibrary,
                                    "device accounting (this libcuda.so.1 has no device_info)", 0};

std::atomic<int> g_initialized{0};

// An nvmlDevice_t points into this array.
struct Device {
  int index;
};
Device g_devices[kMaxDevices];

const HostcudaTable* DeviceTable() {
  const HostcudaTable* table = Table();
  if (!table ||
      table->size < offsetof(HostcudaTable, device_processes) + sizeof table->device_processes ||
      !table->device_count || !table->device_info)
    return nullptr;
  return table;
}

int DeviceCount() {
  const HostcudaTable* table = DeviceTable();
  return table ? std::min(table->device_count(), kMaxDevices) : 0;
}

// What `device` is, or why it cannot be told.
int Info(const void* device, HostcudaDeviceInfo* info) {
  if (g_initialized.load() == 0) return kUninitialized;
  const auto* d = static_cast<const Device*>(device);
  if (d < g_devices || d >= g_devices + kMaxDevices) return kInvalidArgument;
  const HostcudaTable* table = DeviceTable();
  if (!table) return HostcudaUnsupported(&g_no_accounting);
  return table->device_info(d->index, info) == CUDA_SUCCESS ? kSuccess : kInvalidArgument;
}

int CopyText(const char* text, char* to, unsigned size) {
  if (!to) return kInvalidArgument;
  const size_t length = strlen(text);
  if (length >= size) return kInsufficientSize;
  memcpy(to, text, length + 1);
  return kSuccess;
}

void UuidText(const CUuuid& uuid, char* text, size_t size) {
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
           b[14], b[15]);
}

// NVLinks of the server products: V100 6, A100 12, H100 and H200 18, B200 18; others have none
// here.
unsigned Links(const HostcudaDeviceInfo& info) {
  if (info.major == 10 || (info.major == 9 && info.minor == 0)) return 18;
  if (info.major == 8 && info.minor == 0) return 12;
  if (info.major == 7 && info.minor == 0) return 6;
  return 0;
}
unsigned LinkVersion(const HostcudaDeviceInfo& info) {
  return info.major == 10 ? 5 : info.major == 9 ? 4 : info.major == 8 ? 3 : 2;
}

int Link(const void* device, unsigned link, HostcudaDeviceInfo* info) {
  if (int status = Info(device, info); status != kSuccess) return status;
  return link < Links(*info) ? kSuccess : Links(*info) == 0 ? kNotSupported : kInvalidArgument;
}

// Accepts "0000:10:00.0", "00000000:10:00.0" and either case.
bool SameBus(const char* a, const char* b) {
  unsigned x[4], y[4];
  return sscanf(a, "%x:%x:%x.%x", &x[0], &x[1], &x[2], &x[3]) == 4 &&
         sscanf(b, "%x:%x:%x.%x", &y[0], &y[1], &y[2], &y[3]) == 4 && memcmp(x, y, sizeof x) == 0;
}

int FillPci(const char* bus_id, NvmlPciInfo* pci) {
  if (!pci) return kInvalidArgument;
  memset(pci, 0, sizeof *pci);
  unsigned function = 0;
  if (sscanf(bus_id, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function) != 4)
    return kNotSupported;
  snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%u", pci->domain & 0xffff,
           pci->bus & 0xff, pci->device & 0xff, function & 0xf);
  snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.%u", pci->domain, pci->bus & 0xff,
           pci->device & 0xff, function & 0xf);
  pci->pci_device_id = kNvidiaVendor;
  return kSuccess;
}

/// Live processes of the session that hold memory on the device.
std::vector<HostcudaDeviceProcess> ProcessesOn(const void* device) {
  std::vector<HostcudaDeviceProcess> found(1024);
  const int present = DeviceTable()->device_processes(static_cast<const Device*>(device)->index,
                                                      found.data(), static_cast<int>(found.size()));
  found.resize(std::min(static_cast<size_t>(present), found.size()));
  return found;
}

template <typename Process>
int Processes(const void* device, unsigned* count, Process* out) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  if (!count) return kInvalidArgument;
  const std::vector<HostcudaDeviceProcess> found = ProcessesOn(device);
  const unsigned capacity = *count, n = static_cast<unsigned>(found.size());
  *count = n;
  if (capacity < n || (n > 0 && !out)) return kInsufficientSize;
  for (unsigned i = 0; i < n; ++i) {
    out[i] = Process{};
    out[i].pid = found[i].pid;
    out[i].used_bytes = found[i].used_bytes;
    if constexpr (sizeof(Process) == sizeof(NvmlProcessV2))
      out[i].gpu_instance = out[i].compute_instance = kNoInstance;
  }
  return kSuccess;
}

template <typename Value>
int Answer(const void* device, Value* out, Value (*value)(const HostcudaDeviceInfo&)) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  if (!out) return kInvalidArgument;
  *out = value(info);
  return kSuccess;
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

#pragma GCC visibility push(default)
extern "C" {

int nvmlInitWithFlags(unsigned) {
  if (!DeviceTable()) return kDriverNotLoaded;
  for (int i = 0; i < kMaxDevices; ++i) g_devices[i].index = i;
  g_initialized.fetch_add(1);
  return kSuccess;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
  int n = g_initialized.load();
  while (n > 0 && !g_initialized.compare_exchange_weak(n, n - 1)) {
  }
  return n > 0 ? kSuccess : kUninitialized;
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return CopyText("580.95.05", version, length);
}
int nvmlSystemGetNVMLVersion(char* version, unsigned length) {
  return CopyText("13.580.95.05", version, length);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return version ? (*version = CUDA_VERSION, kSuccess) : kInvalidArgument;
}
int nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
int nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
  char path[64], text[256] = {};
  snprintf(path, sizeof path, "/proc/%u/comm", pid);
  FILE* f = fopen(path, "re");
  if (!f) return kNotFound;
  const bool read = fgets(text, sizeof text, f) != nullptr;
  fclose(f);
  if (!read) return kNotFound;
  text[strcspn(text, "\n")] = '\0';
  return CopyText(text, name, length);
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  if (g_initialized.load() == 0) return kUninitialized;
  return count ? (*count = static_cast<unsigned>(DeviceCount()), kSuccess) : kInvalidArgument;
}
int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (g_initialized.load() == 0) return kUninitialized;
  if (!device || index >= static_cast<unsigned>(DeviceCount())) return kInvalidArgument;
  *device = &g_devices[index];
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex(unsigned index, void** device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (g_initialized.load() == 0) return kUninitialized;
  if (!uuid || !device) return kInvalidArgument;
  for (int i = 0; i < DeviceCount(); ++i) {
    HostcudaDeviceInfo info{};
    char text[64];
    if (Info(&g_devices[i], &info) != kSuccess) continue;
    UuidText(info.uuid, text, sizeof text);
    if (strcasecmp(text, uuid) == 0) return *device = &g_devices[i], kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (g_initialized.load() == 0) return kUninitialized;
  if (!bus_id || !device) return kInvalidArgument;
  for (int i = 0; i < DeviceCount(); ++i) {
    HostcudaDeviceInfo info{};
    if (Info(&g_devices[i], &info) == kSuccess && SameBus(info.pci_bus_id, bus_id))
      return *device = &g_devices[i], kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetHandleByPciBusId(const char* bus_id, void** device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

int nvmlDeviceGetIndex(void* device, unsigned* index) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  return index ? (*index = static_cast<unsigned>(static_cast<Device*>(device)->index), kSuccess)
               : kInvalidArgument;
}
int nvmlDeviceGetMinorNumber(void* device, unsigned* minor) {
  return nvmlDeviceGetIndex(device, minor);
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  return CopyText(info.name, name, length);
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned length) {
  HostcudaDeviceInfo info{};
  char text[64];
  if (int status = Info(device, &info); status != kSuccess) return status;
  UuidText(info.uuid, text, sizeof text);
  return CopyText(text, uuid, length);
}
int nvmlDeviceGetPciInfo_v3(void* device, NvmlPciInfo* pci) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  return FillPci(info.pci_bus_id, pci);
}
int nvmlDeviceGetMemoryInfo(void* device, NvmlMemory* memory) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  if (!memory) return kInvalidArgument;
  unsigned long long used = 0;
  for (const HostcudaDeviceProcess& process : ProcessesOn(device)) used += process.used_bytes;
  *memory = {info.total_bytes,
             info.total_bytes - std::min<unsigned long long>(used, info.total_bytes), used};
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, NvmlMemoryV2* memory) {
  if (!memory) return kInvalidArgument;
  const unsigned version = sizeof(NvmlMemoryV2) | 2u << 24;
  if (memory->version != version) return kArgumentVersionMismatch;
  NvmlMemory v1;
  if (int status = nvmlDeviceGetMemoryInfo(device, &v1); status != kSuccess) return status;
  *memory = {version, v1.total, 0, v1.free, v1.used};
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, NvmlProcessV1* out) {
  return Processes(device, count, out);
}
int nvmlDeviceGetComputeRunningProcesses_v2(void* device, unsigned* count, NvmlProcessV2* out) {
  return Processes(device, count, out);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, NvmlProcessV2* out) {
  return Processes(device, count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned* count, NvmlProcessV2*) {
  return Answer<unsigned>(device, count, [](const HostcudaDeviceInfo&) { return 0u; });
}
// No kernel takes time on the device, so it is never busy.
int nvmlDeviceGetUtilizationRates(void* device, NvmlUtilization* rates) {
  return Answer<NvmlUtilization>(device, rates, [](const HostcudaDeviceInfo&) {
    return NvmlUtilization{0, 0};
  });
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  if (!major || !minor) return kInvalidArgument;
  *major = info.major;
  *minor = info.minor;
  return kSuccess;
}
int nvmlDeviceGetArchitecture(void* device, unsigned* architecture) {
  return Answer<unsigned>(device, architecture, [](const HostcudaDeviceInfo& i) -> unsigned {
    if (i.major == 7) return i.minor >= 5 ? 6 : 5;
    if (i.major == 8) return i.minor == 9 ? 8 : 7;
    if (i.major == 9) return 9;
    return i.major >= 10 ? 10 : 0xffffffffu;
  });
}
// Clock domains: graphics 0, SM 1, memory 2, video 3.
int nvmlDeviceGetMaxClockInfo(void* device, int domain, unsigned* mhz) {
  HostcudaDeviceInfo info{};
  if (int status = Info(device, &info); status != kSuccess) return status;
  if (!mhz || domain < 0 || domain > 3) return kInvalidArgument;
  *mhz = static_cast<unsigned>((domain == 2 ? info.memory_clock_khz : info.clock_khz) / 1000);
  return kSuccess;
}
int nvmlDeviceGetClockInfo(void* device, int domain, unsigned* mhz) {
  return nvmlDeviceGetMaxClockInfo(device, domain, mhz);
}
int nvmlDeviceGetComputeMode(void* device, int* mode) {
  return Answer<int>(device, mode, [](const HostcudaDeviceInfo&) { return 0; });  // default
}
int nvmlDeviceGetPersistenceMode(void* device, int* mode) {
  return Answer<int>(device, mode, [](const HostcudaDeviceInfo&) { return 1; });
}
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  if (!pending) return kInvalidArgument;
  *pending = 0;
  return Answer<unsigned>(device, current, [](const HostcudaDeviceInfo&) { return 0u; });
}

// ---- topology: every device reaches every other one through the same NVSwitches; without NVLink
// over the host bridge.
int nvmlDeviceGetP2PStatus(void* from, void* to, int, int* status) {
  HostcudaDeviceInfo info{};
  if (int s = Info(from, &info); s != kSuccess) return s;
  return Answer<int>(to, status,
                     [](const HostcudaDeviceInfo&) { return 0; });  // NVML_P2P_STATUS_OK
}
int nvmlDeviceGetTopologyCommonAncestor(void* from, void* to, int* level) {
  HostcudaDeviceInfo info{};
  if (int s = Info(from, &info); s != kSuccess) return s;
  return Answer<int>(to, level,
                     [](const HostcudaDeviceInfo&) { return 40; });  // NVML_TOPOLOGY_NODE
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  HostcudaDeviceInfo info{};
  if (int status = Link(device, link, &info); status != kSuccess) return status;
  return active ? (*active = 1, kSuccess) : kInvalidArgument;
}
int nvmlDeviceGetNvLinkVersion(void* device, unsigned link, unsigned* version) {
  HostcudaDeviceInfo info{};
  if (int status = Link(device, link, &info); status != kSuccess) return status;
  return version ? (*version = LinkVersion(info), kSuccess) : kInvalidArgument;
}
int nvmlDeviceGetNvLinkCapability(void* device, unsigned link, int capability, unsigned* result) {
  HostcudaDeviceInfo info{};
  if (int status = Link(device, link, &info); status != kSuccess) return status;
  if (!result || capability < 0 || capability > 5) return kInvalidArgument;
  *result = capability != 4;  // all but SLI
  return kSuccess;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* type) {
  HostcudaDeviceInfo info{};
  if (int status = Link(device, link, &info); status != kSuccess) return status;
  return type ? (*type = 2, kSuccess) : kInvalidArgument;  // a switch
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, NvmlPciInfo* pci) {
  HostcudaDeviceInfo info{};
  if (int status = Link(device, link, &info); status != kSuccess) return status;
  char bus_id[32];
  snprintf(bus_id, sizeof bus_id, "0000:%02x:00.0",
           5 + link % 4);  // four switches, as in an HGX board
  return FillPci(bus_id, pci);
}
int nvmlDeviceGetNvLinkRemotePciInfo(void* device, unsigned link, NvmlPciInfo* pci) {
  return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

}  // extern "C"
#pragma GCC visibility pop
