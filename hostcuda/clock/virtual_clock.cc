#include "hostcuda/clock/virtual_clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>

#include "hostcuda/clock/proc_state.h"

namespace hostcuda {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kAsleep = uint64_t{1} << 32;  // in Thread::asleep_at, above the value of `wake`
// How often the leader looks whether the clock stands, at first and at most.
constexpr uint64_t kFirstPeriodNs = 500'000;
constexpr uint64_t kLastPeriodNs = 10'000'000;
// It looks for one part in so many of its time.
constexpr uint64_t kLooksOneIn = 16;
// How long a wait that another process may end must have lasted.
constexpr uint64_t kSettledNs = 2'000'000;

uint64_t WallNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecondNs + static_cast<uint64_t>(now.tv_nsec);
}

/// Sleeps while `word` holds `seen`; may return early.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t seen, uint64_t timeout_ns = kNever) {
  const timespec timeout = {static_cast<time_t>(timeout_ns / kSecondNs),
                            static_cast<long>(timeout_ns % kSecondNs)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, timeout_ns == kNever ? nullptr : &timeout, nullptr,
          0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Trivially destroyed: a thread's exit is told by the destructor of a key, which exit() does not
// run for the thread that ends the process.
thread_local void* t_thread = nullptr;

// In a child made by fork: the segment is the parent's.
std::atomic<bool> forked{false};

}  // namespace

void InitializeClockSegment(ClockSegment* segment) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&segment->mutex, &attributes);
  segment->now_ns.store(VirtualClock::kStartNs, std::memory_order_relaxed);
}

uint32_t TakeEvent(ClockSegment* segment, uint32_t owner, uint32_t target) {
  ClockSegment& s = *segment;
  uint32_t place = 0;
  while (place < s.events_end && s.event_owner[place] != 0) ++place;
  if (place == kMaxClockEvents) return kNoEvent;
  uint32_t event = s.event_number[place] / kMaxClockEvents * kMaxClockEvents + place;
  if (event == kNoEvent) event = place;
  s.event_number[place] = event;
  s.event_ns[place] = kNever;
  s.event_target[place] = target;
  s.event_word[place].store(0);
  s.event_owner[place] = owner + 1;
  s.events_end = std::max(s.events_end, place + 1);
  return event;
}

bool IsEvent(const ClockSegment& segment, uint32_t event) {
  const uint32_t place = event % kMaxClockEvents;
  return event != kNoEvent && segment.event_owner[place] != 0 &&
         segment.event_number[place] == event;
}

void ForgetEvent(ClockSegment* segment, uint32_t place) {
  segment->event_owner[place] = 0;
  segment->event_ns[place] = kNever;
  segment->event_number[place] += kMaxClockEvents;
}

void ForgetEventsOf(ClockSegment* segment, uint32_t owner) {
  for (uint32_t place = 0; place < segment->events_end; ++place) {
    if (segment->event_owner[place] == owner + 1) ForgetEvent(segment, place);
  }
}

VirtualClock::VirtualClock(JobPlace place, uint64_t report_after_ns)
    : place_(place), report_after_ns_(report_after_ns) {}

uint64_t VirtualClock::NowNs() const {
  if (left_.load(std::memory_order_relaxed)) return INT64_MAX;
  return segment_ == nullptr ? kStartNs : segment_->now_ns.load(std::memory_order_acquire);
}

bool VirtualClock::HadTurn(uint64_t turn_ns) const {
  return !alive() || self_->turn_had_ns.load(std::memory_order_acquire) >= turn_ns;
}

bool VirtualClock::alive() const {
  return segment_ != nullptr && !left_.load(std::memory_order_relaxed) &&
         !forked.load(std::memory_order_relaxed);
}

// ---- the lock

