#include "hostcuda/nccl/communicator.h"

#include <algorithm>
#include <cstring>

#include "hostcuda/nccl/futex.h"

namespace hostnccl {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

/// 128 bits in hexadecimal, a function of the text.
std::string DerivedKey(const std::string& text) {
  std::string key;
  for (uint64_t seed : {0xcbf29ce484222325u, 0x9ae16a3b2f90404fu}) {
    uint64_t hash = seed;
    for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
    hash ^= hash >> 32;
    hash *= 0xd6e8feb86659fd93u;
    hash ^= hash >> 32;
    char part[17];
    snprintf(part, sizeof part, "%016llx", static_cast<unsigned long long>(hash));
    key += part;
  }
  return key;
}

const char* How(Departure departure) {
  switch (departure) {
    case Departure::kDestroyed:
      return "destroyed the communicator";
    case Departure::kAborted:
      return "aborted the communicator";
    case Departure::kRevoked:
      return "revoked the communicator";
    case Departure::kDied:
      return "ended (killed, crashed or exited)";
    case Departure::kNone:
      break;
  }
  return "left";
}

}  // namespace

Status Communicator::Join(const CommunicatorOptions& options, const std::atomic<bool>& cancelled,
                          std::shared_ptr<Communicator>* out) {
  std::unique_ptr<Segment> segment;
  if (Status status = Segment::Join(options.segment, cancelled, &segment); !status.ok())
    return status;
  out->reset(new Communicator(options, std::move(segment)));
  return {};
}

Communicator::Communicator(const CommunicatorOptions& options, std::unique_ptr<Segment> segment)
    : platform_(options.platform),
      topology_(options.topology),
      flows_(options.flows),
      error_grace_ns_(options.error_grace_ns),
      report_after_ns_(static_cast<uint64_t>(options.segment.report_after_s) * kSecond),
      key_(options.segment.key),
      segment_(std::move(segment)),
      rank_(segment_->rank()),
      ranks_(segment_->ranks()),
      inputs_(ranks_),
      scalars_(ranks_),
      slots_(&segment_->self().message_slots) {
  if (!platform_.takes_time()) return;
  const MemberIdentity& first = segment_->member(0).identity;
  number_ = uint64_t{first.place.node} << 48 | uint64_t{first.place.gpu} << 32 | first.communicator;
  for (int rank = 0; rank < ranks_; ++rank)
    places_.push_back(segment_->member(rank).identity.place);
}

Communicator::~Communicator() {
  DropFlows();
  for (const uint32_t event : free_events_) platform_.event_free(event);
  segment_->Depart(rank_, Departure::kDestroyed);
}

std::shared_ptr<Launch> Communicator::NewLaunch(const std::vector<Operation>& operations,
                                                int streams) {
  std::lock_guard lock(mutex_);
  return std::make_shared<Launch>(shared_from_this(), operations, streams, next_ticket_++);
}

Status Communicator::AsyncError() {
  std::lock_guard lock(mutex_);
  if (stopped_) return {};
  Failed();
  return failure_;
}

bool Communicator::stopped() {
  std::lock_guard lock(mutex_);
  return stopped_;
}

void Communicator::Stop(Departure how) {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    segment_->Depart(rank_, how);
    DropFlows();
  }
  RingAll(false);
  idle_.notify_all();
}

void Communicator::Leave() {
  segment_->Depart(rank_, Departure::kDestroyed);
  RingAll(true);
}

void Communicator::WaitIdle() {
  std::unique_lock lock(mutex_);
  while (running_ticket_ != next_ticket_ && !stopped_ && !Failed()) {
    idle_.wait_for(lock, std::chrono::seconds(1));
  }
}

