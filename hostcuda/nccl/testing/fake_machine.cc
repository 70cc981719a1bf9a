// A driver played inside the test process: streams are queues of tasks, a progress thread polls
// their heads, doorbells are futex words in memory shared with the forked ranks.
#include <sys/mman.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "hostcuda/nccl/driver.h"
#include "hostcuda/nccl/futex.h"
#include "hostcuda/nccl/testing/machine.h"

namespace hostnccl::testing {
namespace {

constexpr int kDevices = 64;
constexpr uint32_t kDoorbells = 4096;

struct Task {
  HostcudaTaskPoll poll;
  HostcudaTaskRelease release;
  void* (*clone)(void*);
  void* context;
};

struct Stream {
  std::mutex mutex;
  std::condition_variable drained;
  std::deque<Task> tasks;
  int error = 0;
  uint64_t wake_at_ns = UINT64_MAX;
  std::vector<Task>* capture = nullptr;
};

struct Shared {
  std::atomic<uint32_t> used;
  std::atomic<uint32_t> bells[kDoorbells];
};

// Mapped before any rank is forked.
Shared* const shared = static_cast<Shared*>(
    mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));

struct Machine {
  uint32_t bell = 0;
  std::mutex mutex;
  std::vector<std::shared_ptr<Stream>> streams;
};
Machine* machine = nullptr;
thread_local int current_device = -1;

uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}
uint32_t DoorbellSelf() { return machine->bell; }
void DoorbellRing(uint32_t index) {
  shared->bells[index].fetch_add(1);
  FutexWakeAll(shared->bells[index]);
}

/// Polls the stream's head as long as it gets done. Returns whether a task got done. Needs
/// stream.mutex.
bool Drive(Stream& stream) {
  bool any = false;
  stream.wake_at_ns = UINT64_MAX;
  while (!stream.tasks.empty()) {
    const Task task = stream.tasks.front();
    const int state = task.poll(task.context, NowNs(), &stream.wake_at_ns);
    if (state == HOSTCUDA_TASK_PENDING) return any;
    any = true;
    stream.wake_at_ns = UINT64_MAX;
    stream.tasks.pop_front();
    task.release(task.context);
    if (state >= 0) continue;
    stream.error = -state;
    for (const Task& dropped : stream.tasks) dropped.release(dropped.context);
    stream.tasks.clear();
  }
  stream.drained.notify_all();
  return any;
}

