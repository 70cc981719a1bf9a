#include "hostcuda/nccl/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>

#include "hostcuda/clock/shared_mutex.h"
#include "hostcuda/nccl/futex.h"

namespace hostnccl {
namespace {

constexpr char kDirectory[] = "/dev/shm";
constexpr uint64_t kMagic = 0x6c63636e74736f68;  // "hostnccl"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kBackingBytes = 4 * kPage;
constexpr uint64_t kMinSlotBytes = uint64_t{64} << 10;
constexpr uint64_t kMaxSlotBytes = uint64_t{512} << 10;
constexpr uint64_t kStepBytesPerSlotIndex = uint64_t{16} << 20;
constexpr uint64_t kSecond = 1'000'000'000;
constexpr int kLivenessSample = 8;
constexpr uint32_t kReady = 1;  // bits of SegmentHeader::ready
constexpr uint32_t kFailed = 2;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

uint64_t PidNamespace() {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string Prefix() { return "hostnccl-" + std::to_string(getuid()) + "-"; }

uint64_t DefaultSlotBytes(int ranks) {
  return std::clamp(std::bit_floor(kStepBytesPerSlotIndex / static_cast<uint64_t>(ranks)),
                    kMinSlotBytes, kMaxSlotBytes);
}

struct Layout {
  uint64_t mailboxes, steps, results, messages, total;
  Layout(int ranks, uint64_t slot_bytes) {
    const auto n = static_cast<uint64_t>(ranks);
    mailboxes = RoundUp(sizeof(SegmentHeader) + n * sizeof(Member), kPage);
    steps = mailboxes + n * kMailboxCells * sizeof(MailboxCell);
    results = steps + n * kStepSlots * slot_bytes;
    messages = results + kStepSlots * slot_bytes;
    total = messages + n * kMessageSlots * slot_bytes;
  }
};

}  // namespace

uint64_t ProcessStart(int32_t pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[1024];
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return 0;
  text[size] = 0;
  // Field 2 is the command in parentheses and may hold anything; field 3, the state, follows the
  // last one.
  const char* field = strrchr(text, ')');
  if (field == nullptr || strlen(field) < 4) return 0;
  if (field[2] == 'Z' || field[2] == 'X') return 0;
  ++field;
  for (int number = 2; number < 22; ++number) {
    field = strchr(field + 1, ' ');
    if (field == nullptr) return 0;
    if (number == 20) return strtoull(field, nullptr, 10);
  }
  return 0;
}

bool ProcessAlive(int32_t pid, uint64_t start) {
  const uint64_t now = ProcessStart(pid);
  return now != 0 && now == start;
}

std::string RandomKey() {
  unsigned char bytes[16] = {};
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    const uint64_t fallback[2] = {ProcessStart(getpid()) ^ static_cast<uint64_t>(getpid()) << 32,
                                  reinterpret_cast<uint64_t>(&bytes)};
    memcpy(bytes, fallback, sizeof bytes);
  }
  std::string text;
  for (unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

int SweepStaleSegments() {
  DIR* directory = opendir(kDirectory);
  if (directory == nullptr) return 0;
  const std::string prefix = Prefix();
  int removed = 0;
  while (const dirent* entry = readdir(directory)) {
    if (strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) continue;
    const std::string path = std::string(kDirectory) + "/" + entry->d_name;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    struct stat status;
    // Whoever opens a segment and then finds it unlinked starts over, so taking the lock is enough.
    if (fstat(fd, &status) == 0 && status.st_uid == getuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (unlink(path.c_str()) == 0) ++removed;
    }
    close(fd);
  }
  closedir(directory);
  return removed;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
  if (fd_ >= 0) close(fd_);
}

Mailbox Segment::MailboxOf(int rank) {
  auto* cells = reinterpret_cast<MailboxCell*>(base_ + mailboxes_) +
                static_cast<uint64_t>(rank) * kMailboxCells;
  return Mailbox(&members_[rank].mailbox_tail, cells, kMailboxCells);
}

Status Segment::Map(uint64_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (address == MAP_FAILED) {
    return Error(Code::kSystemError, "cannot map %llu bytes of shared memory: %s",
                 static_cast<unsigned long long>(bytes), strerror(errno));
  }
  base_ = static_cast<std::byte*>(address);
  bytes_ = bytes;
  header_ = reinterpret_cast<SegmentHeader*>(base_);
  members_ = reinterpret_cast<Member*>(base_ + sizeof(SegmentHeader));
  backed_.assign(bytes / kBackingBytes + 1, false);
  return {};
}

Status Segment::Create(const SegmentOptions& options, const std::string& path, bool* created) {
  *created = false;
  const std::string temporary = path + ".new" + std::to_string(getpid()) + RandomKey().substr(0, 8);
  fd_ = open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) {
    return Error(Code::kSystemError,
                 "cannot create shared memory %s: %s; ranks exchange data through %s, which must "
                 "be a writable tmpfs",
                 temporary.c_str(), strerror(errno), kDirectory);
  }
  hostcuda::LockFileAwake(fd_, LOCK_SH);
  uint64_t slot_bytes = options.slot_bytes != 0 ? RoundUp(options.slot_bytes, kPage)
                                                : DefaultSlotBytes(options.ranks);
  struct statvfs space;
  if (fstatvfs(fd_, &space) == 0 && options.slot_bytes == 0) {
    // A small /dev/shm (64 MiB in a container by default) gets small slots: slower, but it works.
    const uint64_t available = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
    while (slot_bytes > kPage && Layout(options.ranks, slot_bytes).total > available / 2)
      slot_bytes /= 2;
  }
  slot_bytes = std::max(slot_bytes, RoundUp(8 * static_cast<uint64_t>(options.ranks),
                                            kPage));  // a part for each rank
  const Layout layout(options.ranks, slot_bytes);
  Status status;
  if (ftruncate(fd_, static_cast<off_t>(layout.total)) != 0 ||
      fallocate(fd_, 0, 0, static_cast<off_t>(layout.mailboxes)) != 0) {
    status = Error(Code::kSystemError,
                   "no room for %llu bytes in %s: %s; enlarge it (docker run --shm-size=...)",
                   static_cast<unsigned long long>(layout.mailboxes), kDirectory, strerror(errno));
  } else {
    status = Map(layout.total);
  }
  if (status.ok()) {
    header_->version = kVersion;
    header_->ranks = static_cast<uint32_t>(options.ranks);
    header_->slot_bytes = slot_bytes;
    header_->total_bytes = layout.total;
    header_->exact_bytes.store(kMovesEverything, std::memory_order_relaxed);
    header_->magic = kMagic;
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) {
      *created = true;
      return {};
    }
    if (errno != EEXIST && errno != ENOENT) {
      status = Error(Code::kSystemError, "cannot name shared memory %s: %s", path.c_str(),
                     strerror(errno));
    }
  }
  unlink(temporary.c_str());
  if (base_ != nullptr) munmap(base_, bytes_);
  base_ = nullptr;
  close(fd_);
  fd_ = -1;
  return status;
}

Status Segment::Open(const SegmentOptions& options) {
  path_ = std::string(kDirectory) + "/" + Prefix() + options.key;
  for (;;) {
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd_ < 0) {
      if (errno != ENOENT) {
        return Error(Code::kSystemError, "cannot open shared memory %s: %s", path_.c_str(),
                     strerror(errno));
      }
      bool created = false;
      if (Status status = Create(options, path_, &created); !status.ok()) return status;
      if (created) break;
      continue;  // another member was faster
    }
    struct stat status;
    if (hostcuda::LockFileAwake(fd_, LOCK_SH) != 0 || fstat(fd_, &status) != 0) {
      return Error(Code::kSystemError, "cannot lock shared memory %s: %s", path_.c_str(),
                   strerror(errno));
    }
    if (status.st_nlink == 0) {  // swept, or all of its members had come
      close(fd_);
      fd_ = -1;
      continue;
    }
    if (status.st_uid != getuid()) {
      return Error(Code::kSystemError, "shared memory %s belongs to user %u", path_.c_str(),
                   status.st_uid);
    }
    if (Status mapped = Map(static_cast<uint64_t>(status.st_size)); !mapped.ok()) return mapped;
    break;
  }
  rank_ = options.rank;
  if (header_->magic != kMagic || header_->version != kVersion) {
    return Error(Code::kInvalidUsage, "shared memory %s was made by another version of hostnccl",
                 path_.c_str());
  }
  if (header_->ranks != static_cast<uint32_t>(options.ranks)) {
    Status mismatch =
        Error(Code::kInvalidArgument,
              "rank %d joins a communicator of %d ranks, other members one of %u with the same id",
              options.rank, options.ranks, header_->ranks);
    Fail(mismatch);
    return mismatch;
  }
  ranks_ = options.ranks;
  slot_bytes_ = header_->slot_bytes;
  const Layout layout(ranks_, slot_bytes_);
  mailboxes_ = layout.mailboxes;
  steps_ = layout.steps;
  results_ = layout.results;
  messages_ = layout.messages;
  return {};
}

