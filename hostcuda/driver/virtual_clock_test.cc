// The virtual clock through the public API: times in closed form, of one process and of several.
#include <cuda.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <future>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hostcuda/driver/testing/driver_test.h"
#include "hostcuda/driver/testing/roles.h"
#include "hostcuda/hostcuda.h"

namespace {

using hostcuda::testing::DriverTest;
using hostcuda::testing::RegisterRole;
using hostcuda::testing::Role;
using hostcuda::testing::Table;

// All tests and roles of this binary; see main.
constexpr uint64_t kLaunchNs = 4000, kCopyNs = 5000, kEventNs = 1000, kSyncNs = 2000,
                   kQueryNs = 1000;
constexpr char kTimes[] = R"({
  "schema": 1,
  "kernels": [
    {"name": "k100", "ns": 100000},
    {"name": "k30", "ns": 30000},
    {"name": "by_threads", "bytes_per_thread": 8, "flops_per_thread": 1},
    {"name": "free*", "ns": 0}
  ],
  "gpu": {"bytes_per_s": 1e12, "flops_per_s": 1e14, "kernel_ns": 1000, "bytes_per_thread": 16},
  "copies": {"latency_ns": 1000, "host_bytes_per_s": 1e10, "peer_bytes_per_s": 1e11},
  "host_ns": {"launch": 4000, "copy": 5000, "event": 1000, "sync": 2000, "query": 1000, "communication": 0}
})";

class VirtualClockTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    start_ns_ = hostcudaNow();
  }
  void TearDown() override {
    DriverTest::TearDown();
    for (CUevent event : events_) cuEventDestroy(event);
  }
  CUevent NewEvent() { return events_.emplace_back(DriverTest::NewEvent()); }
  /// Nanoseconds since the test began.
  uint64_t Now() const { return hostcudaNow() - start_ns_; }
  static double ElapsedNs(CUevent from, CUevent to) {
    float milliseconds = -1;
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, from, to), CUDA_SUCCESS);
    return std::round(static_cast<double>(milliseconds) * 1e6);
  }

  std::vector<CUevent> events_;
  uint64_t start_ns_ = 0;
};

TEST_F(VirtualClockTest, HostWork_TakesItsTimeAndNothingElse) {
  hostcudaHostTime(123);
  EXPECT_EQ(Now(), 123u);
  hostcudaHostTime(0);
  EXPECT_EQ(Now(), 123u);
}

TEST_F(VirtualClockTest, KernelsOfAStream_TakeTheirTimesOneAfterTheOther) {
  CUstream stream = NewStream();
  // The first starts when its launch has been paid for; the others are queued long before.
  for (int i = 0; i < 5; ++i) Launch("k100", stream);
  EXPECT_EQ(Now(), 5 * kLaunchNs);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kLaunchNs + 5 * 100000);
}

TEST_F(VirtualClockTest, HostThatIsSlowerThanItsKernels_DecidesWhenTheyStart) {
  CUstream stream = NewStream();
  for (int i = 0; i < 3; ++i) {
    hostcudaHostTime(200000);
    Launch("k30", stream);
  }
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), 3 * (200000 + kLaunchNs) + 30000);
}

TEST_F(VirtualClockTest, SynchronizingAnIdleStream_TakesTheCallsOwnTime) {
  CUstream stream = NewStream();
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kSyncNs);
  cuCtxSynchronize();
  EXPECT_EQ(Now(), 2 * kSyncNs);
}

TEST_F(VirtualClockTest, Streams_RunAtTheSameTime) {
  CUstream a = NewStream(), b = NewStream();
  Launch("k100", a);
  Launch("k30", b);
  cuStreamSynchronize(b);
  EXPECT_EQ(Now(), 2 * kLaunchNs + 30000);
  cuStreamSynchronize(a);
  EXPECT_EQ(Now(), kLaunchNs + 100000);
}

TEST_F(VirtualClockTest, WaitForAnEventOfAnotherStream_StartsWhenThatIsReached) {
  CUstream a = NewStream(), b = NewStream();
  CUevent event = NewEvent();
  Launch("k100", a);
  cuEventRecord(event, a);
  Launch("k30", b);  // ends long before
  cuStreamWaitEvent(b, event, 0);
  Launch("k30", b);
  cuStreamSynchronize(b);
  EXPECT_EQ(Now(), kLaunchNs + 100000 + 30000);
}

TEST_F(VirtualClockTest, EventElapsed_IsTheTimeOfTheWorkBetween) {
  CUstream stream = NewStream();
  CUevent first = NewEvent(), second = NewEvent(), third = NewEvent();
  Launch("k30", stream);
  cuEventRecord(first, stream);
  Launch("k100", stream);
  Launch("k30", stream);
  cuEventRecord(second, stream);
  cuEventSynchronize(second);
  EXPECT_EQ(ElapsedNs(first, second), 130000);
  // An event of an idle stream has the time of the call.
  const uint64_t idle = Now();
  hostcudaHostTime(5000);
  cuEventRecord(third, stream);
  EXPECT_EQ(ElapsedNs(second, third),
            static_cast<double>(idle + 5000 + kEventNs - (kLaunchNs + 160000)));
}

