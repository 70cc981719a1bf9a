// Operation: one communication call of one rank, and what ranks compare to see whether their calls
// match.
//
// Plain values without behaviour of their own; thread-safe as such.
//
//   Operation op{.kind = OpKind::kAllReduce, .type = DataType::kFloat32, .count = 1024, .send = a,
//   .recv = b}; Describe(Signature::Of(op));  // "ncclAllReduce(count=1024, ncclFloat32, ncclSum)"
#ifndef HOSTCUDA_NCCL_OPERATION_H_
#define HOSTCUDA_NCCL_OPERATION_H_

#include <cstdint>
#include <string>

#include "hostcuda/nccl/arithmetic.h"

namespace hostnccl {

enum class OpKind : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
};
inline constexpr int kOpKinds = 10;

/// Returns whether the operation is matched by (source, destination, order) and not by the
/// communicator's sequence.
inline bool IsPointToPoint(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }
/// Returns whether the operation combines values.
inline bool IsReducing(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

struct Operation {
  OpKind kind;
  DataType type = DataType::kInt8;
  Reduction reduction = Reduction::kSum;
  int peer = -1;       // root, or peer of send and receive
  uint64_t count = 0;  // elements, as passed to NCCL
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t scalar_bits = 0;              // PreMulSum
  const void* scalar_address = nullptr;  // PreMulSum whose scalar is read when the operation runs
};

/// What must be equal on all ranks of a collective, and on both sides of a message. Lives in shared
/// memory.
struct Signature {
  OpKind kind;
  DataType type;
  Reduction reduction;
  int32_t root;
  uint64_t count;

  static Signature Of(const Operation& op);
  friend bool operator==(const Signature&, const Signature&) = default;
};

/// Returns "ncclFloat32" and the like.
const char* Name(DataType type);
/// Returns "ncclAllReduce" and the like.
const char* Name(OpKind kind);
/// Returns the call as a user would write it.
std::string Describe(const Signature& signature);

/// Returns the bytes that decide whether the payload moves: the larger of what any rank contributes
/// and what any receives.
uint64_t PayloadBytes(const Operation& op, int ranks);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_OPERATION_H_