void VirtualClock::Lock() {
  // A thread that waits for the lock is asleep in a futex that other processes wake, but not of its
  // own will.
  auto* const self = static_cast<Thread*>(t_thread);
  if (self != nullptr) self->locking.store(true);
  const int result = pthread_mutex_lock(&segment_->mutex);
  if (self != nullptr) self->locking.store(false);
  if (result != EOWNERDEAD) return;
  // Its owner was killed. What it may have left half done: waking a member, and the sum. Deadlines
  // that have passed without firing fire at the clock's next move.
  ClockSegment& s = *segment_;
  if (s.waking != 0) {
    ClockMember& member = s.members[s.waking - 1];
    member.outside = s.waking_outside;
    member.waiting = 0;
    member.blocked.store(0);
    member.wake.fetch_add(1);
    FutexWakeAll(member.wake);
    s.deadline_ns[s.waking - 1] = s.turn_ns[s.waking - 1] = kNever;
    s.waking = 0;
  }
  s.active = 0;
  for (uint32_t i = 0; i < s.members_end; ++i) {
    if (s.members[i].pid != 0 && s.members[i].blocked.load() == 0) ++s.active;
  }
  pthread_mutex_consistent(&s.mutex);
}

void VirtualClock::Unlock(Wakes& wakes) {
  pthread_mutex_unlock(&segment_->mutex);
  for (const Wakes::Woken& woken : wakes.members) {
    // A thread that wakes itself is not asleep yet.
    if (wakes.by_sleeper && woken.index == index_ && woken.threads == 1) continue;
    FutexWakeAll(segment_->members[woken.index].wake);
  }
  wakes.members.clear();
}

// ---- with the lock held

void VirtualClock::Unblock(uint32_t index) {
  ClockMember& member = segment_->members[index];
  if (member.blocked.load(std::memory_order_relaxed) == 0) return;
  member.blocked.store(0);
  member.waits_outside = false;
  ++segment_->active;
}

void VirtualClock::WakeMember(uint32_t index, Wakes& wakes) {
  ClockSegment& s = *segment_;
  ClockMember& member = s.members[index];
  if (member.waiting == 0) {
    member.rung = true;
    return;
  }
  s.waking_outside = member.outside + static_cast<int32_t>(member.waiting);
  s.waking = index + 1;
  wakes.members.push_back({index, member.waiting});
  member.outside = s.waking_outside;
  member.waiting = 0;
  member.polls_words = false;
  s.deadline_ns[index] = s.turn_ns[index] = kNever;
  Unblock(index);
  member.wake.fetch_add(1, std::memory_order_release);
  s.waking = 0;
}

void VirtualClock::Fire(uint32_t place, Wakes& wakes) {
  ClockSegment& s = *segment_;
  s.event_ns[place] = kNever;
  s.event_word[place].fetch_add(1, std::memory_order_release);
  if (s.members[s.event_target[place]].pid != 0) WakeMember(s.event_target[place], wakes);
}

void VirtualClock::Block(uint32_t index, Wakes& wakes) {
  ClockSegment& s = *segment_;
  ClockMember& member = s.members[index];
  member.blocked.store(1);
  --s.active;
  const uint32_t stamp = member.stamp.load(), activity = s.activity.load();
  const bool up_to_date = member.looked == activity;
  if (stamp != member.stamp_seen) {
    member.stamp_seen = stamp;
    member.relooking = false;
    s.activity.store(activity + 1);
    // What it did itself it need not look for; but threads outside may have stored to words after
    // those inside had looked.
    if (up_to_date) member.looked = activity + 1;
  }
  if (member.outside > 0 && !member.relooking) member.looked = s.activity.load() - 1;
  member.relooking = false;
  if (s.active == 0) Advance(wakes);
}

