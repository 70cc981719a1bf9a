// The NCCL shim: the nccl* and pnccl* entries.
//
// In a rank under capture or emulation a call is validated as NCCL validates it and becomes work
// for the controller (communicator.h, launch.h). In every other process, and in mode passthrough,
// it goes to the real library (PRISM_REAL_LIBNCCL); in mode record it does too, and a node is
// written. The device API (ncclDevComm, ncclTeam, ...) is refused by name under capture: its
// kernels talk to peers' memory directly.
#include <dlfcn.h>
#include <nccl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "nccl_symbols.h"
#include "src/interpose/core.h"
#include "src/interpose/nccl/communicator.h"
#include "src/interpose/nccl/driver_calls.h"
#include "src/interpose/nccl/launch.h"
#include "src/interpose/nccl/payload.h"
#include "src/interpose/nccl/recorder.h"
#include "src/interpose/report.h"

extern "C" void prism_nccl_open();

namespace prism::interpose::nccl {

bool DriverCalls::Load(const CoreTable& core, const char** missing) {
  const auto load = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(core.real(name));
    if (function == nullptr && *missing == nullptr) *missing = name;
  };
  *missing = nullptr;
  load(memcpy_async, "cuMemcpyAsync");
  load(memset_async, "cuMemsetD8Async");
  load(memset, "cuMemsetD8_v2");
  load(mem_alloc, "cuMemAlloc_v2");
  load(module_load_data, "cuModuleLoadData");
  load(module_get_function, "cuModuleGetFunction");
  load(launch_kernel, "cuLaunchKernel");
  load(ctx_get_current, "cuCtxGetCurrent");
  load(ctx_set_current, "cuCtxSetCurrent");
  load(primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  load(memcpy_dtoh, "cuMemcpyDtoH_v2");
  load(launch_host_func, "cuLaunchHostFunc");
  load(stream_wait_value, "cuStreamWaitValue32_v2");
  load(stream_is_capturing, "cuStreamIsCapturing");
  load(stream_wait_event, "cuStreamWaitEvent");
  load(stream_synchronize, "cuStreamSynchronize");
  load(event_create, "cuEventCreate");
  load(event_record, "cuEventRecord");
  load(event_destroy, "cuEventDestroy_v2");
  load(ctx_get_device, "cuCtxGetDevice");
  load(get_error_name, "cuGetErrorName");
  return *missing == nullptr;
}

namespace {

ForwardTable g_table({prism_nccl_names, prism_nccl_exported, prism_nccl_entry, prism_nccl_real,
                      kSymbolCount, &prism_nccl_missing});

/// Opens the library that non-emulated calls go to, once.
void OpenReal() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* path = getenv(wire::kEnvRealNccl);
    char error[1024];
    if (!g_table.Open(path, error, sizeof error)) {
      Report("no NCCL to forward to: %s: %s", wire::kEnvRealNccl, error);
    }
  });
}

/// What NCCL itself asks of the driver is not the program's work: a trace has the communications.
class NcclScope {
 public:
  NcclScope() : core_(Recorder::Core()) {
    if (core_ != nullptr) core_->nccl_scope(1);
  }
  ~NcclScope() {
    if (core_ != nullptr) core_->nccl_scope(-1);
  }
  NcclScope(const NcclScope&) = delete;
  NcclScope& operator=(const NcclScope&) = delete;

 private:
  const CoreTable* const core_;
};

struct Route {
  uint32_t index;
  bool per_thread;
  template <class... A>
  ncclResult_t operator()(A... arguments) const {
    if (IsBypassed()) return ncclSystemError;
    OpenReal();
    const NcclScope scope;
    return reinterpret_cast<ncclResult_t (*)(A...)>(prism_nccl_real[index])(arguments...);
  }
};
struct NoScope {
  explicit NoScope(uint32_t) {}
};

struct Emulation {
  const CoreTable* core = nullptr;
  DriverCalls driver{};
};

/// What a rank under capture works with; null in every other process.
const Emulation* Emulated() {
  const CoreTable* core = FindCore();
  if (core == nullptr) return nullptr;
  if (!core->is_rank() || core->welcome() == nullptr) return nullptr;
  static const Emulation* const emulation = [&]() -> const Emulation* {
    auto* made = new Emulation{core, {}};
    const char* missing = nullptr;
    if (!made->driver.Load(*core, &missing)) {
      Report("NCCL cannot be emulated: the driver lacks %s", missing);
      abort();  // cannot happen on a driver of CUDA 12 or later; forwarding would mix two worlds
    }
    core->on_abort([](const wire::Abort* abort, void*) { FailFromController(*abort); }, nullptr);
    return made;
  }();
  return emulation;
}

// ---- Communications

struct Call {
  const char* name;
  wire::Op op;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t dtype;
  int reduction;  // -1: none
  int peer;       // root or peer; -1: none
  ncclComm_t comm;
  cudaStream_t stream;
};

bool IsInPlace(const Call& call, const Operation& operation) {
  const auto* send = static_cast<const char*>(call.send);
  const auto* receive = static_cast<const char*>(call.receive);
  const auto rank = static_cast<uint64_t>(operation.comm->rank());
  switch (call.op) {
    case wire::Op::kAllGather:
    case wire::Op::kGather:
      return send == receive + rank * operation.record.in_bytes;
    case wire::Op::kReduceScatter:
    case wire::Op::kScatter:
      return receive == send + rank * operation.record.out_bytes;
    default:
      return send == receive;
  }
}

