// Writers that are killed: a child process writes, says how far it is, and gets SIGKILL.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/trace/reader.h"
#include "src/trace/writer.h"

namespace prism::trace {
namespace {

using ::testing::HasSubstr;

class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/prism-recovery-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    path_ = directory_ + "/rank-00000.prt";
    pending_ = path_ + ".pending";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Runs `write` in a child, which is killed when it has returned.
  void Killed(const std::function<void(Writer&)>& write) {
    int said[2];
    ASSERT_EQ(pipe(said), 0);
    const pid_t child = fork();
    if (child == 0) {
      Writer w;
      if (w.Open(path_.c_str(), 0, 2) != 0) _exit(1);
      write(w);
      if (::write(said[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char byte;
    ASSERT_EQ(read(said[0], &byte, 1), 1);
    close(said[0]);
    close(said[1]);
    while_alive_(child);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  std::string directory_, path_, pending_;
  std::function<void(pid_t)> while_alive_ = [](pid_t) {};
};

// `steps` of a kernel, a record and a collective on one stream.
void Steps(Writer& w, uint64_t steps) {
  const uint32_t stream = w.AddStream(0, 0, "default");
  const uint32_t ranks[] = {0, 1};
  w.Communicator({1, 2, 0, 0, 0}, ranks);
  w.CommInit(1);
  const uint32_t grid[3] = {4, 2, 1}, block[3] = {256, 1, 1};
  for (uint64_t step = 0; step < steps; ++step) {
    const uint32_t kernel =
        w.Kernel(KernelKind::kKernel, "gemm " + std::to_string(step % 100), grid, block, 0, 0);
    w.HostCall(1000);
    w.Launch(stream, kernel);
    w.Record(stream, 1, step + 1);
    CallRecord call{1, static_cast<uint32_t>(CommOp::kAllReduce), 7, 0, -1, 0, 10, 40, 1, 0};
    call.call_site = w.String("train.py:12 in step");
    w.Comm(stream, w.Call(call), step, ValueSource::kExact);
    w.Memory(MemoryKind::kDevice, 512, step * 512 + 1);
  }
}

TEST_F(RecoveryTest, KilledWriterLosesNothingThatItRecorded) {
  // Few steps: all of it is in buffers. Many: buffers have grown and been flushed several times.
  for (const uint64_t steps : {1u, 3u, 200u, 30000u}) {
    Killed([&](Writer& w) { Steps(w, steps); });
    EXPECT_TRUE(std::filesystem::exists(pending_));
    const auto trace = Reader::Open(path_, {.allow_incomplete = true});
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->completeness(), Completeness::kUnsealed);
    EXPECT_THAT(trace->problem(), HasSubstr("the rank was killed"));
    EXPECT_EQ(trace->nodes(0).size(), steps * 3) << steps;  // span, record, comm
    uint64_t records = 0;
    for (const auto& chunk : trace->memory()) records += chunk.size();
    EXPECT_EQ(records, steps);
    EXPECT_EQ(trace->string(trace->calls()[0].call_site), "train.py:12 in step");
    EXPECT_EQ(trace->communicators().size(), 1u);
    EXPECT_FALSE(std::filesystem::exists(pending_));
    // Again: nothing more happens.
    const auto again = Reader::Open(path_, {.allow_incomplete = true});
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->node_count(), trace->node_count());
    // Unsealed stays unsealed: the rank did not end by itself.
    EXPECT_EQ(Reader::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(RecoveryTest, OpenSpanIsLostUnlessEndedBefore) {
  const auto launch = [](Writer& w) {
    const uint32_t stream = w.AddStream(0, 0, "default");
    const uint32_t grid[3] = {1, 1, 1};
    w.Launch(stream, w.Kernel(KernelKind::kKernel, "gemm", grid, grid, 0, 0));
  };
  Killed(launch);
  auto trace = Reader::Open(path_, {.allow_incomplete = true});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->nodes(0).size(), 0u);
  EXPECT_EQ(trace->kernels().size(), 1u);
  Killed([&](Writer& w) {
    launch(w);
    w.FlushForDeath();
  });
  trace = Reader::Open(path_, {.allow_incomplete = true});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->nodes(0).size(), 1u);
}

TEST_F(RecoveryTest, TornTailIsReplacedByItsBuffer) {
  Killed([](Writer& w) { Steps(w, 100); });
  // As if killed while it wrote: half a chunk header behind what is there.
  std::ofstream(path_, std::ios::binary | std::ios::app) << "CHNK torn";
  const auto trace = Reader::Open(path_, {.allow_incomplete = true});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->completeness(), Completeness::kUnsealed);
  EXPECT_EQ(trace->nodes(0).size(), 300u);
}

TEST_F(RecoveryTest, BufferThatIsInTheTraceAlreadyIsNotTakenTwice) {
  std::string copy = directory_ + "/copy";
  Killed([](Writer& w) { Steps(w, 100); });
  std::filesystem::copy_file(pending_, copy);
  ASSERT_TRUE(Reader::Recover(path_).ok());
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::rename(copy, pending_);
  ASSERT_TRUE(Reader::Recover(path_).ok());
  EXPECT_EQ(std::filesystem::file_size(path_), size);
}

TEST_F(RecoveryTest, LivingWriterIsLeftAlone) {
  while_alive_ = [&](pid_t) {
    const auto trace = Reader::Open(path_, {.allow_incomplete = true});
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->node_count(), 0u);  // all of it is buffered
    EXPECT_TRUE(std::filesystem::exists(pending_));
  };
  Killed([](Writer& w) { Steps(w, 3); });
  EXPECT_EQ(Reader::Open(path_, {.allow_incomplete = true})->nodes(0).size(), 9u);
}

TEST_F(RecoveryTest, ForkedChildOfTheWriterDoesNotHoldTheTrace) {
  pid_t grandchild = 0;
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  Killed([&](Writer& w) {
    Steps(w, 3);
    if (fork() == 0) {
      const pid_t self = getpid();
      if (::write(said[1], &self, sizeof self) < 0) _exit(1);
      for (;;) pause();
    }
  });
  ASSERT_EQ(read(said[0], &grandchild, sizeof grandchild), ssize_t{sizeof grandchild});
  const auto trace = Reader::Open(path_, {.allow_incomplete = true});
  kill(grandchild, SIGKILL);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->nodes(0).size(), 9u);
  close(said[0]);
  close(said[1]);
}

TEST_F(RecoveryTest, WriterThatEndsByItselfLeavesNothingBeside) {
  {
    Writer w;
    ASSERT_EQ(w.Open(path_.c_str(), 0, 2), 0);
    Steps(w, 10);
    EXPECT_TRUE(std::filesystem::exists(pending_));
    EXPECT_EQ(w.Close(0), 0);
    EXPECT_FALSE(std::filesystem::exists(pending_));
  }
  EXPECT_TRUE(Reader::Open(path_).ok());
}

}  // namespace
}  // namespace prism::trace
