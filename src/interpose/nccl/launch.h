// Launch: how a group of communications becomes work on streams.
//
// A group's calls are cut into units, one a communicator (and at most what a packet holds). A unit
// is posted to the controller, and enqueued as: copy-out, arrival, stall, copy-in, completion. All
// units of a group arrive before the first one stalls, so that the order in which ranks name
// communicators inside a group does not matter, as with NCCL. A unit of sends that fit into NCCL's
// FIFOs (trace::kEarlySendBytes a peer) does not stall: the stream goes on, and what the unit holds
// is given back at a later call, when the controller has released it.
//
// A large payload that has moved before and does not any more (recurrence.h) is made of what was
// kept and of the rank's own data behind the stall; sums of that by a host function.
//
// Under emulation on a GPU a unit is one kernel of NCCL's name instead (stand_in.h): it arrives,
// waits, moves bytes and ends by itself.
//
// Threading: a group belongs to the thread that opened it.
#ifndef PRISM_INTERPOSE_NCCL_LAUNCH_H_
#define PRISM_INTERPOSE_NCCL_LAUNCH_H_

#include <cuda.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "src/interpose/core_table.h"
#include "src/interpose/nccl/communicator.h"
#include "src/interpose/nccl/driver_calls.h"
#include "src/interpose/nccl/stand_in.h"
#include "src/wire/protocol.h"

namespace prism::interpose::nccl {

/// One call, validated.
struct Operation {
  std::shared_ptr<Communicator> comm;
  wire::OpRecord record{};
  uint64_t payload_bytes = 0;  // the larger of in and out over all ranks: every rank decides alike
  const void* input = nullptr;
  void* output = nullptr;
  CUstream stream = nullptr;
};

/// A posted part of a group.
struct Unit {
  static constexpr uint32_t kArrived = 1, kReleased = 1;
  const CoreTable* core;
  std::shared_ptr<Communicator> comm;
  uint32_t arrival_word, release_word;
  std::vector<ArenaSlot> slots;
  /// What is received and kept for later rounds: from a slot of the arena.
  std::vector<std::pair<const Recurrence::Kept*, const void*>> kept;
  /// Reductions that are made of the rank's own data alone, in slots of the arena.
  struct Repeated {
    wire::OpRecord record;
    uint32_t members;
    void* data;
  };
  std::vector<Repeated> repeated;
  /// Where a kernel stands for NCCL's (stand_in.h); 0: the stream itself waits.
  uint32_t met_word = 0;
  StandIn::Sync sync = 0;

  /// Released by the controller, and no kernel needs it any more.
  bool Ended() const;
};

/// Gives back what the unit holds of the arena, and deletes it.
void GiveBack(Unit* unit);

/// Posts and enqueues. `operations` is not empty.
ncclResult_t Launch(const CoreTable& core, const DriverCalls& driver,
                    std::vector<Operation> operations);

/// The thread's group.
class Group {
 public:
  static Group& OfThread();

  void Start() { ++depth_; }
  bool open() const { return depth_ > 0; }
  /// Runs what was collected when the outermost group ends.
  ncclResult_t End(const CoreTable& core, const DriverCalls& driver);
  /// Drops what was collected, at any depth.
  void Discard();

  /// Takes a call: now, or at the end of the open group.
  ncclResult_t Add(const CoreTable& core, const DriverCalls& driver, Operation operation);
  /// Takes work that waits for other members, such as the creation of a communicator. Work of one
  /// group runs side by side.
  ncclResult_t AddBlocking(std::function<ncclResult_t()> work);
  /// An error inside an open group makes its end fail.
  ncclResult_t Failed(ncclResult_t result);

 private:
  int depth_ = 0;
  ncclResult_t error_ = ncclSuccess;
  std::vector<Operation> operations_;
  std::vector<std::function<ncclResult_t()>> blocking_;
};

/// Starts a thread of prism's own: detached, all signals blocked.
bool StartThread(std::function<void()> work);

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_LAUNCH_H_
