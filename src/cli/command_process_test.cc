#include "src/cli/command_process.h"

#include <pthread.h>
#include <semaphore.h>

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace prism::cli {
namespace {

constexpr int kCommands = 50;
constexpr std::chrono::seconds kLongest{20};

// A thread as libraries make them: it takes the signals that the main thread blocks later.
class OtherThread {
 public:
  OtherThread() {
    sem_init(&end_, 0, 0);
    thread_ = std::thread([this] {
      while (sem_wait(&end_) != 0) {
      }
    });
  }
  ~OtherThread() {
    sem_post(&end_);
    thread_.join();
  }

 private:
  sem_t end_;
  std::thread thread_;
};

TEST(CommandProcess, SeesTheEndBesideAThreadThatTakesItsSignals) {
  const OtherThread thread;
  for (int n = 0; n < kCommands; ++n) {
    EventLoop loop;
    CommandProcess command(&loop);
    command.TakeSignals([](int) {});
    ASSERT_TRUE(
        command.Start({.words = {"/bin/sh", "-c", "exit 3"}, .environment = {}, .log_folder = {}})
            .ok());
    const auto begin = std::chrono::steady_clock::now();
    while (!command.ended() && std::chrono::steady_clock::now() - begin < kLongest)
      loop.RunOnce(50);
    ASSERT_TRUE(command.ended()) << "command " << n;
    EXPECT_EQ(command.exit_code(), 3);
  }
}

}  // namespace
}  // namespace prism::cli
