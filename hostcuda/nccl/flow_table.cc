#include "hostcuda/nccl/flow_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "hostcuda/clock/shared_mutex.h"

namespace hostnccl {
namespace {

constexpr uint32_t kMaxFlows = 1u << 16;
constexpr uint32_t kMaxUses = 1u << 20;      // of a link by a flow
constexpr uint32_t kReservedAtOnce = 1024;   // in the file, of flows or uses
constexpr uint32_t kWorkUnits = 1u << 16;    // of a nanosecond
constexpr uint64_t kMagic = 0x31736b6e696c;  // "links1"

// Indices are one more than their entries', so that zero-filled memory is an empty table.
struct Link {
  uint64_t load;  // sum of the shares
  uint32_t first;
};

struct Use {
  uint32_t flow, link, share;
  uint32_t next_of_flow;
  uint32_t next_on_link, previous_on_link;  // or the next that is free
};

struct Flow {
  std::atomic<uint64_t> number;  // 0: none; set last, cleared first
  std::atomic<uint64_t> ends_ns;
  // At `since_ns` so much of the time that it takes alone was left, and it went on `stretch` /
  // kWholeLink times as long; from `changed_ns` on with `next_stretch`.
  uint64_t since_ns, work, stretch, changed_ns, next_stretch;
  uint32_t event, first;

  uint64_t WorkAt(uint64_t now_ns) const {
    // On the wall clock another process may have looked at it later and come first.
    const uint64_t passed_ns = now_ns - std::min(now_ns, since_ns);
    const auto done =
        (static_cast<unsigned __int128>(passed_ns) * kWorkUnits * kWholeLink) / stretch;
    return done >= work ? 0 : work - static_cast<uint64_t>(done);
  }
  static uint64_t EndNs(uint64_t since_ns, uint64_t work, uint64_t stretch) {
    constexpr auto kUnit = static_cast<unsigned __int128>(kWorkUnits) * kWholeLink;
    return since_ns + static_cast<uint64_t>(
                          (static_cast<unsigned __int128>(work) * stretch + kUnit - 1) / kUnit);
  }
};

}  // namespace

struct FlowSegment {
  uint64_t magic;
  pthread_mutex_t mutex;  // process-shared, robust
  uint64_t begun;
  uint32_t flows_end, lowest_free_flow;
  uint32_t uses_end, free_use;
  Link links[kMaxLinks];
  Flow flows[kMaxFlows];
  Use uses[kMaxUses];
};

namespace {

void Initialize(FlowSegment* segment) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&segment->mutex, &attributes);
  segment->magic = kMagic;
}

FlowSegment* MapTable(int flags, int fd) {
  void* address =
      mmap(nullptr, sizeof(FlowSegment), PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  return address == MAP_FAILED ? nullptr : static_cast<FlowSegment*>(address);
}

}  // namespace

FlowTable::FlowTable(FlowSegment* segment, int fd, std::string path, SetEvent set_event)
    : segment_(segment), fd_(fd), path_(std::move(path)), set_event_(set_event), pid_(getpid()) {}

FlowTable::~FlowTable() {
  RemoveIfLast();
  munmap(segment_, sizeof(FlowSegment));
  if (fd_ >= 0) close(fd_);
}

void FlowTable::RemoveIfLast() {
  if (fd_ >= 0 && getpid() == pid_ && flock(fd_, LOCK_EX | LOCK_NB) == 0) unlink(path_.c_str());
}

std::unique_ptr<FlowTable> FlowTable::ForTesting(SetEvent set_event) {
  FlowSegment* segment = MapTable(MAP_SHARED | MAP_ANONYMOUS, -1);
  Initialize(segment);
  return std::unique_ptr<FlowTable>(new FlowTable(segment, -1, "", set_event));
}

std::unique_ptr<FlowTable> FlowTable::Open(const std::string& session, SetEvent set_event,
                                           std::string* error) {
  char layout[32];
  snprintf(layout, sizeof layout, "-%zx", sizeof(FlowSegment));
  const std::string path =
      "/dev/shm/hostnccl-" + std::to_string(getuid()) + "-flows-" + session + layout;
  const auto fail = [&](const char* what, int fd) {
    *error = std::string(what) + " " + path + ": " + strerror(errno) +
             "; the virtual clock needs a writable /dev/shm with some space";
    if (fd >= 0) close(fd);
    return nullptr;
  };
  for (;;) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return fail("cannot open", fd);
    // Who finds nobody else there begins anew: the flows of a job that was killed mean nothing.
    const bool alone = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!alone && hostcuda::LockFileAwake(fd, LOCK_SH) != 0) return fail("cannot lock", fd);
    struct stat status;
    if (fstat(fd, &status) != 0) return fail("cannot look at", fd);
    if (status.st_nlink == 0) {  // removed by the last process of the session, or swept
      close(fd);
      continue;
    }
    if (alone && (ftruncate(fd, 0) != 0 || ftruncate(fd, sizeof(FlowSegment)) != 0 ||
                  fallocate(fd, 0, 0, offsetof(FlowSegment, flows)) != 0)) {
      return fail("no room for", fd);
    }
    FlowSegment* segment = MapTable(MAP_SHARED, fd);
    if (segment == nullptr) return fail("cannot map", fd);
    if (alone) Initialize(segment);
    // Another process may come in between and begin anew, too: nobody has used the table yet.
    if (alone) hostcuda::LockFileAwake(fd, LOCK_SH);
    if (segment->magic != kMagic) {
      munmap(segment, sizeof(FlowSegment));
      close(fd);
      continue;
    }
    return std::unique_ptr<FlowTable>(new FlowTable(segment, fd, path, set_event));
  }
}

