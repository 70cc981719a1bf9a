#include "src/interpose/nccl/recorder.h"

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "src/interpose/core.h"

namespace prism::interpose::nccl {
namespace {

struct Recorded {
  uint32_t id = 0, splits = 0;
  uint64_t collectives = 0;
  std::map<int, uint64_t> sends, receives;
};
struct State {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, Recorded> comms;
};
State& GetState() {
  static auto* state = new State;
  return *state;
}

/// The core of a process that records, else null.
const CoreTable* Recording() {
  const CoreTable* core = FindCore();
  return core != nullptr && core->mode() == wire::Mode::kRecord && core->writer() != nullptr
             ? core
             : nullptr;
}

uint32_t Hash(const void* data, size_t bytes, uint64_t seed) {
  uint64_t hash = seed ^ trace::kFnvOffset;
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * trace::kFnvPrime;
  }
  const auto folded = static_cast<uint32_t>(hash ^ (hash >> 32));
  return folded == 0 ? 1 : folded;  // 0 is no communicator
}

void Describe(const CoreTable& core, const Recorded& comm, int size, int rank) {
  trace::CommRecord record{};
  record.comm = comm.id;
  record.size = static_cast<uint32_t>(size);
  record.rank = static_cast<uint32_t>(rank);
  // Who the members are in the job is known where the communicator is the job; else by matching the
  // ranks' traces.
  std::vector<uint32_t> ranks(record.size, UINT32_MAX);
  if (record.size == core.world()) {
    for (uint32_t i = 0; i < record.size; ++i) ranks[i] = i;
  } else if (record.rank < record.size) {
    ranks[record.rank] = core.rank();
  }
  core.trace_communicator(&record, ranks.data(), true);
}

}  // namespace

void Recorder::Created(ncclComm_t comm, const void* unique_id, size_t bytes, int size, int rank) {
  const CoreTable* core = Recording();
  if (core == nullptr) return;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  Recorded& recorded = state.comms[comm];
  recorded = {};
  recorded.id = Hash(unique_id, bytes, 0);
  Describe(*core, recorded, size, rank);
}

void Recorder::Split(ncclComm_t parent, int color, ncclComm_t comm) {
  const CoreTable* core = Recording();
  if (core == nullptr) return;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  const auto found = state.comms.find(parent);
  if (found == state.comms.end()) return;
  const uint32_t key[3] = {found->second.id, found->second.splits++, static_cast<uint32_t>(color)};
  if (comm == nullptr) return;
  int size = 0, rank = 0;
  if (ncclCommCount(comm, &size) != ncclSuccess || ncclCommUserRank(comm, &rank) != ncclSuccess)
    return;
  Recorded& recorded = state.comms[comm];
  recorded = {};
  recorded.id = Hash(key, sizeof key, 0);
  Describe(*core, recorded, size, rank);
}

void Recorder::Destroyed(ncclComm_t comm) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.comms.erase(comm);
}

void Recorder::Operation(ncclComm_t comm, uint32_t op, uint32_t dtype, int reduction, int peer,
                         uint64_t count, uint64_t element_bytes, CUstream stream) {
  const CoreTable* core = Recording();
  if (core == nullptr) return;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  const auto found = state.comms.find(comm);
  if (found == state.comms.end()) {
    core->gap("operations of a communicator whose creation was not recorded");
    return;
  }
  Recorded& recorded = found->second;
  trace::CallRecord call{};
  call.comm = recorded.id;
  call.op = op;
  call.dtype = dtype;
  call.reduction = reduction < 0 ? 0 : static_cast<uint32_t>(reduction);
  call.peer = peer;
  call.call_site = core->call_site_string(core->call_site());
  call.count = count;
  call.bytes = count * element_bytes;
  call.group = 1;
  const auto kind = static_cast<wire::Op>(op);
  const uint64_t sequence = kind == wire::Op::kSend   ? recorded.sends[peer]++
                            : kind == wire::Op::kRecv ? recorded.receives[peer]++
                                                      : recorded.collectives++;
  core->trace_comm(core->stream_number(stream), &call, sequence, trace::ValueSource::kExact);
}

}  // namespace prism::interpose::nccl