ncclResult_t ResolveReduction(const Emulation& emulation, const Call& call, Operation* operation) {
  wire::OpRecord& record = operation->record;
  if (call.reduction < 0) return ncclSuccess;
  if (call.reduction < ncclNumOps) {
    record.reduction = static_cast<uint32_t>(call.reduction);
    return ncclSuccess;
  }
  ReductionOperator op;
  if (!operation->comm->FindOperator(static_cast<ncclRedOp_t>(call.reduction), &op)) {
    return Error(operation->comm.get(), ncclInvalidArgument,
                 "%s: %d is no reduction operator of this communicator", call.name, call.reduction);
  }
  if (op.dtype != call.dtype) {
    return Error(operation->comm.get(), ncclInvalidArgument,
                 "%s: the reduction operator was created for data type %d and is used with %d",
                 call.name, static_cast<int>(op.dtype), static_cast<int>(call.dtype));
  }
  record.reduction = wire::kRedOpPreMulSum;
  record.scalar_bits = op.scalar_bits;
  if (op.on_device) {
    // NCCL reads the scalar when the operation runs; what is before it on the stream may write it.
    record.scalar_bits = 0;
    if (emulation.driver.stream_synchronize(call.stream) != CUDA_SUCCESS ||
        emulation.driver.memcpy_dtoh(&record.scalar_bits, reinterpret_cast<CUdeviceptr>(op.address),
                                     ElementBytes(op.dtype)) != CUDA_SUCCESS) {
      return Error(operation->comm.get(), ncclUnhandledCudaError,
                   "%s: the scalar of the reduction operator cannot be read", call.name);
    }
  }
  return ncclSuccess;
}

ncclResult_t Communicate(const Emulation& emulation, const Call& call) {
  Group& group = Group::OfThread();
  Operation operation;
  if (const ncclResult_t error = FindReady(call.comm, call.name, &operation.comm)) {
    return group.Failed(error);
  }
  Communicator* comm = operation.comm.get();
  const uint64_t element = ElementBytes(call.dtype);
  if (element == 0) {
    return group.Failed(Error(comm, ncclInvalidArgument, "%s: data type %d does not exist",
                              call.name, static_cast<int>(call.dtype)));
  }
  const bool has_peer = call.peer != -1 || call.op == wire::Op::kSend ||
                        call.op == wire::Op::kRecv || call.op == wire::Op::kBroadcast ||
                        call.op == wire::Op::kReduce || call.op == wire::Op::kGather ||
                        call.op == wire::Op::kScatter;
  if (has_peer && (call.peer < 0 || call.peer >= comm->size())) {
    return group.Failed(
        Error(comm, ncclInvalidArgument, "%s: %s %d: this communicator has ranks 0 to %d",
              call.name, call.op == wire::Op::kSend || call.op == wire::Op::kRecv ? "peer" : "root",
              call.peer, comm->size() - 1));
  }
  if (call.reduction != -1 && (call.reduction < 0 || call.reduction > ncclMaxRedOp)) {
    return group.Failed(Error(comm, ncclInvalidArgument, "%s: %d is no reduction operator",
                              call.name, call.reduction));
  }
  if (call.count > UINT64_MAX / element / static_cast<uint64_t>(comm->size())) {
    return group.Failed(
        Error(comm, ncclInvalidArgument, "%s: count %zu is too large", call.name, call.count));
  }
  wire::OpRecord& record = operation.record;
  record.op = call.op;
  record.dtype = static_cast<uint32_t>(call.dtype);
  record.peer = call.peer;
  record.count = call.count;
  if (const ncclResult_t error = ResolveReduction(emulation, call, &operation)) {
    return group.Failed(error);
  }
  const bool point_to_point = call.op == wire::Op::kSend || call.op == wire::Op::kRecv;
  if (call.count == 0 && !point_to_point) return ncclSuccess;  // NCCL drops empty collectives
  const Payload payload =
      PayloadOf(call.op, call.count * element, comm->size(), call.peer == comm->rank());
  record.in_bytes = payload.in;
  record.out_bytes = payload.out;
  operation.payload_bytes = payload.largest;
  if (!point_to_point && IsInPlace(call, operation)) record.flags |= wire::kOpInPlace;
  if ((record.in_bytes > 0 && call.send == nullptr) ||
      (record.out_bytes > 0 && call.receive == nullptr)) {
    return group.Failed(Error(comm, ncclInvalidArgument, "%s: the %s buffer is NULL", call.name,
                              record.in_bytes > 0 && call.send == nullptr ? "send" : "receive"));
  }
  operation.input = call.send;
  operation.output = call.receive;
  operation.stream = reinterpret_cast<CUstream>(call.stream);
  return group.Add(*emulation.core, emulation.driver, std::move(operation));
}

bool Began(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// Emulates, or forwards by `real(arguments...)` and records.
template <class... A>
ncclResult_t Dispatch(Route real, const Call& call, A... arguments) {
  if (const Emulation* emulation = Emulated()) return Communicate(*emulation, call);
  const Recorder::Call recorded{call.op,   call.dtype, call.reduction,
                                call.peer, call.count, reinterpret_cast<CUstream>(call.stream)};
  Recorder::Before(recorded);
  const ncclResult_t result = real(arguments...);
  if (Began(result)) Recorder::Operation(call.comm, recorded);
  return result;
}

ncclResult_t AllReduce(Route real, const void* send, void* receive, size_t count,
                       ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(real,
                  {"ncclAllReduce", wire::Op::kAllReduce, send, receive, count, type,
                   static_cast<int>(op), -1, comm, stream},
                  send, receive, count, type, op, comm, stream);
}

ncclResult_t Reduce(Route real, const void* send, void* receive, size_t count, ncclDataType_t type,
                    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(real,
                  {"ncclReduce", wire::Op::kReduce, send, receive, count, type,
                   static_cast<int>(op), root, comm, stream},
                  send, receive, count, type, op, root, comm, stream);
}

ncclResult_t Broadcast(Route real, const void* send, void* receive, size_t count,
                       ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real,
      {"ncclBroadcast", wire::Op::kBroadcast, send, receive, count, type, -1, root, comm, stream},
      send, receive, count, type, root, comm, stream);
}

ncclResult_t Bcast(Route real, void* buffer, size_t count, ncclDataType_t type, int root,
                   ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real,
      {"ncclBcast", wire::Op::kBroadcast, buffer, buffer, count, type, -1, root, comm, stream},
      buffer, count, type, root, comm, stream);
}

