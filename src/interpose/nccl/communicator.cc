#include "src/interpose/nccl/communicator.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "src/interpose/nccl/launch.h"
#include "src/trace/format.h"

// The opaque handle of nccl.h: programs only pass its address around.
struct ncclComm {
  char unused;
};

namespace prism::interpose::nccl {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Communicator>> comms;
  std::vector<ncclComm_t> retired;
};
Registry& GetRegistry() {
  static auto* registry = new Registry;  // never destroyed: torch tears down after us
  return *registry;
}

std::mutex g_error_mutex;
std::string& ProcessErrorText() {
  static auto* text = new std::string;
  return *text;
}
void SetProcessError(const std::string& text) {
  std::lock_guard lock(g_error_mutex);
  ProcessErrorText() = text;
}

}  // namespace

std::string ProcessError() {
  std::lock_guard lock(g_error_mutex);
  return ProcessErrorText();
}

void Communicator::Ready(uint32_t id, std::vector<uint32_t> world_ranks, uint32_t rank) {
  {
    std::lock_guard lock(mutex_);
    id_ = id;
    size_ = static_cast<int>(world_ranks.size());
    rank_ = static_cast<int>(rank);
    world_ranks_ = std::move(world_ranks);
  }
  ncclResult_t expected = ncclInProgress;
  state_.compare_exchange_strong(expected, ncclSuccess);
}

void Communicator::Fail(ncclResult_t result, const std::string& reason) {
  std::lock_guard lock(mutex_);
  const ncclResult_t before = state();
  if (before != ncclSuccess && before != ncclInProgress)
    return;  // the first reason is the one to know
  last_error_ = reason;
  SetProcessError(reason);
  state_.store(result, std::memory_order_release);
  idle_.notify_all();
}

std::string Communicator::last_error() const {
  std::lock_guard lock(mutex_);
  return last_error_;
}

uint64_t Communicator::NextSend(int peer) {
  std::lock_guard lock(mutex_);
  return sends_[peer]++;
}

uint64_t Communicator::NextReceive(int peer) {
  std::lock_guard lock(mutex_);
  return receives_[peer]++;
}

ncclRedOp_t Communicator::AddOperator(const ReductionOperator& op) {
  std::lock_guard lock(mutex_);
  size_t index = 0;
  while (index < operators_.size() && operators_[index].used) ++index;
  if (index == operators_.size()) operators_.emplace_back();
  operators_[index] = op;
  operators_[index].used = true;
  return static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(index));
}

bool Communicator::RemoveOperator(ncclRedOp_t op) {
  std::lock_guard lock(mutex_);
  const int index = static_cast<int>(op) - ncclNumOps;
  if (index < 0 || index >= static_cast<int>(operators_.size()) || !operators_[index].used) {
    return false;
  }
  operators_[index].used = false;
  return true;
}

bool Communicator::FindOperator(ncclRedOp_t op, ReductionOperator* found) const {
  std::lock_guard lock(mutex_);
  const int index = static_cast<int>(op) - ncclNumOps;
  if (index < 0 || index >= static_cast<int>(operators_.size()) || !operators_[index].used) {
    return false;
  }
  *found = operators_[index];
  return true;
}

void Communicator::Begin(Unit* unit) {
  std::lock_guard lock(mutex_);
  units_.insert(unit);
}

void Communicator::BeginWatched(Unit* unit) {
  std::lock_guard lock(mutex_);
  units_.insert(unit);
  watched_.push_back({unit, -1, 0});
}

void Communicator::End(Unit* unit) {
  std::lock_guard lock(mutex_);
  units_.erase(unit);
  if (units_.empty()) idle_.notify_all();
}

bool Communicator::BeginEarly(Unit* unit, const std::vector<std::pair<int, uint64_t>>& sends) {
  std::lock_guard lock(mutex_);
  const size_t before = watched_.size();
  for (const auto& [peer, bytes] : sends) {
    watched_.push_back({unit, peer, bytes});
    uint64_t held = 0;
    for (const Watched& send : watched_) held += send.peer == peer ? send.bytes : 0;
    if (held <= trace::kEarlySendBytes) continue;
    watched_.resize(before);
    return false;
  }
  units_.insert(unit);
  return true;
}

void Communicator::GiveBackWatched() {
  std::vector<Unit*> released;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(watched_, [&](const Watched& send) {
      if (!send.unit->Ended()) return false;
      if (units_.erase(send.unit) != 0) released.push_back(send.unit);
      return true;
    });
    if (units_.empty()) idle_.notify_all();
  }
  for (Unit* unit : released) GiveBack(unit);
}