void FlowTable::Lock(uint64_t now_ns) {
  if (hostcuda::LockAwake(&segment_->mutex) != EOWNERDEAD) return;
  Rebuild(now_ns);
  pthread_mutex_consistent(&segment_->mutex);
}

void FlowTable::Unlock() { pthread_mutex_unlock(&segment_->mutex); }

void FlowTable::PutOnLinks(uint32_t flow) {
  FlowSegment& s = *segment_;
  for (uint32_t use = s.flows[flow].first; use != 0; use = s.uses[use - 1].next_of_flow) {
    Use& entry = s.uses[use - 1];
    Link& link = s.links[entry.link];
    entry.previous_on_link = 0;
    entry.next_on_link = link.first;
    if (link.first != 0) s.uses[link.first - 1].previous_on_link = use;
    link.first = use;
    link.load += entry.share;
  }
}

// After its owner was killed within: flows that have a number are whole, but for the lists.
void FlowTable::Rebuild(uint64_t now_ns) {
  FlowSegment& s = *segment_;
  memset(s.links, 0, sizeof s.links);
  std::vector<bool> used(s.uses_end);
  s.lowest_free_flow = 0;
  for (uint32_t flow = 0; flow < s.flows_end; ++flow) {
    if (s.flows[flow].number.load() == 0) continue;
    for (uint32_t use = s.flows[flow].first; use != 0; use = s.uses[use - 1].next_of_flow)
      used[use - 1] = true;
    PutOnLinks(flow);
  }
  s.free_use = 0;
  for (uint32_t use = s.uses_end; use > 0; --use) {
    if (used[use - 1]) continue;
    s.uses[use - 1].next_on_link = s.free_use;
    s.free_use = use;
  }
  for (uint32_t flow = 0; flow < s.flows_end; ++flow) {
    if (s.flows[flow].number.load() != 0 && s.flows[flow].ends_ns.load() > now_ns)
      Reschedule(now_ns, flow);
  }
}

/// Has memory for entry `index` of a table that begins at `offset`, before its first use; false
/// where /dev/shm has none.
bool FlowTable::Reserve(size_t offset, size_t bytes, uint32_t index) {
  return fd_ < 0 || index % kReservedAtOnce != 0 ||
         fallocate(fd_, 0, static_cast<off_t>(offset + index * bytes),
                   static_cast<off_t>(kReservedAtOnce * bytes)) == 0;
}

/// Returns a use that is free, one more than its index; 0 where there is none.
uint32_t FlowTable::NewUse() {
  FlowSegment& s = *segment_;
  if (s.free_use != 0) {
    const uint32_t use = s.free_use;
    s.free_use = s.uses[use - 1].next_on_link;
    return use;
  }
  if (s.uses_end == kMaxUses) return 0;
  if (!Reserve(offsetof(FlowSegment, uses), sizeof(Use), s.uses_end)) return 0;
  return ++s.uses_end;
}

void FlowTable::FreeUses(uint32_t first) {
  FlowSegment& s = *segment_;
  for (uint32_t use = first; use != 0;) {
    Use& entry = s.uses[use - 1];
    entry.next_on_link = s.free_use;
    s.free_use = use;
    use = entry.next_of_flow;
  }
}