ncclResult_t AllGather(Route real, const void* send, void* receive, size_t count,
                       ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real,
      {"ncclAllGather", wire::Op::kAllGather, send, receive, count, type, -1, -1, comm, stream},
      send, receive, count, type, comm, stream);
}

ncclResult_t ReduceScatter(Route real, const void* send, void* receive, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return Dispatch(real,
                  {"ncclReduceScatter", wire::Op::kReduceScatter, send, receive, count, type,
                   static_cast<int>(op), -1, comm, stream},
                  send, receive, count, type, op, comm, stream);
}

ncclResult_t AllToAll(Route real, const void* send, void* receive, size_t count,
                      ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real, {"ncclAlltoAll", wire::Op::kAllToAll, send, receive, count, type, -1, -1, comm, stream},
      send, receive, count, type, comm, stream);
}

ncclResult_t Gather(Route real, const void* send, void* receive, size_t count, ncclDataType_t type,
                    int root, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real, {"ncclGather", wire::Op::kGather, send, receive, count, type, -1, root, comm, stream},
      send, receive, count, type, root, comm, stream);
}

ncclResult_t Scatter(Route real, const void* send, void* receive, size_t count, ncclDataType_t type,
                     int root, ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real, {"ncclScatter", wire::Op::kScatter, send, receive, count, type, -1, root, comm, stream},
      send, receive, count, type, root, comm, stream);
}

ncclResult_t Send(Route real, const void* send, size_t count, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(real,
                  {"ncclSend", wire::Op::kSend, send, nullptr, count, type, -1, peer, comm, stream},
                  send, count, type, peer, comm, stream);
}

ncclResult_t Recv(Route real, void* receive, size_t count, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
  return Dispatch(
      real, {"ncclRecv", wire::Op::kRecv, nullptr, receive, count, type, -1, peer, comm, stream},
      receive, count, type, peer, comm, stream);
}

// ---- Groups

ncclResult_t GroupStart(Route real) {
  if (Emulated() == nullptr) {
    Recorder::GroupStart();
    return real();
  }
  Group::OfThread().Start();
  return ncclSuccess;
}

ncclResult_t GroupEnd(Route real) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) {
    Recorder::BeforeGroupEnd();
    const ncclResult_t result = real();
    Recorder::GroupEnd(Began(result));
    return result;
  }
  return Group::OfThread().End(*emulation->core, emulation->driver);
}

ncclResult_t GroupSimulateEnd(Route real, ncclSimInfo_t* info) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(info);
  emulation->core->gap("ncclGroupSimulateEnd");
  Group& group = Group::OfThread();
  group.Discard();
  group.End(*emulation->core, emulation->driver);
  return Error(nullptr, ncclInvalidUsage,
               "ncclGroupSimulateEnd is not emulated: prism knows no times while it captures");
}

// ---- Communicators

uint32_t CurrentDevice(const Emulation& emulation) {
  const VisibleDevices* devices = emulation.core->visible_devices();
  if (devices != nullptr && devices->own != UINT32_MAX) return devices->own;
  // The process may use any virtual device: only the dynamic runtime knows which is current.
  if (void* runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(runtime);
    using GetDevice = int (*)(int*);
    const auto get = reinterpret_cast<GetDevice>(dlsym(RTLD_DEFAULT, "cudaGetDevice"));
    int device = 0;
    if (get != nullptr && get(&device) == 0) return static_cast<uint32_t>(device);
  }
  CUdevice device = 0;
  emulation.driver.ctx_get_device(&device);
  return static_cast<uint32_t>(device);
}

ncclResult_t CheckConfig(const char* function, const ncclConfig_t* config, bool otherwise,
                         bool* blocking) {
  *blocking = otherwise;
  if (config == nullptr) return ncclSuccess;
  constexpr unsigned kMagic = 0xcafebeef;
  if (config->magic != kMagic || config->size < offsetof(ncclConfig_t, cgaClusterSize)) {
    return Error(nullptr, ncclInvalidArgument,
                 "%s: the config was not initialised with NCCL_CONFIG_INITIALIZER", function);
  }
  if (config->blocking == NCCL_CONFIG_UNDEF_INT) return ncclSuccess;
  if (config->blocking != 0 && config->blocking != 1) {
    return Error(nullptr, ncclInvalidArgument, "%s: config.blocking is %d: it must be 0 or 1",
                 function, config->blocking);
  }
  *blocking = config->blocking == 1;
  return ncclSuccess;
}

bool BlockingByEnvironment() {
  const char* value = getenv("NCCL_COMM_BLOCKING");
  return value == nullptr || strcmp(value, "0") != 0;
}

DeviceMemory::Settings MemorySettings(const ncclConfig_t* config) {
  auto settings = DeviceMemory::Settings::FromEnvironment();
  if (config == nullptr || config->size < offsetof(ncclConfig_t, netName)) return settings;
  if (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs > 0) {
    settings.min_channels = std::min(config->minCTAs, 64);
  }
  if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs > 0) {
    settings.max_channels = std::min(config->maxCTAs, 64);
  }
  return settings;
}

/// Takes what NCCL takes for a new communicator, and with a device's first one for its kernels.
bool TakeMemory(const Emulation& emulation, Communicator& comm, const wire::CommReady& ready,
                const std::vector<uint32_t>& world_ranks, const DeviceMemory::Settings& settings,
                uint64_t* bytes) {
  static std::mutex mutex;
  static auto* with_kernels = new std::set<uint32_t>;
  {
    std::lock_guard lock(mutex);
    if (with_kernels->count(comm.device()) == 0) {
      if (!emulation.core->nccl_memory(comm.device(), int64_t{DeviceMemory::kKernelBytes}, 0)) {
        return false;
      }
      with_kernels->insert(comm.device());
    }
  }
  const char* nvls = getenv("NCCL_NVLS_ENABLE");
  if (world_ranks.size() > 2 && (nvls == nullptr || strcmp(nvls, "0") != 0)) {
    emulation.core->gap(
        "device memory of NVLink SHARP (NCCL_NVLS_ENABLE is not 0) is not modelled");
  }
  if (!comm.TakeMemory(*emulation.core, world_ranks, ready.rank, ready.comm, settings)) {
    return false;
  }
  *bytes = comm.memory_bytes();
  return true;
}

