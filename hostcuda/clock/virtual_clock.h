// The virtual clock: the part of the session's memory that it lives in, and one process's hand on
// it.
//
// One robust mutex guards the segment; threads sleep on futexes only: on their process's `wake`,
// its watcher on `watch`. A process is `blocked` when every thread of it that used CUDA is in Wait,
// or, by /proc, asleep in a system call. When the last process blocks, its thread moves the clock.
//
// Who looks at /proc: a thread that goes into Wait and leaves others of its process outside. Where
// the last one falls asleep outside, nobody notices at once: the watcher of one process of the
// session (the `leader`) sees that the clock stands and makes the running processes' watchers look.
// It also finds dead processes, and tells on stderr what holds a clock that stands for long.
//
// A wait that another process may end (a socket, a pipe, a shared futex) may be about to end
// although everybody sleeps: a process with such a thread counts as blocked for one move of the
// clock only, and only after it was found asleep at two looks, two milliseconds apart.
#ifndef HOSTCUDA_CLOCK_VIRTUAL_CLOCK_H_
#define HOSTCUDA_CLOCK_VIRTUAL_CLOCK_H_

#include <pthread.h>
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hostcuda/clock/clock.h"

namespace hostcuda {

inline constexpr uint32_t kMaxClockMembers = 4096;
// An event's number is its place, and above it how often the place was used before: a number of an
// event that was freed means nothing any more.
inline constexpr uint32_t kMaxClockEvents = 65536;

struct alignas(64) ClockMember {
  std::atomic<uint32_t> wake;     // futex of its threads in Wait
  std::atomic<uint32_t> watch;    // futex of its watcher
  std::atomic<uint32_t> stamp;    // grows with all that its threads do outside of Wait
  std::atomic<uint32_t> blocked;  // written under the mutex
  std::atomic<uint64_t> turn_had_ns;
  // Guarded by the mutex.
  int32_t pid;  // 0: nobody
  uint32_t rank;
  uint64_t start_time;
  int32_t outside;      // threads that are not in Wait
  uint32_t waiting;     // threads in Wait
  uint32_t stamp_seen;  // when it blocked last
  uint32_t looked;      // `activity` when its waiting threads looked at their words last
  // When a look at /proc found it asleep first: wall time, and `activity` and `stamp` then.
  uint64_t asleep_since_ns;
  uint32_t asleep_activity, asleep_stamp;
  bool rung;           // while no thread of it was in Wait
  bool polls_words;    // a thread in Wait does
  bool relooking;      // woken only to look at its words
  bool waits_outside;  // blocked, in a wait that another process may end
};

/// Zero-filled memory after InitializeClockSegment.
struct ClockSegment {
  pthread_mutex_t mutex;  // process-shared, robust
  std::atomic<uint64_t> now_ns;
  std::atomic<uint32_t> activity;  // grows whenever a process that did something blocks
  std::atomic<uint32_t> leader;    // member whose watcher looks after all, + 1
  // Guarded by the mutex.
  // The member that is being woken, + 1, and what it had before: to be finished where the thread
  // that does it is killed.
  uint32_t waking;
  int32_t waking_outside;
  int32_t active;  // members that are not blocked
  uint32_t members_end, events_end;
  uint32_t joined, expected;  // ranks
  bool waits_outside;         // a blocked member does
  bool polls_words;           // a member may
  uint64_t ranks_joined[kMaxClockMembers / 64];
  // Apart from what else there is to know, because a move of the clock looks through all of them.
  uint64_t deadline_ns[kMaxClockMembers];
  uint64_t turn_ns[kMaxClockMembers];
  uint64_t event_ns[kMaxClockEvents];
  uint32_t event_target[kMaxClockEvents];
  uint32_t event_owner[kMaxClockEvents];  // member, + 1; 0: free
  uint32_t event_number[kMaxClockEvents];
  std::atomic<uint32_t> event_word[kMaxClockEvents];
  ClockMember members[kMaxClockMembers];
};

/// Called once for a new session, before any process joins.
void InitializeClockSegment(ClockSegment* segment);

/// Shared events, with the mutex held. TakeEvent gives process `owner` a number that wakes
/// `target`; kNoEvent where all are in use.
uint32_t TakeEvent(ClockSegment* segment, uint32_t owner, uint32_t target);
bool IsEvent(const ClockSegment& segment, uint32_t event);
void ForgetEvent(ClockSegment* segment, uint32_t place);
void ForgetEventsOf(ClockSegment* segment, uint32_t owner);

class VirtualClock final : public JobClock {
 public:
  /// Where the clock starts, so that no time is 0.
  static constexpr uint64_t kStartNs = 1'000'000'000;