void VirtualClock::Advance(Wakes& wakes) {
  ClockSegment& s = *segment_;
  while (s.active == 0 && s.joined >= s.expected) {
    // Others have run since these looked at words that nobody rings for.
    if (s.polls_words) {
      const uint32_t activity = s.activity.load(std::memory_order_relaxed);
      s.polls_words = false;
      for (uint32_t i = 0; i < s.members_end; ++i) {
        ClockMember& member = s.members[i];
        if (member.pid == 0 || !member.polls_words) continue;
        s.polls_words = true;
        if (member.looked == activity) continue;
        member.relooking = true;
        WakeMember(i, wakes);
      }
    }
    if (s.active != 0) return;
    uint64_t next = kNever, turn = kNever;
    uint32_t first = 0;
    for (uint32_t i = 0; i < s.members_end; ++i) {
      next = std::min(next, s.deadline_ns[i]);
      if (s.turn_ns[i] < turn ||
          (s.turn_ns[i] == turn && turn != kNever && s.members[i].rank < s.members[first].rank)) {
        turn = s.turn_ns[i];
        first = i;
      }
    }
    for (uint32_t i = 0; i < s.events_end; ++i) next = std::min(next, s.event_ns[i]);
    if (next == kNever && turn == kNever) return;
    const uint64_t now = std::max(std::min(next, turn), s.now_ns.load(std::memory_order_relaxed));
    s.now_ns.store(now, std::memory_order_release);
    if (next <= turn) {
      for (uint32_t i = 0; i < s.events_end; ++i) {
        if (s.event_ns[i] <= now) Fire(i, wakes);
      }
      for (uint32_t i = 0; i < s.members_end; ++i) {
        if (s.deadline_ns[i] <= now) WakeMember(i, wakes);
      }
    } else {
      s.members[first].turn_had_ns.store(turn, std::memory_order_release);
      WakeMember(first, wakes);
    }
    if (!s.waits_outside) continue;
    // What has been woken may end their waits: they have to be looked at again.
    s.waits_outside = false;
    for (uint32_t i = 0; i < s.members_end; ++i) {
      if (s.members[i].pid != 0 && s.members[i].waits_outside) Unblock(i);
    }
  }
}

void VirtualClock::Remove(uint32_t index, Wakes& wakes) {
  ClockSegment& s = *segment_;
  ClockMember& member = s.members[index];
  if (member.blocked.load() == 0) --s.active;
  s.activity.fetch_add(1);  // it may have stored to a word before it ended
  member.pid = 0;
  member.blocked.store(0);
  member.waiting = 0;
  member.outside = 0;
  member.polls_words = member.waits_outside = member.relooking = member.rung = false;
  s.deadline_ns[index] = s.turn_ns[index] = kNever;
  ForgetEventsOf(&s, index);
  uint32_t leader = index + 1;
  s.leader.compare_exchange_strong(leader, 0);
  if (s.active == 0) Advance(wakes);
}

// ---- joining and leaving

void VirtualClock::Join(ClockSegment* segment, uint32_t index) {
  segment_ = segment;
  index_ = index;
  self_ = &segment->members[index];
  pid_ = getpid();
  pthread_key_create(&thread_key_, [](void* thread) {
    auto* own = static_cast<Thread*>(thread);
    own->clock->Forget(own);
  });
  pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
}

void VirtualClock::Enter() {
  const uint32_t index = index_;
  ClockSegment& s = *segment_;
  Wakes wakes;
  Lock();
  while (s.members_end <= index) {
    s.deadline_ns[s.members_end] = s.turn_ns[s.members_end] = kNever;
    ++s.members_end;
  }
  // Who was here before is dead; who has this process's number is it, before it called exec.
  for (uint32_t i = 0; i < s.members_end; ++i) {
    if (s.members[i].pid != 0 && (i == index || s.members[i].pid == pid_)) {
      ++s.active;  // stands for this process meanwhile: the clock must not move
      Remove(i, wakes);
      --s.active;
    }
  }
  self_->pid = pid_;
  self_->start_time = ProcessStartTime(pid_);
  self_->rank = place_.rank >= 0 ? static_cast<uint32_t>(place_.rank) : index;
  self_->turn_had_ns.store(0);
  ++s.active;
  s.expected = std::max(s.expected, static_cast<uint32_t>(place_.processes));
  const bool counts = place_.rank >= 0 || place_.processes > 0;  // among those that are expected
  if (counts && self_->rank < kMaxClockMembers) {
    uint64_t& ranks = s.ranks_joined[self_->rank / 64];
    const uint64_t bit = uint64_t{1} << (self_->rank % 64);
    if ((ranks & bit) == 0) ++s.joined;
    ranks |= bit;
  }
  entered_.store(true);
  Unlock(wakes);
  self_->watch.fetch_add(1);  // its watcher begins
  FutexWakeAll(self_->watch);
}

