#include "hostcuda/nccl/operation.h"

namespace hostnccl {

Signature Signature::Of(const Operation& op) {
  const bool rooted = op.kind == OpKind::kReduce || op.kind == OpKind::kBroadcast ||
                      op.kind == OpKind::kGather || op.kind == OpKind::kScatter;
  return Signature{op.kind, op.type, IsReducing(op.kind) ? op.reduction : Reduction::kSum,
                   rooted ? op.peer : -1, op.count};
}

const char* Name(DataType type) {
  static constexpr const char* kNames[kDataTypes] = {
      "ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
      "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
      "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  return kNames[static_cast<int>(type)];
}

const char* Name(OpKind kind) {
  static constexpr const char* kNames[kOpKinds] = {
      "ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
      "ncclAlltoAll",  "ncclGather", "ncclScatter",   "ncclSend",      "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

std::string Describe(const Signature& signature) {
  static constexpr const char* kReductionNames[kReductions] = {"ncclSum", "ncclProd", "ncclMax",
                                                               "ncclMin", "ncclAvg",  "PreMulSum"};
  std::string text = Name(signature.kind);
  text += "(count=" + std::to_string(signature.count) + ", " + Name(signature.type);
  if (IsReducing(signature.kind))
    text += std::string(", ") + kReductionNames[static_cast<int>(signature.reduction)];
  if (signature.root >= 0) text += ", root=" + std::to_string(signature.root);
  return text + ")";
}

uint64_t PayloadBytes(const Operation& op, int ranks) {
  const uint64_t bytes = op.count * ElementBytes(op.type);
  switch (op.kind) {
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
    case OpKind::kGather:
    case OpKind::kScatter:
      return bytes * static_cast<uint64_t>(ranks);
    default:
      return bytes;
  }
}

}  // namespace hostnccl