TEST_F(VirtualClockTest, BusyTime_LeavesOutWhatTheStreamWaitedForTheHost) {
  CUstream stream = NewStream();
  CUevent first = NewEvent(), second = NewEvent();
  cuEventRecord(first, stream);
  Launch("k30", stream);
  hostcudaHostTime(200'000);
  Launch("k100", stream);
  unsigned long long busy_ns = 0;
  EXPECT_EQ(hostcudaBusyTime(first, second, &busy_ns), CUDA_ERROR_INVALID_HANDLE);
  cuEventRecord(second, stream);
  EXPECT_EQ(hostcudaBusyTime(first, second, &busy_ns), CUDA_ERROR_NOT_READY);
  cuEventSynchronize(second);
  EXPECT_EQ(hostcudaBusyTime(first, second, &busy_ns), 0);
  EXPECT_EQ(busy_ns, 130'000u);
  EXPECT_GT(ElapsedNs(first, second), 200'000);
}

TEST_F(VirtualClockTest, Query_TakesItsTimeAndSeesWhatHappensAtItsEnd) {
  CUstream stream = NewStream();
  CUevent event = NewEvent();
  Launch("k30", stream);         // ends at 4000 + 30000
  cuEventRecord(event, stream);  // at 5000
  hostcudaHostTime(34000 - 5000 - 2 * kQueryNs);
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Now(), 33000u);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(Now(), 34000u);
}

TEST_F(VirtualClockTest, LoopOfQueries_EndsAtTheFirstAfterTheWork) {
  CUstream stream = NewStream();
  Launch("k100", stream);
  hostcudaHostTime(500);
  int queries = 1;
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) ++queries;
  EXPECT_EQ(queries, 100);
  EXPECT_EQ(Now(), kLaunchNs + 500 + 100 * kQueryNs);
}

TEST_F(VirtualClockTest, KernelTimes_FollowTheTable) {
  CUstream stream = NewStream();
  Launch("by_threads", stream, 1000, 1000);  // 8 MB at 1 TB/s, beside it 1 Mflop is nothing
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kLaunchNs + 1000 + 8000);
  const uint64_t before = Now();
  Launch("nobody_knows_it", stream, 1000, 1000);  // 16 bytes a thread
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now() - before, kLaunchNs + 1000 + 16000);
  const uint64_t product = Now();
  // 2 * 1024^3 operations at 1e14 a second; 6 MB at 1e12.
  Launch("hostcublas_gemm_bf16_bf16_f32_tn_m1024_n1024_k1024_b1", stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now() - product, kLaunchNs + 1000 + 21475);
}

TEST_F(VirtualClockTest, Copies_TakeLatencyAndBytesOverTheWaysBandwidth) {
  CUstream stream = NewStream();
  CUdeviceptr memory = 0, peer = 0;
  void* host = nullptr;
  ASSERT_EQ(cuMemAlloc(&memory, 2 << 20), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostAlloc(&host, 1 << 20, 0), CUDA_SUCCESS);
  start_ns_ = hostcudaNow();
  cuMemcpyHtoDAsync(memory, host, 1'000'000, stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kCopyNs + 1000 + 100'000);
  start_ns_ = hostcudaNow();
  cuMemcpyDtoDAsync(memory, memory + (1 << 20), 1'000'000, stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kCopyNs + 1000 + 2'000);  // read and written
  start_ns_ = hostcudaNow();
  cuMemsetD8Async(memory, 0, 1'000'000, stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kCopyNs + 1000 + 1'000);
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&peer, 1 << 20), CUDA_SUCCESS);
  cuCtxPopCurrent(nullptr);
  start_ns_ = hostcudaNow();
  cuMemcpyPeerAsync(peer, other, memory, context_, 1'000'000, stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now(), kCopyNs + 1000 + 10'000);
  // A synchronous copy returns at its end.
  std::vector<char> pageable(1'000'000);
  start_ns_ = hostcudaNow();
  cuMemcpyHtoD(memory, pageable.data(), pageable.size());
  EXPECT_EQ(Now(), kCopyNs + 1000 + 100'000);
  cuMemFreeHost(host);
  cuMemFree(memory);
}

TEST_F(VirtualClockTest, PageableSourceOfAQueuedCopy_IsReadBeforeTheCallReturns) {
  CUstream stream = NewStream();
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, 4096), CUDA_SUCCESS);
  int value = 7, back = 0;
  Launch("k100", stream);
  cuMemcpyHtoDAsync(memory, &value, sizeof value, stream);
  value = 8;
  cuMemcpyDtoHAsync(&back, memory, sizeof back, stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(back, 7);
  cuMemFree(memory);
}

TEST_F(VirtualClockTest, RegisteredKernel_RunsItsBodyAtTheEndOfItsTime) {
  CUstream stream = NewStream();
  ASSERT_EQ(hostcudaRegisterKernel("_Z5stampPyi",
                                   [](const hostcudaLaunch* launch) {
                                     **static_cast<unsigned long long**>(launch->args[0]) =
                                         hostcudaNow();
                                   }),
            0);
  ASSERT_EQ(hostcudaRegisterKernelTime("_Z5stampPyi", 0,
                                       [](const hostcudaLaunch* launch) -> unsigned long long {
                                         return 10ull * *static_cast<int*>(launch->args[1]);
                                       }),
            0);
  unsigned long long* stamp = nullptr;
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&stamp), 4096, 0), CUDA_SUCCESS);
  start_ns_ = hostcudaNow();
  for (int n : {700, 1300}) {
    void* arguments[] = {&stamp, &n};
    ASSERT_EQ(
        cuLaunchKernel(Kernel("_Z5stampPyi"), 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr),
        CUDA_SUCCESS);
    ++stamp;
  }
  cuStreamSynchronize(stream);
  EXPECT_EQ(stamp[-2] - start_ns_, kLaunchNs + 7000);
  EXPECT_EQ(stamp[-1] - start_ns_, kLaunchNs + 7000 + 13000);
  ASSERT_EQ(hostcudaRegisterKernelTime("known", 4321, nullptr), 0);
  const uint64_t before = Now();
  Launch("known", stream);
  cuStreamSynchronize(stream);
  EXPECT_EQ(Now() - before, kLaunchNs + 4321);
  cuMemFreeHost(stamp - 2);
}

