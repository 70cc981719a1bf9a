#include "hostcuda/nccl/handle.h"

#include <unordered_map>

ncclComm::~ncclComm() {
  if (context != nullptr) driver->device_primary_ctx_release(device);
}

namespace hostnccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, Handle> handles;
};

Registry& Global() {
  static Registry* const registry =
      new Registry;  // communicators that the program leaves open outlive static destruction
  return *registry;
}

}  // namespace

ncclComm_t Register(const Handle& handle) {
  Registry& registry = Global();
  std::lock_guard lock(registry.mutex);
  registry.handles[handle.get()] = handle;
  return handle.get();
}

void Unregister(ncclComm_t comm) {
  Registry& registry = Global();
  Handle last;  // released after the lock
  std::lock_guard lock(registry.mutex);
  const auto found = registry.handles.find(comm);
  if (found == registry.handles.end()) return;
  last = std::move(found->second);
  registry.handles.erase(found);
}

Status Find(ncclComm_t comm, const char* call, Handle* out) {
  if (comm == nullptr) return Error(Code::kInvalidArgument, "%s : comm argument is NULL", call);
  Registry& registry = Global();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.handles.find(comm);
  if (found == registry.handles.end()) {
    return Error(Code::kInvalidArgument,
                 "%s : comm argument %p is not a communicator, or was destroyed", call,
                 static_cast<void*>(comm));
  }
  *out = found->second;
  return {};
}

Status AsyncState(ncclComm& comm) {
  if (comm.jobs.load() != 0)
    return Status{Code::kInProgress, "an operation of the communicator is in progress"};
  std::shared_ptr<Communicator> core;
  {
    std::lock_guard lock(comm.mutex);
    if (!comm.error.ok()) return comm.error;
    core = comm.core;
  }
  return core == nullptr ? Status{} : core->AsyncError();
}

Status FindReady(ncclComm_t comm, const char* call, Handle* out) {
  if (Status status = Find(comm, call, out); !status.ok()) return status;
  Status state = AsyncState(**out);
  if (state.code == Code::kInProgress) {
    return Error(Code::kInvalidArgument,
                 "%s : Attempt to use communicator before the previous operation returned "
                 "ncclSuccess; poll ncclCommGetAsyncError first",
                 call);
  }
  if (!state.ok()) return state;
  std::lock_guard lock((*out)->mutex);
  if ((*out)->core == nullptr) {
    return Error(
        Code::kInvalidArgument,
        "%s : the communicator is not initialized: its ncclGroupEnd has not been called yet", call);
  }
  return {};
}

}  // namespace hostnccl
