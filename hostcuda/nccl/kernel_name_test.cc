#include "hostcuda/nccl/kernel_name.h"

#include <cxxabi.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace hostnccl {
namespace {

std::string NameOf(OpKind kind, DataType type = DataType::kFloat32) {
  return KernelName({{.kind = kind, .type = type}});
}

// Names as profiles of NCCL 2.28 on H200 show them.
TEST(KernelNameTest, IsTheOneOfNcclsKernels) {
  EXPECT_EQ(NameOf(OpKind::kAllReduce), "ncclDevKernel_AllReduce_Sum_f32_RING_LL");
  EXPECT_EQ(NameOf(OpKind::kReduceScatter, DataType::kBfloat16),
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL");
  EXPECT_EQ(NameOf(OpKind::kReduce, DataType::kInt64), "ncclDevKernel_Reduce_Sum_u64_RING_LL");
  EXPECT_EQ(NameOf(OpKind::kAllGather, DataType::kBfloat16), "ncclDevKernel_AllGather_RING_LL");
  EXPECT_EQ(NameOf(OpKind::kBroadcast), "ncclDevKernel_Broadcast_RING_LL");
  for (OpKind kind :
       {OpKind::kSend, OpKind::kRecv, OpKind::kAllToAll, OpKind::kGather, OpKind::kScatter}) {
    EXPECT_EQ(NameOf(kind), "ncclDevKernel_SendRecv");
  }
}

TEST(KernelNameTest, MangledNamesDemangle) {
  int status = -1;
  char* text = abi::__cxa_demangle(
      MangledKernelName({{.kind = OpKind::kAllReduce, .type = DataType::kFloat16}}), nullptr,
      nullptr, &status);
  ASSERT_EQ(status, 0);
  EXPECT_STREQ(text, "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)");
  free(text);
  EXPECT_EQ(MangledKernelName({{.kind = OpKind::kSend}}),
            MangledKernelName({{.kind = OpKind::kRecv}}));
}

}  // namespace
}  // namespace hostnccl