/// Sends `packet`, waits for the communicator that answers it, and makes `comm` ready, or says why
/// not.
ncclResult_t Rendezvous(const Emulation& emulation, Communicator& comm, wire::Header* packet,
                        const DeviceMemory::Settings& settings) {
  std::vector<char> reply(wire::kMaxPacketBytes);
  const int64_t size = emulation.core->request(packet, reply.data(), reply.size());
  wire::Header header{};
  if (size >= static_cast<int64_t>(sizeof header)) memcpy(&header, reply.data(), sizeof header);
  if (header.type == wire::Message::kCommReady &&
      size >= static_cast<int64_t>(sizeof(wire::CommReady))) {
    wire::CommReady ready;
    memcpy(&ready, reply.data(), sizeof ready);
    std::vector<uint32_t> ranks(ready.size);
    if (size < static_cast<int64_t>(sizeof ready + ranks.size() * sizeof(uint32_t))) {
      comm.Fail(ncclInternalError, "the controller's answer is too short");
      return ncclInternalError;
    }
    memcpy(ranks.data(), reply.data() + sizeof ready, ranks.size() * sizeof(uint32_t));
    if (ready.comm != 0) {
      trace::CommRecord record{};
      record.comm = ready.comm;
      record.size = ready.size;
      record.rank = ready.rank;
      record.device = comm.device();
      const bool fits = TakeMemory(emulation, comm, ready, ranks, settings, &record.channel_bytes);
      emulation.core->trace_communicator(&record, ranks.data(), comm.blocking());
      if (!fits) {
        const ncclResult_t error =
            Error(&comm, ncclUnhandledCudaError,
                  "Cuda failure 2 'out of memory': a communicator's own memory (modelled) does "
                  "not fit");
        comm.Fail(error, ThreadError());
        return error;
      }
    }
    comm.Ready(ready.comm, std::move(ranks), ready.rank);
    return ncclSuccess;
  }
  ncclResult_t result = ncclSystemError;
  char reason[1100] = "the controller is gone";
  if (header.type == wire::Message::kCommError) {
    wire::CommError error{};
    memcpy(&error, reply.data(), std::min<size_t>(static_cast<size_t>(size), sizeof error));
    error.reason[sizeof error.reason - 1] = 0;
    result = static_cast<ncclResult_t>(error.nccl_result);
    snprintf(reason, sizeof reason, "%s", error.reason);
  }
  comm.Fail(result, reason);
  ThreadError() = reason;
  return result;
}

/// Runs a rendezvous: here, at the end of the group, or in the background for a non-blocking
/// communicator.
ncclResult_t Start(const Emulation& emulation, const std::shared_ptr<Communicator>& comm,
                   std::vector<char> packet, const ncclConfig_t* config) {
  auto work = [&emulation, comm, packet = std::move(packet),
               settings = MemorySettings(config)]() mutable {
    return Rendezvous(emulation, *comm, reinterpret_cast<wire::Header*>(packet.data()), settings);
  };
  if (comm->blocking()) return Group::OfThread().AddBlocking(std::move(work));
  if (!StartThread([work = std::move(work)]() mutable { work(); })) {
    return Error(comm.get(), ncclSystemError, "no thread for a non-blocking initialisation");
  }
  // Inside a group the whole group reports progress.
  return Group::OfThread().AddBlocking([] { return ncclInProgress; });
}

/// Kernels that stand for NCCL's are there before the first one runs.
ncclResult_t PrepareStandIns(const Emulation& emulation, Communicator& comm) {
  if ((emulation.core->welcome()->flags & wire::kStandInKernels) == 0) return ncclSuccess;
  const CUresult result = StandIn::Get().Prepare(emulation.driver);
  if (result == CUDA_SUCCESS) return ncclSuccess;
  const char* name = nullptr;
  emulation.driver.get_error_name(result, &name);
  return Error(&comm, ncclUnhandledCudaError, "the stand-in kernels cannot be loaded: %s",
               name == nullptr ? "unknown error" : name);
}

ncclResult_t InitRank(const Emulation& emulation, const char* function, ncclComm_t* handle,
                      int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config,
                      uint32_t device) {
  Group& group = Group::OfThread();
  if (handle == nullptr) {
    return group.Failed(
        Error(nullptr, ncclInvalidArgument, "%s: the communicator's address is NULL", function));
  }
  *handle = nullptr;
  if (size < 1 || rank < 0 || rank >= size) {
    return group.Failed(Error(nullptr, ncclInvalidArgument, "%s: rank %d of %d does not exist",
                              function, rank, size));
  }
  bool blocking;
  if (const ncclResult_t error =
          CheckConfig(function, config, BlockingByEnvironment(), &blocking)) {
    return group.Failed(error);
  }
  auto comm = std::make_shared<Communicator>(size, rank, device, blocking);
  wire::CommCreate create{};
  create.header = {wire::Message::kCommCreate, sizeof create, 0};
  memcpy(create.unique_id, id.internal, sizeof create.unique_id);
  create.size = static_cast<uint32_t>(size);
  create.rank = static_cast<uint32_t>(rank);
  create.device = device;
  create.flags = blocking ? 0 : static_cast<uint32_t>(wire::kCommNonBlocking);
  create.call_site = emulation.core->call_site();
  std::vector<char> packet(sizeof create);
  memcpy(packet.data(), &create, sizeof create);
  *handle = Register(comm);
  if (const ncclResult_t error = PrepareStandIns(emulation, *comm)) {
    Unregister(*handle);
    *handle = nullptr;
    return group.Failed(error);
  }
  const ncclResult_t result = Start(emulation, comm, std::move(packet), config);
  if (result != ncclSuccess && result != ncclInProgress) {
    Unregister(*handle);
    *handle = nullptr;
  }
  return result;
}

