// The exports of nccl.h. Each entry validates as NCCL does, then hands over to a group.
#include "hostcuda/nccl/exports.h"
// First: it decides which symbols are visible.
#include <unistd.h>

#include <cstring>
#include <exception>

#include "hostcuda/nccl/config.h"
#include "hostcuda/nccl/driver.h"
#include "hostcuda/nccl/environment.h"
#include "hostcuda/nccl/group.h"
#include "hostcuda/nccl/handle.h"
#include "hostcuda/nccl/last_error.h"

namespace hostnccl {
namespace {

constexpr uint64_t kExactBytesNone = uint64_t{64} << 10;
constexpr uint64_t kExactBytesControl = uint64_t{1} << 20;

static_assert(static_cast<int>(Code::kInProgress) == ncclInProgress &&
              static_cast<int>(Code::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(DataType::kFloat8e5m2) == ncclFloat8e5m2 &&
              static_cast<int>(Reduction::kAvg) == ncclAvg);

/// What ncclUniqueId holds.
struct UniqueId {
  char magic[12];  // "hostnccl id"
  char key[33];
};
constexpr char kIdMagic[12] = "hostnccl id";
static_assert(sizeof(UniqueId) <= NCCL_UNIQUE_ID_BYTES);

/// Runs an entry's body: nothing thrown gets out, what fails is remembered and fails the group.
template <typename Body>
ncclResult_t Entry(Body body) noexcept {
  try {
    return Report(Spoil(body()));
  } catch (const std::exception& exception) {
    return Report(Spoil(Error(Code::kSystemError, "out of resources: %s", exception.what())));
  }
}

// ---- communicators

uint64_t HostHash() {
  // One machine may play several hosts: NCCL_HOSTID says so, and launchers say which node of a job
  // a process belongs to.
  std::string host = EnvironmentText("NCCL_HOSTID");
  if (host.empty()) {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    host = std::string(name) + "/" + EnvironmentText("GROUP_RANK") + "/" +
           EnvironmentText("SLURM_NODEID");
  }
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : host) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

/// What the process's communicators have in common on the virtual clock.
struct Links {
  Status status;
  LinkTopology topology;
  std::unique_ptr<FlowTable> flows;
  std::atomic<uint64_t> communicators{0};

  explicit Links(const HostcudaTable& table) {
    std::string error;
    const std::string path = EnvironmentText("HOSTNCCL_TOPOLOGY");
    if (!path.empty() && !LinkTopology::Read(path, &topology, &error)) {
      status =
          Error(Code::kInvalidArgument, "HOSTNCCL_TOPOLOGY=%s: %s", path.c_str(), error.c_str());
      return;
    }
    flows = FlowTable::Open(EnvironmentText("HOSTCUDA_SESSION"), table.event_set, &error);
    if (flows == nullptr) status = Error(Code::kSystemError, "%s", error.c_str());
  }
};

Links& LinksOf(const HostcudaTable& table) {
  // Never destroyed: the driver may still poll.
  static Links* const links = new Links(table);
  static const struct AtExit {
    ~AtExit() {
      if (links->flows != nullptr) links->flows->RemoveIfLast();
    }
  } at_exit;
  return *links;
}

/// The number of the device on its machine, whatever CUDA_VISIBLE_DEVICES says.
uint32_t DeviceOfMachine(const HostcudaTable& table, const char* pci_bus_id, int visible) {
  HostcudaDeviceInfo info;
  for (int device = 0; device < table.device_count(); ++device) {
    if (table.device_info(device, &info) == CUDA_SUCCESS &&
        strcmp(info.pci_bus_id, pci_bus_id) == 0)
      return static_cast<uint32_t>(device);
  }
  return static_cast<uint32_t>(visible);
}

Status TakeTime(const ncclComm& comm, CommunicatorOptions* options) {
  const HostcudaTable& table = *comm.driver->table;
  Links& links = LinksOf(table);
  if (!links.status.ok()) return links.status;
  MemberIdentity& self = options->segment.self;
  self.place = PlaceOfProcess(links.topology, DeviceOfMachine(table, self.device, comm.device));
  if (self.place.node >= kMaxPlaces / links.topology.gpus_per_node)
    return Error(Code::kInvalidUsage, "rank %d is on node %u of %u GPUs; there may be %u GPUs",
                 options->segment.rank, self.place.node, links.topology.gpus_per_node, kMaxPlaces);
  self.topology = links.topology.Digest();
  self.communicator = links.communicators++;
  options->topology = &links.topology;
  options->flows = links.flows.get();
  options->platform.now_ns = table.now_ns;
  options->platform.event_new = table.event_new;
  options->platform.event_free = table.event_free;
  return {};
}

Status OptionsFor(const ncclComm& comm, std::string key, int ranks, int rank,
                  CommunicatorOptions* out) {
  const HostcudaTable& table = *comm.driver->table;
  CommunicatorOptions& options = *out;
  options.platform.doorbell_self = table.doorbell_self;
  options.platform.doorbell_ring = table.doorbell_ring;
  options.error_grace_ns = EnvironmentNumber("HOSTNCCL_ERROR_GRACE_MS", 5000) * 1'000'000;
  options.segment.key = std::move(key);
  options.segment.ranks = ranks;
  options.segment.rank = rank;
  options.segment.slot_bytes = EnvironmentNumber("HOSTNCCL_SLOT_BYTES", 0);
  options.segment.report_after_s =
      static_cast<int>(EnvironmentNumber("HOSTNCCL_REPORT_AFTER_S", 30));
  const HostcudaValues values = table.values();
  options.segment.exact_bytes =
      values == HOSTCUDA_VALUES_CPU
          ? kMovesEverything
          : EnvironmentNumber("HOSTNCCL_EXACT_BYTES", values == HOSTCUDA_VALUES_NONE
                                                          ? kExactBytesNone
                                                          : kExactBytesControl);
  MemberIdentity& self = options.segment.self;
  CUdevice device = 0;
  if (comm.driver->device_get(&device, comm.device) == CUDA_SUCCESS) {
    comm.driver->device_get_pci_bus_id(self.device, sizeof self.device, device);
  }
  self.host = HostHash();
  self.doorbell = table.doorbell_self();
  self.may_share_device = *EnvironmentText("HOSTNCCL_ALLOW_DUPLICATE_DEVICE") == '1';
  return comm.driver->takes_time ? TakeTime(comm, out) : Status{};
}

/// Makes a handle for a device, with its primary context. `device` < 0: the calling thread's
/// current one.
Status NewHandle(int device, Handle* out) {
  auto handle = std::make_shared<ncclComm>();
  if (Status status = LoadDriver(&handle->driver); !status.ok()) return status;
  const DriverFunctions& driver = *handle->driver;
  CUcontext current = nullptr;
  driver.ctx_get_current(&current);
  CUdevice chosen = 0;
  if (device < 0 && current != nullptr) {
    if (const CUresult result = driver.ctx_get_device(&chosen); result != CUDA_SUCCESS) {
      return Error(Code::kCudaError, "cuCtxGetDevice failed with CUDA error %d",
                   static_cast<int>(result));
    }
  } else if (const CUresult result = driver.device_get(&chosen, device < 0 ? 0 : device);
             result != CUDA_SUCCESS) {
    return Error(Code::kCudaError, "there is no CUDA device %d: CUDA error %d",
                 device < 0 ? 0 : device, static_cast<int>(result));
  }
  if (const CUresult result = driver.device_primary_ctx_retain(&handle->context, chosen);
      result != CUDA_SUCCESS) {
    return Error(Code::kCudaError, "cannot get the context of CUDA device %d: CUDA error %d",
                 static_cast<int>(chosen), static_cast<int>(result));
  }
  // As the CUDA runtime would: a thread without a context gets the primary one.
  if (device < 0 && current == nullptr) driver.ctx_set_current(handle->context);
  handle->device = chosen;
  *out = std::move(handle);
  return {};
}

Status JoinAs(const Handle& handle, const CommunicatorOptions& options) {
  std::shared_ptr<Communicator> core;
  Status status = Communicator::Join(options, handle->cancelled, &core);
  std::lock_guard lock(handle->mutex);
  handle->error = status;
  handle->core = std::move(core);
  return status;
}

Status InitRank(ncclComm_t* out, int ranks, const ncclUniqueId* id, int rank,
                const ncclConfig_t* config, int device) {
  if (out == nullptr)
    return Error(Code::kInvalidArgument, "CommInitRank : newcomm argument is NULL");
  *out = nullptr;
  if (id == nullptr) return Error(Code::kInvalidArgument, "CommInitRank : commId argument is NULL");
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return Error(Code::kInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
  }
  if (ranks > kMaxRanks) {
    return Error(Code::kInvalidArgument,
                 "a communicator of %d ranks was requested; hostnccl has at most %d", ranks,
                 kMaxRanks);
  }
  UniqueId unique;
  memcpy(&unique, id, sizeof unique);
  if (memcmp(unique.magic, kIdMagic, sizeof kIdMagic) != 0 ||
      strnlen(unique.key, sizeof unique.key) != 32) {
    return Error(
        Code::kInvalidArgument,
        "the unique id was not made by hostnccl's ncclGetUniqueId, or not distributed to rank %d",
        rank);
  }
  ncclConfig_t completed = NCCL_CONFIG_INITIALIZER;
  if (Status status = CompleteConfig(config, nullptr, &completed); !status.ok()) return status;
  Handle handle;
  if (Status status = NewHandle(device, &handle); !status.ok()) return status;
  handle->rank = rank;
  handle->ranks = ranks;
  handle->config = completed;
  CommunicatorOptions options;
  if (Status status = OptionsFor(*handle, unique.key, ranks, rank, &options); !status.ok())
    return status;
  *out = Register(handle);
  const bool blocking = handle->blocking();
  Status status =
      Submit(Job{{handle},
                 [handle, options = std::move(options)] { return JoinAs(handle, options); },
                 blocking});
  if (!status.ok() && status.code != Code::kInProgress) {
    Unregister(*out);
    *out = nullptr;
  }
  return status;
}

Status MakeSubgroup(const Handle& child, const Subgroup& group) {
  child->rank = group.rank;
  child->ranks = group.ranks;
  CommunicatorOptions options;
  if (Status status = OptionsFor(*child, group.key, group.ranks, group.rank, &options);
      !status.ok())
    return status;
  return JoinAs(child, options);
}

Status NewChild(const Handle& parent, const ncclConfig_t* config, Handle* out) {
  ncclConfig_t completed = NCCL_CONFIG_INITIALIZER;
  if (Status status = CompleteConfig(config, &parent->config, &completed); !status.ok())
    return status;
  if (Status status = NewHandle(parent->device, out); !status.ok()) return status;
  (*out)->config = completed;
  return {};
}

std::shared_ptr<Communicator> CoreOf(ncclComm& comm) {
  std::lock_guard lock(comm.mutex);
  return comm.core;
}

Status Split(ncclComm_t comm, int color, int key, ncclComm_t* out, const ncclConfig_t* config) {
  Handle parent;
  if (Status status = FindReady(comm, "CommSplit", &parent); !status.ok()) return status;
  if (out == nullptr) return Error(Code::kInvalidArgument, "CommSplit : newcomm argument is NULL");
  *out = nullptr;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return Error(Code::kInvalidArgument,
                 "CommSplit : invalid color %d (must be at least 0, or NCCL_SPLIT_NOCOLOR)", color);
  }
  Handle child;
  if (color != NCCL_SPLIT_NOCOLOR) {
    if (Status status = NewChild(parent, config, &child); !status.ok()) return status;
    *out = Register(child);
  }
  const auto run = [parent, child, color, key] {
    Subgroup group;
    Status status = CoreOf(*parent)->ExchangeSplit(
        {color, key}, child != nullptr ? child->cancelled : parent->cancelled, &group);
    if (child == nullptr) return status;
    if (status.ok()) return MakeSubgroup(child, group);
    std::lock_guard lock(child->mutex);
    child->error = status;
    return status;
  };
  std::vector<Handle> handles{parent};
  if (child != nullptr) handles.push_back(child);
  Status status =
      Submit(Job{std::move(handles), run, (child != nullptr ? child : parent)->blocking()});
  if (!status.ok() && status.code != Code::kInProgress && child != nullptr) {
    Unregister(*out);
    *out = nullptr;
  }
  return status;
}

Status Shrink(ncclComm_t comm, const int* excluded, int excluded_count, ncclComm_t* out,
              const ncclConfig_t* config, int flags) {
  Handle parent;
  if (Status status = Find(comm, "CommShrink", &parent); !status.ok()) return status;
  if (out == nullptr) return Error(Code::kInvalidArgument, "CommShrink : newcomm argument is NULL");
  *out = nullptr;
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT) {
    return Error(Code::kInvalidArgument, "CommShrink : invalid shrinkFlags %d", flags);
  }
  if (excluded == nullptr || excluded_count <= 0) {
    return Error(Code::kInvalidArgument,
                 "CommShrink : excludeRanksList is empty; at least one rank must be excluded");
  }
  const std::shared_ptr<Communicator> core = CoreOf(*parent);
  if (core == nullptr)
    return Error(Code::kInvalidArgument, "CommShrink : the communicator is not initialized");
  std::vector<int> list(excluded, excluded + excluded_count);
  for (int rank : list) {
    if (rank < 0 || rank >= parent->ranks) {
      return Error(Code::kInvalidArgument,
                   "CommShrink : invalid rank %d in excludeRanksList (must be in 0..%d)", rank,
                   parent->ranks - 1);
    }
    if (rank == parent->rank) {
      return Error(Code::kInvalidArgument,
                   "CommShrink : rank %d is excluded and must not call ncclCommShrink", rank);
    }
  }
  if (flags == NCCL_SHRINK_ABORT) {
    core->Stop(Departure::kAborted);
  } else if (Status state = AsyncState(*parent); !state.ok()) {
    return state.code == Code::kInProgress
               ? Error(Code::kInvalidArgument,
                       "CommShrink : a previous operation of the communicator is in progress")
               : state;
  }
  Handle child;
  if (Status status = NewChild(parent, config, &child); !status.ok()) return status;
  *out = Register(child);
  const Subgroup group = core->Without(list);
  Status status = Submit(
      Job{{child}, [child, group] { return MakeSubgroup(child, group); }, child->blocking()});
  if (!status.ok() && status.code != Code::kInProgress) {
    Unregister(*out);
    *out = nullptr;
  }
  return status;
}

Status InitAll(ncclComm_t* comms, int count, const int* devices) {
  if (comms == nullptr)
    return Error(Code::kInvalidArgument, "CommInitAll : comms argument is NULL");
  if (count < 1) return Error(Code::kInvalidArgument, "Invalid device count requested : %d", count);
  const DriverFunctions* driver = nullptr;
  if (Status status = LoadDriver(&driver); !status.ok()) return status;
  int available = 0;
  driver->device_get_count(&available);
  std::vector<bool> used(available);
  for (int i = 0; i < count; ++i) {
    const int device = devices == nullptr ? i : devices[i];
    if (device < 0 || device >= available) {
      return Error(Code::kInvalidUsage, "CommInitAll : invalid device %d (there are %d)", device,
                   available);
    }
    if (used[device])
      return Error(Code::kInvalidUsage, "CommInitAll : device %d is listed twice", device);
    used[device] = true;
  }
  ncclUniqueId id;
  if (const ncclResult_t result = pncclGetUniqueId(&id); result != ncclSuccess) {
    return Status{static_cast<Code>(result), LastError()};
  }
  GroupStart();
  for (int i = 0; i < count; ++i) {
    static_cast<void>(
        Spoil(InitRank(&comms[i], count, &id, i, nullptr, devices == nullptr ? i : devices[i])));
  }
  Status status = GroupEnd();
  if (!status.ok()) {
    for (int i = 0; i < count; ++i) {
      if (comms[i] != nullptr) Unregister(comms[i]);
      comms[i] = nullptr;
    }
  }
  return status;
}

// ---- operations

Status CheckType(const char* call, ncclDataType_t type) {
  if (type < 0 || type >= ncclNumTypes)
    return Error(Code::kInvalidArgument, "%s : invalid type %d", call, type);
  return {};
}

Status SetReduction(const char* call, ncclComm& comm, ncclRedOp_t reduction, Operation* op) {
  if (reduction < 0 || reduction > ncclMaxRedOp) {
    return Error(Code::kInvalidArgument, "%s : invalid reduction operation %d", call, reduction);
  }
  if (reduction < ncclNumOps) {
    op->reduction = static_cast<Reduction>(reduction);
    return {};
  }
  std::lock_guard lock(comm.mutex);
  const size_t index = static_cast<size_t>(reduction) - ncclNumOps;
  if (index >= comm.reductions.size() || !comm.reductions[index].alive) {
    return Error(Code::kInvalidArgument, "%s : reduction operation %d unknown to this communicator",
                 call, reduction);
  }
  const ncclComm::PreMulSum& created = comm.reductions[index];
  if (created.type != op->type) {
    return Error(Code::kInvalidArgument,
                 "%s : reduction operation %d was created for %s, the operation is of %s", call,
                 reduction, Name(created.type), Name(op->type));
  }
  op->reduction = Reduction::kPreMulSum;
  op->scalar_bits = created.bits;
  op->scalar_address = created.address;
  return {};
}

/// One communication call, before validation.
struct Request {
  const char* call;
  OpKind kind;
  const void* send;
  void* recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t reduction = ncclSum;
  int peer = -1;
  ncclComm_t comm;
  cudaStream_t stream;
};

Status Communicate(const Request& request) {
  const char* call = request.call;
  Handle handle;
  if (Status status = FindReady(request.comm, call, &handle); !status.ok()) return status;
  {
    std::lock_guard lock(handle->mutex);
    if (handle->finalized || handle->revoked) {
      return Error(Code::kInvalidUsage, "%s : the communicator was %s", call,
                   handle->revoked ? "revoked" : "finalized");
    }
    if (handle->core->stopped()) {
      return Error(Code::kInvalidUsage,
                   "%s : the communicator was aborted, or a stream was destroyed with its "
                   "operations pending",
                   call);
    }
  }
  if (Status status = CheckType(call, request.type); !status.ok()) return status;
  Operation op{.kind = request.kind, .type = static_cast<DataType>(request.type)};
  if (IsPointToPoint(request.kind)) {
    if (request.peer < 0 || request.peer >= handle->ranks) {
      return Error(Code::kInvalidArgument,
                   "%s : invalid peer %d (peer should be in the 0..%d range)", call, request.peer,
                   handle->ranks - 1);
    }
  } else if (Signature::Of({.kind = request.kind, .peer = 0}).root == 0 &&
             (request.peer < 0 || request.peer >= handle->ranks)) {
    return Error(Code::kInvalidArgument, "%s : invalid root %d (root should be in the 0..%d range)",
                 call, request.peer, handle->ranks - 1);
  }
  if (IsReducing(request.kind)) {
    if (Status status = SetReduction(call, *handle, request.reduction, &op); !status.ok())
      return status;
  }
  const bool at_root = request.peer == handle->rank;
  const bool sends =
      request.kind != OpKind::kRecv &&
      (at_root || (request.kind != OpKind::kBroadcast && request.kind != OpKind::kScatter));
  const bool receives =
      request.kind != OpKind::kSend &&
      (at_root || (request.kind != OpKind::kReduce && request.kind != OpKind::kGather));
  if (request.count != 0 && sends && request.send == nullptr) {
    return Error(Code::kInvalidArgument, "%s : sendbuff argument is NULL", call);
  }
  if (request.count != 0 && receives && request.recv == nullptr) {
    return Error(Code::kInvalidArgument, "%s : recvbuff argument is NULL", call);
  }
  const uint64_t limit = UINT64_MAX / 16 / static_cast<uint64_t>(handle->ranks);
  if (request.count > limit) {
    return Error(Code::kInvalidArgument, "%s : count %zu is too large", call, request.count);
  }
  op.peer = request.peer;
  op.count = request.count;
  op.send = request.send;
  op.recv = request.recv;
  // NCCL discards empty collectives, without waiting for anybody; empty messages are messages.
  if (op.count == 0 && !IsPointToPoint(op.kind)) return {};
  return Submit(handle, op, reinterpret_cast<CUstream>(request.stream));
}

}  // namespace
}  // namespace hostnccl

