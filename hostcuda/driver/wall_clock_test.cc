// The wall clock through the public API. What takes time takes at least that; how much longer is
// this machine's affair, so nothing is said of it.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "hostcuda/driver/testing/driver_test.h"
#include "hostcuda/hostcuda.h"

namespace {

using hostcuda::testing::DriverTest;
using hostcuda::testing::Table;

constexpr uint64_t kKernelNs = 5'000'000;

class WallClockTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_EQ(hostcudaRegisterKernelTime("k", kKernelNs, nullptr), 0);
    for (CUstream* stream : {&one_, &other_}) *stream = NewStream();
    for (CUevent* event : {&start_, &end_}) *event = NewEvent();
  }
  void TearDown() override {
    DriverTest::TearDown();
    for (CUevent event : {start_, end_}) EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  }
  void Launch(CUstream stream) { DriverTest::Launch("k", stream); }

  CUstream one_ = nullptr, other_ = nullptr;
  CUevent start_ = nullptr, end_ = nullptr;
};

TEST_F(WallClockTest, IsThisMachinesClock) {
  EXPECT_EQ(hostcudaClockIsVirtual(), 0);
  EXPECT_NE(Table()->clock_takes_time(), 0);
  const uint64_t before = hostcudaNow();
  usleep(1000);
  EXPECT_GE(hostcudaNow(), before + 1'000'000);
}

TEST_F(WallClockTest, KernelsAndHostWork_TakeTheirTimes) {
  const uint64_t before = hostcudaNow();
  hostcudaHostTime(kKernelNs);
  EXPECT_GE(hostcudaNow(), before + kKernelNs);
  cuEventRecord(start_, one_);
  for (int i = 0; i < 3; ++i) Launch(one_);
  cuEventRecord(end_, one_);
  EXPECT_EQ(cuEventQuery(end_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventSynchronize(end_), CUDA_SUCCESS);
  EXPECT_GE(hostcudaNow(), before + 4 * kKernelNs);
  float milliseconds = 0;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start_, end_), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 14.999f);
  unsigned long long busy_ns = 0;
  EXPECT_EQ(hostcudaBusyTime(start_, end_, &busy_ns), 0);
  EXPECT_EQ(busy_ns, 3 * kKernelNs);
}

TEST_F(WallClockTest, AStreamWaitsForAnothersEvent) {
  const uint64_t before = hostcudaNow();
  Launch(one_);
  cuEventRecord(end_, one_);
  cuStreamWaitEvent(other_, end_, 0);
  Launch(other_);
  EXPECT_EQ(cuStreamSynchronize(other_), CUDA_SUCCESS);
  EXPECT_GE(hostcudaNow(), before + 2 * kKernelNs);
}

// Streams go on while no thread of the program waits for them.
TEST_F(WallClockTest, NobodyHasToWaitForAKernelToEnd) {
  Launch(one_);
  cuEventRecord(end_, one_);
  while (cuEventQuery(end_) == CUDA_ERROR_NOT_READY) usleep(1000);
  EXPECT_EQ(cuEventQuery(end_), CUDA_SUCCESS);
}

TEST_F(WallClockTest, SharedEvents_FireWhenTheirTimeHasComeAndMayBeMovedAndCancelled) {
  const HostcudaTable* table = Table();
  const uint32_t moved = table->event_new(table->doorbell_self());
  const uint32_t cancelled = table->event_new(table->doorbell_self());
  const uint64_t before = hostcudaNow();
  table->event_set(moved, before + 1000 * kKernelNs);
  table->event_set(cancelled, before + kKernelNs);
  table->event_set(cancelled, UINT64_MAX);
  std::thread other([&] { table->event_set(moved, before + 2 * kKernelNs); });
  while (__atomic_load_n(table->event_word(moved), __ATOMIC_ACQUIRE) == 0)
    table->await_word(table->event_word(moved), 0);
  other.join();
  EXPECT_GE(hostcudaNow(), before + 2 * kKernelNs);
  EXPECT_EQ(*table->event_word(moved), 1u);
  EXPECT_EQ(*table->event_word(cancelled), 0u);
  table->event_set(moved, before);  // has passed
  while (__atomic_load_n(table->event_word(moved), __ATOMIC_ACQUIRE) == 1)
    table->await_word(table->event_word(moved), 1);
  table->event_free(cancelled);
  table->event_free(moved);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("HOSTCUDA_CLOCK", "wall", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