ncclResult_t CommInitRankConfig(Route real, ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                ncclConfig_t* config) {
  if (const Emulation* emulation = Emulated()) {
    return InitRank(*emulation, "ncclCommInitRankConfig", comm, size, id, rank, config,
                    CurrentDevice(*emulation));
  }
  const ncclResult_t result = real(comm, size, id, rank, config);
  if (Began(result)) Recorder::Created(*comm, id.internal, sizeof id.internal, size, rank);
  return result;
}

ncclResult_t CommInitRank(Route real, ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  if (const Emulation* emulation = Emulated()) {
    return InitRank(*emulation, "ncclCommInitRank", comm, size, id, rank, nullptr,
                    CurrentDevice(*emulation));
  }
  const ncclResult_t result = real(comm, size, id, rank);
  if (Began(result)) Recorder::Created(*comm, id.internal, sizeof id.internal, size, rank);
  return result;
}

ncclResult_t CommInitRankScalable(Route real, ncclComm_t* comm, int size, int rank, int id_count,
                                  ncclUniqueId* ids, ncclConfig_t* config) {
  if (const Emulation* emulation = Emulated()) {
    if (ids == nullptr || id_count < 1 || id_count > size) {
      return Group::OfThread().Failed(
          Error(nullptr, ncclInvalidArgument,
                "ncclCommInitRankScalable: %d unique ids: 1 to %d are allowed", id_count, size));
    }
    return InitRank(*emulation, "ncclCommInitRankScalable", comm, size, ids[0], rank, config,
                    CurrentDevice(*emulation));
  }
  const ncclResult_t result = real(comm, size, rank, id_count, ids, config);
  if (result == ncclSuccess) {
    Recorder::Created(*comm, ids[0].internal, sizeof ids[0].internal, size, rank);
  }
  return result;
}

void MakeUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  constexpr char kPrefix[] = "prism";
  memcpy(id->internal, kPrefix, sizeof kPrefix);
  size_t filled = sizeof kPrefix;
  while (filled < sizeof id->internal) {
    const ssize_t got = getrandom(id->internal + filled, sizeof id->internal - filled, 0);
    if (got > 0) filled += static_cast<size_t>(got);
  }
}

ncclResult_t CommInitAll(Route real, ncclComm_t* comms, int count, const int* devices) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(comms, count, devices);
  if (comms == nullptr || count < 1) {
    return Error(nullptr, ncclInvalidArgument, "ncclCommInitAll: %d communicators", count);
  }
  const VisibleDevices* visible = emulation->core->visible_devices();
  const uint32_t device_count = visible == nullptr ? 1 : visible->count;
  std::set<int> seen;
  for (int i = 0; i < count; ++i) {
    const int device = devices == nullptr ? i : devices[i];
    if (device < 0 || static_cast<uint32_t>(device) >= device_count) {
      return Error(nullptr, ncclInvalidArgument, "ncclCommInitAll: device %d: there are %u", device,
                   device_count);
    }
    if (!seen.insert(device).second) {
      return Error(nullptr, ncclInvalidUsage, "ncclCommInitAll: device %d is listed twice", device);
    }
  }
  ncclUniqueId id;
  MakeUniqueId(&id);
  Group& group = Group::OfThread();
  group.Start();
  for (int i = 0; i < count; ++i) {
    InitRank(*emulation, "ncclCommInitAll", &comms[i], count, id, i, nullptr,
             static_cast<uint32_t>(devices == nullptr ? i : devices[i]));
  }
  return group.End(*emulation->core, emulation->driver);
}

ncclResult_t GetUniqueId(Route real, ncclUniqueId* id) {
  if (Emulated() == nullptr) return real(id);
  if (id == nullptr) return Error(nullptr, ncclInvalidArgument, "ncclGetUniqueId: NULL");
  MakeUniqueId(id);
  return ncclSuccess;
}

ncclResult_t Derive(const Emulation& emulation, const char* function, ncclComm_t parent_handle,
                    int color, int key, const int* excluded, int excluded_count, ncclComm_t* handle,
                    const ncclConfig_t* config) {
  Group& group = Group::OfThread();
  if (handle == nullptr) {
    return group.Failed(Error(nullptr, ncclInvalidArgument,
                              "%s: the new communicator's address is NULL", function));
  }
  *handle = nullptr;
  std::shared_ptr<Communicator> parent;
  if (const ncclResult_t error = FindReady(parent_handle, function, &parent)) {
    return group.Failed(error);
  }
  if (color < NCCL_SPLIT_NOCOLOR) {
    return group.Failed(Error(parent.get(), ncclInvalidArgument,
                              "%s: color %d: it must be 0 or more, or NCCL_SPLIT_NOCOLOR", function,
                              color));
  }
  bool blocking;
  if (const ncclResult_t error = CheckConfig(function, config, parent->blocking(), &blocking)) {
    return group.Failed(error);
  }
  std::vector<char> packet(sizeof(wire::CommSplit) +
                           static_cast<size_t>(excluded_count) * sizeof(uint32_t));
  wire::CommSplit split{};
  split.header = {wire::Message::kCommSplit, static_cast<uint32_t>(packet.size()), 0};
  split.parent = parent->id();
  split.color = color;
  split.key = key;
  split.split_index = parent->NextSplit();
  split.flags = (blocking ? 0u : static_cast<uint32_t>(wire::kCommNonBlocking)) |
                (excluded != nullptr ? static_cast<uint32_t>(wire::kCommShrink) : 0u);
  split.call_site = emulation.core->call_site();
  split.parent_rank = static_cast<uint32_t>(parent->rank());
  split.excluded = static_cast<uint32_t>(excluded_count);
  memcpy(packet.data(), &split, sizeof split);
  for (int i = 0; i < excluded_count; ++i) {
    const auto rank = static_cast<uint32_t>(excluded[i]);
    memcpy(packet.data() + sizeof split + static_cast<size_t>(i) * sizeof rank, &rank, sizeof rank);
  }
  auto comm =
      std::make_shared<Communicator>(parent->size(), parent->rank(), parent->device(), blocking);
  // Without a colour the rank takes part and gets none.
  if (color != NCCL_SPLIT_NOCOLOR) *handle = Register(comm);
  const ncclResult_t result = Start(emulation, comm, std::move(packet), config);
  if (result != ncclSuccess && result != ncclInProgress && *handle != nullptr) {
    Unregister(*handle);
    *handle = nullptr;
  }
  return result;
}

