// Segment: the shared memory of one communicator, and how its members find each other.
//
// Life. The first member to come creates "/dev/shm/hostnccl-<uid>-<key>" (under a temporary name,
// O_EXCL, then renamed: whoever opens it finds it initialized), the others open it, and the last
// one unlinks it: from then on it lives as long as somebody maps it, so nothing is left behind,
// even after SIGKILL. Until then every member holds a shared flock on it; a file that nobody locks
// belongs to dead processes and SweepStaleSegments() removes it.
//
// Memory. All files are sparse: only what is used exists. For n ranks, with slots of B bytes (512
// KiB up to 32 ranks, then 16 MiB / n, at least 64 KiB): members under 1 KiB n, mailboxes 16 KiB n,
// step slots 4 B n, results 4 B, message slots 32 B n. Linear in n. Pages are reserved (fallocate)
// before their first use, so a full /dev/shm is an error message and not a SIGBUS.
//
// Threading: Join() blocks the calling thread; everything else is lock-free or private to the
// owning rank.
//
//   std::unique_ptr<Segment> segment;
//   Status s = Segment::Join({.key = key, .ranks = 8, .rank = 3, .self = identity}, cancelled,
//   &segment);
#ifndef HOSTCUDA_NCCL_SEGMENT_H_
#define HOSTCUDA_NCCL_SEGMENT_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hostcuda/nccl/link_topology.h"
#include "hostcuda/nccl/mailbox.h"
#include "hostcuda/nccl/message_slots.h"
#include "hostcuda/nccl/operation.h"
#include "hostcuda/nccl/status.h"

namespace hostnccl {

inline constexpr int kMaxRanks = 4096;
inline constexpr uint32_t kStepSlots = 4;
inline constexpr uint64_t kMailboxCells = 256;
inline constexpr uint64_t kMovesEverything = UINT64_MAX;

/// How a member left; peers that wait for more than it did fail.
enum class Departure : uint32_t { kNone = 0, kDestroyed, kAborted, kRevoked, kDied };

struct MemberIdentity {
  char device[32] = {};  // PCI bus id
  uint64_t host = 0;     // hash of the host's name: ranks of one host may not share a device
  uint32_t doorbell = 0;
  bool may_share_device = false;
  // On the virtual clock.
  Place place;
  uint64_t topology = 0;      // LinkTopology::Digest
  uint64_t communicator = 0;  // how many this process joined before
};

struct SplitChoice {
  int32_t color;
  int32_t key;
};

/// A rank's part of the segment; written by that rank unless noted.
struct alignas(64) Member {
  std::atomic<uint32_t> joined;  // 0, 1: claimed, 2: everything of this line is valid
  int32_t pid;
  uint64_t process_start;
  uint64_t pid_namespace;  // a process of another one cannot be looked at
  MemberIdentity identity;
  uint64_t exact_bytes;

  alignas(
      64) std::atomic<uint32_t> waiting;  // set before it sleeps, cleared by whoever rings for it
  std::atomic<uint32_t>
      wants_mailbox_space;  // of this member's mailbox; set by producers, cleared by the member
  std::atomic<uint32_t> departure;    // Departure; kDied is written by others
  std::atomic<uint64_t> awaits_flow;  // of the messages under way to it, whose end it is rung for

  alignas(64) std::atomic<uint64_t> collectives_started;
  std::atomic<uint64_t> collectives_completed;
  Signature signature[2];  // of collective k at [k % 2]
  uint64_t scalar_bits[2];

  alignas(64) SplitChoice split[2];  // of split k at [k % 2]

  alignas(64) std::atomic<uint64_t> mailbox_tail;  // written by producers
  alignas(64) SlotFlags message_slots;             // freed by receivers
};

static_assert(sizeof(Member) <= 1024);

struct alignas(64) PaddedCounter {
  std::atomic<uint64_t> value;
};

struct StepCounters {
  PaddedCounter written;  // contributions that lie in the slot
  PaddedCounter reduced;  // shares of the result that lie in the result slot
  PaddedCounter read;     // ranks that are done with the slot
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t ranks;
  uint64_t slot_bytes;
  uint64_t total_bytes;
  std::atomic<uint64_t> exact_bytes;  // least of the members'

