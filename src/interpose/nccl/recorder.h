// Recorder: the trace nodes of communications that the real NCCL carries out (mode record).
//
// Communicator numbers are hashes of what all members share (unique id; parent, colour and number
// of the split), so that they are equal across ranks without a controller. Does nothing outside
// mode record. Thread-safe.
#ifndef PRISM_INTERPOSE_NCCL_RECORDER_H_
#define PRISM_INTERPOSE_NCCL_RECORDER_H_

#include <cuda.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>

namespace prism::interpose::nccl {

class Recorder {
 public:
  static void Created(ncclComm_t comm, const void* unique_id, size_t bytes, int size, int rank);
  static void Split(ncclComm_t parent, int color, ncclComm_t comm);
  static void Destroyed(ncclComm_t comm);
  static void Operation(ncclComm_t comm, uint32_t op, uint32_t dtype, int reduction, int peer,
                        uint64_t count, uint64_t element_bytes, CUstream stream);
};

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_RECORDER_H_