void Progress() {
  for (;;) {
    const uint32_t rung = shared->bells[machine->bell].load();
    std::vector<std::shared_ptr<Stream>> streams;
    {
      std::lock_guard lock(machine->mutex);
      streams = machine->streams;
    }
    bool any = false;
    uint64_t wake_at_ns = UINT64_MAX;
    for (const auto& stream : streams) {
      std::lock_guard lock(stream->mutex);
      any |= Drive(*stream);
      wake_at_ns = std::min(wake_at_ns, stream->wake_at_ns);
    }
    if (any) continue;
    const uint64_t now = NowNs();
    if (wake_at_ns <= now) continue;
    FutexWait(shared->bells[machine->bell], rung,
              std::min<uint64_t>(wake_at_ns - now, 60'000'000'000));
  }
}

Stream& StreamOf(CUstream handle) {
  std::lock_guard lock(machine->mutex);
  return handle == nullptr ? *machine->streams.front() : *reinterpret_cast<Stream*>(handle);
}

CUresult Enqueue(CUstream handle, const char* name, HostcudaTaskPoll poll,
                 HostcudaTaskRelease release, void* (*clone)(void*), void* context) {
  if (name != nullptr && std::string_view(name).find("ncclDevKernel_") == std::string_view::npos)
    return CUDA_ERROR_INVALID_VALUE;
  Stream& stream = StreamOf(handle);
  {
    std::lock_guard lock(stream.mutex);
    const Task task{poll, release, clone, context};
    if (stream.error != 0) {
      release(context);
      return static_cast<CUresult>(stream.error);
    }
    if (stream.capture != nullptr) {
      if (clone == nullptr) {
        release(context);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      }
      stream.capture->push_back(task);
      return CUDA_SUCCESS;
    }
    stream.tasks.push_back(task);
    if (stream.tasks.size() == 1) Drive(stream);
  }
  DoorbellRing(machine->bell);
  return CUDA_SUCCESS;
}

const HostcudaTable& Table() {
  static const HostcudaTable table = [] {
    HostcudaTable t{};
    t.size = sizeof t;
    t.version = HOSTCUDA_TABLE_VERSION;
    t.stream_enqueue = Enqueue;
    t.doorbell_self = DoorbellSelf;
    t.doorbell_ring = DoorbellRing;
    t.values = [] {
      const char* mode = getenv("HOSTCUDA_VALUES");
      return mode != nullptr && std::string_view(mode) == "none" ? HOSTCUDA_VALUES_NONE
                                                                 : HOSTCUDA_VALUES_CPU;
    };
    t.now_ns = NowNs;
    t.unimplemented = [](const char*, const char*) { _exit(125); };
    return t;
  }();
  return table;
}

CUcontext ContextOf(int device) {
  return reinterpret_cast<CUcontext>(static_cast<intptr_t>(device) + 1);
}
int DeviceOf(CUcontext context) {
  return static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
}

const DriverFunctions& Driver() {
  static const DriverFunctions driver = [] {
    DriverFunctions d;
    d.table = &Table();
    d.init = [](unsigned) { return CUDA_SUCCESS; };
    d.ctx_get_current = [](CUcontext* context) {
      *context = current_device < 0 ? nullptr : ContextOf(current_device);
      return CUDA_SUCCESS;
    };
    d.ctx_set_current = d.ctx_push_current = [](CUcontext context) {
      current_device = DeviceOf(context);
      return CUDA_SUCCESS;
    };
    d.ctx_pop_current = [](CUcontext*) { return CUDA_SUCCESS; };
    d.ctx_get_device = [](CUdevice* device) {
      *device = current_device;
      return CUDA_SUCCESS;
    };
    d.device_get = [](CUdevice* device, int ordinal) {
      *device = ordinal;
      return ordinal >= 0 && ordinal < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    };
    d.device_get_count = [](int* count) {
      *count = kDevices;
      return CUDA_SUCCESS;
    };
    d.device_get_pci_bus_id = [](char* text, int length, CUdevice device) {
      snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
      return CUDA_SUCCESS;
    };
    d.device_primary_ctx_retain = [](CUcontext* context, CUdevice device) {
      *context = ContextOf(device);
      return CUDA_SUCCESS;
    };
    d.device_primary_ctx_release = [](CUdevice) { return CUDA_SUCCESS; };
    d.mem_alloc = [](CUdeviceptr* address, size_t bytes) {
      *address = reinterpret_cast<CUdeviceptr>(malloc(bytes));
      return CUDA_SUCCESS;
    };
    d.mem_free = [](CUdeviceptr address) {
      free(reinterpret_cast<void*>(address));
      return CUDA_SUCCESS;
    };
    d.stream_is_capturing = [](CUstream handle, CUstreamCaptureStatus* status) {
      Stream& stream = StreamOf(handle);
      std::lock_guard lock(stream.mutex);
      *status = stream.capture != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                          : CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
    return d;
  }();
  return driver;
}

}  // namespace

struct Graph {
  std::vector<Task> nodes;
};

const NcclFunctions& nccl() {
  static const NcclFunctions functions = {
#define HOSTNCCL_ADDRESS(name) nccl##name,
      HOSTNCCL_TESTED_FUNCTIONS(HOSTNCCL_ADDRESS)
#undef HOSTNCCL_ADDRESS
  };
  return functions;
}

void StartMachine(int device) {
  machine = new Machine;
  machine->bell = shared->used.fetch_add(1) % kDoorbells;
  machine->streams.push_back(std::make_shared<Stream>());
  SetDriverForTesting(&Driver());
  std::thread(Progress).detach();
  UseDevice(device);
}

void UseDevice(int device) { current_device = device; }

cudaStream_t NewStream() {
  std::lock_guard lock(machine->mutex);
  machine->streams.push_back(std::make_shared<Stream>());
  return reinterpret_cast<cudaStream_t>(machine->streams.back().get());
}

void DestroyStream(cudaStream_t handle) {
  Stream& stream = StreamOf(handle);
  std::lock_guard lock(stream.mutex);
  for (const Task& task : stream.tasks) task.release(task.context);
  stream.tasks.clear();
}

int Synchronize(cudaStream_t handle) {
  Stream& stream = StreamOf(handle);
  std::unique_lock lock(stream.mutex);
  stream.drained.wait(lock, [&] { return stream.tasks.empty(); });
  return stream.error;
}

int Query(cudaStream_t handle) {
  Stream& stream = StreamOf(handle);
  std::lock_guard lock(stream.mutex);
  return stream.error != 0 ? stream.error : stream.tasks.empty() ? 0 : CUDA_ERROR_NOT_READY;
}

void HoldUntil(cudaStream_t stream, volatile uint32_t* flag) {
  Enqueue(
      stream, nullptr,
      [](void* context, uint64_t, uint64_t*) -> int {
        auto* word = static_cast<uint32_t*>(context);
        return __atomic_load_n(word, __ATOMIC_ACQUIRE) != 0 ? HOSTCUDA_TASK_DONE
                                                            : HOSTCUDA_TASK_PENDING;
      },
      [](void*) {}, nullptr, const_cast<uint32_t*>(flag));
}

void Poke() { DoorbellRing(machine->bell); }

void* DeviceAlloc(size_t bytes) { return calloc(bytes, 1); }

Graph* Capture(cudaStream_t handle, const std::function<void()>& body) {
  auto* graph = new Graph;
  Stream& stream = StreamOf(handle);
  {
    std::lock_guard lock(stream.mutex);
    stream.capture = &graph->nodes;
  }
  body();
  std::lock_guard lock(stream.mutex);
  stream.capture = nullptr;
  return graph;
}

void Replay(Graph* graph, cudaStream_t stream) {
  for (const Task& node : graph->nodes) {
    Enqueue(stream, nullptr, node.poll, node.release, node.clone, node.clone(node.context));
  }
}

}  // namespace hostnccl::testing
