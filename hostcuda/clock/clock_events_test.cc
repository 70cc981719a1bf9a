// What a killed process leaves of its shared events on the wall clock; virtual_clock_test has the
// virtual clock's.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "hostcuda/clock/virtual_clock.h"
#include "hostcuda/clock/wall_clock.h"

namespace hostcuda {
namespace {

class ClockEventsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, sizeof(ClockSegment), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    segment_ = static_cast<ClockSegment*>(memory);
    InitializeClockSegment(segment_);
  }
  void TearDown() override { munmap(segment_, sizeof(ClockSegment)); }
  /// A process that joins as member `index`, makes `events` events and is killed.
  void KillOwner(uint32_t index, uint32_t events) {
    const pid_t child = fork();
    if (child == 0) {
      WallClock clock(JobPlace{});
      clock.Join(segment_, index);
      for (uint32_t i = 0; i < events; ++i) clock.NewEvent(index);
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  uint32_t EventsOf(uint32_t index) const {
    return static_cast<uint32_t>(
        std::count(segment_->event_owner, segment_->event_owner + kMaxClockEvents, index + 1));
  }

  ClockSegment* segment_ = nullptr;
};

TEST_F(ClockEventsTest, WhoTakesTheirOwnersPlaceFreesThem) {
  KillOwner(3, 10);
  EXPECT_EQ(EventsOf(3), 10u);
  WallClock clock(JobPlace{});
  clock.Join(segment_, 3);
  EXPECT_EQ(EventsOf(3), 0u);
}

TEST_F(ClockEventsTest, WhoFindsNoRoomFreesThem) {
  KillOwner(3, 10);
  WallClock clock(JobPlace{});
  clock.Join(segment_, 4);
  EXPECT_EQ(EventsOf(3), 10u);
  // The others are this process's.
  std::fill(segment_->event_owner + 10, segment_->event_owner + kMaxClockEvents, 4 + 1);
  segment_->events_end = kMaxClockEvents;
  for (int i = 0; i < 10; ++i) EXPECT_NE(clock.NewEvent(4), kNoEvent);
  EXPECT_EQ(clock.NewEvent(4), kNoEvent);
  EXPECT_EQ(EventsOf(3), 0u);
  clock.Leave();
  EXPECT_EQ(EventsOf(4), 0u);
}

}  // namespace
}  // namespace hostcuda
