// The lists of wrappers: each exported name is served at most once, and by the wrapper of its own
// name.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "src/interpose/driver/route.h"

extern "C" void prism_driver_open() {}

namespace prism::interpose {
void PublishEntries() {}
namespace driver {
uint64_t g_call_counts[kSymbolCount];
namespace {

TEST(WrappersTest, NoNameIsServedTwice) {
  std::map<uint32_t, int> served;
  for (const auto& part :
       {MemoryWrappers(), StreamWrappers(), LaunchWrappers(), CopyWrappers(), DeviceWrappers()}) {
    for (const Wrapper& wrapper : part) ++served[wrapper.index];
  }
  for (const auto& [index, times] : served) EXPECT_EQ(times, 1) << prism_driver_names[index];
  EXPECT_GT(served.size(), 100u);
}

TEST(WrappersTest, NamesAreSortedAsLookUpsExpect) {
  for (uint32_t i = 1; i < kSymbolCount; ++i) {
    EXPECT_LT(std::string(prism_driver_names[i - 1]), prism_driver_names[i]);
  }
}

}  // namespace
}  // namespace driver
}  // namespace prism::interpose
