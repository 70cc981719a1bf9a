#include "src/interpose/nccl/launch.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <thread>

#include "src/interpose/nccl/mirror.h"

namespace prism::interpose::nccl {
namespace {

constexpr size_t kMaxOperationsPerUnit =
    (wire::kMaxPacketBytes - sizeof(wire::OpPost)) / sizeof(wire::OpRecord);

struct Plan {
  std::vector<Operation*> operations;
  std::vector<CUstream> streams;  // distinct; the first one carries the stall
  std::vector<const ArenaSlot*> in, out;
  std::vector<const Recurrence::Kept*> kept;  // what to receive in place of what does not move
  std::vector<const Unit::Repeated*> repeated;
  Unit* unit = nullptr;
  bool ends_early = false;
  bool stand_in = false;  // a kernel does it all
};

void Arrive(void* argument) {
  const auto* unit = static_cast<const Unit*>(argument);
  uint32_t* word = unit->core->word(unit->arrival_word);
  __atomic_store_n(word, Unit::kArrived, __ATOMIC_RELEASE);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  unit->core->ring();
}

void Complete(void* argument) {
  auto* unit = static_cast<Unit*>(argument);
  for (const auto& [kept, received] : unit->kept) memcpy(kept->slot.host, received, kept->bytes);
  unit->comm->End(unit);
  GiveBack(unit);
}

void RepeatOwn(void* argument) {
  for (const Unit::Repeated& repeated : static_cast<const Unit*>(argument)->repeated)
    Repeat(repeated.record, repeated.members, repeated.data);
}

ncclResult_t CudaError(const DriverCalls& driver, CUresult result, const char* what) {
  const char* name = nullptr;
  driver.get_error_name(result, &name);
  return Error(nullptr, ncclUnhandledCudaError, "%s: %s", what,
               name == nullptr ? "unknown error" : name);
}

bool IsCapturing(const DriverCalls& driver, CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.stream_is_capturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Makes `after` wait for everything enqueued on `before`.
CUresult Join(const DriverCalls& driver, CUstream before, CUstream after) {
  CUevent event;
  CUresult result = driver.event_create(&event, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) return result;
  result = driver.event_record(event, before);
  if (result == CUDA_SUCCESS) result = driver.stream_wait_event(after, event, 0);
  driver.event_destroy(event);  // takes effect when the event has completed
  return result;
}

std::vector<Plan> Cut(std::vector<Operation>& operations) {
  std::vector<Plan> plans;
  for (Operation& operation : operations) {
    auto plan = std::find_if(plans.begin(), plans.end(), [&](const Plan& p) {
      return p.operations.front()->comm == operation.comm &&
             p.operations.size() < kMaxOperationsPerUnit;
    });
    if (plan == plans.end()) plan = plans.insert(plans.end(), Plan{});
    plan->operations.push_back(&operation);
    if (std::find(plan->streams.begin(), plan->streams.end(), operation.stream) ==
        plan->streams.end()) {
      plan->streams.push_back(operation.stream);
    }
  }
  return plans;
}

/// Whether a payload moves; `large`: only as long as it does not recur.
bool Moves(const CoreTable& core, const Recurrence::Place& place, const Operation& operation,
           bool large) {
  if (!large) return true;
  return (core.welcome()->flags & wire::kMoveUntilRecurring) != 0 &&
         !operation.comm->recurrence().Recurs(place, operation.record);
}

ncclResult_t Prepare(const CoreTable& core, Plan& plan) {
  auto* unit = new Unit{
      &core, plan.operations.front()->comm, core.word_take(), core.word_take(), {}, {}, {}, 0, 0};
  plan.unit = unit;
  plan.stand_in = (core.welcome()->flags & wire::kStandInKernels) != 0;
  if (plan.stand_in) unit->met_word = core.word_take();
  // Pointers into them are kept.
  unit->slots.reserve(plan.operations.size() * 2);
  unit->repeated.reserve(plan.operations.size());
  const auto take = [&](uint64_t bytes) -> const ArenaSlot* {
    ArenaSlot taken;
    if (!core.arena_take(bytes, &taken)) return nullptr;
    unit->slots.push_back(taken);
    return &unit->slots.back();
  };
  const auto no_room = [&](uint64_t bytes) {
    GiveBack(unit);
    plan.unit = nullptr;
    return Error(nullptr, ncclSystemError,
                 "no room for a payload of %llu bytes in the arena: lower the size up to which "
                 "payloads move",
                 static_cast<unsigned long long>(bytes));
  };
  Recurrence& recurrence = unit->comm->recurrence();
  const bool until_recurring = (core.welcome()->flags & wire::kMoveUntilRecurring) != 0;
  const Recurrence::Place place =
      until_recurring ? recurrence.Begin(core.round(), plan.operations.front()->record)
                      : Recurrence::Place{};
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    Operation* operation = plan.operations[i];
    const ArenaSlot *in = nullptr, *out = nullptr;
    const Recurrence::Kept* kept = nullptr;
    const Unit::Repeated* repeated = nullptr;
    wire::OpRecord& record = operation->record;
    const bool large = operation->payload_bytes > core.welcome()->exact_payload_bytes;
    if (Moves(core, place, *operation, large)) {
      record.flags |= wire::kOpPayload;
      for (const auto& [bytes, offset, slot] :
           {std::tuple{record.in_bytes, &record.in_offset, &in},
            std::tuple{record.out_bytes, &record.out_offset, &out}}) {
        if (bytes == 0) continue;
        *slot = take(bytes);
        if (*slot == nullptr) return no_room(bytes);
        *offset = (*slot)->offset;
      }
      // A small message may become a large one; a small collective stays small.
      if (until_recurring && (large || record.op == wire::Op::kRecv)) {
        if (const auto* keep = recurrence.Keep(core, place, i, record))
          unit->kept.emplace_back(keep, out->host);
      }
    } else if (until_recurring && record.out_bytes != 0) {
      kept = recurrence.Find(place, i, record);
      if (NeedsArithmetic(*operation)) {
        const ArenaSlot* const slot = take(record.out_bytes);
        if (slot == nullptr) return no_room(record.out_bytes);
        unit->repeated.push_back(
            {record, static_cast<uint32_t>(operation->comm->size()), slot->host});
        repeated = &unit->repeated.back();
      }
    }
    plan.in.push_back(in);
    plan.out.push_back(out);
    plan.kept.push_back(kept);
    plan.repeated.push_back(repeated);
  }
  return ncclSuccess;
}

bool Post(const CoreTable& core, const Plan& plan) {
  std::vector<char> packet(sizeof(wire::OpPost) + plan.operations.size() * sizeof(wire::OpRecord));
  wire::OpPost post{};
  post.header = {wire::Message::kOpPost, static_cast<uint32_t>(packet.size()), 0};
  post.operations = static_cast<uint32_t>(plan.operations.size());
  post.arrival_word = plan.unit->arrival_word;
  post.arrival_value = Unit::kArrived;
  post.release_word = plan.unit->release_word;
  post.release_value = Unit::kReleased;
  post.met_word = plan.unit->met_word;
  if (plan.stand_in) post.flags |= wire::kPostPaced;
  memcpy(packet.data(), &post, sizeof post);
  char* at = packet.data() + sizeof post;
  for (const Operation* operation : plan.operations) {
    memcpy(at, &operation->record, sizeof operation->record);
    at += sizeof operation->record;
  }
  return core.request(reinterpret_cast<wire::Header*>(packet.data()), nullptr, 0) == 0;
}

void Trace(const CoreTable& core, const Plan& plan) {
  if (core.writer() == nullptr) return;
  const bool until_recurring = (core.welcome()->flags & wire::kMoveUntilRecurring) != 0;
  for (const Operation* operation : plan.operations) {
    const wire::OpRecord& record = operation->record;
    trace::CallRecord call{};
    call.comm = record.comm;
    call.op = static_cast<uint32_t>(record.op);
    call.dtype = record.dtype;
    call.reduction = record.reduction;
    call.peer = record.peer;
    call.call_site = core.call_site_string(record.call_site);
    call.count = record.count;
    call.bytes = record.in_bytes;
    call.group = static_cast<uint32_t>(plan.operations.size());
    core.trace_comm(record.stream, &call, record.sequence,
                    (record.flags & wire::kOpPayload) != 0 ? trace::ValueSource::kExact
                    : until_recurring                      ? trace::ValueSource::kMirrored
                                                           : trace::ValueSource::kGenerated);
  }
}

/// Notes the unit with its communicator; true if its stream need not wait for it.
bool BeginUnit(const CoreTable& core, const Plan& plan) {
  std::vector<std::pair<int, uint64_t>> sends;
  for (const Operation* operation : plan.operations) {
    if (operation->record.op != wire::Op::kSend) break;
    sends.emplace_back(operation->record.peer, operation->record.in_bytes);
  }
  Communicator& comm = *plan.unit->comm;
  const bool sends_only = sends.size() == plan.operations.size();
  // An emulated send that waits for nobody still takes its time on its stream: a stand-in's kernel
  // does that, without one the stream stalls until the controller says so. Streams that a group
  // joins wait for each other; such groups are rare and simply stall.
  const bool timed = core.mode() == wire::Mode::kEmulate && !plan.stand_in;
  if (sends_only && !timed && plan.streams.size() == 1 && comm.BeginEarly(plan.unit, sends))
    return true;
  if (plan.stand_in && plan.unit->slots.empty()) {
    comm.BeginWatched(plan.unit);
  } else {
    comm.Begin(plan.unit);
  }
  return false;
}

/// What is done in place of NCCL takes no time of the program's.
class Uncharged {
 public:
  explicit Uncharged(const CoreTable& core) : core_(core) { core_.charge(-1); }
  ~Uncharged() { core_.charge(1); }
  Uncharged(const Uncharged&) = delete;
  Uncharged& operator=(const Uncharged&) = delete;

