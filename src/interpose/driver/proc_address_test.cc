#include "src/interpose/driver/proc_address.h"

#include <gtest/gtest.h>

#include <string>

namespace prism::interpose::driver {
namespace {

// A table of five names; addresses stand for functions.
const char* const kNames[] = {"cuLaunchKernel", "cuLaunchKernel_ptsz", "cuMemAlloc",
                              "cuMemAlloc_v2", "cuOther"};
char g_exports[5], g_reals[5], g_missing_space;
void Missing() { g_missing_space = 1; }
void* const g_exported[] = {&g_exports[0], &g_exports[1], &g_exports[2], &g_exports[3],
                            &g_exports[4]};
void* g_entry[5];
void* g_real[] = {&g_reals[0], &g_reals[1], &g_reals[2], &g_reals[3], &g_reals[4]};
const std::vector<uint32_t> kWrapped = {0, 1, 3};

ForwardTable Table() { return ForwardTable({kNames, g_exported, g_entry, g_real, 5, &Missing}); }

TEST(ProcAddressTest, NamesSplitIntoBaseVersionAndStream) {
  const auto split = SplitName("cuMemcpyHtoDAsync_v2_ptsz");
  EXPECT_EQ(split.base, "cuMemcpyHtoDAsync");
  EXPECT_EQ(split.abi, 2);
  EXPECT_TRUE(split.per_thread);
  EXPECT_EQ(SplitName("cuInit").base, "cuInit");
  EXPECT_EQ(SplitName("cuInit").abi, 1);
  EXPECT_EQ(SplitName("cuMemcpy_ptds").base, "cuMemcpy");
  EXPECT_TRUE(SplitName("cuMemcpy_ptds").per_thread);
  EXPECT_EQ(SplitName("cuStreamGetCtx_v2").base, "cuStreamGetCtx");
}

TEST(ProcAddressTest, RealAddressOfAWrappedNameBecomesTheExport) {
  const ForwardTable table = Table();
  ProcAddress addresses;
  addresses.Build(table, kWrapped);
  EXPECT_EQ(addresses.Answer("cuMemAlloc", g_real[3], 12000, false), g_exported[3]);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", g_real[0], 12000, false), g_exported[0]);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", g_real[1], 12000, true), g_exported[1]);
  EXPECT_EQ(addresses.counts().by_address, 3u);
}

// The first ABI of cuMemAlloc has 32-bit addresses: giving it the second one's wrapper would
// corrupt memory.
TEST(ProcAddressTest, AnUnwrappedVersionOfAWrappedNameStaysReal) {
  const ForwardTable table = Table();
  ProcAddress addresses;
  addresses.Build(table, kWrapped);
  EXPECT_EQ(addresses.Answer("cuMemAlloc", g_real[2], 2000, false), g_real[2]);
  EXPECT_EQ(addresses.Answer("cuMemAlloc", g_real[2], 13000, false), g_real[2]);
  EXPECT_EQ(addresses.Answer("cuOther", g_real[4], 13000, false), g_real[4]);
  EXPECT_EQ(addresses.counts().passed, 3u);
}

TEST(ProcAddressTest, AddressOfNoExportIsRecognisedByNameVersionAndStream) {
  const ForwardTable table = Table();
  ProcAddress addresses;
  addresses.Build(table, kWrapped);
  char strange;
  EXPECT_EQ(addresses.Answer("cuMemAlloc", &strange, 3020, false), g_exported[3]);
  EXPECT_EQ(addresses.Answer("cuMemAlloc", &strange, 2000, false), &strange);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", &strange, 12000, true), g_exported[1]);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", &strange, 12000, false), g_exported[0]);
  EXPECT_EQ(addresses.Answer("cuNever", &strange, 12000, false), &strange);
}

TEST(ProcAddressTest, OneFunctionBehindTwoNamesFollowsTheQuestion) {
  void* shared[] = {&g_reals[0], &g_reals[0], &g_reals[2], &g_reals[3], &g_reals[4]};
  const ForwardTable table({kNames, g_exported, g_entry, shared, 5, &Missing});
  ProcAddress addresses;
  addresses.Build(table, kWrapped);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", &g_reals[0], 12000, false), g_exported[0]);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", &g_reals[0], 12000, true), g_exported[1]);
}

TEST(ProcAddressTest, AbsentNamesAreNotRecognised) {
  void* absent[] = {reinterpret_cast<void*>(&Missing), &g_reals[1], &g_reals[2], &g_reals[3],
                    &g_reals[4]};
  const ForwardTable table({kNames, g_exported, g_entry, absent, 5, &Missing});
  ProcAddress addresses;
  addresses.Build(table, kWrapped);
  EXPECT_EQ(addresses.Answer("cuLaunchKernel", reinterpret_cast<void*>(&Missing), 12000, false),
            reinterpret_cast<void*>(&Missing));
}

TEST(ProcAddressTest, FirstVersionsAreThoseOfTheTypedefHeader) {
  EXPECT_EQ(FirstCudaVersion("cuMemAlloc_v2"), 3020);
  EXPECT_EQ(FirstCudaVersion("cuLaunchKernel_ptsz"), 0);
  EXPECT_EQ(FirstCudaVersion("cuStreamBeginCapture_v2_ptsz"), 10010);
  EXPECT_EQ(FirstCudaVersion("cuCtxCreate_v4"), 12050);
}

}  // namespace
}  // namespace prism::interpose::driver