void Segment::Unlink() {
  unlink(path_.c_str());
  flock(fd_, LOCK_UN);
}

void Segment::UnlinkIfLast() {
  // A failed segment stays while a member is there, so that members yet to come learn why.
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) Unlink();
}

Status Segment::CheckDevices() const {
  std::map<std::pair<uint64_t, std::string>, int> owners;
  for (int rank = 0; rank < ranks_; ++rank) {
    const MemberIdentity& identity = members_[rank].identity;
    if (identity.may_share_device || identity.device[0] == 0) continue;
    const auto [owner, inserted] =
        owners.emplace(std::pair(identity.host, std::string(identity.device)), rank);
    if (!inserted) {
      return Error(Code::kInvalidUsage,
                   "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s; give each "
                   "rank of a host its own device, "
                   "set NCCL_HOSTID where one machine plays several hosts, or "
                   "HOSTNCCL_ALLOW_DUPLICATE_DEVICE=1",
                   rank, owner->second, identity.device);
    }
  }
  return {};
}

Status Segment::CheckTopologies() const {
  for (int rank = 1; rank < ranks_; ++rank) {
    if (members_[rank].identity.topology == members_[0].identity.topology) continue;
    return Error(Code::kInvalidUsage,
                 "%s and %s have different topologies; give all ranks the same HOSTNCCL_TOPOLOGY",
                 NameOf(0).c_str(), NameOf(rank).c_str());
  }
  return {};
}