 private:
  const CoreTable& core_;
};

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

bool IsMovedUntilRecurring(const CoreTable& core, const Operation& operation) {
  return (core.welcome()->flags & wire::kMoveUntilRecurring) != 0 &&
         operation.payload_bytes > core.welcome()->exact_payload_bytes;
}

/// Makes sums of the rank's own data, beside their outputs.
CUresult EnqueueRepeated(const DriverCalls& driver, const Plan& plan) {
  const CUstream stream = plan.streams.front();
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    if (plan.repeated[i] == nullptr) continue;
    const wire::OpRecord& record = plan.operations[i]->record;
    const bool scatters = record.op == wire::Op::kReduceScatter;
    const uint64_t part = scatters ? record.comm_rank * record.out_bytes : 0;
    if (const CUresult result = driver.memcpy_async(Address(plan.repeated[i]->data),
                                                    Address(plan.operations[i]->input) + part,
                                                    record.out_bytes, stream)) {
      return result;
    }
  }
  if (const CUresult result = driver.launch_host_func(stream, &RepeatOwn, plan.unit)) return result;
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    if (plan.repeated[i] == nullptr) continue;
    const Operation& operation = *plan.operations[i];
    if (const CUresult result =
            driver.memcpy_async(Address(operation.output), Address(plan.repeated[i]->data),
                                operation.record.out_bytes, stream)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

/// Puts the inputs that move where the controller sees them.
CUresult EnqueueInputs(const CoreTable& core, const DriverCalls& driver, const Plan& plan) {
  const CUstream stream = plan.streams.front();
  for (size_t i = 1; i < plan.streams.size(); ++i) {
    if (const CUresult result = Join(driver, plan.streams[i], stream)) return result;
  }
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = *plan.operations[i];
    if (plan.in[i] != nullptr) {
      if (const CUresult result =
              driver.memcpy_async(Address(plan.in[i]->host), Address(operation.input),
                                  operation.record.in_bytes, stream)) {
        return result;
      }
    } else if (plan.out[i] != nullptr &&
               (core.mode() == wire::Mode::kEmulate || IsMovedUntilRecurring(core, operation))) {
      // Whoever would bring something has no process, or does not bring it any more: what nobody
      // fills stays as it is.
      if (const CUresult result =
              driver.memcpy_async(Address(plan.out[i]->host), Address(operation.output),
                                  operation.record.out_bytes, stream)) {
        return result;
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult EnqueueOutputs(const DriverCalls& driver, const Plan& plan) {
  const CUstream stream = plan.streams.front();
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    if (plan.out[i] == nullptr) continue;
    const Operation& operation = *plan.operations[i];
    if (const CUresult result =
            driver.memcpy_async(Address(operation.output), Address(plan.out[i]->host),
                                operation.record.out_bytes, stream)) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

CUresult EnqueueArrival(const CoreTable& core, const DriverCalls& driver, const Plan& plan) {
  if (const CUresult result = EnqueueInputs(core, driver, plan)) return result;
  return driver.launch_host_func(plan.streams.front(), &Arrive, plan.unit);
}

/// Makes the group's other streams wait for the one that did the work.
CUresult JoinOthers(const DriverCalls& driver, const Plan& plan) {
  for (size_t i = 1; i < plan.streams.size(); ++i) {
    if (const CUresult result = Join(driver, plan.streams.front(), plan.streams[i])) return result;
  }
  return CUDA_SUCCESS;
}

CUresult EnqueueStall(const CoreTable& core, const DriverCalls& driver, const Plan& plan) {
  const CUstream stream = plan.streams.front();
  if (const CUresult result =
          driver.stream_wait_value(stream, Address(core.word(plan.unit->release_word)),
                                   Unit::kReleased, CU_STREAM_WAIT_VALUE_GEQ)) {
    return result;
  }
  if ((core.welcome()->flags & wire::kMirrorPayloads) != 0) {
    std::vector<StandInSegment> segments;
    for (size_t i = 0; i < plan.operations.size(); ++i) {
      if (plan.out[i] != nullptr || plan.repeated[i] != nullptr) continue;
      if (plan.kept[i] != nullptr) {
        AddKept(*plan.operations[i], *plan.kept[i], &segments);
      } else {
        AddMirror(*plan.operations[i], plan.operations, &segments);
      }
    }
    if (const CUresult result = EnqueueSegments(driver, segments, stream)) return result;
  }
  if (!plan.unit->repeated.empty()) {
    if (const CUresult result = EnqueueRepeated(driver, plan)) return result;
  }
  if (const CUresult result = EnqueueOutputs(driver, plan)) return result;
  if (const CUresult result = driver.launch_host_func(stream, &Complete, plan.unit)) return result;
  return JoinOthers(driver, plan);
}

CUresult EnqueueStandIn(const CoreTable& core, const DriverCalls& driver, const Plan& plan) {
  const CUstream stream = plan.streams.front();
  if (const CUresult result = EnqueueInputs(core, driver, plan)) return result;
  std::vector<StandInSegment> segments;
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = *plan.operations[i];
    if (plan.out[i] == nullptr) AddMirror(operation, plan.operations, &segments);
    AddTraffic(operation, &segments);
  }
  Unit& unit = *plan.unit;
  StandInArguments arguments{};
  arguments.arrival_word = Address(core.word(unit.arrival_word));
  arguments.release_word = Address(core.word(unit.release_word));
  arguments.met_word = Address(core.word(unit.met_word));
  arguments.waits = plan.ends_early ? 0 : 1;
  arguments.unit_ns = wire::kPacedUnitNs;
  // What a kernel has no room for is copied before it.
  if (segments.size() > StandInArguments::kMaxSegments) {
    const std::vector<StandInSegment> rest(segments.begin() + StandInArguments::kMaxSegments,
                                           segments.end());
    if (const CUresult result = EnqueueSegments(driver, rest, stream)) return result;
    segments.resize(StandInArguments::kMaxSegments);
  }
  arguments.segments = static_cast<uint32_t>(segments.size());
  std::copy(segments.begin(), segments.end(), arguments.segment);
  if (const CUresult result = StandIn::Get().Launch(driver, stream, plan.operations.front()->record,
                                                    &arguments, &unit.sync)) {
    return result;
  }
  if (!unit.slots.empty() && !plan.ends_early) {
    // The arena is needed until the outputs are copied, which no kernel tells.
    if (const CUresult result = EnqueueOutputs(driver, plan)) return result;
    if (const CUresult result = driver.launch_host_func(stream, &Complete, plan.unit))
      return result;
  }
  return JoinOthers(driver, plan);
}

}  // namespace

bool Unit::Ended() const {
  const auto value = [&](uint32_t word) {
    return __atomic_load_n(core->word(word), __ATOMIC_ACQUIRE);
  };
  return value(release_word) != 0 && (sync == 0 || value(arrival_word) == kStandInDone);
}

void GiveBack(Unit* unit) {
  for (const ArenaSlot& slot : unit->slots) unit->core->arena_give(&slot);
  unit->core->word_give(unit->arrival_word);
  unit->core->word_give(unit->release_word);
  if (unit->met_word != 0) unit->core->word_give(unit->met_word);
  StandIn::Get().GiveBack(unit->sync);
  delete unit;
}

ncclResult_t Launch(const CoreTable& core, const DriverCalls& driver,
                    std::vector<Operation> operations) {
  for (const Operation& operation : operations) {
    if (IsCapturing(driver, operation.stream)) {
      core.gap("communication inside a captured CUDA graph");
      return Error(operation.comm.get(), ncclInvalidUsage,
                   "communication inside a captured CUDA graph is not emulated: capture graphs "
                   "without it, or run this part without graphs");
    }
  }
  // NCCL connects the peers of a group before it launches any of it.
  for (const Operation& operation : operations) {
    if (operation.comm->TakeMemory(core, operation.record.op, operation.record.peer)) continue;
    const ncclResult_t error =
        Error(operation.comm.get(), ncclUnhandledCudaError,
              "Cuda failure 2 'out of memory': the buffers of a connection (modelled) do not fit");
    for (const Operation& other : operations) other.comm->Fail(error, ThreadError());
    return error;
  }
  for (const Operation& operation : operations) operation.comm->GiveBackWatched();
  const uint32_t call_site = core.call_site();
  for (Operation& operation : operations) {
    wire::OpRecord& record = operation.record;
    record.comm = operation.comm->id();
    record.comm_rank = static_cast<uint32_t>(operation.comm->rank());
    record.call_site = call_site;
    record.stream = core.stream_number(operation.stream);
    record.sequence = record.op == wire::Op::kSend   ? operation.comm->NextSend(record.peer)
                      : record.op == wire::Op::kRecv ? operation.comm->NextReceive(record.peer)
                                                     : operation.comm->NextCollective();
  }
  std::vector<Plan> plans = Cut(operations);
  const Uncharged scope(core);
  for (Plan& plan : plans) {
    if (const ncclResult_t result = Prepare(core, plan)) {
      for (Plan& prepared : plans) {
        if (prepared.unit != nullptr) GiveBack(prepared.unit);
      }
      return result;
    }
  }
  for (auto plan = plans.begin(); plan != plans.end(); ++plan) {
    core.work(core.welcome()->call_ns);
    if (!Post(core, *plan)) {
      for (; plan != plans.end(); ++plan) GiveBack(plan->unit);
      return Error(nullptr, ncclSystemError, "the controller is gone");
    }
    plan->ends_early = BeginUnit(core, *plan);
    Trace(core, *plan);
  }
  // From here on an error leaves units posted and not enqueued: their communicators are broken, as
  // after a failed launch of NCCL, and say so instead of waiting for them. Their memory stays,
  // since the controller and enqueued host functions may still use it.
  const auto broken = [&](CUresult result) {
    static std::mutex mutex;
    static auto* abandoned = new std::vector<Unit*>;
    {
      std::lock_guard lock(mutex);
      for (const Plan& plan : plans) abandoned->push_back(plan.unit);
    }
    const ncclResult_t error = CudaError(driver, result, "a communication cannot be enqueued");
    for (const Plan& plan : plans) plan.operations.front()->comm->Fail(error, ThreadError());
    return error;
  };
  for (const Plan& plan : plans) {
    if (const CUresult result = plan.stand_in ? EnqueueStandIn(core, driver, plan)
                                              : EnqueueArrival(core, driver, plan)) {
      return broken(result);
    }
  }
  for (const Plan& plan : plans) {
    if (plan.ends_early || plan.stand_in) continue;
    if (const CUresult result = EnqueueStall(core, driver, plan)) return broken(result);
  }
  return ncclSuccess;
}

Group& Group::OfThread() {
  thread_local Group group;
  return group;
}

ncclResult_t Group::Add(const CoreTable& core, const DriverCalls& driver, Operation operation) {
  if (open()) {
    operations_.push_back(std::move(operation));
    return ncclSuccess;
  }
  std::vector<Operation> one;
  one.push_back(std::move(operation));
  return Launch(core, driver, std::move(one));
}

ncclResult_t Group::AddBlocking(std::function<ncclResult_t()> work) {
  if (!open()) return work();
  blocking_.push_back(std::move(work));
  return ncclSuccess;
}

ncclResult_t Group::Failed(ncclResult_t result) {
  if (open() && error_ == ncclSuccess) error_ = result;
  return result;
}

void Group::Discard() {
  operations_.clear();
  blocking_.clear();
  error_ = ncclSuccess;
}

ncclResult_t Group::End(const CoreTable& core, const DriverCalls& driver) {
  if (depth_ == 0) {
    return Error(nullptr, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--depth_ > 0) return ncclSuccess;
  std::vector<Operation> operations;
  std::vector<std::function<ncclResult_t()>> blocking;
  operations.swap(operations_);
  blocking.swap(blocking_);
  const ncclResult_t error = error_;
  error_ = ncclSuccess;
  if (error != ncclSuccess) return error;

  ncclResult_t result = ncclSuccess;
  if (blocking.size() == 1) {
    result = blocking.front()();
  } else if (!blocking.empty()) {
    // Members of one process wait for each other, so they must wait side by side.
    std::vector<ncclResult_t> results(blocking.size(), ncclSuccess);
    std::vector<std::string> errors(blocking.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < blocking.size(); ++i) {
      threads.emplace_back([&, i] {
        results[i] = blocking[i]();
        errors[i] = ThreadError();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == ncclSuccess) continue;
      if (result == ncclSuccess || result == ncclInProgress) {
        result = results[i];
        ThreadError() = errors[i];
      }
    }
  }
  if (result != ncclSuccess && result != ncclInProgress) return result;
  if (operations.empty()) return result;
  const ncclResult_t launched = Launch(core, driver, std::move(operations));
  return launched == ncclSuccess ? result : launched;
}

bool StartThread(std::function<void()> work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto* argument = new std::function<void()>(std::move(work));
  pthread_t thread;
  const int error = pthread_create(
      &thread, nullptr,
      [](void* function) -> void* {
        std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(function));
        (*owned)();
        return nullptr;
      },
      argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    delete argument;
    return false;
  }
  pthread_detach(thread);
  return true;
}

}  // namespace prism::interpose::nccl
