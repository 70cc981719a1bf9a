// The session's accounting across processes, and what remains of killed ones.
#include "hostcuda/driver/session.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "hostcuda/driver/testing/roles.h"

namespace hostcuda {
namespace {

using testing::RegisterRole;
using testing::Role;

class SessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hostcuda-session-test-XXXXXX";
    directory_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Session* Join() {
    std::string error;
    joined_.emplace_back(Session::Join(directory_, "s", &error));
    EXPECT_NE(joined_.back(), nullptr) << error;
    return joined_.back().get();
  }
  size_t Files() const {
    size_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_))
      count += file.exists() ? 1 : 0;
    return count;
  }
  std::string directory_;
  std::vector<std::unique_ptr<Session>> joined_;
};

// Joins the directory it is told, charges what it is told, reports, and waits to be told to go.
int Member(int in, int out) {
  char directory[256];
  uint64_t bytes = 0;
  if (read(in, directory, sizeof directory) != sizeof directory ||
      read(in, &bytes, sizeof bytes) != sizeof bytes)
    return 1;
  std::string error;
  Session* session = Session::Join(directory, "s", &error);
  if (session == nullptr) return 2;
  const bool fits = session->Charge(3, bytes, 1000);
  if (write(out, &fits, sizeof fits) != sizeof fits) return 3;
  char go;
  if (read(in, &go, 1) == 1 && go == 'l') session->Leave();
  delete session;
  return 0;
}
const RegisterRole member_role("member", Member);

void Start(Role& role, const std::string& directory, uint64_t bytes) {
  char path[256] = {};
  snprintf(path, sizeof path, "%s", directory.c_str());
  role.Send(path);
  role.Send(bytes);
}

TEST_F(SessionTest, LastProcessToLeaveRemovesTheFile) {
  Session* first = Join();
  Session* second = Join();
  EXPECT_NE(first->self(), second->self());
  EXPECT_EQ(Files(), 1u);
  first->Leave();
  EXPECT_EQ(Files(), 1u);
  second->Leave();
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SessionTest, LimitHoldsOverAllProcesses) {
  Session* own = Join();
  EXPECT_TRUE(own->Charge(3, 600, 1000));
  Role peer("member");
  Start(peer, directory_, 500);
  bool fits = true;
  ASSERT_TRUE(peer.Receive(&fits));
  EXPECT_FALSE(fits);
  Role second("member");
  Start(second, directory_, 400);
  ASSERT_TRUE(second.Receive(&fits));
  EXPECT_TRUE(fits);
  EXPECT_EQ(own->Used(3), 1000u);
  EXPECT_EQ(own->Used(2), 0u);
  const auto holders = Session::Holders(directory_, "s", 3);
  ASSERT_EQ(holders.size(), 2u);
  EXPECT_EQ(holders[0].bytes + holders[1].bytes, 1000u);
  second.Send('l');
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_EQ(own->Used(3), 600u);
  peer.Send('l');
  EXPECT_EQ(peer.Wait(), 0);
  own->Discharge(3, 600);
  EXPECT_EQ(own->Used(3), 0u);
  own->Leave();
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SessionTest, KilledProcessIsReapedWhenItsMemoryIsNeeded) {
  Session* own = Join();
  Role victim("member");
  Start(victim, directory_, 900);
  bool fits = false;
  ASSERT_TRUE(victim.Receive(&fits));
  ASSERT_TRUE(fits);
  EXPECT_FALSE(own->Charge(3, 200, 1000));
  kill(victim.pid(), SIGKILL);
  EXPECT_EQ(victim.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(own->Charge(3, 200, 1000));
  EXPECT_EQ(own->Used(3), 200u);
  own->Leave();
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SessionTest, FileOfAKilledLastProcessIsTakenOverAndRemoved) {
  Role victim("member");
  Start(victim, directory_, 900);
  bool fits = false;
  ASSERT_TRUE(victim.Receive(&fits));
  kill(victim.pid(), SIGKILL);
  victim.Wait();
  EXPECT_EQ(Files(), 1u);
  Session* own = Join();
  EXPECT_EQ(own->Used(3), 0u);
  own->Leave();
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SessionTest, NewSessionRemovesThoseWhoseProcessesWereAllKilled) {
  const auto start = [&](Role& role) {
    Start(role, directory_, 10);
    bool fits = false;
    EXPECT_TRUE(role.Receive(&fits) && fits);
  };
  Role victim("member");
  start(victim);
  const std::filesystem::path file = *std::filesystem::directory_iterator(directory_);
  std::filesystem::rename(file, file.string() + "0");  // as if of another session
  EXPECT_EQ(Session::SweepStale(directory_), 0);       // it lives
  kill(victim.pid(), SIGKILL);
  victim.Wait();
  EXPECT_EQ(Files(), 1u);
  Role next("member");
  start(next);
  EXPECT_EQ(Files(), 1u);  // its own
  EXPECT_EQ(Session::SweepStale(directory_), 0);
  next.Send('l');
  EXPECT_EQ(next.Wait(), 0);
  EXPECT_EQ(Files(), 0u);
}

TEST_F(SessionTest, ConcurrentChargesNeverExceedTheLimit) {
  Session* own = Join();
  std::vector<std::thread> threads;
  std::atomic<uint64_t> taken{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (own->Charge(0, 7, 5000)) taken += 7;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), 4998u);
  EXPECT_EQ(own->Used(0), 4998u);
  own->Leave();
}

TEST_F(SessionTest, DirectoryThatDoesNotExistIsAnErrorWithTheRemedy) {
  std::string error;
  EXPECT_EQ(Session::Join(directory_ + "/none", "s", &error), nullptr);
  EXPECT_NE(error.find("needs a writable"), std::string::npos) << error;
}

TEST(ProcessStartTimeTest, IsStableForTheLivingAndZeroForTheDead) {
  EXPECT_NE(ProcessStartTime(getpid()), 0u);
  EXPECT_EQ(ProcessStartTime(getpid()), ProcessStartTime(getpid()));
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(ProcessStartTime(child), 0u);  // a zombie holds nothing any more
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace hostcuda

int main(int argc, char** argv) {
  hostcuda::testing::RunRole(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