  alignas(64) std::atomic<uint32_t> joined;
  std::atomic<uint32_t> ready;  // futex, bits: all have joined, the communicator failed
  std::atomic<uint32_t> departed;
  std::atomic<uint32_t>
      split_word;  // futex: bumped when all have posted a split, when the communicator failed
  std::atomic<uint32_t> split_posted[2];

  alignas(
      64) std::atomic<uint64_t> first_comer[2];  // of collective k at [k % 2]: (k + 1) << 16 | rank

  // On the virtual clock, of the collective that takes its time: its number + 1 << 16 | the rank
  // that ends its flow, and the flow.
  alignas(64) std::atomic<uint64_t> flow_claim;
  std::atomic<uint64_t> flow;
  std::atomic<uint64_t> flows_ended;  // collectives that have taken their time

  alignas(64) std::atomic<uint32_t> failed;  // 0, 1: being written, 2: failure_* are valid
  uint32_t failure_code;
  char failure_text[1000];

  StepCounters steps[kStepSlots];
};

struct SegmentOptions {
  std::string key;  // [0-9a-zA-Z]+, the same on all members and on no other communicator
  int ranks = 0;
  int rank = 0;
  MemberIdentity self;
  uint64_t exact_bytes = kMovesEverything;  // payloads above are not moved
  uint64_t slot_bytes =
      0;  // 0: by the number of ranks; used by the member that creates the segment
  int report_after_s = 30;  // after so long a line on stderr says who has not come
};

class Segment {
 public:
  /// Returns when all members have joined, or with the reason why not. `cancelled` may be set by
  /// another thread; it is noticed within a second.
  static Status Join(const SegmentOptions& options, const std::atomic<bool>& cancelled,
                     std::unique_ptr<Segment>* out);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  SegmentHeader& header() { return *header_; }
  Member& member(int rank) { return members_[rank]; }
  Member& self() { return members_[rank_]; }

  std::byte* StepSlot(int rank, uint32_t slot) {
    return base_ + steps_ + (uint64_t(rank) * kStepSlots + slot) * slot_bytes_;
  }
  std::byte* ResultSlot(uint32_t slot) { return base_ + results_ + slot * slot_bytes_; }
  std::byte* MessageSlot(int rank, uint32_t slot) {
    return base_ + messages_ + (uint64_t(rank) * kMessageSlots + slot) * slot_bytes_;
  }
  Mailbox MailboxOf(int rank);

  /// Reserves memory for a range of this segment before its first use by this rank.
  Status Back(const void* begin, uint64_t bytes);

  /// Records the communicator's failure for all members; the first one stays. Returns whether it
  /// was this one.
  bool Fail(const Status& failure);
  /// Returns the failure, or success while there is none.
  Status Failure() const;

  /// Marks a member as gone; kDied may be said of others. A forked child says nothing of the rank
  /// it was forked from.
  void Depart(int rank, Departure how);
  /// Looks at some members' processes, others at each call, and marks those that are gone. Returns
  /// whether one was.
  bool CheckLiveness();
  /// Returns "rank 3 (process 1234)".
  std::string NameOf(int rank) const;

 private:
  Segment() = default;
  Status Open(const SegmentOptions& options);
  Status Create(const SegmentOptions& options, const std::string& path, bool* created);
  Status Map(uint64_t bytes);
  Status Enter(const SegmentOptions& options, const std::atomic<bool>& cancelled);
  Status CheckDevices() const;
  Status CheckTopologies() const;
  void Unlink();
  void UnlinkIfLast();
  bool Alive(const Member& member) const;

  std::string path_;
  int fd_ = -1;
  int rank_ = 0;
  int ranks_ = 0;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t mailboxes_ = 0, steps_ = 0, results_ = 0, messages_ = 0;  // offsets
  SegmentHeader* header_ = nullptr;
  Member* members_ = nullptr;
  std::vector<bool> backed_;  // by kBackingBytes
  uint32_t liveness_round_ = 0;
};

/// Removes segments of this user whose processes are all gone. Returns how many.
int SweepStaleSegments();

/// Returns 32 random hexadecimal digits.
std::string RandomKey();

/// Returns whether the process exists, is not a zombie, and is the one that started then.
bool ProcessAlive(int32_t pid, uint64_t start);
/// Returns the start time (clock ticks since boot) of a process, 0 if it is gone.
uint64_t ProcessStart(int32_t pid);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_SEGMENT_H_