void VirtualClock::Leave() {
  if (!alive()) return;
  left_.store(true, std::memory_order_relaxed);
  if (!entered_.load()) return;
  Wakes wakes;
  Lock();
  Remove(index_, wakes);
  // Another watcher takes over at once.
  if (segment_->leader.load() == 0) {
    for (uint32_t i = 0; i < segment_->members_end; ++i) {
      if (segment_->members[i].pid == 0) continue;
      segment_->members[i].watch.fetch_add(1);
      FutexWakeAll(segment_->members[i].watch);
      FutexWakeAll(segment_->members[i].wake);  // where its watcher stands in
      break;
    }
  }
  Unlock(wakes);
}

// ---- threads

VirtualClock::Thread* VirtualClock::Self() {
  if (t_thread != nullptr) return static_cast<Thread*>(t_thread);
  auto owned = std::make_unique<Thread>();
  Thread* const thread = owned.get();
  thread->tid = ThreadId();
  thread->clock = this;
  {
    std::lock_guard<std::mutex> lock(threads_mutex_);
    if (threads_.empty() && !entered_.load()) Enter();
    threads_.push_back(std::move(owned));
  }
  t_thread = thread;
  pthread_setspecific(thread_key_, thread);
  Wakes wakes;
  Lock();
  ++self_->outside;
  Unblock(index_);
  Unlock(wakes);
  return thread;
}

void VirtualClock::Forget(Thread* thread) {
  if (!alive()) return;
  t_thread = nullptr;
  pthread_setspecific(thread_key_, nullptr);
  Wakes wakes;
  Lock();
  --self_->outside;
  if (self_->outside == 0 && self_->waiting > 0 && self_->blocked.load() == 0) Block(index_, wakes);
  Unlock(wakes);
  std::lock_guard<std::mutex> lock(threads_mutex_);
  std::erase_if(threads_, [&](const auto& t) { return t.get() == thread; });
}

void VirtualClock::Touch() {
  if (!alive()) return;
  Self();
  self_->stamp.fetch_add(1);
  if (self_->blocked.load() == 0) return;
  Wakes wakes;
  Lock();
  Unblock(index_);
  Unlock(wakes);
}

void VirtualClock::Hold(int change) {
  if (!alive()) return;
  Touch();
  Self()->holds.fetch_add(change);
}

void VirtualClock::Wait(const ClockWait& wait) {
  if (!alive()) {
    FutexWait(*wait.bell, wait.seen, kFirstPeriodNs);
    return;
  }
  Thread* const self = Self();
  Wakes wakes;
  Lock();
  const uint64_t now = segment_->now_ns.load(std::memory_order_relaxed);
  if (wait.bell->load() != wait.seen || self_->rung || wait.deadline_ns <= now ||
      (wait.turn_ns != kNever && HadTurn(wait.turn_ns))) {
    self_->rung = false;
    Unlock(wakes);
    return;
  }
  uint64_t& deadline = segment_->deadline_ns[index_];
  uint64_t& turn = segment_->turn_ns[index_];
  deadline = std::min(deadline, wait.deadline_ns);
  turn = std::min(turn, wait.turn_ns);
  if (wait.polls_words) {
    // The oldest look of its threads counts.
    if (!self_->polls_words || static_cast<int32_t>(wait.looked - self_->looked) < 0)
      self_->looked = wait.looked;
    self_->polls_words = segment_->polls_words = true;
  }
  const uint32_t wake = self_->wake.load(std::memory_order_relaxed);
  self->asleep_at.store(kAsleep | wake);
  ++self_->waiting;
  const bool others = --self_->outside > 0;
  wakes.by_sleeper = true;
  Unblock(index_);
  if (!others) Block(index_, wakes);
  Unlock(wakes);
  if (others) BlockIfOthersSleep(*self, wake);
  const bool tends = self->tid == watcher_tid_.load(std::memory_order_relaxed);
  while (self_->wake.load(std::memory_order_acquire) == wake)
    FutexWait(self_->wake, wake, tends ? Tend() : kNever);
  self->asleep_at.store(0);
}

