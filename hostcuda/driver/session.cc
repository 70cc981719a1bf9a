#include "hostcuda/driver/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "hostcuda/clock/shared_mutex.h"
#include "hostcuda/clock/virtual_clock.h"

namespace hostcuda {
namespace {

constexpr uint64_t kMagic = 0x31'6e'6f'69'73'73'65'73;  // "session1"
constexpr uint64_t kReapIntervalNs = 100'000'000;

struct alignas(64) Member {
  std::atomic<int32_t> pid;  // 0: free
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleepers;
  uint64_t start_time;
  uint64_t used[kMaxDevices];
};

uint64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Takes the file's exclusive lock, whatever signals arrive meanwhile.
bool LockFile(int fd) {
  int result;
  do {
    result = flock(fd, LOCK_EX);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool Alive(const Member& member) {
  const int pid = member.pid.load(std::memory_order_relaxed);
  return pid != 0 && ProcessStartTime(pid) == member.start_time;
}

}  // namespace

struct SessionSegment {
  uint64_t magic;
  uint32_t bytes;         // sizeof(SessionSegment): another layout is another session
  uint32_t members_end;   // members at and above this index were never used
  pthread_mutex_t mutex;  // process-shared, robust
  uint64_t reaped_ns;     // when somebody last looked for dead members, in full
  uint64_t used[kMaxDevices];
  Member members[Session::kMaxProcesses];
  ClockSegment clock;  // one member for each of ours, by the same index
};
static_assert(kMaxClockMembers == Session::kMaxProcesses);

namespace {

/// Locks or tries to lock the file for as long as `fd`, or a copy of it, is open.
bool HoldFile(int fd, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

std::string FilePrefix() { return "hostcuda-" + std::to_string(getuid()) + "-"; }

std::string SessionPath(const std::string& directory, const std::string& name) {
  char layout[32];
  snprintf(layout, sizeof layout, "%s%zx", name.empty() ? "" : "-", sizeof(SessionSegment));
  return directory + "/" + FilePrefix() + name + layout;
}

}  // namespace

int Session::SweepStale(const std::string& directory) {
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return 0;
  const std::string prefix = FilePrefix();
  int removed = 0;
  while (const dirent* entry = readdir(entries)) {
    if (strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
    const std::string path = directory + "/" + entry->d_name;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    // Under the file's lock nobody joins; who is about to finds the name gone and starts over.
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && HoldFile(fd, F_WRLCK) && unlink(path.c_str()) == 0) {
      ++removed;
    }
    close(fd);
  }
  closedir(entries);
  return removed;
}

std::vector<Session::Holder> Session::Holders(const std::string& directory, const std::string& name,
                                              int device) {
  std::vector<Holder> holders;
  const int fd = open(SessionPath(directory, name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return holders;
  struct stat status;
  void* address = MAP_FAILED;
  if (fstat(fd, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(SessionSegment))) {
    address = mmap(nullptr, sizeof(SessionSegment), PROT_READ, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (address == MAP_FAILED) return holders;
  const auto* segment = static_cast<const SessionSegment*>(address);
  if (segment->magic == kMagic) {
    for (uint32_t i = 0; i < std::min(segment->members_end, kMaxProcesses); ++i) {
      const Member& member = segment->members[i];
      const uint64_t bytes = __atomic_load_n(&member.used[device], __ATOMIC_RELAXED);
      if (bytes != 0 && Alive(member))
        holders.push_back({member.pid.load(std::memory_order_relaxed), bytes});
    }
  }
  munmap(address, sizeof(SessionSegment));
  return holders;
}

Session* Session::Join(const std::string& directory, const std::string& name, std::string* error) {
  const std::string path = SessionPath(directory, name);
  for (int attempt = 0;; ++attempt) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || !LockFile(fd)) {
      *error = "cannot open the session file " + path + ": " + strerror(errno) +
               "; hostcuda needs a writable " + directory;
      if (fd >= 0) close(fd);
      return nullptr;
    }
    struct stat ours, named;
    if (fstat(fd, &ours) != 0 || stat(path.c_str(), &named) != 0 || ours.st_ino != named.st_ino) {
      close(fd);  // the last process of the session removed it between open and lock
      if (attempt < 100) continue;
      *error = "the session file " + path +
               " keeps being replaced; set HOSTCUDA_SESSION to a name of your own";
      return nullptr;
    }
    if (ours.st_size < static_cast<off_t>(sizeof(SessionSegment)) &&
        ftruncate(fd, sizeof(SessionSegment)) != 0) {
      *error = "cannot size the session file " + path + ": " + strerror(errno) +
               "; free some space in " + directory;
      close(fd);
      return nullptr;
    }
    void* address =
        mmap(nullptr, sizeof(SessionSegment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      *error = "cannot map the session file " + path + ": " + strerror(errno);
      close(fd);
      return nullptr;
    }
    auto* segment = static_cast<SessionSegment*>(address);
    const bool is_new = segment->magic != kMagic;
    if (is_new) {
      pthread_mutexattr_t attributes;
      pthread_mutexattr_init(&attributes);
      pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
      pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
      pthread_mutex_init(&segment->mutex, &attributes);
      InitializeClockSegment(&segment->clock);
      segment->bytes = sizeof(SessionSegment);
      segment->magic = kMagic;
    }
    auto* session = new Session;
    session->segment_ = segment;
    session->fd_ = fd;
    session->pid_ = getpid();
    session->path_ = path;
    session->Lock();
    // Hundreds start together: /proc, which takes 10 us, is read for each by one of them.
    session->ReapLocked(session->ReapIsDueLocked());
    const auto first_free = [&] {
      uint32_t index = 0;
      while (index < kMaxProcesses &&
             segment->members[index].pid.load(std::memory_order_relaxed) != 0)
        ++index;
      return index;
    };
    uint32_t index = first_free();
    if (index == kMaxProcesses) {
      session->ReapLocked(true);
      index = first_free();
    }
    if (index == kMaxProcesses) {
      session->Unlock();
      flock(fd, LOCK_UN);
      *error = "more than 4096 processes use the session " + path +
               "; set HOSTCUDA_SESSION to separate jobs";
      munmap(address, sizeof(SessionSegment));
      close(fd);
      delete session;
      return nullptr;
    }
    Member& member = segment->members[index];
    memset(member.used, 0, sizeof member.used);
    member.start_time = ProcessStartTime(session->pid_);
    member.pid.store(session->pid_, std::memory_order_release);
    if (segment->members_end <= index) segment->members_end = index + 1;
    session->self_ = index;
    session->Unlock();
    HoldFile(fd, F_RDLCK);  // where it cannot be had, a sweep may take the name; nothing else
    flock(fd, LOCK_UN);
    if (is_new) SweepStale(directory);
    return session;
  }
}

void Session::Leave() {
  if (getpid() != pid_) return;
  // The file lock keeps a process from joining a file that is about to be removed.
  if (!LockFile(fd_)) return;
  Lock();
  left_.store(true, std::memory_order_relaxed);
  Member& member = segment_->members[self_];
  for (int device = 0; device < kMaxDevices; ++device) {
    segment_->used[device] -= member.used[device];
    member.used[device] = 0;
  }
  member.pid.store(0, std::memory_order_release);
  bool anyone = false;
  for (uint32_t i = 0; i < segment_->members_end && !anyone; ++i)
    anyone = Alive(segment_->members[i]);
  Unlock();
  if (!anyone) unlink(path_.c_str());
  flock(fd_, LOCK_UN);
}

void Session::Lock() {
  const int result = LockAwake(&segment_->mutex);
  if (result == EOWNERDEAD) {
    // Its owner died between two stores: the totals are the sums of the members by definition.
    memset(segment_->used, 0, sizeof segment_->used);
    for (uint32_t i = 0; i < segment_->members_end; ++i) {
      for (int device = 0; device < kMaxDevices; ++device) {
        segment_->used[device] += segment_->members[i].used[device];
      }
    }
    pthread_mutex_consistent(&segment_->mutex);
  }
}

void Session::Unlock() { pthread_mutex_unlock(&segment_->mutex); }

/// Thorough: also finds those that wait for their parents, and numbers that are others' by now.
void Session::ReapLocked(bool thorough) {
  for (uint32_t i = 0; i < segment_->members_end; ++i) {
    Member& member = segment_->members[i];
    const int pid = member.pid.load(std::memory_order_relaxed);
    if (pid == 0 || (thorough ? Alive(member) : kill(pid, 0) == 0 || errno != ESRCH)) continue;
    for (int device = 0; device < kMaxDevices; ++device) {
      segment_->used[device] -= member.used[device];
      member.used[device] = 0;
    }
    member.pid.store(0, std::memory_order_relaxed);
  }
  if (thorough) segment_->reaped_ns = MonotonicNs();
}

bool Session::ReapIsDueLocked() const {
  return MonotonicNs() - segment_->reaped_ns > kReapIntervalNs;
}

void Session::Reap() {
  Lock();
  ReapLocked(true);
  Unlock();
}

ClockSegment* Session::clock() { return &segment_->clock; }

std::atomic<uint32_t>* Session::Doorbell(uint32_t index) {
  return &segment_->members[index].doorbell;
}
std::atomic<uint32_t>* Session::Sleepers(uint32_t index) {
  return &segment_->members[index].sleepers;
}

void Session::Ring(uint32_t index) {
  if (index >= kMaxProcesses) return;
  Member& member = segment_->members[index];
  member.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (member.sleepers.load(std::memory_order_seq_cst) == 0) return;
  if (Clock().takes_time()) {
    Clock().Wake(index);
  } else {
    syscall(SYS_futex, &member.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

bool Session::Charge(int device, uint64_t bytes, uint64_t limit) {
  Lock();
  if (left_.load(std::memory_order_relaxed)) {
    Unlock();
    return true;
  }
  if (segment_->used[device] + bytes > limit) ReapLocked(true);
  const bool fits = segment_->used[device] + bytes <= limit;
  if (fits) {
    segment_->members[self_].used[device] += bytes;
    segment_->used[device] += bytes;
  }
  Unlock();
  return fits;
}

void Session::Discharge(int device, uint64_t bytes) {
  Lock();
  if (!left_.load(std::memory_order_relaxed)) {
    segment_->members[self_].used[device] -= bytes;
    segment_->used[device] -= bytes;
  }
  Unlock();
}

uint64_t Session::Used(int device) {
  Lock();
  if (ReapIsDueLocked()) ReapLocked(true);
  const uint64_t used = segment_->used[device];
  Unlock();
  return used;
}

uint64_t Session::UsedByThisProcess(int device) {
  Lock();
  const uint64_t used = segment_->members[self_].used[device];
  Unlock();
  return used;
}

}  // namespace hostcuda