Status Segment::Enter(const SegmentOptions& options, const std::atomic<bool>& cancelled) {
  Member& me = self();
  uint32_t absent = 0;
  if (!me.joined.compare_exchange_strong(absent, 1)) {
    Status twice =
        Error(Code::kInvalidUsage, "rank %d joined the communicator twice: processes %d and %d",
              rank_, me.pid, getpid());
    Fail(twice);
    return twice;
  }
  me.pid = getpid();
  me.process_start = ProcessStart(getpid());
  me.pid_namespace = PidNamespace();
  me.identity = options.self;
  me.exact_bytes = options.exact_bytes;
  uint64_t least = header_->exact_bytes.load();
  while (options.exact_bytes < least &&
         !header_->exact_bytes.compare_exchange_weak(least, options.exact_bytes)) {
  }
  me.joined.store(2, std::memory_order_release);
  if (header_->joined.fetch_add(1, std::memory_order_acq_rel) + 1 == header_->ranks) {
    Unlink();
    Status unfit = CheckDevices();
    if (unfit.ok()) unfit = CheckTopologies();
    if (!unfit.ok()) {
      Fail(unfit);
      return unfit;
    }
    // Ready only if nothing failed before: whoever sees the mark has joined, whatever a member does
    // afterwards.
    uint32_t undecided = 0;
    if (!header_->ready.compare_exchange_strong(undecided, kReady)) return Failure();
    FutexWakeAll(header_->ready);
    return {};
  }
  bool reported = false;
  for (int seconds = 1;; ++seconds) {
    const uint32_t ready = header_->ready.load(std::memory_order_acquire);
    if ((ready & kReady) != 0) break;
    if (Status failure = Failure(); !failure.ok()) return failure;
    if (cancelled.load(std::memory_order_relaxed)) {
      Status gone =
          Error(Code::kRemoteError, "%s gave up while the communicator was being initialized",
                NameOf(rank_).c_str());
      Fail(gone);
      return gone;
    }
    FutexWait(header_->ready, ready, kSecond);
    for (int rank = 0; rank < ranks_; ++rank) {
      const Member& other = members_[rank];
      if (other.joined.load(std::memory_order_acquire) != 2 || rank == rank_) continue;
      if (ranks_ > 2 * kLivenessSample &&
          (rank + seconds + rank_) % (ranks_ / kLivenessSample) != 0)
        continue;
      if (!Alive(other)) {
        // Looked at after its end: a member of a complete communicator may leave when it likes.
        if ((header_->ready.load(std::memory_order_acquire) & kReady) != 0) break;
        Status gone =
            Error(Code::kRemoteError, "%s ended while the communicator was being initialized",
                  NameOf(rank).c_str());
        Fail(gone);
      }
    }
    if (!reported && seconds >= options.report_after_s && header_->ready.load() == 0) {
      reported = true;
      std::string absent_ranks;
      int count = 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        if (members_[rank].joined.load() == 2) continue;
        if (++count <= 16) absent_ranks += " " + std::to_string(rank);
      }
      fprintf(stderr,
              "hostnccl: rank %d has waited %d s for %d of %d ranks to initialize the "
              "communicator:%s%s\n",
              rank_, seconds, count, ranks_, absent_ranks.c_str(), count > 16 ? " ..." : "");
    }
  }
  return {};
}