using namespace hostnccl;  // NOLINT: entries of C linkage

// ---- library

ncclResult_t pncclGetVersion(int* version) {
  return Entry([&] {
    if (version == nullptr)
      return Error(Code::kInvalidArgument, "GetVersion : version argument is NULL");
    *version = NCCL_VERSION_CODE;
    return Status{};
  });
}
HOSTNCCL_EXPORT(GetVersion)

const char* pncclGetErrorString(ncclResult_t result) {
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
HOSTNCCL_EXPORT(GetErrorString)

const char* pncclGetLastError(ncclComm_t) { return LastError(); }
HOSTNCCL_EXPORT(GetLastError)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void pncclResetDebugInit() {}  // NCCL_DEBUG is read at every warning
HOSTNCCL_EXPORT(ResetDebugInit)
#pragma GCC diagnostic pop
extern "C" HOSTNCCL_VISIBLE void ncclResetDebugInitInternal() {}

ncclResult_t pncclGetUniqueId(ncclUniqueId* out) {
  return Entry([&] {
    if (out == nullptr)
      return Error(Code::kInvalidArgument, "GetUniqueId : uniqueId argument is NULL");
    SweepStaleSegments();
    UniqueId unique{};
    memcpy(unique.magic, kIdMagic, sizeof kIdMagic);
    snprintf(unique.key, sizeof unique.key, "%s", RandomKey().c_str());
    memset(out, 0, sizeof *out);
    memcpy(out, &unique, sizeof unique);
    return Status{};
  });
}
HOSTNCCL_EXPORT(GetUniqueId)

// ---- communicators

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                     ncclConfig_t* config) {
  return Entry([&] { return InitRank(comm, nranks, &id, rank, config, -1); });
}
HOSTNCCL_EXPORT(CommInitRankConfig)

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return Entry([&] { return InitRank(comm, nranks, &id, rank, nullptr, -1); });
}
HOSTNCCL_EXPORT(CommInitRank)