Status Communicator::ExchangeSplit(SplitChoice choice, const std::atomic<bool>& cancelled,
                                   Subgroup* out) {
  std::lock_guard host_lock(host_mutex_);
  const uint32_t index = splits_++;
  SegmentHeader& header = segment_->header();
  std::atomic<uint32_t>& posted = header.split_posted[index % 2];
  const uint32_t target = static_cast<uint32_t>(ranks_) * (index / 2 + 1);
  segment_->self().split[index % 2] = choice;
  if (posted.fetch_add(1) + 1 == target) {
    header.split_word.fetch_add(1);
    FutexWakeAll(header.split_word);
  }
  for (uint64_t seconds = 0;; ++seconds) {
    const uint32_t word = header.split_word.load();
    if (static_cast<int32_t>(posted.load() - target) >= 0) break;
    if (Status failure = AsyncError(); !failure.ok()) return failure;
    if (cancelled.load() || stopped()) {
      return Error(Code::kInvalidUsage,
                   "the communicator was aborted while ncclCommSplit waited for its other ranks");
    }
    for (int rank = 0; header.departed.load() != 0 && rank < ranks_; ++rank) {
      const auto how = static_cast<Departure>(segment_->member(rank).departure.load());
      if (how == Departure::kNone || static_cast<int32_t>(posted.load() - target) >= 0) continue;
      std::lock_guard lock(mutex_);
      Fail(Error(Code::kRemoteError, "%s waits in ncclCommSplit, but %s %s",
                 segment_->NameOf(rank_).c_str(), segment_->NameOf(rank).c_str(), How(how)));
    }
    FutexWait(header.split_word, word, kSecond);
    std::lock_guard lock(mutex_);
    segment_->CheckLiveness();
    if (seconds * kSecond == report_after_ns_) {
      fprintf(
          stderr,
          "hostnccl: rank %d has waited %llu s in ncclCommSplit: %d of %d ranks have called it\n",
          rank_, static_cast<unsigned long long>(seconds),
          ranks_ - static_cast<int>(target - posted.load()), ranks_);
    }
  }
  *out = Subgroup{};
  if (choice.color < 0) return {};
  out->key =
      DerivedKey(key_ + "/split/" + std::to_string(index) + "/" + std::to_string(choice.color));
  for (int rank = 0; rank < ranks_; ++rank) {
    const SplitChoice other = segment_->member(rank).split[index % 2];
    if (other.color != choice.color) continue;
    ++out->ranks;
    if (std::pair(other.key, rank) < std::pair(choice.key, rank_)) ++out->rank;
  }
  return {};
}

Subgroup Communicator::Without(const std::vector<int>& excluded) {
  std::lock_guard host_lock(host_mutex_);
  std::string name = key_ + "/shrink/" + std::to_string(shrinks_++);
  Subgroup group;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) {
      name += "/" + std::to_string(rank);
      continue;
    }
    ++group.ranks;
    if (rank < rank_) ++group.rank;
  }
  group.key = DerivedKey(name);
  return group;
}

void Communicator::Ring(int rank) {
  Member& member = segment_->member(rank);
  // The sleeper sets the flag, then looks once more; the ringer changes something, then takes the
  // flag. Both are read-modify-writes of one word, so one comes first: either the ringer sees the
  // flag, or the sleeper sees the change.
  if (member.waiting.exchange(0, std::memory_order_acq_rel) != 0) {
    platform_.doorbell_ring(member.identity.doorbell);
  }
}

void Communicator::RingAll(bool waiting_only) {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (waiting_only) {
      Ring(rank);
    } else {
      platform_.doorbell_ring(segment_->member(rank).identity.doorbell);
    }
  }
}

void Communicator::Fail(const Status& failure) {
  if (segment_->Fail(failure)) fprintf(stderr, "hostnccl: %s\n", failure.message.c_str());
  RingAll(false);
}

bool Communicator::Failed() {
  if (failure_.ok()) {
    failure_ = segment_->Failure();
    if (!failure_.ok()) failed_since_ns_ = WallNs();
  }
  return !failure_.ok();
}

// On the virtual clock whoever waits is polled about once a second of wall time anyway; a deadline
// would move the clock.
void Communicator::WakeAtWallTime(uint64_t wall_ns, uint64_t* wake_at_ns) const {
  if (!platform_.takes_time()) *wake_at_ns = std::min(*wake_at_ns, wall_ns);
}

void Communicator::Back(const void* begin, uint64_t bytes) {
  if (Status status = segment_->Back(begin, bytes); !status.ok()) Fail(status);
}

void Communicator::Finished(uint64_t ticket) {
  if (ticket != running_ticket_) {
    finished_early_.insert(ticket);
    return;
  }
  ++running_ticket_;
  while (finished_early_.erase(running_ticket_) != 0) ++running_ticket_;
  waiting_since_ns_ = 0;
  wait_reported_ = false;
  idle_.notify_all();
}

