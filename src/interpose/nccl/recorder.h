// Recorder: the trace nodes of communications that the real NCCL carries out (mode record).
//
// Communicator numbers are hashes of what all members share (unique id; parent, colour and number
// of the split), so that they are equal across ranks without a controller. Nodes are what capture
// writes for the same calls: those of a group are written when it ends, communicator by
// communicator. Does nothing outside mode record. Thread-safe; a group belongs to its thread.
#ifndef PRISM_INTERPOSE_NCCL_RECORDER_H_
#define PRISM_INTERPOSE_NCCL_RECORDER_H_

#include <cuda.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "src/interpose/core_table.h"

namespace prism::interpose::nccl {

class Recorder {
 public:
  /// One call, as passed to NCCL.
  struct Call {
    wire::Op op;
    ncclDataType_t dtype;
    int reduction;  // -1: none
    int peer;       // root or peer; -1: none
    uint64_t count;
    CUstream stream;
  };

  /// The core of a process that records, else null.
  static const CoreTable* Core();

  static void Created(ncclComm_t comm, const void* unique_id, size_t bytes, int size, int rank);
  static void Split(ncclComm_t parent, int color, ncclComm_t comm);
  static void Destroyed(ncclComm_t comm);
  /// Before NCCL takes the call.
  static void Before(const Call& call);
  /// After NCCL has taken the call.
  static void Operation(ncclComm_t comm, const Call& call);
  static void GroupStart();
  /// Before NCCL's own.
  static void BeforeGroupEnd();
  /// After NCCL's own; `done`: it launched what was in the group.
  static void GroupEnd(bool done);
};

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_RECORDER_H_