TEST_F(VirtualClockTest, GraphOfParallelBranches_TakesItsLongestPath) {
  CUstream a = NewStream(), b = NewStream();
  CUevent fork = NewEvent(), join = NewEvent();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  Launch("k30", a);
  cuEventRecord(fork, a);
  cuStreamWaitEvent(b, fork, 0);
  Launch("k100", b);
  Launch("k30", a);
  cuEventRecord(join, b);
  cuStreamWaitEvent(a, join, 0);
  Launch("k30", a);
  ASSERT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  for (int replay = 0; replay < 2; ++replay) {
    start_ns_ = hostcudaNow();
    cuGraphLaunch(exec, a);
    cuStreamSynchronize(a);
    EXPECT_EQ(Now(), kLaunchNs + 30000 + 100000 + 30000);
  }
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
}

TEST_F(VirtualClockTest, LegacyStream_WaitsForBlockingStreams) {
  CUstream blocking = nullptr;
  ASSERT_EQ(cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  Launch("k100", blocking);
  Launch("k30", nullptr);
  Launch("k30", blocking);
  cuStreamSynchronize(blocking);
  EXPECT_EQ(Now(), kLaunchNs + 100000 + 30000 + 30000);
}

TEST_F(VirtualClockTest, TwoHostThreads_OverlapTheirHostWork) {
  std::promise<void> known;
  std::thread other([&] {
    hostcudaHostTime(0);  // from here on the clock waits for this thread
    known.set_value();
    hostcudaHostTime(1'000'000);
  });
  known.get_future().wait();
  hostcudaHostTime(400'000);
  other.join();  // asleep in a futex: the clock moves on for the other
  EXPECT_EQ(Now(), 1'000'000u);
}

TEST_F(VirtualClockTest, ThreadAsleepOnAConditionVariable_LetsTheClockMove) {
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  CUstream stream = NewStream();
  std::thread worker([&] {
    cuCtxSetCurrent(context_);
    for (int i = 0; i < 20; ++i) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return turn == 1; });
      Launch("k30", stream);
      cuStreamSynchronize(stream);
      turn = 0;
      changed.notify_all();
    }
  });
  for (int i = 0; i < 20; ++i) {
    hostcudaHostTime(1000);
    std::unique_lock<std::mutex> lock(mutex);
    turn = 1;
    changed.notify_all();
    changed.wait(lock, [&] { return turn == 0; });
  }
  worker.join();
  EXPECT_EQ(Now(), 20 * (1000 + kLaunchNs + 30000));
}

TEST_F(VirtualClockTest, HostFunction_RunsAtItsTimeWhileItsProgramSleepsElsewhere) {
  CUstream stream = NewStream();
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t at_ns = 0;
  } meeting;
  Launch("k100", stream);
  cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto* own = static_cast<Meeting*>(data);
        std::lock_guard<std::mutex> lock(own->mutex);
        own->at_ns = hostcudaNow();
        own->changed.notify_all();
      },
      &meeting);
  {
    std::unique_lock<std::mutex> lock(meeting.mutex);
    meeting.changed.wait(lock, [&] { return meeting.at_ns != 0; });
  }
  EXPECT_EQ(meeting.at_ns - start_ns_, kLaunchNs + 100000);
}

TEST_F(VirtualClockTest, UnchargedCalls_TakeNoTime) {
  CUstream stream = NewStream();
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc(&memory, 4096), CUDA_SUCCESS);
  Launch("k30", stream);
  hostcudaUncharged(1);
  Launch("k100", stream);
  cuMemsetD8Async(memory, 0, 4096, stream);
  EXPECT_EQ(hostcudaNow(), start_ns_ + kLaunchNs);
  hostcudaUncharged(-1);
  Launch("k30", stream);
  EXPECT_EQ(hostcudaNow(), start_ns_ + 2 * kLaunchNs);
  cuStreamSynchronize(stream);
  EXPECT_EQ(hostcudaNow(), start_ns_ + kLaunchNs + 60'000);
  cuMemFree(memory);
}

TEST_F(VirtualClockTest, ProfilerRecords_CarryTheClocksTimes) {
  static std::vector<HostcudaActivity> records;
  static std::mutex mutex;
  records.clear();
  CUstream stream = NewStream();
  Table()->set_activity_observer([](const HostcudaActivity* activity) {
    std::lock_guard<std::mutex> lock(mutex);
    if (activity->kind == HOSTCUDA_ACTIVITY_KERNEL) records.push_back(*activity);
  });
  Launch("k100", stream);
  Launch("k30", stream);
  cuStreamSynchronize(stream);
  Table()->set_activity_observer(nullptr);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].start_ns - start_ns_, kLaunchNs);
  EXPECT_EQ(records[0].end_ns - start_ns_, kLaunchNs + 100000);
  EXPECT_EQ(records[1].start_ns, records[0].end_ns);
  EXPECT_EQ(records[1].end_ns, records[1].start_ns + 30000);
}

// ---- shared events

struct Poller {
  uint32_t event;
  uint32_t seen = 0;
  std::vector<uint64_t> fired_at;
  size_t wanted;
};

int PollEvent(void* context, uint64_t now_ns, uint64_t*) {
  auto* poller = static_cast<Poller*>(context);
  const uint32_t word = __atomic_load_n(Table()->event_word(poller->event), __ATOMIC_ACQUIRE);
  if (word != poller->seen) poller->fired_at.push_back(now_ns);
  poller->seen = word;
  return poller->fired_at.size() == poller->wanted ? HOSTCUDA_TASK_DONE : HOSTCUDA_TASK_PENDING;
}

TEST_F(VirtualClockTest, SharedEvent_FiresAtItsLatestTime) {
  CUstream stream = NewStream();
  Poller poller{.event = Table()->event_new(Table()->doorbell_self()), .fired_at = {}, .wanted = 2};
  Table()->event_set(poller.event, start_ns_ + 500);
  ASSERT_EQ(Table()->stream_enqueue(stream, "wait", PollEvent, nullptr, nullptr, &poller),
            CUDA_SUCCESS);
  hostcudaHostTime(100);
  Table()->event_set(poller.event, start_ns_ + 900);  // moved
  hostcudaHostTime(700);
  EXPECT_TRUE(poller.fired_at.empty());
  hostcudaHostTime(200);
  EXPECT_THAT(poller.fired_at, ::testing::ElementsAre(start_ns_ + 900));
  Table()->event_set(poller.event, start_ns_ + 2000);
  Table()->event_set(poller.event, UINT64_MAX);  // cancelled
  hostcudaHostTime(2000);
  EXPECT_EQ(poller.fired_at.size(), 1u);
  Table()->event_set(poller.event, start_ns_);  // has passed: at once
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_THAT(poller.fired_at, ::testing::ElementsAre(start_ns_ + 900, start_ns_ + 3000));
  Table()->event_free(poller.event);
}