ncclResult_t pncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int ids,
                                       ncclUniqueId* id, ncclConfig_t* config) {
  return Entry([&] {
    if (ids < 1 || ids > nranks) {
      return Error(Code::kInvalidArgument,
                   "CommInitRankScalable : invalid number of ids %d (must be in 1..%d)", ids,
                   nranks);
    }
    return InitRank(comm, nranks, id, rank, config,
                    -1);  // one rendezvous is enough on one machine: the first id's
  });
}
HOSTNCCL_EXPORT(CommInitRankScalable)

ncclResult_t pncclCommInitAll(ncclComm_t* comms, int ndev, const int* devices) {
  return Entry([&] { return InitAll(comms, ndev, devices); });
}
HOSTNCCL_EXPORT(CommInitAll)

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config) {
  return Entry([&] { return Split(comm, color, key, newcomm, config); });
}
HOSTNCCL_EXPORT(CommSplit)

ncclResult_t pncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* newcomm,
                             ncclConfig_t* config, int flags) {
  return Entry([&] { return Shrink(comm, excluded, count, newcomm, config, flags); });
}
HOSTNCCL_EXPORT(CommShrink)

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  return Entry([&] {
    Handle handle;
    if (Status status = FindReady(comm, "CommFinalize", &handle); !status.ok()) return status;
    {
      std::lock_guard lock(handle->mutex);
      if (handle->revoked)
        return Error(Code::kInvalidUsage, "CommFinalize : the communicator was revoked");
      if (handle->finalized)
        return Error(Code::kInvalidArgument,
                     "CommFinalize : the communicator has been finalized already");
      handle->finalized = true;
    }
    // Quiescence is local: what peers still read lives in shared memory, not in this process.
    return Submit(Job{{handle},
                      [core = CoreOf(*handle)] { return core->WaitIdle(), core->AsyncError(); },
                      handle->blocking()});
  });
}
HOSTNCCL_EXPORT(CommFinalize)

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  return Entry([&] {
    if (comm == nullptr) return Status{};
    Handle handle;
    if (Status status = Find(comm, "CommDestroy", &handle); !status.ok()) return status;
    if (const auto core = CoreOf(*handle); core != nullptr) {
      core->WaitIdle();
      core->Leave();
    }
    handle->cancelled = true;
    Unregister(comm);
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommDestroy)

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  return Entry([&] {
    if (comm == nullptr) return Status{};
    Handle handle;
    if (Status status = Find(comm, "CommAbort", &handle); !status.ok()) return status;
    handle->cancelled = true;
    if (const auto core = CoreOf(*handle); core != nullptr) core->Stop(Departure::kAborted);
    Unregister(comm);
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommAbort)

ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags) {
  return Entry([&] {
    Handle handle;
    if (Status status = Find(comm, "CommRevoke", &handle); !status.ok()) return status;
    if (flags != NCCL_REVOKE_DEFAULT)
      return Error(Code::kInvalidArgument, "CommRevoke : invalid revokeFlags %d (must be 0)",
                   flags);
    const auto core = CoreOf(*handle);
    if (core == nullptr)
      return Error(Code::kInvalidArgument, "CommRevoke : the communicator is not initialized");
    {
      std::lock_guard lock(handle->mutex);
      handle->revoked = true;
    }
    core->Stop(Departure::kRevoked);
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommRevoke)

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* out) {
  return Entry([&] {
    Handle handle;
    if (Status status = Find(comm, "CommGetAsyncError", &handle); !status.ok()) return status;
    if (out == nullptr)
      return Error(Code::kInvalidArgument, "CommGetAsyncError : asyncError argument is NULL");
    if (handle->driver->takes_time) handle->driver->table->charge_query();
    *out = Report(AsyncState(*handle));
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommGetAsyncError)

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return Entry([&] {
    Handle handle;
    if (Status status = FindReady(comm, "CommCount", &handle); !status.ok()) return status;
    if (count == nullptr)
      return Error(Code::kInvalidArgument, "CommCount : count argument is NULL");
    *count = handle->ranks;
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommCount)

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  return Entry([&] {
    Handle handle;
    if (Status status = FindReady(comm, "CommCuDevice", &handle); !status.ok()) return status;
    if (device == nullptr)
      return Error(Code::kInvalidArgument, "CommCuDevice : device argument is NULL");
    *device = handle->device;
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommCuDevice)

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return Entry([&] {
    Handle handle;
    if (Status status = FindReady(comm, "CommUserRank", &handle); !status.ok()) return status;
    if (rank == nullptr)
      return Error(Code::kInvalidArgument, "CommUserRank : rank argument is NULL");
    *rank = handle->rank;
    return Status{};
  });
}
HOSTNCCL_EXPORT(CommUserRank)

// ---- memory

ncclResult_t pncclMemAlloc(void** pointer, size_t size) {
  return Entry([&] {
    if (pointer == nullptr) return Error(Code::kInvalidArgument, "MemAlloc : ptr argument is NULL");
    *pointer = nullptr;
    Handle current;  // makes the thread's context current if it has none
    if (Status status = NewHandle(-1, &current); !status.ok()) return status;
    if (size == 0) return Status{};
    CUdeviceptr address = 0;
    if (const CUresult result = current->driver->mem_alloc(&address, size);
        result != CUDA_SUCCESS) {
      return Error(Code::kCudaError, "cannot allocate %zu bytes of device memory: CUDA error %d",
                   size, static_cast<int>(result));
    }
    *pointer = reinterpret_cast<void*>(address);
    return Status{};
  });
}
HOSTNCCL_EXPORT(MemAlloc)

ncclResult_t pncclMemFree(void* pointer) {
  return Entry([&] {
    if (pointer == nullptr) return Status{};
    Handle current;
    if (Status status = NewHandle(-1, &current); !status.ok()) return status;
    const CUresult result = current->driver->mem_free(reinterpret_cast<CUdeviceptr>(pointer));
    if (result == CUDA_SUCCESS) return Status{};
    return Error(Code::kCudaError, "cannot free device memory %p: CUDA error %d", pointer,
                 static_cast<int>(result));
  });
}
HOSTNCCL_EXPORT(MemFree)

namespace {

/// Registration gains nothing here: every payload passes through shared memory. It is checked and
/// remembered.
Status AddRegistration(const char* call, ncclComm_t comm, void* buffer, size_t size, void** out) {
  Handle handle;
  if (Status status = FindReady(comm, call, &handle); !status.ok()) return status;
  if (out == nullptr) return Error(Code::kInvalidArgument, "%s : handle argument is NULL", call);
  *out = nullptr;
  if (buffer == nullptr || size == 0)
    return Error(Code::kInvalidArgument, "%s : the buffer is empty", call);
  auto* registration = new char;
  std::lock_guard lock(handle->mutex);
  handle->registrations[registration] = size;
  *out = registration;
  return {};
}

Status RemoveRegistration(const char* call, ncclComm_t comm, void* registration) {
  Handle handle;
  if (Status status = Find(comm, call, &handle); !status.ok()) return status;
  std::lock_guard lock(handle->mutex);
  if (handle->registrations.erase(registration) == 0) {
    return Error(Code::kInvalidArgument, "%s : %p is not registered with this communicator", call,
                 registration);
  }
  delete static_cast<char*>(registration);
  return {};
}

}  // namespace

ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  return Entry([&] { return AddRegistration("CommRegister", comm, buffer, size, handle); });
}
HOSTNCCL_EXPORT(CommRegister)

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
  return Entry([&] {
    return handle == nullptr ? Status{} : RemoveRegistration("CommDeregister", comm, handle);
  });
}
HOSTNCCL_EXPORT(CommDeregister)

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size,
                                     ncclWindow_t* window, int flags) {
  return Entry([&] {
    if ((flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0) {
      return Error(Code::kInvalidArgument, "CommWindowRegister : invalid winFlags %d", flags);
    }
    if (reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
      return Error(Code::kInvalidArgument,
                   "CommWindowRegister : buffer %p is not aligned to %d bytes", buffer,
                   NCCL_WIN_REQUIRED_ALIGNMENT);
    }
    return AddRegistration("CommWindowRegister", comm, buffer, size,
                           reinterpret_cast<void**>(window));
  });
}
HOSTNCCL_EXPORT(CommWindowRegister)

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return Entry([&] {
    return window == nullptr ? Status{} : RemoveRegistration("CommWindowDeregister", comm, window);
  });
}
HOSTNCCL_EXPORT(CommWindowDeregister)

// ---- reduction operators

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  return Entry([&] {
    Handle handle;
    if (Status status = FindReady(comm, "RedOpCreatePreMulSum", &handle); !status.ok())
      return status;
    if (op == nullptr)
      return Error(Code::kInvalidArgument, "RedOpCreatePreMulSum : op argument is NULL");
    if (scalar == nullptr)
      return Error(Code::kInvalidArgument, "RedOpCreatePreMulSum : scalar argument is NULL");
    if (Status status = CheckType("RedOpCreatePreMulSum", type); !status.ok()) return status;
    if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
      return Error(Code::kInvalidArgument, "RedOpCreatePreMulSum : invalid residence %d",
                   residence);
    }
    ncclComm::PreMulSum created;
    created.alive = true;
    created.type = static_cast<DataType>(type);
    if (residence == ncclScalarHostImmediate) {
      memcpy(&created.bits, scalar, ElementBytes(created.type));
    } else {
      created.address = scalar;
    }
    std::lock_guard lock(handle->mutex);
    size_t index = 0;
    while (index < handle->reductions.size() && handle->reductions[index].alive) ++index;
    if (index == handle->reductions.size()) handle->reductions.emplace_back();
    handle->reductions[index] = created;
    *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(index));
    return Status{};
  });
}
HOSTNCCL_EXPORT(RedOpCreatePreMulSum)

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return Entry([&] {
    if (op >= 0 && op < ncclNumOps) {
      return Error(Code::kInvalidArgument, "RedOpDestroy : operator %d is a NCCL builtin", op);
    }
    Handle handle;
    if (Status status = Find(comm, "RedOpDestroy", &handle); !status.ok()) return status;
    std::lock_guard lock(handle->mutex);
    const int index = op - ncclNumOps;
    if (index < 0 || index >= static_cast<int>(handle->reductions.size()) ||
        !handle->reductions[index].alive) {
      return Error(Code::kInvalidArgument,
                   "RedOpDestroy : operator %d unknown to this communicator", op);
    }
    handle->reductions[index].alive = false;
    return Status{};
  });
}
HOSTNCCL_EXPORT(RedOpDestroy)