void Communicator::WaitIdle() {
  constexpr auto kLook = std::chrono::milliseconds(1);  // no stream tells of watched units
  while (true) {
    GiveBackWatched();
    std::unique_lock lock(mutex_);
    const auto idle = [&] {
      const ncclResult_t now = state();
      return units_.empty() || (now != ncclSuccess && now != ncclInProgress);
    };
    if (watched_.empty()) return idle_.wait(lock, idle);
    if (idle_.wait_for(lock, kLook, idle)) return;
  }
}

void Communicator::ReleaseStreams(const CoreTable& core) {
  std::unique_lock lock(mutex_);
  for (const Unit* unit : units_) {
    uint32_t* word = core.word(unit->release_word);
    __atomic_store_n(word, Unit::kReleased, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  lock.unlock();
  GiveBackWatched();
}

bool Communicator::TakeMemory(const CoreTable& core, const std::vector<uint32_t>& world_ranks,
                              uint32_t rank, uint32_t id, const DeviceMemory::Settings& settings) {
  // Where no launcher says how many ranks share a node, they fill it.
  uint32_t per_node = core.welcome() == nullptr ? 0 : core.welcome()->devices;
  if (const char* text = getenv("LOCAL_WORLD_SIZE")) {
    if (const int value = atoi(text); value > 0) per_node = static_cast<uint32_t>(value);
  }
  std::lock_guard lock(mutex_);
  if (memory_given_) return true;
  memory_ = std::make_unique<DeviceMemory>(world_ranks, per_node, rank, settings);
  const uint64_t bytes = memory_->communicator_bytes();
  if (!core.nccl_memory(device_, static_cast<int64_t>(bytes), id)) return false;
  memory_bytes_ = bytes;
  return true;
}

bool Communicator::TakeMemory(const CoreTable& core, wire::Op op, int peer) {
  std::lock_guard lock(mutex_);
  if (memory_ == nullptr) return true;
  const uint64_t bytes = memory_->Connect(op, peer);
  if (bytes == 0) return true;
  if (!core.nccl_memory(device_, static_cast<int64_t>(bytes), id_)) return false;
  memory_bytes_ += bytes;
  return true;
}

void Communicator::GiveMemory(const CoreTable& core) {
  std::lock_guard lock(mutex_);
  memory_given_ = true;
  memory_.reset();
  if (memory_bytes_ == 0) return;
  core.nccl_memory(device_, -static_cast<int64_t>(memory_bytes_), id_);
  memory_bytes_ = 0;
}

uint64_t Communicator::memory_bytes() const {
  std::lock_guard lock(mutex_);
  return memory_bytes_;
}

std::string& ThreadError() {
  thread_local std::string error;
  return error;
}

ncclResult_t Error(Communicator*, ncclResult_t result, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  // The analyzer does not know this form of va_start.
  vsnprintf(text, sizeof text, format, arguments);  // NOLINT(clang-analyzer-valist.Uninitialized)
  va_end(arguments);
  ThreadError() = text;
  SetProcessError(text);
  return result;
}

ncclComm_t Register(std::shared_ptr<Communicator> comm) {
  auto* handle = new ncclComm{};
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  registry.comms[handle] = std::move(comm);
  return handle;
}

std::shared_ptr<Communicator> Find(ncclComm_t handle) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  const auto found = registry.comms.find(handle);
  return found == registry.comms.end() ? nullptr : found->second;
}

void Unregister(ncclComm_t handle) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  // The byte behind the handle is kept, so that no later communicator gets an address that was
  // destroyed.
  if (registry.comms.erase(handle) != 0) registry.retired.push_back(handle);
}

ncclResult_t FindReady(ncclComm_t handle, const char* function,
                       std::shared_ptr<Communicator>* comm) {
  *comm = Find(handle);
  if (*comm == nullptr) {
    return Error(nullptr, ncclInvalidArgument, "%s: %s", function,
                 handle == nullptr ? "the communicator is NULL"
                                   : "this is not a communicator, or it was destroyed");
  }
  const ncclResult_t state = (*comm)->state();
  if (state == ncclInProgress) {
    return Error(
        comm->get(), ncclInvalidArgument,
        "%s: the communicator is not ready: wait until ncclCommGetAsyncError says ncclSuccess",
        function);
  }
  if (state != ncclSuccess) {
    ThreadError() = (*comm)->last_error();
    return state;
  }
  return ncclSuccess;
}

void FailFromController(const wire::Abort& abort) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  for (const auto& [handle, comm] : registry.comms) {
    if (abort.comm == 0 || comm->id() == abort.comm) {
      comm->Fail(static_cast<ncclResult_t>(abort.nccl_result), abort.reason);
    }
  }
}

}  // namespace prism::interpose::nccl
