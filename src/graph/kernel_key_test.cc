#include "src/graph/kernel_key.h"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism::graph {
namespace {

TEST(KernelKeyTest, NamesAreDemangledWithTheirTemplateArguments) {
  EXPECT_EQ(
      NormalizedKernelName("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
                           "addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_"),
      "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<"
      "c10::BFloat16>, std::array<char*, 3ul> >(int, "
      "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)");
  for (const char* name : {"nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNN", "triton_poi_fused_add_0",
                           "hostcublas_gemm_bf16_bf16_f32_tn_m64_n64_k64_b1", "", "_Z", "_Zbroken"})
    EXPECT_EQ(NormalizedKernelName(name), name);
}

TEST(KernelKeyTest, HashesOfSourceFilesGo) {
  // Two builds of one file: an anonymous namespace, and internal linkage.
  EXPECT_EQ(NormalizedKernelName("_ZN37_GLOBAL__N__5b6a7c8d_4_aa_cu_1234abc56kernelEv"),
            "(anonymous namespace)::kernel()");
  EXPECT_EQ(NormalizedKernelName("_ZN37_INTERNAL_0d2a4a3f_7_main_cu_ef12ab456kernelEPf"),
            "kernel(float*)");
  EXPECT_EQ(NormalizedKernelName("_ZN37_INTERNAL_99999999_7_main_cu_000000006kernelEPf"),
            "kernel(float*)");
}

TEST(KernelKeyTest, EveryPartCounts) {
  const Kernel kernel{"gemm", trace::KernelKind::kKernel, {1, 2, 3}, {4, 5, 6}, 7, 0, 100};
  const uint64_t key = KernelKey(kernel);
  EXPECT_EQ(KernelKey(kernel), key);
  const std::function<void(Kernel&)> changes[] = {
      [](Kernel& k) { k.name = "gemv"; },    [](Kernel& k) { k.kind = trace::KernelKind::kCopy; },
      [](Kernel& k) { k.grid[2] = 4; },      [](Kernel& k) { k.block[0] = 5; },
      [](Kernel& k) { k.shared_bytes = 8; }, [](Kernel& k) { k.bytes = 1; },
      [](Kernel& k) { k.parameters = 101; }, [](Kernel& k) { k.parameters = 0; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Kernel other = kernel;
    changes[i](other);
    EXPECT_NE(KernelKey(other), key) << i;
  }
}

TEST(KernelKeyTest, ParametersThatVaryAreAsIfUnknown) {
  Kernel kernel{"gemm", trace::KernelKind::kKernel, {1, 1, 1}, {1, 1, 1}, 0,
                0,      trace::kParametersVary};
  const uint64_t key = KernelKey(kernel);
  kernel.parameters = trace::kParametersUnknown;
  EXPECT_EQ(KernelKey(kernel), key);
}

// Other tools may compute it: FNV-1a 64 by hand.
TEST(KernelKeyTest, KeyIsTheDocumentedHash) {
  const Kernel kernel{"k", trace::KernelKind::kKernel, {1, 0, 0}, {0, 0, 0}, 0, 0, 0};
  uint64_t hash = 0xcbf29ce484222325;
  const auto feed = [&](unsigned byte) { hash = (hash ^ byte) * 0x100000001b3; };
  feed('k');
  for (int i = 0; i < 4; ++i) feed(0);               // kind
  for (int i = 0; i < 12; ++i) feed(i == 0);         // grid
  for (int i = 0; i < 12 + 4 + 8 + 4; ++i) feed(0);  // block, shared memory, bytes, parameters
  EXPECT_EQ(KernelKey(kernel), hash);
}

}  // namespace
}  // namespace prism::graph
