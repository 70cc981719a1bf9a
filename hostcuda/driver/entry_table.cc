// Finding functions: cuGetProcAddress, and hostcuda's own table by cuGetExportTable.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "hostcuda/driver/entry.h"
#include "hostcuda/driver/entry_points.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/module.h"
#include "hostcuda/driver/options.h"
#include "hostcuda/hostcuda.h"
#include "hostcuda/internal_table.h"

using hostcuda::EntryPoint;
using hostcuda::kEntryPointCount;
using hostcuda::kEntryPoints;

// ---- cuGetProcAddress

HC_ENTRY CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion,
                                      cuuint64_t flags,
                                      CUdriverProcAddressQueryResult* symbolStatus) {
  if (symbol == nullptr || pfn == nullptr || *symbol == '\0' || cudaVersion < 0 || flags > 3)
    return CUDA_ERROR_INVALID_VALUE;
  *pfn = nullptr;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const EntryPoint* const end = kEntryPoints + kEntryPointCount;
  const EntryPoint* first = std::lower_bound(
      kEntryPoints, end, symbol,
      [](const EntryPoint& e, const char* name) { return strcmp(e.name, name) < 0; });
  const EntryPoint* best = nullptr;
  bool known = false;
  for (const EntryPoint* e = first; e != end && strcmp(e->name, symbol) == 0; ++e) {
    known = true;
    if (e->version > cudaVersion || (e->per_thread && !per_thread)) continue;
    // Per-thread entries start at a later version number than the plain ones they pair with; both
    // mean the same call.
    if (best == nullptr || (e->per_thread && !best->per_thread) ||
        (e->per_thread == best->per_thread && e->version >= best->version)) {
      best = e;
    }
  }
  if (!known) {
    // A symbol by its exported name ("cuMemAlloc_v2").
    for (const EntryPoint* e = kEntryPoints; e != end && best == nullptr; ++e) {
      if (strcmp(e->symbol, symbol) == 0) best = e;
    }
  }
  if (symbolStatus != nullptr) {
    *symbolStatus = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                    : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (best == nullptr) return CUDA_ERROR_NOT_FOUND;
  *pfn = best->address;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion,
                                   cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, nullptr);
}

// ---- what programs may use of hostcuda

HC_ENTRY int hostcudaRegisterKernel(const char* name, hostcudaKernelBody body) {
  if (name == nullptr || body == nullptr) return CUDA_ERROR_INVALID_VALUE;
  hostcuda::RegisterBody(name, body);
  return CUDA_SUCCESS;
}

HC_ENTRY int hostcudaRegisterKernelTime(const char* name, unsigned long long ns,
                                        hostcudaKernelTime time) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  hostcuda::RegisterTime(name, {ns, time});
  return CUDA_SUCCESS;
}

HC_ENTRY int hostcudaHostTime(unsigned long long ns) {
  HC_DRIVER();
  driver->engine().HostWork(ns);
  return CUDA_SUCCESS;
}

HC_ENTRY unsigned long long hostcudaNow(void) { return hostcuda::Clock().NowNs(); }

HC_ENTRY int hostcudaClockIsVirtual(void) { return hostcuda::Clock().is_virtual() ? 1 : 0; }

HC_ENTRY int hostcudaBusyTime(void* start, void* end, unsigned long long* ns) {
  HC_DRIVER();
  const auto* first = hostcuda::Checked<hostcuda::Event>(start);
  const auto* last = hostcuda::Checked<hostcuda::Event>(end);
  if (ns == nullptr || first == nullptr || last == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!hostcuda::Clock().takes_time()) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t busy_ns = 0;
  const CUresult result = driver->engine().Busy(&busy_ns, *first, *last);
  *ns = busy_ns;
  return result;
}

HC_ENTRY int hostcudaUncharged(int change) {
  HC_DRIVER();
  driver->engine().Uncharged(change);
  return CUDA_SUCCESS;
}

HC_ENTRY unsigned hostcudaNumber(void) {
  hostcuda::Driver* driver = hostcuda::Driver::Get();
  return driver == nullptr ? UINT32_MAX : driver->session().self();
}

HC_ENTRY int hostcudaHold(int change) {
  HC_DRIVER();
  hostcuda::Clock().Hold(change);
  return CUDA_SUCCESS;
}

HC_ENTRY int hostcudaRing(unsigned number) {
  HC_DRIVER();
  driver->session().Ring(number);
  return CUDA_SUCCESS;
}

