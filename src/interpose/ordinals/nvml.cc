// The NVML shim: counts virtual devices, and reports the target's name and the ledger's memory.
//
// Where a real NVML is there (PRISM_REAL_LIBNVML) every other call is its own, on the real device
// that stands behind all ordinals. Where there is none, what programs ask before they use CUDA is
// answered from the controller's welcome, the rest is not supported. NVML is asked before the first
// cuInit (torch.cuda.device_count), so the first question makes the rank.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "nvml_symbols.h"
#include "src/interpose/core.h"
#include "src/interpose/report.h"

extern "C" void prism_nvml_open();

namespace prism::interpose::nvml {
namespace {

// NVML's public ABI, as far as it is used here.
using Device = void*;
enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kLibraryNotFound = 12,
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};
struct Process {  // v2 and v3
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

ForwardTable g_table({prism_nvml_names, prism_nvml_exported, prism_nvml_entry, prism_nvml_real,
                      kSymbolCount, &prism_nvml_missing});
bool g_real = false;

struct Route {
  uint32_t index;
  bool per_thread;
  template <class... A>
  int operator()(A... arguments) const {
    return reinterpret_cast<int (*)(A...)>(prism_nvml_real[index])(arguments...);
  }
};
struct NoScope {
  explicit NoScope(uint32_t) {}
};

const wire::Welcome* Devices() {
  const CoreTable* core = FindCore();
  if (core == nullptr || !core->is_rank()) return nullptr;
  // NVML counts every device of the machine, whatever CUDA_VISIBLE_DEVICES says.
  return VirtualDevices() == nullptr ? nullptr : core->welcome();
}

constexpr unsigned kMaxDevices = 64;
char g_devices[kMaxDevices];  // addresses are the handles of a machine without NVML

bool IsStandIn(Device device) { return device >= g_devices && device < g_devices + kMaxDevices; }
unsigned IndexOf(Device device) {
  return static_cast<unsigned>(static_cast<char*>(device) - g_devices);
}

/// A real handle stands for all ordinals: then the thread's current one is meant.
uint32_t OrdinalOf(Device device) { return IsStandIn(device) ? IndexOf(device) : UINT32_MAX; }

/// NVML's index of the device behind all ordinals.
unsigned RealIndex() {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr || visible[0] < '0' || visible[0] > '9'
             ? 0
             : static_cast<unsigned>(strtoul(visible, nullptr, 10));
}

int Init(Route real) {
  if (g_real) return real();
  return Devices() != nullptr ? kSuccess : kLibraryNotFound;
}
int InitWithFlags(Route real, unsigned flags) {
  if (g_real) return real(flags);
  return Devices() != nullptr ? kSuccess : kLibraryNotFound;
}
int Shutdown(Route real) { return g_real ? real() : kSuccess; }

int GetCount(Route real, unsigned* count) {
  const wire::Welcome* devices = Devices();
  if (devices == nullptr) return real(count);
  if (count == nullptr) return kInvalidArgument;
  *count = devices->devices;
  return kSuccess;
}

int HandleByIndex(Route real, unsigned index, Device* device) {
  const wire::Welcome* devices = Devices();
  if (devices == nullptr) return real(index, device);
  if (index >= devices->devices || index >= kMaxDevices || device == nullptr)
    return kInvalidArgument;
  if (g_real) return real(RealIndex(), device);
  *device = &g_devices[index];
  return kSuccess;
}

int HandleByText(Route real, const char* text, Device* device) {
  const wire::Welcome* devices = Devices();
  if (g_real || devices == nullptr) return real(text, device);
  if (text == nullptr || device == nullptr) return kInvalidArgument;
  // All virtual devices share the bus id and UUID of the one behind them.
  *device = &g_devices[devices->device == UINT32_MAX ? 0 : devices->device % kMaxDevices];
  return kSuccess;
}

int GetIndex(Route real, Device device, unsigned* index) {
  if (!IsStandIn(device)) return real(device, index);
  *index = IndexOf(device);
  return kSuccess;
}

int GetMemoryInfo(Route real, Device device, Memory* memory) {
  uint64_t total = 0, free = 0;
  if (Devices() == nullptr || !FindCore()->memory(OrdinalOf(device), &total, &free))
    return real(device, memory);
  *memory = {total, free, total - free};
  return kSuccess;
}

int GetMemoryInfoV2(Route real, Device device, MemoryV2* memory) {
  uint64_t total = 0, free = 0;
  if (Devices() == nullptr || !FindCore()->memory(OrdinalOf(device), &total, &free))
    return real(device, memory);
  memory->total = total;
  memory->reserved = 0;
  memory->free = free;
  memory->used = total - free;
  return kSuccess;
}

// The device of a rank is its own: it sees itself there and nobody else. torch asks this when it is
// out of memory.
template <class Entry>
int GetComputeProcesses(Route real, Device device, unsigned* count, Entry* entries) {
  uint64_t total = 0, free = 0;
  if (Devices() == nullptr || !FindCore()->memory(OrdinalOf(device), &total, &free))
    return real(device, count, entries);
  if (count == nullptr) return kInvalidArgument;
  const unsigned room = *count;
  *count = 1;
  if (room < 1 || entries == nullptr) return kInsufficientSize;
  entries[0] = {};
  entries[0].pid = static_cast<unsigned>(getpid());
  entries[0].used = total - free;
  if constexpr (sizeof(Entry) == sizeof(Process)) {
    entries[0].gpu_instance = entries[0].compute_instance = UINT32_MAX;
  }
  return kSuccess;
}

int GetName(Route real, Device device, char* name, unsigned length) {
  const wire::Welcome* devices = Devices();
  if (devices == nullptr || devices->device_name[0] == 0) return real(device, name, length);
  return snprintf(name, length, "%s", devices->device_name) < static_cast<int>(length)
             ? kSuccess
             : kInsufficientSize;
}

int GetUuid(Route real, Device device, char* uuid, unsigned length) {
  if (!IsStandIn(device)) return real(device, uuid, length);
  return snprintf(uuid, length, "GPU-70726973-6d00-4000-8000-%012x", IndexOf(device)) <
                 static_cast<int>(length)
             ? kSuccess
             : kInsufficientSize;
}

int GetPciInfo(Route real, Device device, PciInfo* info) {
  if (!IsStandIn(device)) return real(device, info);
  *info = {};
  info->bus = 1 + IndexOf(device);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", info->bus);
  return kSuccess;
}

int GetMinorNumber(Route real, Device device, unsigned* minor) {
  if (!IsStandIn(device)) return real(device, minor);
  *minor = IndexOf(device);
  return kSuccess;
}

int GetCudaDriverVersion(Route real, int* version) {
  if (g_real || Devices() == nullptr) return real(version);
  using DriverGetVersion = CUresult (*)(int*);
  void* function = FindCore()->real("cuDriverGetVersion");
  return function != nullptr &&
                 reinterpret_cast<DriverGetVersion>(function)(version) == CUDA_SUCCESS
             ? kSuccess
             : kNotSupported;
}

int GetDriverVersion(Route real, char* version, unsigned length) {
  if (g_real || Devices() == nullptr) return real(version, length);
  return snprintf(version, length, "580.00 (prism)") < static_cast<int>(length) ? kSuccess
                                                                                : kInsufficientSize;
}

const char* ErrorString(Route real, int result) {
  if (g_real) {
    return reinterpret_cast<const char* (*)(int)>(prism_nvml_real[real.index])(result);
  }
  switch (result) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotSupported:
      return "Not Supported (prism: this machine has no NVML)";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kLibraryNotFound:
      return "NVML Shared Library Not Found";
    default:
      return "Unknown Error";
  }
}

#define PRISM_NVML(name, function)                                                         \
  Wrapper {                                                                                \
    k_##name, true,                                                                        \
        reinterpret_cast<void*>(&Thunk<Route, NoScope, &function, k_##name, false>::Entry) \
  }

const Wrapper kWrappers[] = {
    PRISM_NVML(nvmlInit, Init),
    PRISM_NVML(nvmlInit_v2, Init),
    PRISM_NVML(nvmlInitWithFlags, InitWithFlags),
    PRISM_NVML(nvmlShutdown, Shutdown),
    PRISM_NVML(nvmlDeviceGetCount, GetCount),
    PRISM_NVML(nvmlDeviceGetCount_v2, GetCount),
    PRISM_NVML(nvmlDeviceGetHandleByIndex, HandleByIndex),
    PRISM_NVML(nvmlDeviceGetHandleByIndex_v2, HandleByIndex),
    PRISM_NVML(nvmlDeviceGetHandleByPciBusId, HandleByText),
    PRISM_NVML(nvmlDeviceGetHandleByPciBusId_v2, HandleByText),
    PRISM_NVML(nvmlDeviceGetHandleByUUID, HandleByText),
    PRISM_NVML(nvmlDeviceGetIndex, GetIndex),
    PRISM_NVML(nvmlDeviceGetMemoryInfo, GetMemoryInfo),
    PRISM_NVML(nvmlDeviceGetMemoryInfo_v2, GetMemoryInfoV2),
    PRISM_NVML(nvmlDeviceGetComputeRunningProcesses, GetComputeProcesses<ProcessV1>),
    PRISM_NVML(nvmlDeviceGetComputeRunningProcesses_v2, GetComputeProcesses<Process>),
    PRISM_NVML(nvmlDeviceGetComputeRunningProcesses_v3, GetComputeProcesses<Process>),
    PRISM_NVML(nvmlDeviceGetName, GetName),
    PRISM_NVML(nvmlDeviceGetUUID, GetUuid),
    PRISM_NVML(nvmlDeviceGetPciInfo_v3, GetPciInfo),
    PRISM_NVML(nvmlDeviceGetMinorNumber, GetMinorNumber),
    PRISM_NVML(nvmlSystemGetCudaDriverVersion, GetCudaDriverVersion),
    PRISM_NVML(nvmlSystemGetCudaDriverVersion_v2, GetCudaDriverVersion),
    PRISM_NVML(nvmlSystemGetDriverVersion, GetDriverVersion),
    PRISM_NVML(nvmlErrorString, ErrorString),
};

void Open() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* path = getenv(wire::kEnvRealNvml);
    char error[1024];
    if (path == nullptr || path[0] == 0) {
      g_table.Close();
    } else if (g_table.Open(path, error, sizeof error)) {
      g_real = true;
    } else {
      Report("no NVML: %s: %s", wire::kEnvRealNvml, error);
    }
    for (uint32_t i = 0; i < kSymbolCount; ++i) g_table.Forward(i);
    for (const Wrapper& wrapper : kWrappers) g_table.Install(wrapper.index, wrapper.entry);
  });
}

}  // namespace
}  // namespace prism::interpose::nvml

extern "C" void prism_nvml_open() { prism::interpose::nvml::Open(); }
