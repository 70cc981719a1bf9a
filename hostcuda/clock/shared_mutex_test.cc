#include "hostcuda/clock/shared_mutex.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "hostcuda/clock/proc_state.h"

namespace hostcuda {
namespace {

/// Whether a thread that runs `wait`, which ends after `release`, is never asleep meanwhile.
bool StaysAwake(const std::function<void()>& wait, const std::function<void()>& release) {
  std::atomic<pid_t> tid{0};
  std::atomic<bool> ended{false};
  std::thread waiter([&] {
    tid = static_cast<pid_t>(syscall(SYS_gettid));
    wait();
    ended = true;
    while (tid != 0) sched_yield();
  });
  while (tid == 0) sched_yield();
  bool awake = true;
  for (int look = 0; look < 200; ++look) {
    awake = awake && ProcStateOf(getpid(), tid) == ProcState::kRuns;
    usleep(100);
  }
  EXPECT_FALSE(ended);
  release();
  while (!ended) sched_yield();
  tid = 0;
  waiter.join();
  return awake;
}

TEST(SharedMutexTest, WhoWaitsForAMutexRuns) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_t mutex;
  pthread_mutex_init(&mutex, &attributes);
  const auto unlock = [&] { pthread_mutex_unlock(&mutex); };
  ASSERT_EQ(LockAwake(&mutex), 0);
  EXPECT_TRUE(StaysAwake(
      [&] {
        EXPECT_EQ(LockAwake(&mutex), 0);
        unlock();
      },
      unlock));
  // The test sees the difference.
  ASSERT_EQ(LockAwake(&mutex), 0);
  EXPECT_FALSE(StaysAwake(
      [&] {
        pthread_mutex_lock(&mutex);
        unlock();
      },
      unlock));
}

TEST(SharedMutexTest, WhoWaitsForAFileRuns) {
  char path[] = "/tmp/shared-mutex-XXXXXX";
  const int holder = mkstemp(path), waiter = open(path, O_RDWR | O_CLOEXEC);
  unlink(path);
  ASSERT_EQ(LockFileAwake(holder, LOCK_EX), 0);
  EXPECT_TRUE(StaysAwake([&] { EXPECT_EQ(LockFileAwake(waiter, LOCK_SH), 0); },
                         [&] { flock(holder, LOCK_UN); }));
  EXPECT_NE(LockFileAwake(-1, LOCK_SH), 0);
  close(holder);
  close(waiter);
}

}  // namespace
}  // namespace hostcuda