uint64_t FlowTable::Begin(uint64_t now_ns, double alone_ns, const std::vector<LinkShare>& shares,
                          uint32_t event) {
  FlowSegment& s = *segment_;
  Lock(now_ns);
  uint32_t flow = s.lowest_free_flow;
  while (flow < s.flows_end && s.flows[flow].number.load(std::memory_order_relaxed) != 0) ++flow;
  bool fits = flow < kMaxFlows &&
              (flow < s.flows_end || Reserve(offsetof(FlowSegment, flows), sizeof(Flow), flow));
  uint32_t first = 0;
  for (auto share = shares.rbegin(); fits && share != shares.rend(); ++share) {
    const uint32_t use = NewUse();
    fits = use != 0;
    if (!fits) break;
    s.uses[use - 1] = {flow, share->link, share->share, first, 0, 0};
    first = use;
  }
  if (!fits) {
    FreeUses(first);
    Unlock();
    return 0;
  }
  s.lowest_free_flow = flow + 1;
  s.flows_end = std::max(s.flows_end, flow + 1);
  Flow& entry = s.flows[flow];
  entry.first = first;
  entry.event = event;
  entry.since_ns = entry.changed_ns = now_ns;
  entry.work = static_cast<uint64_t>(std::llround(alone_ns * kWorkUnits));
  entry.stretch = entry.next_stretch = kWholeLink;
  entry.ends_ns.store(Flow::EndNs(now_ns, entry.work, kWholeLink));
  const uint64_t number = ++s.begun * kMaxFlows + flow;
  entry.number.store(number);
  PutOnLinks(flow);
  set_event_(event, entry.ends_ns.load());
  std::vector<uint32_t> crowded;
  for (const LinkShare& share : shares) {
    if (s.links[share.link].load > kWholeLink) crowded.push_back(share.link);
  }
  SpeedsChange(now_ns, std::move(crowded));
  Unlock();
  return number;
}

uint64_t FlowTable::EndOf(uint64_t flow) const {
  const Flow& entry = segment_->flows[flow % kMaxFlows];
  const uint64_t ends_ns = entry.ends_ns.load();
  return flow != 0 && entry.number.load() == flow ? ends_ns : 0;
}

void FlowTable::End(uint64_t now_ns, uint64_t flow) {
  if (EndOf(flow) == 0) return;
  Lock(now_ns);
  if (EndOf(flow) != 0) {
    std::vector<uint32_t> crowded;
    Remove(flow % kMaxFlows, &crowded);
    SpeedsChange(now_ns, std::move(crowded));
  }
  Unlock();
}

void FlowTable::Remove(uint32_t flow, std::vector<uint32_t>* crowded) {
  FlowSegment& s = *segment_;
  s.flows[flow].number.store(0);
  for (uint32_t use = s.flows[flow].first; use != 0; use = s.uses[use - 1].next_of_flow) {
    const Use& entry = s.uses[use - 1];
    Link& link = s.links[entry.link];
    if (link.load > kWholeLink) crowded->push_back(entry.link);
    link.load -= entry.share;
    if (entry.next_on_link != 0)
      s.uses[entry.next_on_link - 1].previous_on_link = entry.previous_on_link;
    (entry.previous_on_link != 0 ? s.uses[entry.previous_on_link - 1].next_on_link : link.first) =
        entry.next_on_link;
  }
  FreeUses(s.flows[flow].first);
  s.lowest_free_flow = std::min(s.lowest_free_flow, flow);
}

void FlowTable::SpeedsChange(uint64_t now_ns, std::vector<uint32_t> crowded) {
  FlowSegment& s = *segment_;
  std::vector<uint32_t> met;
  while (!crowded.empty()) {
    const uint32_t link = crowded.back();
    crowded.pop_back();
    for (uint32_t use = s.links[link].first; use != 0;) {
      const uint32_t flow = s.uses[use - 1].flow;
      use = s.uses[use - 1].next_on_link;
      if (s.flows[flow].ends_ns.load(std::memory_order_relaxed) > now_ns) {
        met.push_back(flow);
      } else {
        Remove(flow, &crowded);
      }
    }
  }
  std::sort(met.begin(), met.end());
  met.erase(std::unique(met.begin(), met.end()), met.end());
  for (const uint32_t flow : met) Reschedule(now_ns, flow);
}

void FlowTable::Reschedule(uint64_t now_ns, uint32_t flow) {
  FlowSegment& s = *segment_;
  Flow& entry = s.flows[flow];
  uint64_t stretch = kWholeLink;
  for (uint32_t use = entry.first; use != 0; use = s.uses[use - 1].next_of_flow)
    stretch = std::max(stretch, s.links[s.uses[use - 1].link].load);
  if (now_ns > entry.changed_ns) {
    // What was decided last at that time is what has held since.
    if (entry.next_stretch != entry.stretch) {
      entry.work = entry.WorkAt(entry.changed_ns);
      entry.since_ns = entry.changed_ns;
      entry.stretch = entry.next_stretch;
    }
    entry.changed_ns = now_ns;
  }
  if (stretch == entry.next_stretch) return;
  entry.next_stretch = stretch;
  entry.ends_ns.store(stretch == entry.stretch
                          ? Flow::EndNs(entry.since_ns, entry.work, stretch)
                          : Flow::EndNs(now_ns, entry.WorkAt(now_ns), stretch));
  set_event_(entry.event, entry.ends_ns.load());
}

}  // namespace hostnccl
