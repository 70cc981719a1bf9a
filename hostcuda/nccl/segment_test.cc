#include "hostcuda/nccl/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace hostnccl {
namespace {

SegmentOptions Options(const std::string& key, int ranks, int rank) {
  SegmentOptions options;
  options.key = key;
  options.ranks = ranks;
  options.rank = rank;
  options.self.may_share_device = true;
  return options;
}

std::string PathOf(const std::string& key) {
  return "/dev/shm/hostnccl-" + std::to_string(getuid()) + "-" + key;
}

/// Starts to join as rank 0 in a process of its own that is killed once it waits; returns what
/// `look` sees meanwhile.
template <typename Look>
void WhileOneWaits(int ranks, const std::string& key, Look look) {
  const pid_t process = fork();
  if (process == 0) {
    std::atomic<bool> cancelled{false};
    std::unique_ptr<Segment> segment;
    static_cast<void>(Segment::Join(Options(key, ranks, 0), cancelled, &segment));
    _exit(0);
  }
  for (int i = 0; i < 1000 && access(PathOf(key).c_str(), F_OK) != 0; ++i) usleep(5000);
  look();
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

struct Sizes {
  double file_mib, touched_mib;
};
Sizes SizesFor(int ranks) {
  const std::string key = RandomKey();
  Sizes sizes{};
  WhileOneWaits(ranks, key, [&] {
    struct stat status;
    ASSERT_EQ(stat(PathOf(key).c_str(), &status), 0);
    sizes = {static_cast<double>(status.st_size) / (1 << 20),
             static_cast<double>(status.st_blocks) * 512 / (1 << 20)};
  });
  return sizes;
}

TEST(SegmentTest, MemoryGrowsLinearlyAndExistsOnlyWhereUsed) {
  const Sizes few = SizesFor(256), many = SizesFor(512);
  EXPECT_LT(many.file_mib, 2.1 * few.file_mib);
  constexpr double kSlotMib = 1.0 / 16;  // of 512 ranks; the sum is README.md's
  EXPECT_LE(many.file_mib, 512 * (17.0 / 1024 + 36 * kSlotMib) + 4 * kSlotMib);
  EXPECT_LT(many.touched_mib, 1);
  SweepStaleSegments();
}

TEST(SegmentTest, TheNameIsGoneOnceAllHaveJoined) {
  const std::string key = RandomKey();
  std::atomic<bool> cancelled{false};
  std::unique_ptr<Segment> segments[3];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const Status status = Segment::Join(Options(key, 3, rank), cancelled, &segments[rank]);
      EXPECT_TRUE(status.ok()) << status.message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(access(PathOf(key).c_str(), F_OK), 0);
  // All see the same memory.
  ASSERT_TRUE(segments[0]->Back(segments[0]->StepSlot(2, 1), 100).ok());
  *segments[0]->StepSlot(2, 1) = std::byte{42};
  EXPECT_EQ(*segments[1]->StepSlot(2, 1), std::byte{42});
  EXPECT_TRUE(segments[0]->Fail(Error(Code::kInvalidUsage, "first")));
  EXPECT_FALSE(segments[1]->Fail(Error(Code::kRemoteError, "second")));
  EXPECT_EQ(segments[2]->Failure().message, "first");
}

TEST(SegmentTest, SweepingSparesWhatIsInUse) {
  const std::string key = RandomKey();
  WhileOneWaits(2, key, [&] {
    usleep(50000);
    SweepStaleSegments();
    EXPECT_EQ(access(PathOf(key).c_str(), F_OK), 0);
  });
  EXPECT_EQ(access(PathOf(key).c_str(), F_OK), 0) << "killed: nobody has removed it yet";
  EXPECT_GE(SweepStaleSegments(), 1);
  EXPECT_NE(access(PathOf(key).c_str(), F_OK), 0);
}

TEST(SegmentTest, ACancelledJoinEnds) {
  const std::string key = RandomKey();
  std::atomic<bool> cancelled{false};
  std::unique_ptr<Segment> segment;
  std::thread canceller([&] {
    usleep(50000);
    cancelled = true;
  });
  EXPECT_EQ(Segment::Join(Options(key, 2, 1), cancelled, &segment).code, Code::kRemoteError);
  canceller.join();
  EXPECT_NE(access(PathOf(key).c_str(), F_OK), 0) << "the last one to leave removes the name";
}

TEST(ProcessTest, ADeadProcessIsNotAliveEvenUnreaped) {
  const uint64_t start = ProcessStart(getpid());
  EXPECT_TRUE(ProcessAlive(getpid(), start));
  EXPECT_FALSE(ProcessAlive(getpid(), start + 1)) << "another process with the same number";
  const pid_t process = fork();
  if (process == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(ProcessStart(process), 0u) << "a zombie";
  waitpid(process, nullptr, 0);
  EXPECT_EQ(ProcessStart(process), 0u);
}

}  // namespace
}  // namespace hostnccl
