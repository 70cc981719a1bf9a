#include "hostcuda/clock/proc_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hostcuda {
namespace {

/// Reads a small file of /proc; false, with errno, where it cannot be read.
bool ReadProc(pid_t pid, pid_t tid, const char* name, char* text, size_t bytes) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task/%d/%s", pid, tid, name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t n = read(fd, text, bytes - 1);
  const int error = errno;
  close(fd);
  errno = error;
  if (n < 0) return false;
  text[n] = '\0';
  return true;
}

/// The letter of /proc/.../stat: R, S, D, T, t, Z, X; 0 where the thread is gone.
char StateLetter(pid_t pid, pid_t tid) {
  char text[512];
  if (!ReadProc(pid, tid, "stat", text, sizeof text)) return 0;
  // The name is in parentheses and may hold anything; the state follows the last one.
  const char* end = strrchr(text, ')');
  return end != nullptr && end[1] == ' ' ? end[2] : '\0';
}

}  // namespace

bool ThreadRuns(pid_t pid, pid_t tid) { return StateLetter(pid, tid) == 'R'; }

ProcState ProcStateOf(pid_t pid, pid_t tid) {
  char text[256];
  if (!ReadProc(pid, tid, "syscall", text, sizeof text)) {
    if (errno == ENOENT || errno == ESRCH) return ProcState::kGone;
    const char letter = StateLetter(pid, tid);
    if (letter == '\0' || letter == 'Z' || letter == 'X') return ProcState::kGone;
    return letter == 'S' ? ProcState::kWaitsOutside : ProcState::kRuns;
  }
  long number = -1;
  unsigned long argument[2] = {0, 0};
  if (sscanf(text, "%ld %lx %lx", &number, &argument[0], &argument[1]) < 1 || number < 0)
    return ProcState::kRuns;  // "running", or -1: not in a system call
  switch (number) {
    case SYS_futex:
      // Always an interruptible sleep.
      return (argument[1] & FUTEX_PRIVATE_FLAG) != 0 ? ProcState::kWaitsInside
                                                     : ProcState::kWaitsOutside;
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return ProcState::kRuns;
    default:
      break;
  }
  const char letter = StateLetter(pid, tid);
  if (letter == '\0' || letter == 'Z' || letter == 'X') return ProcState::kGone;
  return letter == 'S' ? ProcState::kWaitsOutside : ProcState::kRuns;
}

std::vector<pid_t> ThreadsOf(pid_t pid) {
  std::vector<pid_t> threads;
  DIR* const directory = opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (directory == nullptr) return threads;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') threads.push_back(static_cast<pid_t>(atol(entry->d_name)));
  }
  closedir(directory);
  return threads;
}

std::string DescribeThread(pid_t pid, pid_t tid) {
  char name[64] = "?", wchan[64] = "", call[64] = "";
  if (ReadProc(pid, tid, "comm", name, sizeof name)) name[strcspn(name, "\n")] = '\0';
  std::string text = "thread " + std::to_string(tid) + " (" + name + ") ";
  const char letter = StateLetter(pid, tid);
  if (letter == 'R') return text + "is running";
  if (letter == 'T' || letter == 't') return text + "is stopped";
  text += letter == 'D' ? "waits for the kernel (state D)" : "is asleep";
  if (ReadProc(pid, tid, "syscall", call, sizeof call) && strchr("0123456789", call[0]) != nullptr)
    text += " in system call " + std::string(call, strcspn(call, " "));
  if (ReadProc(pid, tid, "wchan", wchan, sizeof wchan) && strcmp(wchan, "0") != 0)
    text += " (" + std::string(wchan) + ")";
  return text;
}

uint64_t ProcessStartTime(int pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  // The name is in parentheses and may hold anything; the state follows the last one. Start time is
  // field 22.
  const char* p = strrchr(text, ')');
  if (p == nullptr || p[1] == '\0' || p[2] == 'Z' || p[2] == 'X') return 0;
  p += 2;
  for (int field = 3; field < 22 && p != nullptr; ++field) {
    p = strchr(p, ' ');
    if (p != nullptr) ++p;
  }
  return p == nullptr ? 0 : strtoull(p, nullptr, 10);
}

}  // namespace hostcuda
