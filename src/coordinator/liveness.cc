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
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

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

// What a sleeping thread waits for, as its system call tells.
enum class Waits {
  kTime,     // it sleeps
  kChild,    // the end of a process that it started
  kInside,   // a lock without a limit of time, or one descriptor: another thread or process
  kUnknown,  // a limit of time, several descriptors, input: something outside may come
};

Waits WaitsFor(int pid, const char* thread) {
  char text[256];
  if (!ReadFile(fmt::format("/proc/{}/task/{}/syscall", pid, thread), text, sizeof text))
    return Waits::kUnknown;
  long number = -1;
  unsigned long arguments[4] = {};
  if (sscanf(text, "%ld %lx %lx %lx %lx", &number, &arguments[0], &arguments[1], &arguments[2],
             &arguments[3]) != 5) {
    return Waits::kUnknown;
  }
  switch (number) {
    case SYS_clock_nanosleep:
    case SYS_nanosleep:
      return Waits::kTime;
    case SYS_wait4:
    case SYS_waitid:
      return Waits::kChild;
    case SYS_futex:
      return arguments[3] == 0 ? Waits::kInside : Waits::kUnknown;
    case SYS_read:
      return arguments[0] == STDIN_FILENO ? Waits::kUnknown : Waits::kInside;
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_rt_sigsuspend:
      return Waits::kInside;
    case SYS_ppoll:
#ifdef SYS_poll  // not on every architecture
    case SYS_poll:
#endif
      // One descriptor is how a client of the store waits for its answer.
      return arguments[1] == 1 ? Waits::kInside : Waits::kUnknown;
    case SYS_pselect6:
#ifdef SYS_select
    case SYS_select:
#endif
      // Of no descriptors it is how Python 3.10 sleeps.
      return arguments[0] == 0 ? Waits::kTime : Waits::kUnknown;
#ifdef SYS_pause
    case SYS_pause:
      return Waits::kInside;
#endif
    default:
      return Waits::kUnknown;
  }
}

Waits MainWaitsFor(int pid) { return WaitsFor(pid, fmt::format("{}", pid).c_str()); }

// Whether a thread but the main one may do something by itself. Those that a library has given a
// name of their own (watchdogs) do not count.
bool ThreadsMayWake(int pid) {
  const std::string directory = fmt::format("/proc/{}/task", pid);
  char main_name[64] = {}, name[64] = {};
  ReadFile(fmt::format("/proc/{}/comm", pid), main_name, sizeof main_name);
  DIR* tasks = opendir(directory.c_str());
  if (tasks == nullptr) return true;
  bool may = false;
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == pid) continue;
    if (!ReadFile(fmt::format("{}/{}/comm", directory, entry->d_name), name, sizeof name) ||
        strcmp(name, main_name) != 0) {
      continue;
    }
    may |= WaitsFor(pid, entry->d_name) != Waits::kInside;
  }
  closedir(tasks);
  return may;
}

// Sockets that wait for connections, or are connected with another machine, by inode.
std::set<std::string> OutsideSockets(int pid) {
  std::set<std::string> sockets;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(fmt::format("/proc/{}/net/{}", pid, table));
    std::string line;
    std::getline(file, line);  // headings
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, skipped, inode;
      fields >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      constexpr char kListening[] = "0A", kClosed[] = "07";
      // Of one machine: both ends have one address, port apart.
      const bool same_machine =
          local.substr(0, local.rfind(':')) == remote.substr(0, remote.rfind(':'));
      if (state == kListening || (state != kClosed && !same_machine)) sockets.insert(inode);
    }
  }
  return sockets;
}

// Whether the process has one of the sockets, or a real GPU, whose end of work wakes it too.
bool HoldsOutside(int pid, const std::set<std::string>& sockets) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    constexpr char kSocket[] = "socket:[", kGpu[] = "/dev/nvidia";
    if (target.rfind(kGpu, 0) == 0 ||
        (target.rfind(kSocket, 0) == 0 &&
         sockets.count(target.substr(sizeof kSocket - 1, target.size() - sizeof kSocket)) != 0)) {
      return true;
    }
  }
  return false;
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
                                              const std::vector<int>& others, bool look_outside,
                                              int64_t now_ns) {
  std::map<uint32_t, Idleness> idle;
  int64_t others_idle_ns = INT64_MAX;
  bool others_sleep = false;
  for (const int pid : others) {
    Seen& seen = seen_[pid];
    if (!IsIdle(&seen, pid, now_ns) && kill(pid, 0) == 0) others_idle_ns = 0;
    others_idle_ns = std::min(others_idle_ns, now_ns - seen.since_ns);
    others_sleep |= MainWaitsFor(pid) == Waits::kTime;
  }
  std::optional<std::set<std::string>> sockets;
  for (const auto& [rank, pid] : processes) {
    Seen& seen = seen_[pid];
    if (!IsIdle(&seen, pid, now_ns)) continue;
    Idleness& idleness = idle[rank];
    idleness.idle_ns = std::min(now_ns - seen.since_ns, others_idle_ns);
    const Waits waits = MainWaitsFor(pid);
    const bool child_sleeps = waits == Waits::kChild && others_sleep;
    // A child that slept has ended, and who waits for it has not run yet.
    if (waits == Waits::kChild && seen.child_sleeps && !child_sleeps) {
      seen.since_ns = now_ns;
      idleness.idle_ns = 0;
    }
    seen.child_sleeps = child_sleeps;
    idleness.timed_sleep = waits == Waits::kTime || child_sleeps;
    if (!look_outside || idleness.timed_sleep) continue;
    if (!sockets) sockets = OutsideSockets(pid);
    idleness.outside = waits == Waits::kUnknown || others_sleep || ThreadsMayWake(pid) ||
                       HoldsOutside(pid, *sockets);
  }
  return idle;
}

}  // namespace prism::coordinator