ncclResult_t CommSplit(Route real, ncclComm_t parent, int color, int key, ncclComm_t* comm,
                       ncclConfig_t* config) {
  if (const Emulation* emulation = Emulated()) {
    return Derive(*emulation, "ncclCommSplit", parent, color, key, nullptr, 0, comm, config);
  }
  const ncclResult_t result = real(parent, color, key, comm, config);
  if (result == ncclSuccess) Recorder::Split(parent, color, *comm);
  return result;
}

ncclResult_t CommShrink(Route real, ncclComm_t parent_handle, int* excluded, int count,
                        ncclComm_t* comm, ncclConfig_t* config, int flags) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(parent_handle, excluded, count, comm, config, flags);
  std::shared_ptr<Communicator> parent = Find(parent_handle);
  if (parent == nullptr || excluded == nullptr || count < 1) {
    return Error(parent.get(), ncclInvalidArgument,
                 parent == nullptr ? "ncclCommShrink: this is not a communicator"
                                   : "ncclCommShrink: no rank is excluded");
  }
  for (int i = 0; i < count; ++i) {
    if (excluded[i] < 0 || excluded[i] >= parent->size() || excluded[i] == parent->rank()) {
      return Error(parent.get(), ncclInvalidArgument,
                   "ncclCommShrink: rank %d cannot be excluded (this is rank %d of %d)",
                   excluded[i], parent->rank(), parent->size());
    }
  }
  if ((flags & NCCL_SHRINK_ABORT) != 0) {
    parent->ReleaseStreams(*emulation->core);
    if (parent->state() != ncclSuccess && parent->id() != 0) parent->SetState(ncclSuccess);
  }
  return Derive(*emulation, "ncclCommShrink", parent_handle, 0, parent->rank(), excluded, count,
                comm, config);
}

void TellClosed(const Emulation& emulation, const Communicator& comm, wire::CloseKind kind) {
  if (comm.id() == 0) return;
  wire::CommClose close{};
  close.header = {wire::Message::kCommClose, sizeof close, 0};
  close.comm = comm.id();
  close.kind = kind;
  close.comm_rank = static_cast<uint32_t>(comm.rank());
  emulation.core->request(&close.header, nullptr, 0);
}

ncclResult_t CommFinalize(Route real, ncclComm_t handle) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(handle);
  std::shared_ptr<Communicator> comm;
  if (const ncclResult_t error = FindReady(handle, "ncclCommFinalize", &comm)) return error;
  TellClosed(*emulation, *comm, wire::CloseKind::kFinalize);
  if (comm->blocking()) {
    comm->WaitIdle();
    return ncclSuccess;
  }
  comm->SetState(ncclInProgress);
  if (!StartThread([comm] {
        comm->WaitIdle();
        if (comm->state() == ncclInProgress) comm->SetState(ncclSuccess);
      })) {
    comm->SetState(ncclSuccess);
    return Error(comm.get(), ncclSystemError, "no thread for a non-blocking ncclCommFinalize");
  }
  return ncclInProgress;
}

ncclResult_t CommDestroy(Route real, ncclComm_t handle) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) {
    Recorder::Destroyed(handle);
    return real(handle);
  }
  if (handle == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> comm = Find(handle);
  if (comm == nullptr) {
    return Error(nullptr, ncclInvalidArgument,
                 "ncclCommDestroy: this is not a communicator, or it was destroyed");
  }
  comm->WaitIdle();
  TellClosed(*emulation, *comm, wire::CloseKind::kDestroy);
  comm->GiveMemory(*emulation->core);
  Unregister(handle);
  return ncclSuccess;
}

ncclResult_t CommAbort(Route real, ncclComm_t handle) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) {
    Recorder::Destroyed(handle);
    return real(handle);
  }
  if (handle == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> comm = Find(handle);
  if (comm == nullptr) {
    return Error(nullptr, ncclInvalidArgument,
                 "ncclCommAbort: this is not a communicator, or it was destroyed");
  }
  TellClosed(*emulation, *comm, wire::CloseKind::kAbort);
  comm->ReleaseStreams(*emulation->core);
  comm->GiveMemory(*emulation->core);
  Unregister(handle);
  return ncclSuccess;
}

ncclResult_t CommRevoke(Route real, ncclComm_t handle, int flags) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(handle, flags);
  emulation->core->gap("ncclCommRevoke");
  return Error(nullptr, ncclInvalidUsage, "ncclCommRevoke is not emulated: use ncclCommAbort");
}

ncclResult_t CommGetAsyncError(Route real, ncclComm_t handle, ncclResult_t* error) {
  if (Emulated() == nullptr) return real(handle, error);
  const std::shared_ptr<Communicator> comm = Find(handle);
  if (comm == nullptr || error == nullptr) {
    return Error(nullptr, ncclInvalidArgument, "ncclCommGetAsyncError: %s is NULL or gone",
                 comm == nullptr ? "the communicator" : "the result");
  }
  *error = comm->state();
  return ncclSuccess;
}

template <class Get>
ncclResult_t Query(Route real, const char* function, ncclComm_t handle, int* value, Get get) {
  if (Emulated() == nullptr) return real(handle, value);
  std::shared_ptr<Communicator> comm;
  if (const ncclResult_t error = FindReady(handle, function, &comm)) return error;
  if (value == nullptr)
    return Error(comm.get(), ncclInvalidArgument, "%s: the result is NULL", function);
  *value = get(*comm);
  return ncclSuccess;
}

