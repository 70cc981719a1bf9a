#include "src/interpose/nccl/recorder.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/interpose/core.h"
#include "src/interpose/nccl/payload.h"

namespace prism::interpose::nccl {
namespace {

struct Recorded {
  uint32_t id = 0, splits = 0;
  int size = 0, rank = 0;
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

/// A call whose node is still to be written.
struct Pending {
  trace::CallRecord call;
  uint64_t sequence;
  CUstream stream;
};
struct OpenGroup {
  int depth = 0;
  std::vector<Pending> calls;
};
OpenGroup& Group() {
  // On the heap: thread-local storage of a preloaded library comes out of every thread's stack. One
  // a thread that communicates, for good.
  thread_local OpenGroup* group = nullptr;
  if (group == nullptr) group = new OpenGroup;
  return *group;
}

void Write(const CoreTable& core, Pending& pending, uint32_t group) {
  pending.call.group = group;
  core.trace_comm(core.stream_number(pending.stream), &pending.call, pending.sequence,
                  trace::ValueSource::kExact);
}

uint32_t Hash(const void* data, size_t bytes, uint64_t seed) {
  uint64_t hash = seed ^ trace::kFnvOffset;
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * trace::kFnvPrime;
  }
  const auto folded = static_cast<uint32_t>(hash ^ (hash >> 32));
  return folded == 0 ? 1 : folded;  // 0 is no communicator
}

void Describe(const CoreTable& core, const Recorded& comm) {
  trace::CommRecord record{};
  record.comm = comm.id;
  record.size = static_cast<uint32_t>(comm.size);
  record.rank = static_cast<uint32_t>(comm.rank);
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

const CoreTable* Recorder::Core() {
  const CoreTable* core = FindCore();
  return core != nullptr && core->mode() == wire::Mode::kRecord && core->writer() != nullptr
             ? core
             : nullptr;
}

void Recorder::Created(ncclComm_t comm, const void* unique_id, size_t bytes, int size, int rank) {
  const CoreTable* core = Core();
  if (core == nullptr) return;
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  Recorded& recorded = state.comms[comm];
  recorded = {};
  recorded.id = Hash(unique_id, bytes, 0);
  recorded.size = size;
  recorded.rank = rank;
  Describe(*core, recorded);
}

void Recorder::Split(ncclComm_t parent, int color, ncclComm_t comm) {
  const CoreTable* core = Core();
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
  recorded.size = size;
  recorded.rank = rank;
  Describe(*core, recorded);
}

void Recorder::Destroyed(ncclComm_t comm) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.comms.erase(comm);
}

void Recorder::Before(const Call& call) {
  const CoreTable* core = Core();
  if (core != nullptr && Group().depth == 0) core->before_nccl_work(call.stream);
}

void Recorder::Operation(ncclComm_t comm, const Call& call) {
  const CoreTable* core = Core();
  if (core == nullptr) return;
  const bool point_to_point = call.op == wire::Op::kSend || call.op == wire::Op::kRecv;
  if (call.count == 0 && !point_to_point) return;  // NCCL drops empty collectives
  Pending pending{};
  {
    State& state = GetState();
    std::lock_guard lock(state.mutex);
    const auto found = state.comms.find(comm);
    if (found == state.comms.end()) {
      core->gap("operations of a communicator whose creation was not recorded");
      return;
    }
    Recorded& recorded = found->second;
    pending.call.comm = recorded.id;
    pending.call.bytes = PayloadOf(call.op, call.count * ElementBytes(call.dtype), recorded.size,
                                   call.peer == recorded.rank)
                             .in;
    pending.sequence = call.op == wire::Op::kSend   ? recorded.sends[call.peer]++
                       : call.op == wire::Op::kRecv ? recorded.receives[call.peer]++
                                                    : recorded.collectives++;
  }
  pending.call.op = static_cast<uint32_t>(call.op);
  pending.call.dtype = static_cast<uint32_t>(call.dtype);
  pending.call.reduction = call.reduction < 0            ? 0
                           : call.reduction < ncclNumOps ? static_cast<uint32_t>(call.reduction)
                                                         : wire::kRedOpPreMulSum;
  pending.call.peer = call.peer;
  pending.call.call_site = core->call_site_string(core->call_site());
  pending.call.count = call.count;
  pending.stream = call.stream;
  OpenGroup& group = Group();
  if (group.depth > 0) {
    group.calls.push_back(pending);
  } else {
    core->after_nccl_work(pending.stream);
    Write(*core, pending, 1);
  }
}

void Recorder::GroupStart() {
  if (Core() != nullptr) ++Group().depth;
}

void Recorder::BeforeGroupEnd() {
  const CoreTable* core = Core();
  if (core == nullptr || Group().depth != 1) return;
  for (const Pending& call : Group().calls) core->before_nccl_work(call.stream);
}

void Recorder::GroupEnd(bool done) {
  const CoreTable* core = Core();
  if (core == nullptr) return;
  OpenGroup& group = Group();
  if (group.depth == 0 || --group.depth > 0) return;
  std::vector<Pending> calls;
  calls.swap(group.calls);
  for (const Pending& call : calls) core->after_nccl_work(call.stream);
  if (!done) return;
  // As capture posts them: one unit a communicator, in the order of their first calls.
  std::vector<std::pair<uint32_t, std::vector<Pending*>>> units;
  for (Pending& call : calls) {
    auto unit = std::find_if(units.begin(), units.end(),
                             [&](const auto& u) { return u.first == call.call.comm; });
    if (unit == units.end()) unit = units.insert(units.end(), {call.call.comm, {}});
    unit->second.push_back(&call);
  }
  for (auto& [comm, members] : units) {
    for (Pending* call : members) Write(*core, *call, static_cast<uint32_t>(members.size()));
  }
}

}  // namespace prism::interpose::nccl
