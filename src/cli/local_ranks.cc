#include "src/cli/local_ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <vector>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "src/base/log.h"

namespace prism::cli {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// After a rank has failed the others may say why they do, too.
constexpr std::chrono::milliseconds kGrace{1000};

struct Rank {
  pid_t pid = -1;
  int answer = -1;  // a file in memory
  bool ended = false;
  int status = 0;
};

[[noreturn]] void RunRank(const Rank& own, pid_t parent, const sigset_t& mask,
                          const std::function<absl::StatusOr<std::string>()>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  absl::StatusOr<std::string> text = absl::InternalError("");
  try {
    text = body();
  } catch (const std::exception& error) {
    text = absl::InternalError(error.what());
  }
  const std::string answer = Json{
      {"code", static_cast<int>(text.status().code())},
      {"message", std::string(text.status().message())},
      {"hint", HintOf(text.status())},
      {"text",
       text.ok() ? *text : ""}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (size_t at = 0; at < answer.size();) {
    const ssize_t n = write(own.answer, answer.data() + at, answer.size() - at);
    if (n <= 0) _exit(1);
    at += static_cast<size_t>(n);
  }
  // Without the destructors of libraries, whose threads may still run.
  _exit(text.ok() ? 0 : 1);
}

// What a rank that has ended gave.
absl::StatusOr<std::string> AnswerOf(const Rank& rank, uint32_t number) {
  if (WIFSIGNALED(rank.status)) {
    return absl::UnavailableError(
        fmt::format("rank {} was ended by {}", number, strsignal(WTERMSIG(rank.status))));
  }
  std::string text;
  char data[65536];
  lseek(rank.answer, 0, SEEK_SET);
  for (ssize_t n; (n = read(rank.answer, data, sizeof data)) > 0;)
    text.append(data, static_cast<size_t>(n));
  const Json answer = Json::parse(text, nullptr, false);
  if (!answer.is_object()) {
    return absl::UnavailableError(fmt::format("rank {} exited with code {} and said nothing",
                                              number, WEXITSTATUS(rank.status)));
  }
  if (const auto code = static_cast<absl::StatusCode>(answer["code"].get<int>());
      code != absl::StatusCode::kOk) {
    return WithHint(absl::Status(code, answer["message"].get<std::string>()),
                    answer["hint"].get<std::string>());
  }
  return answer["text"].get<std::string>();
}

}  // namespace

absl::StatusOr<LocalRanks> RunLocalRanks(
    uint32_t count, const std::function<absl::StatusOr<std::string>(uint32_t rank)>& body) {
  sigset_t watched, old_mask;
  sigemptyset(&watched);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&watched, number);
  sigprocmask(SIG_BLOCK, &watched, &old_mask);

  absl::Status problem;
  std::vector<Rank> ranks(count);
  const pid_t self = getpid();
  size_t running = 0;
  for (uint32_t r = 0; r < count && problem.ok(); ++r) {
    ranks[r].answer = memfd_create("prism-rank", MFD_CLOEXEC);
    ranks[r].pid = ranks[r].answer < 0 ? -1 : fork();
    if (ranks[r].pid == 0) RunRank(ranks[r], self, old_mask, [&] { return body(r); });
    if (ranks[r].pid < 0) {
      problem = ErrnoStatus(errno, fmt::format("start rank {}", r));
      ranks[r].ended = true;
    } else {
      ++running;
    }
  }

  LocalRanks result;
  bool killed = false;
  Clock::time_point kill_at = problem.ok() ? Clock::time_point::max() : Clock::now();
  while (running > 0) {
    if (!killed && Clock::now() >= kill_at) {
      killed = true;
      for (const Rank& rank : ranks) {
        if (rank.pid > 0 && !rank.ended) kill(rank.pid, SIGKILL);
      }
    }
    const timespec tick{0, 100'000'000};
    siginfo_t info{};
    const int number = sigtimedwait(&watched, &info, &tick);
    if (number > 0 && number != SIGCHLD) {
      if (result.interrupted_by == 0) spdlog::warn("{}: stopping", strsignal(number));
      result.interrupted_by = number;
      kill_at = Clock::now();
    }
    for (uint32_t r = 0; r < count; ++r) {
      Rank& rank = ranks[r];
      if (rank.pid <= 0 || rank.ended || waitpid(rank.pid, &rank.status, WNOHANG) != rank.pid)
        continue;
      rank.ended = true;
      --running;
      if (killed || rank.status == 0) continue;
      const absl::Status status = AnswerOf(rank, r).status();
      if (problem.ok() || problem.code() == absl::StatusCode::kAborted) problem = status;
      kill_at = std::min(kill_at, Clock::now() + kGrace);
    }
  }
  if (problem.ok() && result.interrupted_by == 0 && count > 0) {
    absl::StatusOr<std::string> text = AnswerOf(ranks[0], 0);
    if (text.ok()) {
      result.of_rank_0 = *std::move(text);
    } else {
      problem = text.status();
    }
  }
  for (const Rank& rank : ranks) {
    if (rank.answer >= 0) close(rank.answer);
  }
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  if (!problem.ok() && result.interrupted_by == 0) return problem;
  return result;
}

}  // namespace prism::cli