// ---- launches

Launch::Launch(std::shared_ptr<Communicator> communicator, const std::vector<Operation>& operations,
               int streams, uint64_t ticket)
    : communicator_(std::move(communicator)), ticket_(ticket), arrived_(streams) {
  for (const Operation& op : operations)
    (IsPointToPoint(op.kind) ? messages_ : collectives_).push_back(op);
}

Launch::Poll Launch::Advance(int stream, uint64_t now_ns, uint64_t* wake_at_ns) {
  Communicator& comm = *communicator_;
  std::lock_guard lock(comm.mutex_);
  if (!arrived_[stream]) {
    arrived_[stream] = true;
    ++arrivals_;
  }
  if (!finished_ && !comm.stopped_ && !comm.Failed() &&
      arrivals_ == static_cast<int>(arrived_.size()) && ticket_ == comm.running_ticket_) {
    comm.now_ns_ = now_ns;
    comm.flow_wake_ns_ = UINT64_MAX;
    if (!begun_) comm.Begin(*this);
    Member& self = comm.segment_->self();
    self.waiting.store(0, std::memory_order_relaxed);
    for (;;) {
      do {
        while (comm.Advance(*this)) {
        }
        self.waiting.exchange(1, std::memory_order_acq_rel);
      } while (comm.Advance(*this));
      if (comm.Complete(*this) || comm.Failed()) break;
      // Not before everything that has come was looked at: a member may have left after its last
      // contribution.
      if (comm.segment_->header().departed.load() != 0 && comm.CheckDepartures()) continue;
      const uint64_t wall_ns = WallNs();
      if (wall_ns < comm.next_tick_ns_) break;
      comm.Tick(wall_ns);
    }
    if (!comm.failure_.ok()) {
      // Handled below.
    } else if (comm.Complete(*this)) {
      self.waiting.store(0, std::memory_order_relaxed);
      finished_ = true;
      comm.Finished(ticket_);
    } else {
      comm.WakeAtWallTime(comm.next_tick_ns_, wake_at_ns);
      *wake_at_ns = std::min(*wake_at_ns, comm.flow_wake_ns_);
    }
  }
  if (!finished_ && comm.stopped_) {
    finished_ = true;
    comm.Finished(ticket_);
  } else if (!finished_ && !comm.failure_.ok()) {
    comm.DropFlows();
    if (WallNs() - comm.failed_since_ns_ < comm.error_grace_ns_) {
      comm.WakeAtWallTime(comm.failed_since_ns_ + comm.error_grace_ns_, wake_at_ns);
      return Poll::kPending;
    }
    finished_ = failed_ = true;
    comm.Finished(ticket_);
  }
  if (!finished_) return Poll::kPending;
  return failed_ ? Poll::kFailed : Poll::kDone;
}

void Launch::Release(int) {
  Communicator& comm = *communicator_;
  std::unique_lock lock(comm.mutex_);
  if (++released_ < static_cast<int>(arrived_.size()) || finished_) return;
  finished_ = true;
  comm.stopped_ = true;
  comm.segment_->Depart(comm.rank_, Departure::kAborted);
  comm.DropFlows();
  comm.Finished(ticket_);
  lock.unlock();
  comm.RingAll(false);
}

void Communicator::Begin(Launch& launch) {
  launch.begun_ = true;
  begun_ns_ = now_ns_;
  waiting_since_ns_ = WallNs();
  next_tick_ns_ = waiting_since_ns_ + kSecond;
  messages_left_ = launch.messages_.size();
  messages_move_ = MessagesMove(launch.messages_);
  for (const Operation& op : launch.messages_) {
    Peer& peer = peers_[op.peer];
    if (op.kind == OpKind::kSend) {
      peer.sends.push_back({&op});
      sendable_.insert(op.peer);
    } else {
      peer.receives.push_back({&op});
      letters_.emplace_back(op.peer, Letter{.kind = LetterKind::kReady,
                                            .from = static_cast<uint32_t>(rank_),
                                            .count = op.count,
                                            .type = static_cast<uint32_t>(op.type),
                                            .slot = 0,
                                            .bytes = 0,
                                            .last = 0,
                                            .flow = 0});
      TakeEarlyChunks(op.peer);
    }
  }
}