uint32_t VirtualClock::Activity() const { return alive() ? segment_->activity.load() : 0; }

void VirtualClock::Wake(uint32_t index) {
  if (!alive() || index >= kMaxClockMembers) return;
  Wakes wakes;
  Lock();
  if (segment_->members[index].pid != 0) WakeMember(index, wakes);
  Unlock(wakes);
}

// ---- threads outside

VirtualClock::Others VirtualClock::LookAtOthers(const Thread* self) {
  std::lock_guard<std::mutex> lock(threads_mutex_);
  const uint64_t asleep = kAsleep | self_->wake.load();
  Others found = Others::kWaitInside;
  bool any = false;
  for (const auto& thread : threads_) {
    if (thread.get() == self) continue;
    const uint64_t asleep_at = thread->asleep_at.load();
    if (asleep_at == asleep) continue;
    // One that has been woken in Wait still sleeps in its futex while its waker is preempted.
    if (asleep_at != 0 || thread->locking.load() || thread->holds.load() > 0) return Others::kRun;
    switch (ProcStateOf(pid_, thread->tid)) {
      case ProcState::kRuns:
        return Others::kRun;
      case ProcState::kWaitsOutside:
        found = Others::kWaitOutside;
        break;
      case ProcState::kWaitsInside:
      case ProcState::kGone:
        break;
    }
    any = true;
  }
  if (!any) return found;
  // They may wait for a thread that has not used CUDA yet.
  const pid_t own = ThreadId();
  for (const pid_t tid : ThreadsOf(pid_)) {
    const bool known = tid == own || tid == watcher_tid_.load() ||
                       std::any_of(threads_.begin(), threads_.end(),
                                   [&](const auto& thread) { return thread->tid == tid; });
    if (!known && ThreadRuns(pid_, tid)) return Others::kRun;
  }
  return found;
}

void VirtualClock::BlockIfOthersSleep(const Thread& self, uint32_t wake) {
  const uint32_t stamp = self_->stamp.load();
  const Others others = LookAtOthers(&self);
  if (others == Others::kRun) return;
  const uint64_t wall_ns = WallNs();
  Wakes wakes;
  wakes.by_sleeper = true;
  Lock();
  if (self_->wake.load() == wake && self_->blocked.load() == 0 && self_->stamp.load() == stamp) {
    const uint32_t activity = segment_->activity.load();
    bool settled = others == Others::kWaitInside;
    if (!settled) {
      const bool again = self_->asleep_since_ns != 0 && self_->asleep_activity == activity &&
                         self_->asleep_stamp == stamp;
      if (!again) {
        self_->asleep_since_ns = wall_ns;
        self_->asleep_activity = activity;
        self_->asleep_stamp = stamp;
      }
      settled = wall_ns - self_->asleep_since_ns >= kSettledNs;
    }
    if (settled) {
      // A thread that comes back counts up `stamp`, then reads `blocked`: one of us sees the other.
      self_->blocked.store(1);
      if (self_->stamp.load() != stamp) {
        self_->blocked.store(0);
      } else {
        self_->waits_outside = others == Others::kWaitOutside;
        segment_->waits_outside |= self_->waits_outside;
        Block(index_, wakes);
      }
    }
  }
  Unlock(wakes);
}

// ---- the watcher

void VirtualClock::Watch() {
  watcher_tid_.store(ThreadId());
  if (t_thread != nullptr) Forget(static_cast<Thread*>(t_thread));
  uint32_t seen = self_->watch.load();
  for (;;) {
    FutexWait(self_->watch, seen, Tend());
    const uint32_t watch = self_->watch.load();
    if (watch == seen) continue;
    seen = watch;
    Wakes none;
    Lock();
    const bool others_wait = self_->waiting > 0;
    Unlock(none);
    if (!others_wait && entered_.load() && LookAtOthers(nullptr) != Others::kRun) return;
  }
}