TEST_F(VirtualClockTest, SharedEventThatWasFreed_IsNoNumberOfALaterOne) {
  CUstream stream = NewStream();
  const uint32_t freed = Table()->event_new(Table()->doorbell_self());
  Table()->event_free(freed);
  Poller poller{.event = Table()->event_new(Table()->doorbell_self()), .fired_at = {}, .wanted = 1};
  EXPECT_NE(poller.event, freed);
  Table()->event_set(poller.event, start_ns_ + 500);
  Table()->event_set(freed, start_ns_ + 100);
  Table()->event_free(freed);
  ASSERT_EQ(Table()->stream_enqueue(stream, "wait", PollEvent, nullptr, nullptr, &poller),
            CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_THAT(poller.fired_at, ::testing::ElementsAre(start_ns_ + 500));
  Table()->event_free(poller.event);
}

/// A task that is done once `ready`, of which another thread than the first takes long to see that
/// it is not.
struct SlowLook {
  const std::thread::id first = std::this_thread::get_id();
  std::atomic<bool> ready{false};
  std::mutex mutex;
  std::condition_variable changed;
  bool looks = false;
};

int PollSlowly(void* context, uint64_t, uint64_t*) {
  auto* const look = static_cast<SlowLook*>(context);
  const bool ready = look->ready;
  if (!ready && std::this_thread::get_id() != look->first) {
    {
      std::lock_guard<std::mutex> lock(look->mutex);
      look->looks = true;
    }
    look->changed.notify_one();
    usleep(50'000);
  }
  return ready ? HOSTCUDA_TASK_DONE : HOSTCUDA_TASK_PENDING;
}

// The thread that stood in for this one was looking at the stream when this one came back, which
// passed the stream by. Whatever happened after its look began has to be looked at again.
TEST_F(VirtualClockTest, ThreadThatStoodIn_LeavesNothingUnseen) {
  CUstream stream = NewStream(), other = NewStream();
  SlowLook look;
  Launch("k100", other);  // to what the clock would move on
  ASSERT_EQ(Table()->stream_enqueue(stream, "wait", PollSlowly, nullptr, nullptr, &look),
            CUDA_SUCCESS);
  const uint64_t before = Now();
  {
    std::unique_lock<std::mutex> lock(look.mutex);
    look.changed.wait(lock, [&] { return look.looks; });
  }
  look.ready = true;
  Table()->doorbell_ring(Table()->doorbell_self());
  hostcudaUncharged(1);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  hostcudaUncharged(-1);
  EXPECT_EQ(Now(), before);
}

// ---- jobs of several processes

struct Job {
  int rank, processes;
  char words[64];  // name of shared memory with a word for every rank, a cache line each
};
constexpr int kWordStride = 16;

/// Starts `role` on every rank, gives each what it needs, and collects what they send.
class RunningJob {
 public:
  RunningJob(const char* role, int processes, const char* times = nullptr) {
    static int number = 0;
    session_ = "test-" + std::to_string(getpid()) + "-" + std::to_string(++number);
    job_.processes = processes;
    snprintf(job_.words, sizeof job_.words, "/hostcuda-%s", session_.c_str());
    const int fd = shm_open(job_.words, O_CREAT | O_RDWR | O_EXCL, 0600);
    EXPECT_EQ(ftruncate(fd, 65536), 0);
    close(fd);
    role_ = role;
    times_ = times == nullptr ? "" : times;
    roles_.resize(static_cast<size_t>(processes));
  }
  ~RunningJob() { shm_unlink(job_.words); }
  void Start(int rank) {
    Variables variables({{"HOSTCUDA_SESSION", session_},
                         {"HOSTCUDA_PROCESS", std::to_string(rank)},
                         {"HOSTCUDA_PROCESSES", std::to_string(job_.processes)},
                         {"HOSTCUDA_CLOCK_REPORT_S", "1"}});
    if (!times_.empty()) variables.Set("HOSTCUDA_TIMES", times_);
    auto& role = roles_[static_cast<size_t>(rank)];
    role = std::make_unique<Role>(role_);
    Job job = job_;
    job.rank = rank;
    role->Send(job);
  }
  RunningJob& StartAll() {
    // The order must not matter.
    for (int rank = job_.processes - 1; rank >= 0; --rank) Start(rank);
    return *this;
  }
  Role& role(int rank) { return *roles_[static_cast<size_t>(rank)]; }
  /// Everything that a rank sends until it ends.
  std::vector<uint64_t> Times(int rank) {
    std::vector<uint64_t> times;
    uint64_t time = 0;
    while (role(rank).Receive(&time)) times.push_back(time);
    EXPECT_EQ(role(rank).Wait(), 0) << "rank " << rank;
    return times;
  }
  std::vector<std::vector<uint64_t>> AllTimes() {
    std::vector<std::vector<uint64_t>> times;
    for (int rank = 0; rank < job_.processes; ++rank) times.push_back(Times(rank));
    return times;
  }

 private:
  /// Environment variables that are put back.
  class Variables {
   public:
    explicit Variables(std::initializer_list<std::pair<const char*, std::string>> values) {
      for (const auto& [name, value] : values) Set(name, value);
    }
    ~Variables() {
      for (const auto& [name, value] : before_) {
        value ? setenv(name, value->c_str(), 1) : unsetenv(name);
      }
    }
    void Set(const char* name, const std::string& value) {
      const char* const before = getenv(name);
      before_.emplace_back(name,
                           before == nullptr ? std::nullopt : std::optional<std::string>(before));
      setenv(name, value.c_str(), 1);
    }

   private:
    std::vector<std::pair<const char*, std::optional<std::string>>> before_;
  };

  std::string session_, times_;
  const char* role_;
  Job job_ = {};
  std::vector<std::unique_ptr<Role>> roles_;
};

/// One rank's view of the job: CUDA is initialized, the words are registered.
class Rank {
 public:
  Rank(int in, int out) : out_(out) {
    if (read(in, &job, sizeof job) != sizeof job) _exit(90);
    const int fd = shm_open(job.words, O_RDWR, 0600);
    words_ =
        static_cast<uint32_t*>(mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    CUcontext context = nullptr;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuMemHostRegister(words_, 65536, 0) != CUDA_SUCCESS ||
        cuModuleLoadData(&module_, "hostcuda-image-1") != CUDA_SUCCESS ||
        cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
      _exit(91);
  }
  void Launch(const char* name) { Launch(name, stream); }
  void Launch(const char* name, CUstream on) {
    CUfunction kernel = nullptr;
    cuModuleGetFunction(&kernel, module_, name);
    if (cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, on, nullptr, nullptr) != CUDA_SUCCESS)
      _exit(92);
  }
  uint32_t* Word(int rank) const { return words_ + rank * kWordStride; }
  void Await(int rank, uint32_t value) {
    cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(Word(rank)), value,
                        CU_STREAM_WAIT_VALUE_GEQ);
  }
  void Write(int rank, uint32_t value) {
    cuStreamWriteValue32(stream, reinterpret_cast<CUdeviceptr>(Word(rank)), value, 0);
  }
  void Tell(uint64_t value) {
    if (write(out_, &value, sizeof value) != sizeof value) _exit(93);
  }
  static uint64_t Now() { return hostcudaNow() - kStartNs; }

  static constexpr uint64_t kStartNs = 1'000'000'000;
  Job job = {};
  CUstream stream = nullptr;

 private:
  int out_;
  uint32_t* words_;
  CUmodule module_ = nullptr;
};

constexpr int kMicroBatches = 6;

int PipelineStage(int in, int out) {
  Rank rank(in, out);
  const int stage = rank.job.rank;
  for (uint32_t batch = 1; batch <= kMicroBatches; ++batch) {
    if (stage > 0) rank.Await(stage, batch);
    rank.Launch(stage % 2 == 0 ? "k30" : "k100");
    if (stage + 1 < rank.job.processes) rank.Write(stage + 1, batch);
  }
  cuStreamSynchronize(rank.stream);
  rank.Tell(Rank::Now());
  return 0;
}
const RegisterRole kPipelineStage("pipeline_stage", PipelineStage);

/// When each stage is done, by the definition of a pipeline.
std::vector<uint64_t> PipelineEnds(int stages) {
  std::vector<uint64_t> sent(kMicroBatches, 0), ends;
  for (int stage = 0; stage < stages; ++stage) {
    uint64_t host = 0, device = 0;
    for (uint64_t& batch : sent) {
      if (stage > 0) {
        host += kLaunchNs;
        device = std::max({device, host, batch});
      }
      host += kLaunchNs;
      device = std::max(device, host) + (stage % 2 == 0 ? 30000 : 100000);
      if (stage + 1 < stages) {
        host += kLaunchNs;
        device = std::max(device, host);
      }
      batch = device;
    }
    ends.push_back(std::max(host + kSyncNs, device));
  }
  return ends;
}

TEST(VirtualClockJobTest, PipelineOfProcesses_EndsWhenItsRecurrenceSays) {
  for (const int stages : {2, 5}) {
    RunningJob job("pipeline_stage", stages);
    job.StartAll();
    const auto times = job.AllTimes();
    const auto expected = PipelineEnds(stages);
    for (int stage = 0; stage < stages; ++stage) {
      EXPECT_THAT(times[static_cast<size_t>(stage)],
                  ::testing::ElementsAre(expected[static_cast<size_t>(stage)]))
          << "stage " << stage << " of " << stages;
    }
  }
}

int RingRank(int in, int out) {
  Rank rank(in, out);
  const int next = (rank.job.rank + 1) % rank.job.processes;
  const auto steps = static_cast<uint32_t>(2 * (rank.job.processes - 1));
  // The first piece goes out at once; every later one when the piece before has come.
  for (uint32_t step = 0; step < steps; ++step) {
    if (step > 0) rank.Await(rank.job.rank, step);
    rank.Launch("k100");
    rank.Write(next, step + 1);
  }
  rank.Await(rank.job.rank, steps);
  cuStreamSynchronize(rank.stream);
  rank.Tell(Rank::Now());
  return 0;
}
const RegisterRole kRingRank("ring_rank", RingRank);

TEST(VirtualClockJobTest, RingAllReduce_TakesItsStepsOnEveryRank) {
  for (const int processes : {3, 8}) {
    RunningJob job("ring_rank", processes);
    job.StartAll();
    for (const auto& times : job.AllTimes()) {
      EXPECT_THAT(times, ::testing::ElementsAre(kLaunchNs + 2u * (processes - 1u) * 100000));
    }
  }
}

/// Everything at once: host work, kernels, queries, neighbours; every time that it saw.
int BusyRank(int in, int out) {
  Rank rank(in, out);
  const int next = (rank.job.rank + 1) % rank.job.processes;
  CUevent event = nullptr;
  cuEventCreate(&event, 0);
  for (uint32_t i = 1; i <= 20; ++i) {
    hostcudaHostTime(1000 * static_cast<unsigned>((rank.job.rank * 7 + static_cast<int>(i)) % 5));
    rank.Launch(i % 3 == 0 ? "k100" : "k30");
    rank.Write(next, i);
    if (i > 1) rank.Await(rank.job.rank, i - 1);
    cuEventRecord(event, rank.stream);
    if (i % 4 == 0) {
      while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      }
    }
    rank.Tell(Rank::Now());
  }
  cuStreamSynchronize(rank.stream);
  rank.Tell(Rank::Now());
  cuEventDestroy(event);
  return 0;
}
const RegisterRole kBusyRank("busy_rank", BusyRank);