bool Communicator::Complete(const Launch& launch) const {
  return launch.next_collective_ == launch.collectives_.size() && collective_.op == nullptr &&
         messages_left_ == 0 &&
         // Announcements of what has come early may be posted whenever there is room.
         std::all_of(letters_.begin(), letters_.end(), [](const auto& addressed) {
           return addressed.second.kind == LetterKind::kReady;
         });
}

bool Communicator::Advance(Launch& launch) {
  if (segment_->header().failed.load(std::memory_order_acquire) == 2) return false;
  bool advanced = false;
  if (collective_.op == nullptr && launch.next_collective_ < launch.collectives_.size()) {
    BeginCollective(launch.collectives_[launch.next_collective_]);
    advanced = true;
  }
  if (collective_.op != nullptr) {
    advanced |= AdvanceCollective();
    if (collective_.op == nullptr) ++launch.next_collective_;
  }
  if (messages_left_ != 0 || !letters_.empty()) advanced |= AdvanceMessages();
  if (!outgoing_.empty() || !arrivals_.empty()) advanced |= AdvanceMessageFlows();
  return advanced;
}

void Communicator::Tick(uint64_t wall_ns) {
  next_tick_ns_ = wall_ns + kSecond;
  segment_->CheckLiveness();
  if (wait_reported_ || report_after_ns_ == 0 || wall_ns - waiting_since_ns_ < report_after_ns_)
    return;
  wait_reported_ = true;
  std::string text;
  if (collective_.op != nullptr && !collective_.takes_time) {
    std::string absent;
    int count = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (segment_->member(rank).collectives_started.load() > collective_.index) continue;
      if (++count <= 16) absent += " " + std::to_string(rank);
    }
    text = "in " + Describe(Signature::Of(*collective_.op)) + ", its collective number " +
           std::to_string(collective_.index + 1) + ", for " + std::to_string(count) + " of " +
           std::to_string(ranks_) + " ranks:" + absent + (count > 16 ? " ..." : "");
  }
  for (const auto& [rank, peer] : peers_) {
    if (peer.sends.empty() && peer.receives.empty()) continue;
    if (text.size() > 600) break;
    const Operation& op =
        peer.receives.empty() ? *peer.sends.front().op : *peer.receives.front().op;
    text += (text.empty() ? "in " : "; in ") + Describe(Signature::Of(op)) + " for rank " +
            std::to_string(rank);
  }
  if (text.empty()) return;  // for time that goes by
  fprintf(stderr, "hostnccl: rank %d of %d has waited %llu s %s\n", rank_, ranks_,
          static_cast<unsigned long long>((wall_ns - waiting_since_ns_) / kSecond), text.c_str());
}

bool Communicator::CheckDepartures() {
  const auto fail = [&](int rank, const Operation& op, const std::string& number) {
    const auto how = static_cast<Departure>(segment_->member(rank).departure.load());
    Fail(Error(Code::kRemoteError, "%s waits in %s%s for %s, which %s",
               segment_->NameOf(rank_).c_str(), Describe(Signature::Of(op)).c_str(), number.c_str(),
               segment_->NameOf(rank).c_str(), How(how)));
    return true;
  };
  if (collective_.op != nullptr && !collective_.takes_time) {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (Departed(rank) &&
          segment_->member(rank).collectives_completed.load() <= collective_.index) {
        return fail(rank, *collective_.op,
                    ", its collective number " + std::to_string(collective_.index + 1) + ",");
      }
    }
  }
  for (const auto& [rank, peer] : peers_) {
    if (!Departed(rank)) continue;
    if (!peer.sends.empty()) return fail(rank, *peer.sends.front().op, "");
    if (!peer.receives.empty()) return fail(rank, *peer.receives.front().op, "");
  }
  if (messages_left_ != 0 && segment_->MailboxOf(rank_).Stuck(mailbox_head_)) {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (segment_->member(rank).departure.load() == static_cast<uint32_t>(Departure::kDied)) {
        Fail(Error(Code::kRemoteError, "%s ended while it wrote to rank %d",
                   segment_->NameOf(rank).c_str(), rank_));
        return true;
      }
    }
  }
  return false;
}

}  // namespace hostnccl