Status Segment::Join(const SegmentOptions& options, const std::atomic<bool>& cancelled,
                     std::unique_ptr<Segment>* out) {
  std::unique_ptr<Segment> segment(new Segment);
  Status status = segment->Open(options);
  if (status.ok()) status = segment->Enter(options, cancelled);
  if (!status.ok()) {
    if (segment->fd_ >= 0) segment->UnlinkIfLast();
    return status;
  }
  *out = std::move(segment);
  return {};
}

Status Segment::Back(const void* begin, uint64_t bytes) {
  if (bytes == 0) return {};
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(begin) - base_);
  const uint64_t last = (offset + bytes - 1) / kBackingBytes;
  for (uint64_t unit = offset / kBackingBytes; unit <= last; ++unit) {
    if (backed_[unit]) continue;
    uint64_t end = unit;
    while (end <= last && !backed_[end]) backed_[end++] = true;
    const uint64_t from = unit * kBackingBytes;
    const uint64_t length = std::min(end * kBackingBytes, bytes_) - from;
    while (fallocate(fd_, 0, static_cast<off_t>(from), static_cast<off_t>(length)) != 0) {
      if (errno == EINTR) continue;
      return Error(Code::kSystemError,
                   "no room in %s for the data of a communicator of %d ranks: %s; enlarge it "
                   "(docker run --shm-size=...) or "
                   "set HOSTNCCL_SLOT_BYTES below %llu",
                   kDirectory, ranks_, strerror(errno),
                   static_cast<unsigned long long>(slot_bytes_));
    }
    unit = end - 1;
  }
  return {};
}

bool Segment::Fail(const Status& failure) {
  uint32_t none = 0;
  const bool first = header_->failed.compare_exchange_strong(none, 1);
  if (first) {
    header_->failure_code = static_cast<uint32_t>(failure.code);
    snprintf(header_->failure_text, sizeof header_->failure_text, "%s", failure.message.c_str());
    header_->failed.store(2, std::memory_order_seq_cst);
  }
  header_->ready.fetch_or(kFailed);
  header_->split_word.fetch_add(1);
  FutexWakeAll(header_->ready);
  FutexWakeAll(header_->split_word);
  return first;
}

Status Segment::Failure() const {
  if (header_->failed.load(std::memory_order_acquire) != 2) return {};
  return Status{static_cast<Code>(header_->failure_code), header_->failure_text};
}

void Segment::Depart(int rank, Departure how) {
  if (rank == rank_ && getpid() != members_[rank].pid) return;
  uint32_t none = 0;
  if (members_[rank].departure.compare_exchange_strong(none, static_cast<uint32_t>(how)))
    header_->departed.fetch_add(1);
}

bool Segment::Alive(const Member& member) const {
  return member.pid_namespace != members_[rank_].pid_namespace ||
         ProcessAlive(member.pid, member.process_start);
}

bool Segment::CheckLiveness() {
  bool found = false;
  const int others = ranks_ - 1;
  const int sample = ranks_ <= 2 * kLivenessSample ? others : kLivenessSample;
  for (int i = 0; i < sample; ++i) {
    // Every waiting rank looks at other ones, so that together they soon have looked at all.
    const int rank = static_cast<int>(
        (rank_ + 1 + (liveness_round_ * static_cast<uint32_t>(sample) + i) % others) % ranks_);
    const Member& other = members_[rank];
    if (other.departure.load(std::memory_order_relaxed) != 0 || Alive(other)) continue;
    Depart(rank, Departure::kDied);
    found = true;
  }
  ++liveness_round_;
  return found;
}

std::string Segment::NameOf(int rank) const {
  return "rank " + std::to_string(rank) + " (process " + std::to_string(members_[rank].pid) + ")";
}

}  // namespace hostnccl
