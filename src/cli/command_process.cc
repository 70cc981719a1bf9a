#include "src/cli/command_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "fmt/format.h"
#include "src/base/log.h"
#include "src/cli/process_tree.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kLeftoverRounds = 60;  // of 50 ms
constexpr int kPoliteRounds = 10;

// "NAME=value" of prism's own environment with `changes` applied.
std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) variables[name] = value;
  std::vector<std::string> flat;
  for (const auto& [name, value] : variables) flat.push_back(name + "=" + value);
  return flat;
}

}  // namespace

CommandProcess::CommandProcess(EventLoop* loop) : loop_(loop) {
  getrlimit(RLIMIT_NOFILE, &old_files_);
}

CommandProcess::~CommandProcess() {
  for (auto& [fd, pump] : pumps_) {
    close(fd);
    if (pump.log >= 0) close(pump.log);
  }
  if (child_fd_ >= 0) close(child_fd_);
  if (signal_fd_ >= 0) {
    close(signal_fd_);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    sigaction(SIGPIPE, &old_pipe_action_, nullptr);
  }
}

void CommandProcess::TakeSignals(std::function<void(int)> stop) {
  stop_ = std::move(stop);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  signal_fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  // Who reads the output may leave (| head): the job goes on, and its end is put in order.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &old_pipe_action_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  loop_->Add(signal_fd_, [this] { OnSignals(); });
}

absl::Status CommandProcess::Start(const CommandOptions& options) {
  std::vector<std::string> words = options.words;
  std::vector<std::string> environment = EnvironmentWith(options.environment);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& entry : environment) envp.push_back(entry.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  const bool piped = !options.log_folder.empty();
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  if (piped && (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0))
    return ErrnoStatus(errno, "pipe");
  int problem[2];
  if (pipe2(problem, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  own_group_ = options.own_group;
  const pid_t controller = getpid();
  child_ = fork();
  if (child_ < 0) return ErrnoStatus(errno, "fork");
  if (child_ == 0) {
    if (own_group_) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != controller) _exit(125);
    if (signal_fd_ >= 0) {
      sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
      sigaction(SIGPIPE, &old_pipe_action_, nullptr);
    }
    setrlimit(RLIMIT_NOFILE, &old_files_);
    if (piped) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
    }
    execve(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = write(problem[1], &error, sizeof error);
    _exit(125);
  }
  if (own_group_) setpgid(child_, child_);
  close(problem[1]);
  int error = 0;
  const ssize_t n = read(problem[0], &error, sizeof error);
  close(problem[0]);
  if (piped) {
    close(out[1]);
    close(err[1]);
    std::error_code ignored;
    fs::create_directories(options.log_folder, ignored);
    AddPump(out[0], options.shown ? STDOUT_FILENO : -1, options.log_folder + "/stdout.log");
    AddPump(err[0], options.shown ? STDERR_FILENO : -1, options.log_folder + "/stderr.log");
  }
  if (n == sizeof error) {
    waitpid(child_, nullptr, 0);
    child_ = -1;
    return ErrnoStatus(error, fmt::format("run {}", words[0]));
  }
  // SIGCHLD alone would not do: it may go to a thread that some library has made.
  // (Without it, on kernels before 5.3, the signal has to.)
  child_fd_ = static_cast<int>(syscall(SYS_pidfd_open, child_, 0));
  if (child_fd_ >= 0) loop_->Add(child_fd_, [this] { Reap(); });
  return absl::OkStatus();
}

bool CommandProcess::was_signalled() const { return WIFSIGNALED(status_); }

int CommandProcess::exit_code() const {
  return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
}

std::vector<int> CommandProcess::Descendants() const {
  std::vector<int> all = DescendantsOf(getpid());
  all.erase(std::remove(all.begin(), all.end(), guard_.pid()), all.end());
  return all;
}

void CommandProcess::Signal(int number) {
  if (own_group_) {
    // As a terminal would: a launcher ends its workers, which it gave groups of their own, itself.
    if (child_ > 0 && !ended_) kill(-child_, number);
    return;
  }
  for (const int pid : Descendants()) kill(pid, number);
}

void CommandProcess::Kill() {
  killed_ = true;
  for (const int pid : Descendants()) kill(pid, SIGKILL);
}

void CommandProcess::AddPump(int from, int terminal, const std::string& log) {
  fcntl(from, F_SETFL, O_NONBLOCK);
  pumps_[from] = {from, terminal,
                  open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  loop_->Add(from, [this, from] { Drain(pumps_[from]); });
}

void CommandProcess::StopLogging() {
  for (auto& [fd, pump] : pumps_) {
    if (pump.log >= 0) close(pump.log);
    pump.log = -1;
  }
}

void CommandProcess::Drain() {
  for (auto& [fd, pump] : pumps_) Drain(pump);
}

void CommandProcess::Drain(Pump& pump) {
  char data[65536];
  while (true) {
    const ssize_t n = read(pump.from, data, sizeof data);
    if (n < 0) return;
    if (n == 0) {
      loop_->Remove(pump.from);
      return;
    }
    for (const int to : {pump.terminal, pump.log}) {
      // A closed terminal or a full disk must not end the job.
      for (ssize_t done = 0; to >= 0 && done < n;) {
        const ssize_t written = write(to, data + done, static_cast<size_t>(n - done));
        if (written < 0 && errno == EAGAIN) {
          usleep(1000);
          continue;
        }
        if (written <= 0) break;
        done += written;
      }
    }
  }
}

void CommandProcess::OnSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    if (interrupted_by_ != 0) {
      Kill();
      continue;
    }
    interrupted_by_ = number;
    spdlog::warn("{}: stopping the job; once more kills it",
                 number == SIGINT ? "interrupted" : strsignal(number));
    // The terminal has interrupted the programs of its group too: they are not interrupted twice.
    const bool by_terminal = number == SIGINT && info.ssi_code == SI_KERNEL && !own_group_;
    stop_(by_terminal ? 0 : number == SIGINT ? SIGINT : SIGTERM);
  }
  Reap();
}

void CommandProcess::Reap() {
  while (true) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return;
    if (pid != child_) continue;  // an orphan of the command's: adopted, so that none is left
    ended_ = true;
    status_ = status;
    loop_->Remove(child_fd_);
    if (on_end_) on_end_();
  }
}

void CommandProcess::EndLeftovers() {
  for (int round = 0; round < kLeftoverRounds; ++round) {
    Reap();
    const std::vector<int> left = Descendants();
    if (left.empty()) return;
    if (round == 0) spdlog::debug("{} processes are left", left.size());
    for (const int pid : left) kill(pid, round < kPoliteRounds ? SIGTERM : SIGKILL);
    loop_->RunOnce(50);
  }
  const size_t left = Descendants().size();
  if (left != 0) spdlog::warn("{} processes of the job could not be ended", left);
}

}  // namespace prism::cli