ncclResult_t CommCount(Route real, const ncclComm_t handle, int* count) {
  return Query(real, "ncclCommCount", handle, count,
               [](const Communicator& c) { return c.size(); });
}
ncclResult_t CommUserRank(Route real, const ncclComm_t handle, int* rank) {
  return Query(real, "ncclCommUserRank", handle, rank,
               [](const Communicator& c) { return c.rank(); });
}
ncclResult_t CommCuDevice(Route real, const ncclComm_t handle, int* device) {
  return Query(real, "ncclCommCuDevice", handle, device,
               [](const Communicator& c) { return static_cast<int>(c.device()); });
}

// ---- Memory and registration

ncclResult_t MemAlloc(Route real, void** pointer, size_t bytes) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(pointer, bytes);
  if (pointer == nullptr || bytes == 0) {
    return Error(nullptr, ncclInvalidArgument, "ncclMemAlloc: %zu bytes at %p", bytes,
                 static_cast<void*>(pointer));
  }
  // As NCCL does, in the granularity of physical memory; through the shim, so that it is counted.
  constexpr size_t kGranularity = size_t{2} << 20;
  CUdeviceptr address = 0;
  using Allocate = CUresult (*)(CUdeviceptr*, size_t);
  const auto allocate = reinterpret_cast<Allocate>(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  const CUresult result =
      allocate == nullptr
          ? CUDA_ERROR_NOT_FOUND
          : allocate(&address, (bytes + kGranularity - 1) / kGranularity * kGranularity);
  if (result != CUDA_SUCCESS) {
    return Error(nullptr, ncclUnhandledCudaError, "ncclMemAlloc: %zu bytes: CUDA error %d", bytes,
                 static_cast<int>(result));
  }
  *pointer = reinterpret_cast<void*>(address);
  return ncclSuccess;
}

ncclResult_t MemFree(Route real, void* pointer) {
  if (Emulated() == nullptr) return real(pointer);
  if (pointer == nullptr) return ncclSuccess;
  using Free = CUresult (*)(CUdeviceptr);
  const auto free = reinterpret_cast<Free>(dlsym(RTLD_DEFAULT, "cuMemFree_v2"));
  return free != nullptr && free(reinterpret_cast<CUdeviceptr>(pointer)) == CUDA_SUCCESS
             ? ncclSuccess
             : Error(nullptr, ncclInvalidArgument, "ncclMemFree: %p was not allocated", pointer);
}

// Registration changes how bytes travel, not which: there is nothing to do.
ncclResult_t CommRegister(Route real, const ncclComm_t handle, void* buffer, size_t bytes,
                          void** registration) {
  if (Emulated() == nullptr) return real(handle, buffer, bytes, registration);
  std::shared_ptr<Communicator> comm;
  if (const ncclResult_t error = FindReady(handle, "ncclCommRegister", &comm)) return error;
  if (buffer == nullptr || registration == nullptr || bytes == 0) {
    return Error(comm.get(), ncclInvalidArgument, "ncclCommRegister: an empty buffer");
  }
  *registration = buffer;
  return ncclSuccess;
}

ncclResult_t CommDeregister(Route real, const ncclComm_t handle, void* registration) {
  if (Emulated() == nullptr) return real(handle, registration);
  return Find(handle) != nullptr ? ncclSuccess
                                 : Error(nullptr, ncclInvalidArgument,
                                         "ncclCommDeregister: this is not a communicator");
}

// NCCL answers NULL where windows are not supported, and callers then use the plain path.
ncclResult_t CommWindowRegister(Route real, ncclComm_t handle, void* buffer, size_t bytes,
                                ncclWindow_t* window, int flags) {
  const Emulation* emulation = Emulated();
  if (emulation == nullptr) return real(handle, buffer, bytes, window, flags);
  std::shared_ptr<Communicator> comm;
  if (const ncclResult_t error = FindReady(handle, "ncclCommWindowRegister", &comm)) return error;
  if (window == nullptr) {
    return Error(comm.get(), ncclInvalidArgument,
                 "ncclCommWindowRegister: the window's address is NULL");
  }
  emulation->core->gap("symmetric memory windows of NCCL are not registered");
  *window = nullptr;
  return ncclSuccess;
}

ncclResult_t CommWindowDeregister(Route real, ncclComm_t handle, ncclWindow_t window) {
  if (Emulated() == nullptr) return real(handle, window);
  return ncclSuccess;
}

// ---- Reduction operators

ncclResult_t RedOpCreatePreMulSum(Route real, ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                  ncclScalarResidence_t residence, ncclComm_t handle) {
  if (Emulated() == nullptr) return real(op, scalar, type, residence, handle);
  std::shared_ptr<Communicator> comm;
  if (const ncclResult_t error = FindReady(handle, "ncclRedOpCreatePreMulSum", &comm)) return error;
  if (op == nullptr || scalar == nullptr || ElementBytes(type) == 0) {
    return Error(comm.get(), ncclInvalidArgument,
                 "ncclRedOpCreatePreMulSum: the operator, the scalar or the data type is missing");
  }
  ReductionOperator made;
  made.dtype = type;
  if (residence == ncclScalarHostImmediate) {
    memcpy(&made.scalar_bits, scalar, ElementBytes(type));
  } else {
    made.on_device = true;
    made.address = scalar;
  }
  *op = comm->AddOperator(made);
  return ncclSuccess;
}

ncclResult_t RedOpDestroy(Route real, ncclRedOp_t op, ncclComm_t handle) {
  if (Emulated() == nullptr) return real(op, handle);
  std::shared_ptr<Communicator> comm;
  if (const ncclResult_t error = FindReady(handle, "ncclRedOpDestroy", &comm)) return error;
  return comm->RemoveOperator(op)
             ? ncclSuccess
             : Error(comm.get(), ncclInvalidArgument,
                     "ncclRedOpDestroy: %d is no operator that was created here",
                     static_cast<int>(op));
}