  VirtualClock(JobPlace place, uint64_t report_after_ns);

  uint64_t NowNs() const override;
  bool takes_time() const override { return true; }
  bool is_virtual() const override { return true; }
  uint32_t rank() const override { return self_ == nullptr ? 0 : self_->rank; }
  void Join(ClockSegment* segment, uint32_t index) override;
  void Leave() override;
  void Touch() override;
  void Hold(int change) override;
  void Wait(const ClockWait& wait) override;
  uint32_t Activity() const override;
  bool HadTurn(uint64_t turn_ns) const override;
  void Wake(uint32_t index) override;
  void Watch() override;
  uint32_t NewEvent(uint32_t target) override;
  void SetEvent(uint32_t event, uint64_t at_ns) override;
  const std::atomic<uint32_t>* EventWord(uint32_t event) override;
  void FreeEvent(uint32_t event) override;

 private:
  /// A thread of this process that uses CUDA.
  struct Thread {
    pid_t tid;
    // Wait: `wake` when it went to sleep, with a bit above; 0 outside. It is in Wait while that is
    // still the process's `wake`.
    std::atomic<uint64_t> asleep_at{0};
    std::atomic<bool> locking{false};  // waits for the mutex
    std::atomic<int> holds{0};
    VirtualClock* clock;
  };
  /// Whose threads the caller has to wake once it let the mutex go.
  struct Wakes {
    struct Woken {
      uint32_t index, threads;
    };
    std::vector<Woken> members;
    bool by_sleeper = false;  // the caller is in Wait itself
  };
  enum class Others { kRun, kWaitInside, kWaitOutside };

  void Enter();
  void Lock();
  void Unlock(Wakes& wakes);
  Thread* Self();
  void Forget(Thread* thread);
  bool alive() const;
  Others LookAtOthers(const Thread* self);
  void BlockIfOthersSleep(const Thread& self, uint32_t wake);

  // With the mutex held.
  void Block(uint32_t index, Wakes& wakes);
  void Unblock(uint32_t index);
  void WakeMember(uint32_t index, Wakes& wakes);
  void Advance(Wakes& wakes);
  void Fire(uint32_t place, Wakes& wakes);
  void Remove(uint32_t index, Wakes& wakes);

  /// What a watcher does whenever it wakes; returns after how long it has to do so again.
  uint64_t Tend();
  void LookAfterLeader();
  // The leader's.
  void LookAfterAll();
  void Report(uint64_t stood_ns);

  const JobPlace place_;
  const uint64_t report_after_ns_;
  ClockSegment* segment_ = nullptr;
  ClockMember* self_ = nullptr;
  uint32_t index_ = 0;
  pid_t pid_ = 0;
  std::atomic<bool> entered_{false}, left_{false};
  pthread_key_t thread_key_{};
  std::mutex threads_mutex_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::atomic<pid_t> watcher_tid_{0};
  // The watcher's own.
  uint32_t seen_activity_ = 0, seen_joined_ = 0;
  uint64_t seen_now_ns_ = 0, stands_since_ns_ = 0, rung_ns_ = 0;
  uint64_t period_ns_ = 500'000;
  uint64_t tends_at_ns_ = 0;
  bool reported_ = false;
};

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_VIRTUAL_CLOCK_H_