std::string WithJitter(double sigma, int seed) {
  std::string text = kTimes;
  const std::string jitter = ",\n  \"jitter\": {\"sigma\": " + std::to_string(sigma) +
                             ", \"seed\": " + std::to_string(seed) + "}\n}";
  text.replace(text.rfind('}'), 1, jitter);
  char path[] = "/tmp/hostcuda-jitter-XXXXXX";
  const int fd = mkstemp(path);
  EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(fd);
  return path;
}

TEST(VirtualClockJobTest, SameJobTwice_HasTheSameTimesToTheNanosecond) {
  const std::string one = WithJitter(0.2, 1), two = WithJitter(0.2, 2);
  const auto run = [](const std::string& times) {
    RunningJob job("busy_rank", 6, times.c_str());
    return job.StartAll().AllTimes();
  };
  const auto first = run(one);
  for (int again = 0; again < 4; ++again) EXPECT_EQ(run(one), first);
  EXPECT_NE(run(two), first);
  for (const auto& times : first) EXPECT_EQ(times.size(), 21u);
  unlink(one.c_str());
  unlink(two.c_str());
}

/// At one time rank 1 ends what a stream of rank 0 waits for, and rank 0 has another stream wait
/// for it. Who of them comes first does not show on the clock.
int RankAtOneTime(int in, int out, bool end_comes_first) {
  constexpr uint64_t kAtNs = 1'000'000;
  Rank rank(in, out);
  if (rank.job.rank == 1) {
    hostcudaHostTime(kAtNs - Rank::Now());
    if (!end_comes_first) usleep(20'000);
    __atomic_store_n(rank.Word(0), 1, __ATOMIC_SEQ_CST);
    return 0;
  }
  CUstream other = nullptr;
  CUevent event = nullptr;
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, 0);
  rank.Await(0, 1);
  cuEventRecord(event, rank.stream);
  hostcudaHostTime(kAtNs - Rank::Now());
  hostcudaUncharged(1);
  if (end_comes_first) cuEventSynchronize(event);
  cuStreamWaitEvent(other, event, 0);
  cuEventRecord(event, other);
  hostcudaUncharged(-1);
  for (int i = 0; i < 3; ++i) rank.Launch("k100", other);
  cuStreamSynchronize(other);
  rank.Tell(Rank::Now());
  cuEventDestroy(event);
  return 0;
}
const RegisterRole kEndComesFirst("end_comes_first",
                                  [](int in, int out) { return RankAtOneTime(in, out, true); });