// ---- Versions and texts

ncclResult_t GetVersion(Route real, int* version) {
  if (Emulated() == nullptr) return real(version);
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* GetErrorString(Route real, ncclResult_t result) {
  if (Emulated() == nullptr) {
    OpenReal();
    if (g_table.has(real.index)) {
      return reinterpret_cast<const char* (*)(ncclResult_t)>(prism_nccl_real[real.index])(result);
    }
  }
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* GetLastError(Route real, ncclComm_t handle) {
  if (Emulated() == nullptr) {
    OpenReal();
    return g_table.has(real.index)
               ? reinterpret_cast<const char* (*)(ncclComm_t)>(prism_nccl_real[real.index])(handle)
               : "";
  }
  thread_local std::string text;
  text = ThreadError().empty() ? ProcessError() : ThreadError();
  if (const std::shared_ptr<Communicator> comm = Find(handle)) {
    const std::string own = comm->last_error();
    if (!own.empty()) text = own;
  }
  return text.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer): of the thread's own copy
}

void ResetDebugInit(Route real) {
  if (Emulated() != nullptr) return;
  OpenReal();
  if (g_table.has(real.index)) reinterpret_cast<void (*)()>(prism_nccl_real[real.index])();
}

// ---- Everything else: the device API. Refused by name under capture, forwarded otherwise.

template <uint32_t kIndex>
ncclResult_t Refuse() noexcept {
  const Emulation* emulation = Emulated();
  const char* name = g_table.name(kIndex);
  if (emulation != nullptr) emulation->core->gap(name);
  Report("%s (NCCL's device API) is not emulated", name);
  return Error(nullptr, ncclInvalidUsage, "%s (NCCL's device API) is not emulated", name);
}

template <uint32_t... kIndices>
std::array<void*, sizeof...(kIndices)> Refusals(std::integer_sequence<uint32_t, kIndices...>) {
  return {reinterpret_cast<void*>(&Refuse<kIndices>)...};
}

#define PRISM_NCCL_AS(name, function)                                                      \
  Wrapper {                                                                                \
    k_##name, true,                                                                        \
        reinterpret_cast<void*>(&Thunk<Route, NoScope, &function, k_##name, false>::Entry) \
  }
/// Both spellings of a name.
#define PRISM_NCCL(name, function) \
  PRISM_NCCL_AS(nccl##name, function), PRISM_NCCL_AS(pnccl##name, function)

const Wrapper kWrappers[] = {
    PRISM_NCCL(AllGather, AllGather),
    PRISM_NCCL(AllReduce, AllReduce),
    PRISM_NCCL(AlltoAll, AllToAll),
    PRISM_NCCL(Bcast, Bcast),
    PRISM_NCCL(Broadcast, Broadcast),
    PRISM_NCCL(CommAbort, CommAbort),
    PRISM_NCCL(CommCount, CommCount),
    PRISM_NCCL(CommCuDevice, CommCuDevice),
    PRISM_NCCL(CommDeregister, CommDeregister),
    PRISM_NCCL(CommDestroy, CommDestroy),
    PRISM_NCCL(CommFinalize, CommFinalize),
    PRISM_NCCL(CommGetAsyncError, CommGetAsyncError),
    PRISM_NCCL(CommInitAll, CommInitAll),
    PRISM_NCCL(CommInitRank, CommInitRank),
    PRISM_NCCL(CommInitRankConfig, CommInitRankConfig),
    PRISM_NCCL(CommInitRankScalable, CommInitRankScalable),
    PRISM_NCCL(CommRegister, CommRegister),
    PRISM_NCCL(CommRevoke, CommRevoke),
    PRISM_NCCL(CommShrink, CommShrink),
    PRISM_NCCL(CommSplit, CommSplit),
    PRISM_NCCL(CommUserRank, CommUserRank),
    PRISM_NCCL(CommWindowDeregister, CommWindowDeregister),
    PRISM_NCCL(CommWindowRegister, CommWindowRegister),
    PRISM_NCCL(Gather, Gather),
    PRISM_NCCL(GetErrorString, GetErrorString),
    PRISM_NCCL(GetLastError, GetLastError),
    PRISM_NCCL(GetUniqueId, GetUniqueId),
    PRISM_NCCL(GetVersion, GetVersion),
    PRISM_NCCL(GroupEnd, GroupEnd),
    PRISM_NCCL(GroupSimulateEnd, GroupSimulateEnd),
    PRISM_NCCL(GroupStart, GroupStart),
    PRISM_NCCL(MemAlloc, MemAlloc),
    PRISM_NCCL(MemFree, MemFree),
    PRISM_NCCL(Recv, Recv),
    PRISM_NCCL(RedOpCreatePreMulSum, RedOpCreatePreMulSum),
    PRISM_NCCL(RedOpDestroy, RedOpDestroy),
    PRISM_NCCL(Reduce, Reduce),
    PRISM_NCCL(ReduceScatter, ReduceScatter),
    PRISM_NCCL(ResetDebugInit, ResetDebugInit),
    PRISM_NCCL(Scatter, Scatter),
    PRISM_NCCL(Send, Send),
};

void Open() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (Emulated() != nullptr) {
      const auto refusals = Refusals(std::make_integer_sequence<uint32_t, kSymbolCount>());
      for (uint32_t i = 0; i < kSymbolCount; ++i) g_table.Install(i, refusals[i]);
    } else {
      OpenReal();
      for (uint32_t i = 0; i < kSymbolCount; ++i) g_table.Forward(i);
    }
    for (const Wrapper& wrapper : kWrappers) g_table.Install(wrapper.index, wrapper.entry);
  });
}

}  // namespace
}  // namespace prism::interpose::nccl

extern "C" void prism_nccl_open() { prism::interpose::nccl::Open(); }