// ---- communication

ncclResult_t pncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"AllReduce", OpKind::kAllReduce, send, recv, count, type, op, -1, comm, stream});
  });
}
HOSTNCCL_EXPORT(AllReduce)

ncclResult_t pncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Reduce", OpKind::kReduce, send, recv, count, type, op, root, comm, stream});
  });
}
HOSTNCCL_EXPORT(Reduce)

ncclResult_t pncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                            int root, ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Broadcast", OpKind::kBroadcast, send, recv, count, type, ncclSum, root, comm, stream});
  });
}
HOSTNCCL_EXPORT(Broadcast)

ncclResult_t pncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Bcast", OpKind::kBroadcast, buffer, buffer, count, type, ncclSum, root, comm, stream});
  });
}
HOSTNCCL_EXPORT(Bcast)

ncclResult_t pncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                            ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"AllGather", OpKind::kAllGather, send, recv, count, type, ncclSum, -1, comm, stream});
  });
}
HOSTNCCL_EXPORT(AllGather)

ncclResult_t pncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"ReduceScatter", OpKind::kReduceScatter, send, recv, count, type, op, -1, comm, stream});
  });
}
HOSTNCCL_EXPORT(ReduceScatter)

ncclResult_t pncclAlltoAll(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"AlltoAll", OpKind::kAllToAll, send, recv, count, type, ncclSum, -1, comm, stream});
  });
}
HOSTNCCL_EXPORT(AlltoAll)

