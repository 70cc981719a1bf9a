#include "src/coordinator/liveness.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fmt/format.h"

namespace prism::coordinator {
namespace {

// A watchdog that polls ten times a second uses well under 2 % of a core; a rank at work uses more,
// or waits for one.
constexpr double kIdleShare = 0.02;
constexpr uint64_t kIdleTicks = 2;

struct Threads {
  bool exists = false;
  bool asleep = true;
  uint64_t cpu_ticks = 0;
};

bool ReadFile(const std::string& path, char* text, size_t capacity) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t n = read(fd, text, capacity - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = '\0';
  return true;
}

Threads Look(int pid) {
  Threads threads;
  const std::string directory = fmt::format("/proc/{}/task", pid);
  DIR* tasks = opendir(directory.c_str());
  if (tasks == nullptr) return threads;
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    char text[1024];
    if (!ReadFile(fmt::format("{}/{}/stat", directory, entry->d_name), text, sizeof text)) continue;
    const char* after_name = strrchr(text, ')');  // the name may hold anything
    char state = 0;
    unsigned long user = 0, system = 0;
    if (after_name == nullptr ||
        sscanf(after_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &state, &user,
               &system) != 3) {
      continue;
    }
    threads.exists = true;
    // T: stopped by a debugger, D: reading or writing; neither is a wait for another rank.
    threads.asleep &= state == 'S' || state == 'I';
    threads.cpu_ticks += user + system;
  }
  closedir(tasks);
  return threads;
}

bool InTimedSleep(int pid) {
  char text[256];
  if (!ReadFile(fmt::format("/proc/{}/task/{}/syscall", pid, pid), text, sizeof text)) return false;
  char* end = nullptr;
  const long number = strtol(text, &end, 10);
  return end != text && (number == SYS_clock_nanosleep || number == SYS_nanosleep);
}

}  // namespace

bool Liveness::IsIdle(Seen* seen, int pid, int64_t now_ns) {
  static const double ticks_a_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const Threads threads = Look(pid);
  const double seconds = static_cast<double>(now_ns - seen->since_ns) / 1e9;
  const double allowed = static_cast<double>(kIdleTicks) + kIdleShare * ticks_a_second * seconds;
  // One sample may meet a watchdog awake; two in a row are work.
  seen->runnable_samples = threads.asleep ? 0 : seen->runnable_samples + 1;
  if (threads.exists && seen->known && seen->runnable_samples < 2 &&
      static_cast<double>(threads.cpu_ticks - seen->since_ticks) <= allowed) {
    return true;
  }
  seen->known = true;
  seen->since_ns = now_ns;
  seen->since_ticks = threads.cpu_ticks;
  return false;
}

std::map<uint32_t, Idleness> Liveness::Sample(const std::map<uint32_t, int>& processes,
                                              const std::vector<int>& others, int64_t now_ns) {
  std::map<uint32_t, Idleness> idle;
  int64_t others_idle_ns = INT64_MAX;
  for (const int pid : others) {
    Seen& seen = seen_[pid];
    if (!IsIdle(&seen, pid, now_ns) && kill(pid, 0) == 0) others_idle_ns = 0;
    others_idle_ns = std::min(others_idle_ns, now_ns - seen.since_ns);
  }
  for (const auto& [rank, pid] : processes) {
    Seen& seen = seen_[pid];
    if (!IsIdle(&seen, pid, now_ns)) continue;
    idle[rank] = {std::min(now_ns - seen.since_ns, others_idle_ns), InTimedSleep(pid)};
  }
  return idle;
}

}  // namespace prism::coordinator