HC_ENTRY int hostcudaWait(unsigned* rings, unsigned long long until_ns) {
  if (rings == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!hostcuda::Clock().is_virtual()) return CUDA_ERROR_NOT_SUPPORTED;
  HC_DRIVER();
  *rings = driver->engine().AwaitRing(*rings, until_ns);
  return CUDA_SUCCESS;
}

HC_ENTRY int hostcudaRegisterKernelParameters(const char* name, int count, const unsigned* sizes) {
  if (name == nullptr || count < 0 || (count > 0 && sizes == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  hostcuda::RegisterParameters(name, std::vector<uint32_t>(sizes, sizes + count));
  return CUDA_SUCCESS;
}

// ---- what hostcuda's own libraries use

namespace {

using hostcuda::Driver;
using hostcuda::Label;
using hostcuda::PollState;
using hostcuda::StreamRef;

class TaskWork final : public hostcuda::Work {
 public:
  TaskWork(HostcudaTaskPoll poll, HostcudaTaskRelease release, void* (*clone)(void*), void* context)
      : poll_(poll), release_(release), clone_(clone), context_(context) {}
  ~TaskWork() override {
    if (release_ != nullptr) release_(context_);
  }
  int Poll(PollState& state) override { return poll_(context_, state.now_ns, &state.wake_at_ns); }
  std::shared_ptr<hostcuda::Work> Fresh() override {
    if (clone_ == nullptr) return nullptr;
    return std::make_shared<TaskWork>(poll_, release_, clone_, clone_(context_));
  }
  bool replayable() const override { return clone_ != nullptr; }
  bool AwaitsPeers() const override { return true; }

 private:
  HostcudaTaskPoll poll_;
  HostcudaTaskRelease release_;
  void* (*clone_)(void*);
  void* context_;
};

CUresult StreamEnqueue(CUstream handle, const char* name, HostcudaTaskPoll poll,
                       HostcudaTaskRelease release, void* (*clone)(void*), void* context) {
  const auto drop = [&](CUresult error) {
    if (release != nullptr) release(context);
    return error;
  };
  Driver* driver = Driver::Get();
  if (driver == nullptr) return drop(CUDA_ERROR_NOT_INITIALIZED);
  if (poll == nullptr) return drop(CUDA_ERROR_INVALID_VALUE);
  StreamRef stream;
  const CUresult resolved = hostcuda::ResolveStream(handle, &stream);
  if (resolved != CUDA_SUCCESS) return drop(resolved);
  Label label;
  label.type = CU_GRAPH_NODE_TYPE_KERNEL;
  label.call = hostcuda::HostCall::kCommunication;
  if (name != nullptr) {
    label.activity = HOSTCUDA_ACTIVITY_KERNEL;
    label.name = name;
    for (int i = 0; i < 3; ++i) label.grid[i] = label.block[i] = 1;
  }
  // From here on the work owns the context: it is released with it, whatever becomes of the
  // submission.
  return driver->engine().SubmitWork(*stream, label,
                                     std::make_shared<TaskWork>(poll, release, clone, context));
}

CUresult StreamIdle(CUstream handle, int* idle) {
  HC_STREAM(stream, handle);
  if (idle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *idle = driver->engine().Idle(*stream);
  return CUDA_SUCCESS;
}

uint32_t DoorbellSelf() {
  Driver* driver = Driver::Get();
  return driver == nullptr ? UINT32_MAX : driver->session().self();
}

void DoorbellRing(uint32_t index) {
  if (Driver* driver = Driver::Get()) driver->session().Ring(index);
}

/// The public entry points of whatever libcuda.so.1 the process uses: a shim in front of this
/// driver sees these calls.
struct PublicPath {
  decltype(&cuModuleLoadData) load = cuModuleLoadData;
  decltype(&cuModuleGetFunction) get = cuModuleGetFunction;
  decltype(&cuLaunchKernel) launch = cuLaunchKernel;
  std::mutex mutex;
  std::map<hostcuda::Context*, CUmodule> modules;
  std::map<std::pair<hostcuda::Context*, std::string>, CUfunction> functions;

  PublicPath() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      if (void* address = dlsym(library, name))
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find(load, "cuModuleLoadData");
    find(get, "cuModuleGetFunction");
    find(launch, "cuLaunchKernel");
  }
};

CUresult LaunchNamed(CUstream handle, const char* name, const uint32_t grid[3],
                     const uint32_t block[3], uint32_t shared_bytes) {
  HC_STREAM(stream, handle);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static PublicPath* const path = new PublicPath;
  // The stream's context must be current, as for any launch; a library's caller need not have made
  // it so.
  hostcuda::Context* const before = hostcuda::CurrentContext();
  if (before != stream->context) hostcuda::PushContext(stream->context);
  CUresult result = CUDA_SUCCESS;
  CUfunction function = nullptr;
  {
    std::lock_guard<std::mutex> lock(path->mutex);
    CUfunction& known = path->functions[{stream->context, name}];
    if (known == nullptr) {
      CUmodule& module = path->modules[stream->context];
      if (module == nullptr) result = path->load(&module, hostcuda::kImageMagic);
      if (result == CUDA_SUCCESS) result = path->get(&known, module, name);
    }
    function = known;
  }
  if (result == CUDA_SUCCESS) {
    result = path->launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                          shared_bytes, handle, nullptr, nullptr);
  }
  if (before != stream->context) {
    hostcuda::Context* popped = nullptr;
    hostcuda::PopContext(&popped);
  }
  return result;
}

HostcudaValues Values() { return hostcuda::Options().values; }
uint64_t NowNs() { return hostcuda::Clock().NowNs(); }

HostcudaActivityObserver SetObserver(HostcudaActivityObserver observer) {
  Driver* driver = Driver::Get();
  return driver == nullptr ? nullptr : driver->engine().SetObserver(observer);
}

[[noreturn]] void Unimplemented(const char* library, const char* function) {
  hostcuda::Die("%s: %s is not implemented; run without the feature that calls it", library,
                function);
}

// Without cuInit: the options and the session's file are all they need.

int DeviceCount() { return hostcuda::Options().devices; }

CUresult DeviceInfo(int device, HostcudaDeviceInfo* info) {
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= DeviceCount())
    return CUDA_ERROR_INVALID_DEVICE;  // the machine's, as NVML counts them
  const hostcuda::GpuModel& gpu = hostcuda::Gpu();
  *info = {};
  snprintf(info->name, sizeof info->name, "%s", gpu.name);
  info->uuid = hostcuda::DeviceUuid(device);
  hostcuda::DevicePciBusId(device, info->pci_bus_id, sizeof info->pci_bus_id);
  info->major = gpu.major;
  info->minor = gpu.minor;
  info->multiprocessors = gpu.multiprocessors;
  info->clock_khz = gpu.clock_khz;
  info->memory_clock_khz = gpu.memory_clock_khz;
  info->total_bytes = gpu.memory_bytes;
  return CUDA_SUCCESS;
}

int DeviceProcesses(int device, HostcudaDeviceProcess* processes, int capacity) {
  if (device < 0 || device >= DeviceCount()) return 0;
  const auto holders = hostcuda::Session::Holders("/dev/shm", hostcuda::Options().session, device);
  for (int i = 0; i < std::min(capacity, static_cast<int>(holders.size())); ++i) {
    processes[i] = {static_cast<uint32_t>(holders[static_cast<size_t>(i)].pid),
                    holders[static_cast<size_t>(i)].bytes};
  }
  return static_cast<int>(holders.size());
}

// The job's clock, for hostnccl.

int ClockTakesTime() { return hostcuda::Clock().takes_time() ? 1 : 0; }

void ChargeQuery() {
  if (Driver* driver = Driver::Get()) driver->engine().Charge(hostcuda::HostCall::kQuery);
}

void AwaitWord(const uint32_t* word, uint32_t seen) {
  if (Driver* driver = Driver::Get())
    driver->engine().AwaitWord(*reinterpret_cast<const std::atomic<uint32_t>*>(word), seen);
}

uint32_t EventNew(uint32_t doorbell) { return hostcuda::Clock().NewEvent(doorbell); }
void EventSet(uint32_t event, uint64_t at_ns) { hostcuda::Clock().SetEvent(event, at_ns); }
const uint32_t* EventWord(uint32_t event) {
  return reinterpret_cast<const uint32_t*>(hostcuda::Clock().EventWord(event));
}
void EventFree(uint32_t event) { hostcuda::Clock().FreeEvent(event); }

const HostcudaTable kTable = {
    sizeof(HostcudaTable),
    HOSTCUDA_TABLE_VERSION,
    StreamEnqueue,
    StreamIdle,
    DoorbellSelf,
    DoorbellRing,
    LaunchNamed,
    Values,
    NowNs,
    SetObserver,
    Unimplemented,
    DeviceCount,
    DeviceInfo,
    DeviceProcesses,
    ClockTakesTime,
    ChargeQuery,
    AwaitWord,
    EventNew,
    EventSet,
    EventWord,
    EventFree,
};

}  // namespace

HC_ENTRY CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  if (memcmp(pExportTableId, &kHostcudaTableUuid, sizeof kHostcudaTableUuid) != 0)
    return CUDA_ERROR_NOT_FOUND;
  *ppExportTable = &kTable;
  return CUDA_SUCCESS;
}
