// Payload: how many bytes a rank gives to and gets from a communication
// (docs/design/0001-fix-first.md, "Exchange").
#ifndef PRISM_INTERPOSE_NCCL_PAYLOAD_H_
#define PRISM_INTERPOSE_NCCL_PAYLOAD_H_

#include <nccl.h>

#include <cstdint>

#include "src/wire/protocol.h"

namespace prism::interpose::nccl {

/// Bytes of an element; 0 for what is no type.
inline uint64_t ElementBytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

struct Payload {
  uint64_t in, out;
  uint64_t largest;  // of in and out, over all ranks
};

/// `bytes`: count as passed to NCCL, in bytes. `size`: ranks of the communicator.
inline Payload PayloadOf(wire::Op op, uint64_t bytes, int size, bool is_root) {
  const uint64_t all = bytes * static_cast<uint64_t>(size);
  switch (op) {
    case wire::Op::kAllReduce:
      return {bytes, bytes, bytes};
    case wire::Op::kReduce:
      return {bytes, is_root ? bytes : 0, bytes};
    case wire::Op::kBroadcast:
      return {is_root ? bytes : 0, bytes, bytes};
    case wire::Op::kAllGather:
      return {bytes, all, all};
    case wire::Op::kReduceScatter:
      return {all, bytes, all};
    case wire::Op::kAllToAll:
      return {all, all, all};
    case wire::Op::kGather:
      return {bytes, is_root ? all : 0, all};
    case wire::Op::kScatter:
      return {is_root ? all : 0, bytes, all};
    case wire::Op::kSend:
      return {bytes, 0, bytes};
    case wire::Op::kRecv:
      return {0, bytes, bytes};
  }
  return {0, 0, 0};
}

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_PAYLOAD_H_