uint64_t VirtualClock::Tend() {
  if (!alive() || !entered_.load()) return kNever;
  const uint64_t wall_ns = WallNs();
  uint32_t nobody = 0;
  const bool follows = segment_->leader.compare_exchange_strong(nobody, index_ + 1);
  if (!follows && wall_ns < tends_at_ns_) return tends_at_ns_ - wall_ns;
  uint64_t period_ns = kSecondNs;
  if (segment_->leader.load() == index_ + 1) {
    LookAfterAll();
    // A look at hundreds of processes that all run takes longer than it waits for one.
    period_ns = std::min(kSecondNs, std::max(period_ns_, kLooksOneIn * (WallNs() - wall_ns)));
  } else {
    period_ns_ = kFirstPeriodNs;
    LookAfterLeader();
  }
  tends_at_ns_ = wall_ns + period_ns;
  return period_ns;
}

void VirtualClock::LookAfterLeader() {
  uint32_t leader = segment_->leader.load();
  if (leader == 0) return;
  Wakes none;
  Lock();
  const int32_t pid = segment_->members[leader - 1].pid;
  const uint64_t start_time = segment_->members[leader - 1].start_time;
  Unlock(none);
  if (pid == 0 || ProcessStartTime(pid) != start_time)
    segment_->leader.compare_exchange_strong(leader, index_ + 1);
}

void VirtualClock::LookAfterAll() {
  ClockSegment& s = *segment_;
  const uint64_t wall_ns = WallNs();
  const uint64_t now = s.now_ns.load();
  Wakes wakes;
  Lock();
  const uint32_t joined = s.joined;
  Unlock(wakes);
  if (now != seen_now_ns_ || joined != seen_joined_ || stands_since_ns_ == 0) {
    seen_now_ns_ = now;
    seen_joined_ = joined;
    stands_since_ns_ = wall_ns;
    reported_ = false;
  } else if (!reported_ && report_after_ns_ != 0 &&
             wall_ns - stands_since_ns_ >= report_after_ns_ &&
             wall_ns - rung_ns_ >= kSecondNs / 2) {  // who was rung sleeps again
    reported_ = true;
    Report(wall_ns - stands_since_ns_);
  }
  if (wall_ns - rung_ns_ >= kSecondNs) {
    // Whoever waits looks again, at wall-clock intervals, for what no other way tells of: words
    // that a process outside of the session stores to, peers that died.
    rung_ns_ = wall_ns;
    Lock();
    for (uint32_t i = 0; i < s.members_end; ++i) {
      if (s.members[i].waiting == 0) continue;
      s.members[i].relooking = true;
      WakeMember(i, wakes);
    }
    Unlock(wakes);
  }
  const uint32_t activity = s.activity.load();
  if (activity != seen_activity_) {
    seen_activity_ = activity;
    period_ns_ = kFirstPeriodNs;
    return;
  }
  period_ns_ = std::min(period_ns_ + period_ns_ / 2, kLastPeriodNs);
  struct Running {
    uint32_t index;
    int32_t pid;
    uint64_t start_time;
  };
  std::vector<Running> running;
  Lock();
  for (uint32_t i = 0; i < s.members_end; ++i) {
    const ClockMember& member = s.members[i];
    if (member.pid != 0 && member.blocked.load() == 0)
      running.push_back({i, member.pid, member.start_time});
  }
  Unlock(wakes);
  for (const Running& process : running) {
    const bool dead = ProcessStartTime(process.pid) != process.start_time;
    ClockMember& member = s.members[process.index];
    Lock();
    if (member.pid == process.pid && member.blocked.load() == 0) {
      if (dead) {
        Remove(process.index, wakes);
      } else if (member.waiting > 0) {
        member.relooking = true;
        WakeMember(process.index, wakes);
      } else {
        member.watch.fetch_add(1);
      }
    }
    Unlock(wakes);
    FutexWakeAll(member.watch);
    FutexWakeAll(member.wake);  // for the case that who was to do it was killed before
  }
}