ncclResult_t pncclGather(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Gather", OpKind::kGather, send, recv, count, type, ncclSum, root, comm, stream});
  });
}
HOSTNCCL_EXPORT(Gather)

ncclResult_t pncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type, int root,
                          ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Scatter", OpKind::kScatter, send, recv, count, type, ncclSum, root, comm, stream});
  });
}
HOSTNCCL_EXPORT(Scatter)

ncclResult_t pncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Send", OpKind::kSend, send, nullptr, count, type, ncclSum, peer, comm, stream});
  });
}
HOSTNCCL_EXPORT(Send)

ncclResult_t pncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return Entry([&] {
    return Communicate(
        {"Recv", OpKind::kRecv, nullptr, recv, count, type, ncclSum, peer, comm, stream});
  });
}
HOSTNCCL_EXPORT(Recv)

// ---- groups

ncclResult_t pncclGroupStart() {
  GroupStart();
  return ncclSuccess;
}
HOSTNCCL_EXPORT(GroupStart)

ncclResult_t pncclGroupEnd() {
  try {
    return Report(GroupEnd());
  } catch (const std::exception& exception) {
    return Report(Error(Code::kSystemError, "out of resources: %s", exception.what()));
  }
}
HOSTNCCL_EXPORT(GroupEnd)

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* info) {
  if (info != nullptr && info->magic != 0x74685283) {
    return Report(Error(Code::kInvalidArgument,
                        "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER"));
  }
  const Status status = GroupDrop();
  // The free clock charges nothing for communication.
  if (status.ok() && info != nullptr) info->estimatedTime = 0;
  return Report(status);
}
HOSTNCCL_EXPORT(GroupSimulateEnd)
