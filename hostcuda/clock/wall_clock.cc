#include "hostcuda/clock/wall_clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "hostcuda/clock/proc_state.h"
#include "hostcuda/clock/virtual_clock.h"

namespace hostcuda {
namespace {

// Words that are stored to without ringing are looked at again after this long; whoever waits looks
// again after the other.
constexpr uint64_t kLookNs = 1'000'000, kLongestWaitNs = 1'000'000'000;

}  // namespace

/// Holds the segment's mutex. What a killed owner left is whole: only numbers are written under it.
class WallClock::Locked {
 public:
  explicit Locked(ClockSegment* segment) : segment_(segment) {
    if (pthread_mutex_lock(&segment->mutex) == EOWNERDEAD)
      pthread_mutex_consistent(&segment->mutex);
  }
  ~Locked() { pthread_mutex_unlock(&segment_->mutex); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  ClockSegment* const segment_;
};

uint64_t WallClock::NowNs() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void WallClock::Join(ClockSegment* segment, uint32_t index) {
  segment_ = segment;
  index_ = index;
  const Locked locked(segment_);
  ForgetEventsOf(segment_, index_);  // of who was here before, and was killed
  ClockMember& self = segment_->members[index_];
  self.pid = getpid();
  self.start_time = ProcessStartTime(self.pid);
  segment_->members_end = std::max(segment_->members_end, index_ + 1);
}

void WallClock::Leave() {
  if (segment_ == nullptr) return;
  const Locked locked(segment_);
  ForgetEventsOf(segment_, index_);
  segment_->members[index_].pid = 0;
}

void WallClock::ForgetTheDead() {
  for (uint32_t i = 0; i < segment_->members_end; ++i) {
    ClockMember& member = segment_->members[i];
    if (member.pid == 0 || ProcessStartTime(member.pid) == member.start_time) continue;
    ForgetEventsOf(segment_, i);
    member.pid = 0;
  }
}

uint64_t WallClock::FireDue() {
  ClockSegment& s = *segment_;
  const Locked locked(segment_);
  const uint64_t now_ns = NowNs();
  uint64_t next = kNever;
  bool fired = false;
  for (uint32_t i = 0; i < s.events_end; ++i) {
    if (s.event_target[i] != index_) continue;
    if (s.event_ns[i] > now_ns) {
      next = std::min(next, s.event_ns[i]);
      continue;
    }
    s.event_ns[i] = kNever;
    s.event_word[i].fetch_add(1, std::memory_order_release);
    fired = true;
  }
  if (!fired) return next;
  // A thread may have looked at its tasks before, and not be in Wait yet.
  Wake(index_);
  return 0;
}

uint32_t WallClock::Activity() const {
  return segment_ == nullptr ? 0 : segment_->members[index_].wake.load(std::memory_order_acquire);
}

void WallClock::Wait(const ClockWait& wait) {
  const std::atomic<uint32_t>& wake = segment_->members[index_].wake;
  // Whoever sets or fires an event, and rings for a thread that sleeps, counts up `wake`.
  if (wait.bell->load() != wait.seen || wake.load() != wait.looked) return;
  uint64_t until_ns = std::min({FireDue(), wait.deadline_ns, wait.turn_ns});
  const uint64_t now_ns = NowNs();
  until_ns = std::min(until_ns, now_ns + (wait.polls_words ? kLookNs : kLongestWaitNs));
  if (until_ns <= now_ns) return;
  thread_local const int slack = prctl(PR_SET_TIMERSLACK, 1);  // ns: sleeps are part of the result
  static_cast<void>(slack);
  const timespec until = {static_cast<time_t>(until_ns / 1'000'000'000u),
                          static_cast<long>(until_ns % 1'000'000'000u)};
  // With FUTEX_WAIT_BITSET the time is one of CLOCK_MONOTONIC, no interval.
  syscall(SYS_futex, &wake, FUTEX_WAIT_BITSET, wait.looked, &until, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

void WallClock::Wake(uint32_t index) {
  if (segment_ == nullptr || index >= kMaxClockMembers) return;
  std::atomic<uint32_t>& wake = segment_->members[index].wake;
  wake.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &wake, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint32_t WallClock::NewEvent(uint32_t target) {
  if (segment_ == nullptr || target >= kMaxClockMembers) return kNoEvent;
  const Locked locked(segment_);
  const uint32_t event = TakeEvent(segment_, index_, target);
  if (event != kNoEvent) return event;
  ForgetTheDead();
  return TakeEvent(segment_, index_, target);
}

void WallClock::SetEvent(uint32_t event, uint64_t at_ns) {
  if (segment_ == nullptr) return;
  uint32_t target = 0;
  {
    const Locked locked(segment_);
    if (!IsEvent(*segment_, event)) return;
    segment_->event_ns[event % kMaxClockEvents] = at_ns;
    target = segment_->event_target[event % kMaxClockEvents];
  }
  Wake(target);
}

const std::atomic<uint32_t>* WallClock::EventWord(uint32_t event) {
  return segment_ != nullptr && event != kNoEvent ? &segment_->event_word[event % kMaxClockEvents]
                                                  : nullptr;
}

void WallClock::FreeEvent(uint32_t event) {
  if (segment_ == nullptr) return;
  const Locked locked(segment_);
  if (IsEvent(*segment_, event)) ForgetEvent(segment_, event % kMaxClockEvents);
}

}  // namespace hostcuda