void VirtualClock::Report(uint64_t stood_ns) {
  constexpr size_t kMost = 8;
  ClockSegment& s = *segment_;
  struct Process {
    uint32_t rank;
    int32_t pid;
    bool blocked;
  };
  std::vector<Process> processes;
  std::string missing;
  Wakes none;
  Lock();
  const uint32_t joined = s.joined, expected = s.expected;
  for (uint32_t i = 0; i < s.members_end; ++i) {
    const ClockMember& member = s.members[i];
    if (member.pid != 0) processes.push_back({member.rank, member.pid, member.blocked.load() != 0});
  }
  for (uint32_t rank = 0, listed = 0; joined < expected && rank < expected; ++rank) {
    if ((s.ranks_joined[rank / 64] >> (rank % 64) & 1) != 0 || ++listed > kMost) continue;
    missing += (missing.empty() ? " " : ", ") + std::to_string(rank);
  }
  Unlock(none);
  std::sort(processes.begin(), processes.end(),
            [](const Process& a, const Process& b) { return a.rank < b.rank; });
  const auto running = std::count_if(processes.begin(), processes.end(),
                                     [](const Process& p) { return !p.blocked; });
  std::string text;
  char line[160];
  snprintf(line, sizeof line, "hostcuda: the virtual clock has stood at %.9f s for %llu s: ",
           static_cast<double>(NowNs()) * 1e-9,
           static_cast<unsigned long long>(stood_ns / kSecondNs));
  text = line;
  if (joined < expected) {
    text += "it waits for " + std::to_string(expected - joined) + " of " +
            std::to_string(expected) + " processes to start CUDA: rank" + missing +
            " (HOSTCUDA_PROCESSES or WORLD_SIZE says how many there are)\n";
  } else if (running == 0) {
    text +=
        "every process waits and nothing is due; they wait for each other, or for something "
        "outside of the job\n";
  } else {
    text +=
        std::to_string(running) + " of " + std::to_string(processes.size()) + " processes run\n";
  }
  size_t listed = 0;
  for (const Process& process : processes) {
    if (running != 0 && process.blocked) continue;
    if (++listed > kMost) break;
    std::string runs, sleeps;
    size_t sleeping = 0;
    for (const pid_t tid : ThreadsOf(process.pid)) {
      if (process.pid == pid_ && tid == watcher_tid_.load()) continue;  // this one
      const bool asleep = ProcStateOf(process.pid, tid) != ProcState::kRuns;
      if (asleep && ++sleeping > 4) continue;
      (asleep ? sleeps : runs) += "; " + DescribeThread(process.pid, tid);
    }
    const std::string& named = runs.empty() ? sleeps : runs;
    text += "hostcuda:   process " + std::to_string(process.rank) + " (pid " +
            std::to_string(process.pid) + "): " + (named.empty() ? "gone" : named.substr(2)) + "\n";
  }
  fputs(text.c_str(), stderr);
}

// ---- shared events

uint32_t VirtualClock::NewEvent(uint32_t target) {
  if (!alive() || target >= kMaxClockMembers) return kNoEvent;
  Wakes none;
  Lock();
  const uint32_t event = TakeEvent(segment_, index_, target);
  Unlock(none);
  return event;
}

void VirtualClock::SetEvent(uint32_t event, uint64_t at_ns) {
  if (!alive()) return;
  ClockSegment& s = *segment_;
  Wakes wakes;
  Lock();
  if (IsEvent(s, event)) {
    const uint32_t place = event % kMaxClockEvents;
    s.event_ns[place] = at_ns;
    if (at_ns <= s.now_ns.load(std::memory_order_relaxed)) Fire(place, wakes);
  }
  Unlock(wakes);
}

const std::atomic<uint32_t>* VirtualClock::EventWord(uint32_t event) {
  return alive() && event != kNoEvent ? &segment_->event_word[event % kMaxClockEvents] : nullptr;
}

void VirtualClock::FreeEvent(uint32_t event) {
  if (!alive()) return;
  Wakes wakes;
  Lock();
  if (IsEvent(*segment_, event)) ForgetEvent(segment_, event % kMaxClockEvents);
  Unlock(wakes);
}

}  // namespace hostcuda
