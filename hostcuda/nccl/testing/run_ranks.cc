#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hostcuda/nccl/testing/machine.h"

namespace hostnccl::testing {

void RunRanks(int ranks, const std::function<void(int)>& body,
              const std::vector<int>& expect_killed) {
  fflush(nullptr);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
      // Failures of earlier ranks were inherited.
      const ::testing::TestResult& result =
          *::testing::UnitTest::GetInstance()->current_test_info()->result();
      const int inherited = result.total_part_count();
      StartMachine(rank);
      body(rank);
      fflush(nullptr);
      _exit(result.total_part_count() > inherited ? 1 : 0);
    }
    processes.push_back(process);
  }
  time_t deadline = time(nullptr) + 100;
  std::vector<bool> ended(processes.size());
  for (size_t left = processes.size(); left > 0;) {
    for (size_t rank = 0; rank < processes.size(); ++rank) {
      int status = 0;
      if (ended[rank] || waitpid(processes[rank], &status, WNOHANG) != processes[rank]) continue;
      ended[rank] = true;
      --left;
      const bool killed =
          std::find(expect_killed.begin(), expect_killed.end(), rank) != expect_killed.end();
      if (killed) {
        EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << rank << " should have been killed";
      } else {
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
            << "rank " << rank
            << (WIFSIGNALED(status) ? " was ended by signal " : " ended with code ")
            << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      }
    }
    if (left > 0 && time(nullptr) > deadline) {
      ADD_FAILURE() << left << " ranks hang";
      for (size_t rank = 0; rank < processes.size(); ++rank) {
        if (!ended[rank]) kill(processes[rank], SIGKILL);
      }
      deadline += 1000;
    }
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace hostnccl::testing
