#include "src/cli/guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "src/cli/process_tree.h"
#include "src/cli/runtime_folder.h"

namespace prism::cli {
namespace {

constexpr char kDismissed = 'd';
constexpr int kRounds = 100;  // a process may start another while it is looked for
constexpr int kRoundUs = 20'000;

void KillAll(const std::string& mark) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> processes = ProcessesWith(mark);
    if (processes.empty()) return;
    for (size_t i = 0, marked = processes.size(); i < marked; ++i) {
      for (const int pid : DescendantsOf(processes[i])) processes.push_back(pid);
    }
    for (const int pid : processes) kill(pid, SIGKILL);
    usleep(kRoundUs);
  }
}

[[noreturn]] void Watch(int pipe, const std::string& mark, const std::string& runtime_folder) {
  setsid();  // a signal for the group of its maker is not for it
  prctl(PR_SET_NAME, "prism-guard");
  // Nothing of its maker is kept open: who reads its output, or waits for its lock, does not wait
  // for the guard.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  dup2(pipe, STDIN_FILENO);
  close_range(STDERR_FILENO + 1, ~0u, 0);
  char word = 0;
  ssize_t n;
  while ((n = read(STDIN_FILENO, &word, 1)) < 0 && errno == EINTR) {
  }
  if (n == 0) {
    KillAll(mark);
    RuntimeFolder::Remove(runtime_folder);
  }
  _exit(0);
}

}  // namespace

void Guard::Start(const std::string& mark, const std::string& runtime_folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    Watch(ends[0], mark, runtime_folder);
  }
  close(ends[0]);
  if (pid_ < 0) {
    close(ends[1]);
    return;
  }
  pipe_ = ends[1];
}

Guard::~Guard() {
  if (pid_ < 0) return;
  [[maybe_unused]] const ssize_t n = write(pipe_, &kDismissed, 1);
  close(pipe_);
  waitpid(pid_, nullptr, 0);
}

}  // namespace prism::cli
