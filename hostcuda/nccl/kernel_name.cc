#include "hostcuda/nccl/kernel_name.h"

#include <mutex>
#include <set>

namespace hostnccl {
namespace {

// NCCL compiles a kernel of its own only for sums, and unsigned integers serve the signed ones; all
// others run as device functions inside of it.
const char* KernelType(DataType type) {
  static constexpr const char* kTypes[kDataTypes] = {
      "u8", "u8", "u32", "u32", "u64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  return kTypes[static_cast<int>(type)];
}

}  // namespace

std::string KernelName(const std::vector<Operation>& operations) {
  // Of a fused group NCCL launches the first collective's kernel; all-to-all, gather and scatter
  // are messages to it.
  for (const Operation& op : operations) {
    const std::string type = KernelType(op.type);
    switch (op.kind) {
      case OpKind::kAllReduce:
        return "ncclDevKernel_AllReduce_Sum_" + type + "_RING_LL";
      case OpKind::kReduce:
        return "ncclDevKernel_Reduce_Sum_" + type + "_RING_LL";
      case OpKind::kReduceScatter:
        return "ncclDevKernel_ReduceScatter_Sum_" + type + "_RING_LL";
      case OpKind::kBroadcast:
        return "ncclDevKernel_Broadcast_RING_LL";
      case OpKind::kAllGather:
        return "ncclDevKernel_AllGather_RING_LL";
      default:
        break;
    }
  }
  return "ncclDevKernel_SendRecv";
}

const char* MangledKernelName(const std::vector<Operation>& operations) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  const std::string name = KernelName(operations);
  const std::string mangled =
      "_Z" + std::to_string(name.size()) + name + "24ncclDevKernelArgsStorageILm4096EE";
  std::lock_guard lock(mutex);
  return names->insert(mangled).first->c_str();
}

}  // namespace hostnccl