const RegisterRole kWaitComesFirst("wait_comes_first",
                                   [](int in, int out) { return RankAtOneTime(in, out, false); });

TEST(VirtualClockJobTest, WhatIsDrawn_DoesNotDependOnWhoComesFirstAtATime) {
  const std::string times = WithJitter(0.2, 1);
  const auto run = [&](const char* role) {
    RunningJob job(role, 2, times.c_str());
    return job.StartAll().AllTimes();
  };
  const auto first = run("end_comes_first");
  EXPECT_EQ(first[0].size(), 1u);
  EXPECT_EQ(run("wait_comes_first"), first);
  unlink(times.c_str());
}

int LateStarter(int in, int out) {
  Rank rank(in, out);
  rank.Tell(Rank::Now());
  if (rank.job.rank == 0) {
    hostcudaHostTime(5000);
    rank.Tell(Rank::Now());
  }
  return 0;
}
const RegisterRole kLateStarter("late_starter", LateStarter);

TEST(VirtualClockJobTest, Clock_StandsUntilAllExpectedProcessesHaveJoined) {
  RunningJob job("late_starter", 2);
  job.Start(0);
  uint64_t now = 1;
  ASSERT_TRUE(job.role(0).Receive(&now));
  EXPECT_EQ(now, 0u);
  usleep(50'000);  // long enough to get it wrong
  job.Start(1);
  EXPECT_THAT(job.Times(1), ::testing::ElementsAre(0));
  EXPECT_THAT(job.Times(0), ::testing::ElementsAre(5000));
}

int EarlyLeaver(int in, int out) {
  Rank rank(in, out);
  hostcudaHostTime(1000);
  if (rank.job.rank == 1) return 0;
  for (int i = 0; i < 100; ++i) hostcudaHostTime(1000);
  rank.Tell(Rank::Now());
  return 0;
}
const RegisterRole kEarlyLeaver("early_leaver", EarlyLeaver);

TEST(VirtualClockJobTest, ProcessThatExits_IsNotWaitedFor) {
  RunningJob job("early_leaver", 3);
  const auto times = job.StartAll().AllTimes();
  EXPECT_THAT(times[0], ::testing::ElementsAre(101'000));
  EXPECT_TRUE(times[1].empty());
  EXPECT_THAT(times[2], ::testing::ElementsAre(101'000));
}

/// Rank 1 never comes back from its third piece of work: it spins, or waits for ever on the clock.
int SpinningRank(int in, int out) {
  Rank rank(in, out);
  rank.Tell(Rank::Now());
  for (int i = 0; i < 10; ++i) {
    hostcudaHostTime(1000);
    if (rank.job.rank == 1 && i == 2) {
      rank.Tell(Rank::Now());
      for (volatile bool spin = true; spin;) {
      }
    }
  }
  rank.Tell(Rank::Now());
  return 0;
}
const RegisterRole kSpinningRank("spinning_rank", SpinningRank);

int StalledRank(int in, int out) {
  Rank rank(in, out);
  rank.Tell(Rank::Now());
  for (int i = 0; i < 10; ++i) {
    hostcudaHostTime(1000);
    if (rank.job.rank == 1 && i == 2) {
      rank.Tell(Rank::Now());
      rank.Await(1, 1);  // nobody writes it
      cuStreamSynchronize(rank.stream);
    }
  }
  rank.Tell(Rank::Now());
  return 0;
}
const RegisterRole kStalledRank("stalled_rank", StalledRank);

class KilledProcessTest : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledProcessTest, DoesNotStopTheOthersClock) {
  RunningJob job(GetParam(), 3);
  job.StartAll();
  uint64_t time = 0;
  ASSERT_TRUE(job.role(1).Receive(&time));
  ASSERT_TRUE(job.role(1).Receive(&time));
  EXPECT_EQ(time, 3000u);
  ASSERT_EQ(kill(job.role(1).pid(), SIGKILL), 0);
  EXPECT_THAT(job.Times(0), ::testing::ElementsAre(0, 10'000));
  EXPECT_THAT(job.Times(2), ::testing::ElementsAre(0, 10'000));
  EXPECT_EQ(job.role(1).Wait(), 128 + SIGKILL);
}
INSTANTIATE_TEST_SUITE_P(How, KilledProcessTest, ::testing::Values("spinning_rank", "stalled_rank"),
                         [](const auto& kind) { return std::string(kind.param); });

/// What the process and its children write to stderr meanwhile.
class StandardError {
 public:
  StandardError() {
    char path[] = "/tmp/hostcuda-stderr-XXXXXX";
    file_ = mkstemp(path);
    unlink(path);
    before_ = dup(2);
    dup2(file_, 2);
  }
  ~StandardError() {
    dup2(before_, 2);
    close(before_);
    close(file_);
  }
  std::string Text() const {
    std::string text(65536, '\0');
    const ssize_t n = pread(file_, text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    return text;
  }
  /// The text once it holds `part`; what there is after ten seconds.
  std::string TextWith(const std::string& part) const {
    for (int i = 0; i < 1000 && Text().find(part) == std::string::npos; ++i) usleep(10'000);
    return Text();
  }

 private:
  int file_, before_;
};

TEST(VirtualClockJobTest, ClockThatAThreadHolds_IsNamedOnStandardError) {
  StandardError error;
  RunningJob job("spinning_rank", 3);
  job.StartAll();
  const std::string who = "process 1 (pid " + std::to_string(job.role(1).pid()) + "): thread " +
                          std::to_string(job.role(1).pid());
  const std::string text = error.TextWith(who);
  EXPECT_THAT(text, ::testing::HasSubstr("the virtual clock has stood at 1.000003000 s"));
  EXPECT_THAT(text, ::testing::HasSubstr(who));
  EXPECT_THAT(text, ::testing::HasSubstr("is running"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("process 0 ")));
  kill(job.role(1).pid(), SIGKILL);
  job.Times(0);
}

TEST(VirtualClockJobTest, ProcessThatNeverStarts_IsNamedOnStandardError) {
  StandardError error;
  RunningJob job("late_starter", 3);
  job.Start(0);
  uint64_t now = 1;
  ASSERT_TRUE(job.role(0).Receive(&now));  // a job's session ends with the last process in it
  job.Start(2);
  EXPECT_THAT(error.TextWith("1 of 3"),
              ::testing::HasSubstr("it waits for 1 of 3 processes to start CUDA: rank 1 "));
  kill(job.role(0).pid(), SIGKILL);
}

/// Rank 0's stream writes a word at exactly the time at which rank 1's query ends.
int TiedRank(int in, int out) {
  Rank rank(in, out);
  if (rank.job.rank == 0) {
    rank.Launch("k30");  // until 34000
    rank.Write(1, 1);
    cuStreamSynchronize(rank.stream);
    return 0;
  }
  rank.Await(1, 1);
  hostcudaHostTime(34000 - kLaunchNs - 2 * kQueryNs);
  rank.Tell(static_cast<uint64_t>(cuStreamQuery(rank.stream)));
  rank.Tell(static_cast<uint64_t>(cuStreamQuery(rank.stream)));
  rank.Tell(Rank::Now());
  cuStreamSynchronize(rank.stream);
  return 0;
}
const RegisterRole kTiedRank("tied_rank", TiedRank);

TEST(VirtualClockJobTest, QueryAtTheTimeOfAnEvent_SeesIt) {
  for (int i = 0; i < 10; ++i) {
    RunningJob job("tied_rank", 2);
    EXPECT_THAT(job.StartAll().AllTimes()[1],
                ::testing::ElementsAre(CUDA_ERROR_NOT_READY, CUDA_SUCCESS, 34000));
  }
}

/// Rank 2 answers what the others ask of it, kAnswerNs later; slowly, as far as the machine is
/// concerned.
constexpr int kQuestions = 3;
constexpr uint64_t kAnswerNs = 20'000;

int Steerer(const Rank& rank) {
  hostcudaHold(1);
  __atomic_store_n(rank.Word(2), hostcudaNumber() + 1, __ATOMIC_RELEASE);
  uint32_t answered[2] = {0, 0};
  uint64_t due[2] = {UINT64_MAX, UINT64_MAX};
  unsigned rings = 0;
  while (answered[0] + answered[1] < 2 * kQuestions) {
    hostcudaWait(&rings, std::min(due[0], due[1]));
    poll(nullptr, 0, 5);  // long enough to pass for asleep
    for (int i = 0; i < 2; ++i) {
      const uint32_t asked = __atomic_load_n(rank.Word(i) + 1, __ATOMIC_ACQUIRE);
      if (asked > answered[i] && due[i] == UINT64_MAX) due[i] = hostcudaNow() + kAnswerNs;
      if (due[i] > hostcudaNow()) continue;
      due[i] = UINT64_MAX;
      __atomic_store_n(rank.Word(i), ++answered[i], __ATOMIC_RELEASE);
      hostcudaRing(*(rank.Word(i) + 2));
    }
  }
  return 0;
}

int SteeredRank(int in, int out) {
  Rank rank(in, out);
  const int self = rank.job.rank;
  if (self == 2) return Steerer(rank);
  hostcudaHold(1);
  *(rank.Word(self) + 2) = hostcudaNumber();
  uint32_t steerer = 0;
  while ((steerer = __atomic_load_n(rank.Word(2), __ATOMIC_ACQUIRE)) == 0) usleep(100);
  hostcudaHold(-1);
  for (uint32_t i = 1; i <= kQuestions; ++i) {
    hostcudaHostTime(700 * static_cast<unsigned>(self + 1));
    rank.Tell(Rank::Now());
    __atomic_store_n(rank.Word(self) + 1, i, __ATOMIC_RELEASE);
    hostcudaRing(steerer - 1);
    rank.Await(self, i);
    cuStreamSynchronize(rank.stream);
    rank.Tell(Rank::Now());
  }
  return 0;
}
const RegisterRole kSteeredRank("steered_rank", SteeredRank);

TEST(VirtualClockJobTest, ProcessThatSteersOthers_HoldsTheClockWhileItWorks) {
  RunningJob job("steered_rank", 3);
  const auto times = job.StartAll().AllTimes();
  for (uint64_t self = 0; self < 2; ++self) {
    std::vector<uint64_t> expected;
    uint64_t now = 0;
    for (int i = 0; i < kQuestions; ++i) {
      expected.push_back(now += 700 * (self + 1));
      expected.push_back(now += kAnswerNs);
    }
    EXPECT_EQ(times[self], expected) << "rank " << self;
  }
}

/// Rank 0 sleeps outside of CUDA, first while it holds.
int HoldingRank(int in, int out) {
  Rank rank(in, out);
  if (rank.job.rank == 0) {
    hostcudaHold(1);
    rank.Tell(Rank::Now());
    poll(nullptr, 0, 50);
    rank.Tell(Rank::Now());
    hostcudaHold(-1);
    for (int i = 0; i < 2000 && Rank::Now() == 0; ++i) poll(nullptr, 0, 10);
    rank.Tell(Rank::Now() == 0 ? 0 : 1);
  } else {
    hostcudaHostTime(1000);
  }
  return 0;
}
const RegisterRole kHoldingRank("holding_rank", HoldingRank);

TEST(VirtualClockJobTest, ClockThatAThreadHolds_StandsWhileItSleeps) {
  RunningJob job("holding_rank", 2);
  EXPECT_THAT(job.StartAll().AllTimes()[0], ::testing::ElementsAre(0, 0, 1));
}

/// Ranks that also talk outside of CUDA: by a word that neither of them wakes the other for, and a
/// shared futex.
int TalkingRank(int in, int out) {
  Rank rank(in, out);
  uint32_t* const ours = rank.Word(rank.job.rank);
  uint32_t* const theirs = rank.Word(1 - rank.job.rank);
  const auto take = [&](uint32_t value) {
    uint32_t now;
    while ((now = __atomic_load_n(ours, __ATOMIC_ACQUIRE)) != value)
      syscall(SYS_futex, ours, FUTEX_WAIT, now, nullptr, nullptr, 0);
  };
  for (uint32_t i = 1; i <= 10; ++i) {
    if (rank.job.rank == 1) take(i);
    hostcudaHostTime(rank.job.rank == 0 ? 3000 : 500);
    __atomic_store_n(theirs, i, __ATOMIC_RELEASE);
    syscall(SYS_futex, theirs, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    if (rank.job.rank == 0) take(i);
  }
  rank.Tell(Rank::Now());
  return 0;
}
const RegisterRole kTalkingRank("talking_rank", TalkingRank);

TEST(VirtualClockJobTest, ProcessesThatWaitForEachOtherOutsideOfCuda_LetTheClockMove) {
  RunningJob job("talking_rank", 2);
  for (const auto& times : job.StartAll().AllTimes())
    EXPECT_THAT(times, ::testing::ElementsAre(35'000));
}

/// Moves an event of rank 1 from rank 0.
int MovingRank(int in, int out) {
  Rank rank(in, out);
  if (rank.job.rank == 1) {
    Poller poller{
        .event = Table()->event_new(Table()->doorbell_self()), .fired_at = {}, .wanted = 1};
    Table()->event_set(poller.event, Rank::kStartNs + 1000'000);
    __atomic_store_n(rank.Word(0), poller.event + 1, __ATOMIC_RELEASE);
    if (Table()->stream_enqueue(rank.stream, "wait", PollEvent, nullptr, nullptr, &poller) !=
        CUDA_SUCCESS)
      return 1;
    cuStreamSynchronize(rank.stream);
    rank.Tell(poller.fired_at[0] - Rank::kStartNs);
    return 0;
  }
  hostcudaHostTime(10'000);  // by then the other has made it
  const uint32_t event = __atomic_load_n(rank.Word(0), __ATOMIC_ACQUIRE) - 1;
  Table()->event_set(event, Rank::kStartNs + 2000'000);
  hostcudaHostTime(100'000);
  Table()->event_set(event, Rank::kStartNs + 400'000);
  return 0;
}
const RegisterRole kMovingRank("moving_rank", MovingRank);

TEST(VirtualClockJobTest, SharedEvent_IsMovedByAnotherProcess) {
  RunningJob job("moving_rank", 2);
  EXPECT_THAT(job.StartAll().AllTimes()[1], ::testing::ElementsAre(400'000));
}

}  // namespace

int main(int argc, char** argv) {
  setenv("HOSTCUDA_CLOCK", "virtual", 1);
  char path[] = "/tmp/hostcuda-times-XXXXXX";
  if (getenv("HOSTCUDA_TIMES") == nullptr) {
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, kTimes, sizeof kTimes - 1) != sizeof kTimes - 1) return 1;
    close(fd);
    setenv("HOSTCUDA_TIMES", path, 1);
  }
  hostcuda::testing::RunRole(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  unlink(path);
  return result;
}
