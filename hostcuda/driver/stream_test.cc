// Streams and events through the public API: order, dependencies, stalls, who wakes whom.
#include <cuda.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <climits>
#include <thread>
#include <vector>

#include "hostcuda/driver/testing/driver_test.h"
#include "hostcuda/driver/testing/roles.h"

namespace {

using hostcuda::testing::DriverTest;
using hostcuda::testing::RegisterRole;
using hostcuda::testing::Role;
using hostcuda::testing::Table;

class StreamTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word_), 4096, 0), CUDA_SUCCESS);
    *word_ = 0;
  }
  void TearDown() override {
    Release();
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_EQ(cuMemFreeHost(word_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }
  CUdeviceptr Word() const { return reinterpret_cast<CUdeviceptr>(word_); }
  /// Holds `stream` until Release().
  void Stall(CUstream stream) {
    ASSERT_EQ(cuStreamWaitValue32(stream, Word(), 1, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  }
  void Release() {
    __atomic_store_n(word_, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void Append(CUstream stream, int value) {
    auto* item = new Item{this, value};
    ASSERT_EQ(cuLaunchHostFunc(
                  stream,
                  [](void* data) {
                    auto* own = static_cast<Item*>(data);
                    std::lock_guard<std::mutex> lock(own->test->mutex_);
                    own->test->order_.push_back(own->value);
                    delete own;
                  },
                  item),
              CUDA_SUCCESS);
  }
  std::vector<int> Order() {
    std::lock_guard<std::mutex> lock(mutex_);
    return order_;
  }

  struct Item {
    StreamTest* test;
    int value;
  };
  uint32_t* word_ = nullptr;
  std::mutex mutex_;
  std::vector<int> order_;
};

TEST_F(StreamTest, IdleStreamRunsWorkBeforeTheCallReturns) {
  const CUstream stream = NewStream();
  Append(stream, 1);
  EXPECT_EQ(Order(), std::vector<int>{1});
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(StreamTest, StalledStreamKeepsOrderAndHoldsNobodyElse) {
  const CUstream stalled = NewStream(), free = NewStream();
  Append(stalled, 1);
  Stall(stalled);
  Append(stalled, 2);
  Append(stalled, 3);
  Append(free, 10);
  EXPECT_EQ(Order(), (std::vector<int>{1, 10}));
  EXPECT_EQ(cuStreamQuery(stalled), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamSynchronize(free), CUDA_SUCCESS);
  Release();
  EXPECT_EQ(cuStreamSynchronize(stalled), CUDA_SUCCESS);
  EXPECT_EQ(Order(), (std::vector<int>{1, 10, 2, 3}));
  cuStreamDestroy(stalled);
  cuStreamDestroy(free);
}

TEST_F(StreamTest, EventCarriesDependencyAcrossStreams) {
  const CUstream a = NewStream(), b = NewStream();
  const CUevent event = NewEvent(CU_EVENT_DISABLE_TIMING);
  Stall(a);
  Append(a, 1);
  ASSERT_EQ(cuEventRecord(event, a), CUDA_SUCCESS);
  Append(a, 2);
  ASSERT_EQ(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  Append(b, 3);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  Release();
  ASSERT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  const std::vector<int> order = Order();
  ASSERT_EQ(order.size(), 3u);
  EXPECT_EQ(order[0], 1);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  cuEventDestroy(event);
  cuStreamDestroy(a);
  cuStreamDestroy(b);
}

TEST_F(StreamTest, WaitMeansTheRecordBeforeIt) {
  const CUstream a = NewStream(), b = NewStream();
  const CUevent event = NewEvent(CU_EVENT_DISABLE_TIMING);
  ASSERT_EQ(cuEventRecord(event, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  Stall(a);
  ASSERT_EQ(cuEventRecord(event, a), CUDA_SUCCESS);  // a later record does not hold b
  EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  Release();
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  cuEventDestroy(event);
  cuStreamDestroy(a);
  cuStreamDestroy(b);
}

TEST_F(StreamTest, ElapsedTimeIsMeasuredBetweenCompletedRecords) {
  const CUstream stream = NewStream();
  const CUevent start = NewEvent(), end = NewEvent(), untimed = NewEvent(CU_EVENT_DISABLE_TIMING);
  float milliseconds = -1;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end),
            CUDA_ERROR_INVALID_HANDLE);  // never recorded
  ASSERT_EQ(cuEventRecord(start, stream), CUDA_SUCCESS);
  const timespec pause = {0, 20'000'000};
  nanosleep(&pause, nullptr);
  Stall(stream);
  ASSERT_EQ(cuEventRecord(end, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(untimed, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  Release();
  ASSERT_EQ(cuEventSynchronize(end), CUDA_SUCCESS);
  ASSERT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GE(milliseconds, 19.f);
  EXPECT_LT(milliseconds, 20'000.f);
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
  for (CUevent event : {start, end, untimed}) cuEventDestroy(event);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT), second = NewStream(CU_STREAM_DEFAULT),
                 apart = NewStream();
  Stall(blocking);
  Append(blocking, 1);
  Append(nullptr, 2);  // behind `blocking`
  Append(second, 3);   // behind the legacy stream
  Append(apart, 4);    // non-blocking: behind nobody
  EXPECT_EQ(Order(), std::vector<int>{4});
  Release();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Order(), (std::vector<int>{4, 1, 2, 3}));
  for (CUstream stream : {blocking, second, apart}) cuStreamDestroy(stream);
}

TEST_F(StreamTest, PerThreadDefaultStreamIsOneAThread) {
  unsigned long long here = 0, again = 0, there = 0, legacy = 0;
  ASSERT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &here), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &again), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamGetId(nullptr, &legacy), CUDA_SUCCESS);
  std::thread other([&] {
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamGetId(CU_STREAM_PER_THREAD, &there), CUDA_SUCCESS);
  });
  other.join();
  EXPECT_EQ(here, again);
  EXPECT_NE(here, there);
  EXPECT_NE(here, legacy);
  EXPECT_EQ(legacy, 7u);
  void* function = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuStreamGetId", &function, 13000,
                             CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr),
            CUDA_SUCCESS);
  unsigned long long by_entry = 0;
  ASSERT_EQ(reinterpret_cast<decltype(&cuStreamGetId)>(function)(nullptr, &by_entry), CUDA_SUCCESS);
  EXPECT_EQ(by_entry, here);
}

TEST_F(StreamTest, WaitValueKnowsAllConditions) {
  struct Case {
    unsigned flags;
    uint32_t value, before, after;
  };
  // `before` must hold the stream, `after` release it.
  const Case cases[] = {{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 5},
                        {CU_STREAM_WAIT_VALUE_GEQ, 2, 0xffffffffu, 3},  // cyclic: -1 is before 2
                        {CU_STREAM_WAIT_VALUE_EQ, 7, 8, 7},
                        {CU_STREAM_WAIT_VALUE_AND, 6, 1, 2},
                        {CU_STREAM_WAIT_VALUE_NOR, 0xfffffff0u, 0xf, 0xe}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.flags);
    const CUstream stream = NewStream();
    __atomic_store_n(word_, c.before, __ATOMIC_SEQ_CST);
    ASSERT_EQ(cuStreamWaitValue32(stream, Word(), c.value, c.flags), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    __atomic_store_n(
        word_, c.after,
        __ATOMIC_SEQ_CST);  // a plain store, as a program may do: found by looking again
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    cuStreamDestroy(stream);
  }
  auto* wide = reinterpret_cast<uint64_t*>(word_) + 8;
  const CUstream stream = NewStream();
  *wide = uint64_t{1} << 32;
  ASSERT_EQ(cuStreamWaitValue64(stream, reinterpret_cast<CUdeviceptr>(wide), uint64_t{3} << 32,
                                CU_STREAM_WAIT_VALUE_GEQ),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  __atomic_store_n(wide, uint64_t{3} << 32, __ATOMIC_SEQ_CST);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitValue32(stream, Word() + 2, 0, 0),
            CUDA_ERROR_INVALID_VALUE);  // not aligned
  uint32_t unknown = 0;
  EXPECT_EQ(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(&unknown), 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, WriteValueOfOneStreamReleasesAnother) {
  const CUstream a = NewStream(), b = NewStream();
  Stall(a);
  Append(a, 1);
  ASSERT_EQ(cuStreamWriteValue32(b, Word(), 1, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(Order(), std::vector<int>{1});
  cuStreamDestroy(a);
  cuStreamDestroy(b);
}

TEST_F(StreamTest, BatchedOperationsRunInOrder) {
  const CUstream stream = NewStream();
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[0].waitValue.address = Word();
  ops[0].waitValue.value = 1;
  ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[1].writeValue.address = Word() + 64;
  ops[1].writeValue.value = 9;
  word_[16] = 0;
  ASSERT_EQ(cuStreamBatchMemOp(stream, 2, ops, 0), CUDA_SUCCESS);
  EXPECT_EQ(word_[16], 0u);
  Release();
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(word_[16], 9u);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, DestroyedStreamStillRunsWhatItHolds) {
  const CUstream stream = NewStream();
  Stall(stream);
  Append(stream, 1);
  ASSERT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  Release();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(Order(), std::vector<int>{1});
}

TEST_F(StreamTest, EventDestroyedWhilePendingDoesNotMatter) {
  const CUstream a = NewStream(), b = NewStream();
  const CUevent event = NewEvent();
  Stall(a);
  ASSERT_EQ(cuEventRecord(event, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
  Release();
  EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  cuStreamDestroy(a);
  cuStreamDestroy(b);
}

TEST_F(StreamTest, PageableSourceMayBeReusedAtOnce) {
  const CUstream stream = NewStream();
  CUdeviceptr device = 0;
  ASSERT_EQ(cuMemAlloc(&device, 4096), CUDA_SUCCESS);
  Stall(stream);
  std::vector<int> source(16, 42);
  ASSERT_EQ(cuMemcpyHtoDAsync(device, source.data(), 64, stream), CUDA_SUCCESS);
  std::fill(source.begin(), source.end(), 0);
  Release();
  std::vector<int> back(16);
  ASSERT_EQ(cuMemcpyDtoHAsync(back.data(), device, 64, stream),
            CUDA_SUCCESS);  // pageable: done when it returns
  EXPECT_EQ(back, std::vector<int>(16, 42));
  cuMemFree(device);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, ManyThreadsOnManyStreamsKeepEachStreamsOrder) {
  constexpr int kThreads = 4, kOperations = 500;
  std::vector<std::thread> threads;
  std::atomic<int> errors{0};
  std::vector<CUstream> streams;
  for (int i = 0; i < kThreads; ++i)
    streams.push_back(NewStream(i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
  struct Counter {
    std::atomic<int> next{0};
    std::atomic<int>* errors;
  };
  std::vector<Counter> counters(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    counters[t].errors = &errors;
    threads.emplace_back([&, t] {
      cuCtxSetCurrent(context_);
      CUevent event = nullptr;
      cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
      for (int i = 0; i < kOperations; ++i) {
        struct Step {
          Counter* counter;
          int number;
        };
        cuLaunchHostFunc(
            streams[t],
            [](void* data) {
              auto* step = static_cast<Step*>(data);
              if (step->counter->next.fetch_add(1) != step->number)
                step->counter->errors->fetch_add(1);
              delete step;
            },
            new Step{&counters[t], i});
        if (i % 7 == 0) {
          cuEventRecord(event, streams[t]);
          cuStreamWaitEvent(streams[(t + 1) % kThreads], event, 0);
        }
        if (i % 50 == 0)
          cuLaunchHostFunc(
              nullptr, [](void*) {}, nullptr);
        if (i % 100 == 0) cuStreamSynchronize(streams[t]);
      }
      cuStreamSynchronize(streams[t]);
      cuEventDestroy(event);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  for (Counter& counter : counters) EXPECT_EQ(counter.next.load(), kOperations);
  EXPECT_EQ(errors.load(), 0);
  for (CUstream stream : streams) cuStreamDestroy(stream);
}

// ---- tasks of hostcuda's libraries

struct Task {
  std::atomic<int> ready{0};
  std::atomic<int> polls{0}, releases{0};
  int result = HOSTCUDA_TASK_DONE;
  static int Poll(void* context, uint64_t, uint64_t*) {
    auto* task = static_cast<Task*>(context);
    task->polls.fetch_add(1);
    return task->ready.load() != 0 ? task->result : HOSTCUDA_TASK_PENDING;
  }
  static void Release(void* context) { static_cast<Task*>(context)->releases.fetch_add(1); }
};

TEST_F(StreamTest, TaskIsPolledAgainWhenTheDoorbellRings) {
  const CUstream stream = NewStream();
  Task task;
  ASSERT_EQ(Table()->stream_enqueue(stream, "task", Task::Poll, Task::Release, nullptr, &task),
            CUDA_SUCCESS);
  int idle = 1;
  ASSERT_EQ(Table()->stream_idle(stream, &idle), CUDA_SUCCESS);
  EXPECT_EQ(idle, 0);
  Append(stream, 1);
  std::thread peer([&] {
    const timespec pause = {0, 20'000'000};
    nanosleep(&pause, nullptr);
    task.ready = 1;
    Table()->doorbell_ring(Table()->doorbell_self());
  });
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  peer.join();
  EXPECT_EQ(task.releases.load(), 1);
  EXPECT_LT(task.polls.load(), 50);  // it slept, it did not spin
  EXPECT_EQ(Order(), std::vector<int>{1});
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, QueryWaitsForPeersOnThreadsThatSubmit) {
  const CUstream stream = NewStream(), other = NewStream();
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  Task task;
  ASSERT_EQ(Table()->stream_enqueue(stream, "task", Task::Poll, Task::Release, nullptr, &task),
            CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, other), CUDA_SUCCESS);  // behind another stream's task
  std::thread([&] {
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY) << "it only watches";
  }).join();
  std::thread peer([&] {
    const timespec pause = {0, 50'000'000};
    nanosleep(&pause, nullptr);
    task.ready = 1;
    Table()->doorbell_ring(Table()->doorbell_self());
  });
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  peer.join();
  EXPECT_LT(task.polls.load(), 50);

  // Peers that do not come are waited for once.
  Task never;
  ASSERT_EQ(Table()->stream_enqueue(stream, "never", Task::Poll, Task::Release, nullptr, &never),
            CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  never.ready = 1;
  Table()->doorbell_ring(Table()->doorbell_self());
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  cuEventDestroy(event);
  cuStreamDestroy(other);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, TaskIsPolledAgainAtTheTimeItAsksFor) {
  const CUstream stream = NewStream();
  struct Timer {
    uint64_t until = 0;
    static int Poll(void* context, uint64_t now, uint64_t* wake_at) {
      auto* timer = static_cast<Timer*>(context);
      if (timer->until == 0) timer->until = now + 30'000'000;
      *wake_at = timer->until;
      return now >= timer->until ? HOSTCUDA_TASK_DONE : HOSTCUDA_TASK_PENDING;
    }
  } timer;
  const uint64_t before = Table()->now_ns();
  ASSERT_EQ(Table()->stream_enqueue(stream, nullptr, Timer::Poll, nullptr, nullptr, &timer),
            CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_GE(Table()->now_ns() - before, 30'000'000u);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, WaitingCostsNoProcessorTime) {
  const CUstream stream = NewStream();
  Stall(stream);
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  std::thread peer([&] {
    const timespec pause = {1, 0};
    nanosleep(&pause, nullptr);
    Release();
  });
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  peer.join();
  getrusage(RUSAGE_SELF, &after);
  const auto microseconds = [](const rusage& r) {
    return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1'000'000 + r.ru_utime.tv_usec +
           r.ru_stime.tv_usec;
  };
  EXPECT_LT(microseconds(after) - microseconds(before), 200'000);
  cuStreamDestroy(stream);
}

TEST_F(StreamTest, FailedTaskIsTheContextsStickyError) {
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 1), CUDA_SUCCESS);
  const CUstream stream = NewStream();
  Task task;
  task.ready = 1;
  task.result = -static_cast<int>(CUDA_ERROR_LAUNCH_FAILED);
  ASSERT_EQ(Table()->stream_enqueue(stream, "task", Task::Poll, Task::Release, nullptr, &task),
            CUDA_SUCCESS);
  EXPECT_EQ(task.releases.load(), 1);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 16), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuLaunchHostFunc(
                stream, [](void*) {}, nullptr),
            CUDA_ERROR_LAUNCH_FAILED);
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc(&memory, 16), CUDA_SUCCESS);
  cuMemFree(memory);
}

TEST_F(StreamTest, ContextDestroyedWhilePendingDropsItsTasks) {
  CUcontext own = nullptr;
  ASSERT_EQ(cuCtxCreate(&own, nullptr, 0, 1), CUDA_SUCCESS);
  const CUstream stream = NewStream();
  Task task;
  ASSERT_EQ(Table()->stream_enqueue(stream, "task", Task::Poll, Task::Release, nullptr, &task),
            CUDA_SUCCESS);
  EXPECT_EQ(task.releases.load(), 0);
  ASSERT_EQ(cuCtxDestroy(own), CUDA_SUCCESS);
  EXPECT_EQ(task.releases.load(), 1);
  ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
}

TEST_F(StreamTest, ObserverSeesKernelsCopiesAndSetsInOrder) {
  static std::vector<HostcudaActivity>* seen;
  std::vector<HostcudaActivity> activities;
  seen = &activities;
  Table()->set_activity_observer(
      [](const HostcudaActivity* activity) { seen->push_back(*activity); });
  CUdeviceptr device = 0;
  ASSERT_EQ(cuMemAlloc(&device, 1 << 16), CUDA_SUCCESS);
  const uint32_t grid[3] = {2, 1, 1}, block[3] = {32, 1, 1};
  ASSERT_EQ(Table()->launch_named(nullptr, "gemm_128x128", grid, block, 200 * 1024), CUDA_SUCCESS);
  int value = 7;
  ASSERT_EQ(cuMemcpyHtoD(device, &value, 4), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8(device, 0, 100), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  Table()->set_activity_observer(nullptr);
  ASSERT_EQ(activities.size(), 4u);
  EXPECT_EQ(activities[0].kind, HOSTCUDA_ACTIVITY_KERNEL);
  EXPECT_STREQ(activities[0].name, "gemm_128x128");
  EXPECT_EQ(activities[0].grid[0], 2u);
  EXPECT_EQ(activities[0].stream, 7u);
  EXPECT_EQ(activities[1].kind, HOSTCUDA_ACTIVITY_MEMCPY);
  EXPECT_EQ(activities[1].copy_kind, 1);
  EXPECT_EQ(activities[1].host_pinned, 0);
  EXPECT_EQ(activities[1].bytes, 4u);
  EXPECT_EQ(activities[2].kind, HOSTCUDA_ACTIVITY_MEMSET);
  EXPECT_EQ(activities[3].kind, HOSTCUDA_ACTIVITY_SYNC);
  for (size_t i = 1; i < activities.size(); ++i) {
    EXPECT_NE(activities[i].correlation, activities[i - 1].correlation);
    EXPECT_LE(activities[i - 1].start_ns, activities[i].start_ns);
  }
  cuMemFree(device);
}

// ---- between processes

int ReleaseWord(int in, int) {
  // Receives the address of a shared word by its file, stores 1 and wakes it: what a controller
  // does.
  int pid = 0, fd = 0;
  if (read(in, &pid, sizeof pid) != sizeof pid || read(in, &fd, sizeof fd) != sizeof fd) return 1;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  FILE* file = fopen(path.c_str(), "r+");
  if (file == nullptr) return 2;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  if (page == MAP_FAILED) return 3;
  const timespec pause = {0, 50'000'000};
  nanosleep(&pause, nullptr);
  auto* word = static_cast<uint32_t*>(page);
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
  return syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0) >= 1
             ? 0
             : 4;  // somebody slept on it
}
const RegisterRole release_word("release_word", ReleaseWord);

TEST_F(StreamTest, AnotherProcessWakesAStalledStream) {
  const int fd = memfd_create("words", 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(page, MAP_FAILED);
  ASSERT_EQ(cuMemHostRegister(page, 4096, 0), CUDA_SUCCESS);
  const CUstream stream = NewStream();
  ASSERT_EQ(
      cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(page), 1, CU_STREAM_WAIT_VALUE_GEQ),
      CUDA_SUCCESS);
  Append(stream, 1);
  Role peer("release_word");
  peer.Send(getpid());
  peer.Send(fd);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(Order(), std::vector<int>{1});
  EXPECT_EQ(peer.Wait(), 0);
  ASSERT_EQ(cuMemHostUnregister(page), CUDA_SUCCESS);
  munmap(page, 4096);
  close(fd);
  cuStreamDestroy(stream);
}

int RingParent(int in, int) {
  uint32_t index = 0;
  if (read(in, &index, sizeof index) != sizeof index || cuInit(0) != CUDA_SUCCESS) return 1;
  const timespec pause = {0, 50'000'000};
  nanosleep(&pause, nullptr);
  Table()->doorbell_ring(index);
  return 0;
}
const RegisterRole ring_parent("ring_parent", RingParent);

TEST_F(StreamTest, AnotherProcessRingsTheDoorbell) {
  const CUstream stream = NewStream();
  struct Once {
    std::atomic<int> polls{0};
    static int Poll(void* context, uint64_t, uint64_t*) {
      return static_cast<Once*>(context)->polls.fetch_add(1) >= 2 ? HOSTCUDA_TASK_DONE
                                                                  : HOSTCUDA_TASK_PENDING;
    }
  } once;
  ASSERT_EQ(Table()->stream_enqueue(stream, nullptr, Once::Poll, nullptr, nullptr, &once),
            CUDA_SUCCESS);
  Role peer("ring_parent");
  peer.Send(Table()->doorbell_self());
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(peer.Wait(), 0);
  cuStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  hostcuda::testing::RunRole(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
