// Communicator: what an ncclComm_t is under capture and emulation.
//
// Owns a member's view of one communicator: its place in it, its state (in progress, ready,
// failed), its sequence numbers and its reduction operators. Handles are looked up in a registry,
// so that a handle that was destroyed, or never was one, is an error and not a crash. Thread-safe.
// Units in flight hold the communicator by shared_ptr.
//
//   std::shared_ptr<Communicator> comm;
//   if (ncclResult_t error = FindReady(handle, &comm)) return error;
#ifndef PRISM_INTERPOSE_NCCL_COMMUNICATOR_H_
#define PRISM_INTERPOSE_NCCL_COMMUNICATOR_H_

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/interpose/core_table.h"
#include "src/interpose/nccl/device_memory.h"
#include "src/interpose/nccl/recurrence.h"
#include "src/wire/protocol.h"

namespace prism::interpose::nccl {

struct Unit;  // launch.h

struct ReductionOperator {
  bool used = false;
  ncclDataType_t dtype = ncclFloat32;
  bool on_device = false;
  uint64_t scalar_bits = 0;       // host-resident scalars
  const void* address = nullptr;  // device-resident ones: read when the operation is called
};

class Communicator {
 public:
  Communicator(int size, int rank, uint32_t device, bool blocking)
      : size_(size), rank_(rank), device_(device), blocking_(blocking) {}

  int size() const { return size_; }
  int rank() const { return rank_; }
  uint32_t device() const { return device_; }
  uint32_t id() const { return id_; }
  bool blocking() const { return blocking_; }

  /// Success, in progress, or what went wrong; the reason is in last_error().
  ncclResult_t state() const { return state_.load(std::memory_order_acquire); }
  void Ready(uint32_t id, std::vector<uint32_t> world_ranks, uint32_t rank);
  void Fail(ncclResult_t result, const std::string& reason);
  void SetState(ncclResult_t result) { state_.store(result, std::memory_order_release); }
  std::string last_error() const;
  const std::vector<uint32_t>& world_ranks() const { return world_ranks_; }

  // Sequence numbers, taken in the order of the calls.
  uint64_t NextCollective() { return collectives_.fetch_add(1); }
  uint64_t NextSend(int peer);
  uint64_t NextReceive(int peer);
  uint32_t NextSplit() { return splits_.fetch_add(1); }

  ncclRedOp_t AddOperator(const ReductionOperator& op);
  bool RemoveOperator(ncclRedOp_t op);
  bool FindOperator(ncclRedOp_t op, ReductionOperator* found) const;

  Recurrence& recurrence() { return recurrence_; }

  // Units that are enqueued and not complete.
  void Begin(Unit* unit);
  void End(Unit* unit);
  /// The same for a unit of sends (peer, bytes) that ends on its stream before its receives come.
  /// False, and nothing is noted, if they do not fit into the FIFOs beside earlier ones.
  bool BeginEarly(Unit* unit, const std::vector<std::pair<int, uint64_t>>& sends);
  /// A unit of whose end no host function tells.
  void BeginWatched(Unit* unit);
  /// Gives back those of the two kinds above that have ended.
  void GiveBackWatched();
  /// Waits until no unit is left or the communicator has failed.
  void WaitIdle();
  /// Lets every stream that waits for a unit of this communicator go on, as an aborted kernel
  /// would.
  void ReleaseStreams(const CoreTable& core);

  /// Takes the memory that NCCL takes when a communicator is made, and what an operation's
  /// connections add. False: the device has not that much.
  bool TakeMemory(const CoreTable& core, const std::vector<uint32_t>& world_ranks, uint32_t rank,
                  uint32_t id, const DeviceMemory::Settings& settings);
  bool TakeMemory(const CoreTable& core, wire::Op op, int peer);
  void GiveMemory(const CoreTable& core);
  uint64_t memory_bytes() const;

 private:
  int size_, rank_;
  const uint32_t device_;
  const bool blocking_;
  uint32_t id_ = 0;
  std::vector<uint32_t> world_ranks_;
  std::atomic<ncclResult_t> state_{ncclInProgress};
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::string last_error_;
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint32_t> splits_{0};
  std::unordered_map<int, uint64_t> sends_, receives_;
  std::vector<ReductionOperator> operators_;
  Recurrence recurrence_;
  std::set<Unit*> units_;
  struct Watched {
    Unit* unit;
    int peer;
    uint64_t bytes;
  };
  std::vector<Watched> watched_;  // parts of one unit are neighbours; peer -1: no early send
  std::unique_ptr<DeviceMemory> memory_;
  uint64_t memory_bytes_ = 0;
  bool memory_given_ = false;  // for good: an initialization that was aborted takes none any more
};

/// The calling thread's last error, for handles that do not exist.
std::string& ThreadError();
/// The last error of any thread: torch's watchdog asks for what another thread met.
std::string ProcessError();
/// Notes an error with the communicator (may be null) and the thread; returns `result`.
ncclResult_t Error(Communicator* comm, ncclResult_t result, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

ncclComm_t Register(std::shared_ptr<Communicator> comm);
std::shared_ptr<Communicator> Find(ncclComm_t handle);
void Unregister(ncclComm_t handle);
/// ncclInvalidArgument for no handle or one whose initialisation is in progress; its error when it
/// failed.
ncclResult_t FindReady(ncclComm_t handle, const char* function,
                       std::shared_ptr<Communicator>* comm);
/// Marks one communicator, or all (0), as failed: what an Abort packet does.
void FailFromController(const wire::Abort& abort);

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_COMMUNICATOR_H_
