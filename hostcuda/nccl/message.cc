// The point-to-point messages of Communicator: announced by the receiver, written by the sender.
#include <algorithm>
#include <cstring>

#include "hostcuda/nccl/communicator.h"

namespace hostnccl {
namespace {
constexpr uint32_t kNoSlot = UINT32_MAX;
}

bool Communicator::AdvanceMessages() {
  bool advanced = OpenMailbox();
  if (platform_.takes_time()) BeginMessages();
  advanced |= SendChunks();
  advanced |= PostLetters();
  return advanced;
}

bool Communicator::PostLetters() {
  bool posted = false;
  std::set<int> full;
  for (auto letter = letters_.begin(); letter != letters_.end();) {
    const int to = letter->first;
    if (full.contains(to)) {
      ++letter;
      continue;
    }
    Mailbox box = segment_->MailboxOf(to);
    if (!box.Push(letter->second)) {
      segment_->member(to).wants_mailbox_space.exchange(1);
      if (!box.Push(letter->second)) {
        full.insert(to);
        ++letter;
        continue;
      }
    }
    Ring(to);
    letter = letters_.erase(letter);
    posted = true;
  }
  return posted;
}

bool Communicator::OpenMailbox() {
  Mailbox box = segment_->MailboxOf(rank_);
  Letter letter;
  bool opened = false;
  while (box.Pop(&mailbox_head_, &letter)) {
    opened = true;
    const auto from = static_cast<int>(letter.from);
    if (letter.kind == LetterKind::kReady) {
      Peer& peer = peers_[from];
      if (peer.unannounced != 0) {
        --peer.unannounced;
        continue;
      }
      peer.ready.push_back(letter);
      sendable_.insert(from);
    } else if (!TakeChunk(letter)) {
      break;
    }
  }
  if (opened && segment_->self().wants_mailbox_space.exchange(0) != 0) RingAll(true);
  return opened;
}

bool Communicator::CheckMessage(int from, const Letter& sent, int to, const Letter& expected) {
  if (sent.count == expected.count && sent.type == expected.type) return true;
  const auto call = [](OpKind kind, const Letter& letter) {
    return Describe(
        Signature{kind, static_cast<DataType>(letter.type), Reduction::kSum, -1, letter.count});
  };
  Fail(Error(Code::kInvalidUsage,
             "mismatched messages: %s called %s to rank %d, but %s called %s from rank %d",
             segment_->NameOf(from).c_str(), call(OpKind::kSend, sent).c_str(), to,
             segment_->NameOf(to).c_str(), call(OpKind::kRecv, expected).c_str(), from));
  return false;
}

bool Communicator::TakeChunk(const Letter& letter) {
  const auto from = static_cast<int>(letter.from);
  Peer& peer = peers_[from];
  if (peer.receives.empty()) {
    peer.early.push_back(letter);
    return true;
  }
  IncomingMessage& message = peer.receives.front();
  Letter expected{};
  expected.count = message.op->count;
  expected.type = static_cast<uint32_t>(message.op->type);
  if (!CheckMessage(from, letter, rank_, expected)) return false;
  if (letter.slot != kNoSlot) {
    if (letter.bytes != 0) {
      std::memcpy(static_cast<std::byte*>(message.op->recv) + message.offset,
                  segment_->MessageSlot(from, letter.slot), letter.bytes);
    }
    message.offset += letter.bytes;
    Member& sender = segment_->member(from);
    sender.message_slot_freed_ns[letter.slot].store(now_ns_, std::memory_order_relaxed);
    sender.message_slot_busy[letter.slot].store(0, std::memory_order_release);
    Ring(from);
  }
  if (letter.last != 0) {
    peer.receives.pop_front();
    if (platform_.takes_time()) {
      Arrives(from, letter.flow);
    } else {
      --messages_left_;
    }
  }
  return true;
}

bool Communicator::TakeEarlyChunks(int from) {
  Peer& peer = peers_[from];
  while (!peer.early.empty() && !peer.receives.empty()) {
    const Letter letter = peer.early.front();
    peer.early.pop_front();
    if (!TakeChunk(letter)) return false;
  }
  return true;
}

bool Communicator::Moves(uint64_t bytes) {
  return bytes != 0 && bytes <= segment_->header().exact_bytes.load(std::memory_order_relaxed);
}

int Communicator::FreeSlot() {
  auto& busy = segment_->self().message_slot_busy;
  const auto* slot = std::find_if(std::begin(busy), std::end(busy), [](auto& flag) {
    return flag.load(std::memory_order_acquire) == 0;
  });
  return slot == std::end(busy) ? -1 : static_cast<int>(slot - std::begin(busy));
}

uint64_t Communicator::FreeEarlySlots() {
  uint64_t free = 0, early = 0;
  for (uint32_t slot = 0; slot < kMessageSlots; ++slot) {
    if (segment_->self().message_slot_busy[slot].load(std::memory_order_acquire) == 0) {
      ++free;
    } else if (slot_is_early_[slot]) {
      ++early;
    }
  }
  if (platform_.takes_time()) return free;  // BeginMessages has counted
  return std::min<uint64_t>(free, kEarlySlots - early);
}

void Communicator::WriteChunk(const Operation& op, uint64_t offset, Letter* letter) {
  const uint64_t bytes = op.count * ElementBytes(op.type);
  letter->bytes = static_cast<uint32_t>(std::min(bytes - offset, segment_->slot_bytes()));
  std::byte* slot = segment_->MessageSlot(rank_, letter->slot);
  Back(slot, letter->bytes);
  if (!segment_->Failure().ok()) return;
  std::memcpy(slot, static_cast<const std::byte*>(op.send) + offset, letter->bytes);
}

/// Slots that an early message needs. A payload that does not move takes the room that it would
/// take.
uint64_t Communicator::Pieces(uint64_t bytes) const {
  const uint64_t piece = segment_->slot_bytes();
  return std::max<uint64_t>((bytes + piece - 1) / piece, 1);
}

void Communicator::TakeSlot(uint32_t slot, bool early) {
  Member& self = segment_->self();
  if (slot_is_early_[slot] && self.message_slot_freed_ns[slot].load() == now_ns_) FreedNow(1);
  self.message_slot_busy[slot].store(1, std::memory_order_relaxed);
  slot_is_early_[slot] = early;
}

void Communicator::FreedNow(uint64_t slots) {
  if (freed_ns_ != now_ns_) freed_now_ = 0;
  freed_ns_ = now_ns_;
  freed_now_ += slots;
}

uint64_t Communicator::EarlySlotsFreedNow() const {
  uint64_t freed = freed_ns_ == now_ns_ ? freed_now_ : 0;
  const Member& self = segment_->member(rank_);
  for (uint32_t slot = 0; slot < kMessageSlots; ++slot) {
    freed += slot_is_early_[slot] && self.message_slot_busy[slot].load() == 0 &&
             self.message_slot_freed_ns[slot].load() == now_ns_;
  }
  return freed;
}

uint64_t Communicator::EarlySlotsInUse() const {
  uint64_t used = reserved_slots_ + EarlySlotsFreedNow();
  const Member& self = segment_->member(rank_);
  for (uint32_t slot = 0; slot < kMessageSlots; ++slot)
    used += slot_is_early_[slot] && self.message_slot_busy[slot].load() != 0;
  return used;
}

// On the virtual clock: begins the flows of messages whose receivers have come, and of those that
// may be sent early. What is decided must not depend on who came first at this time. So room that
// came free at this time does not count yet, but a nanosecond later; and a message whose receiver
// came at this time has its room as if it had come later.
void Communicator::BeginMessages() {
  bool waits = false;
  for (const int to : sendable_) {
    Peer& peer = peers_[to];
    for (size_t i = 0; i < peer.sends.size(); ++i) {
      OutgoingMessage& message = peer.sends[i];
      if (message.begun) continue;
      const uint64_t bytes = message.op->count * ElementBytes(message.op->type);
      const bool fits = EarlySlotsInUse() + Pieces(bytes) <= kEarlySlots;
      if (i < peer.ready.size()) {
        if (fits && peer.ready[i].posted_ns == now_ns_) FreedNow(Pieces(bytes));
      } else if (fits) {
        message.reserved = Pieces(bytes);
        reserved_slots_ += message.reserved;
      } else {
        waits = true;
        break;
      }
      message.begun = true;
      message.flow = BeginMessageFlow(to, bytes);
    }
  }
  if (waits && EarlySlotsFreedNow() != 0) flow_wake_ns_ = std::min(flow_wake_ns_, now_ns_ + 1);
}

bool Communicator::SendEarly(int to, const OutgoingMessage& message) {
  const Operation& op = *message.op;
  const uint64_t bytes = op.count * ElementBytes(op.type), piece = segment_->slot_bytes();
  const uint64_t pieces = Pieces(bytes);
  if (pieces > FreeEarlySlots()) return false;
  reserved_slots_ -= message.reserved;
  for (uint64_t i = 0; i < pieces; ++i) {
    const auto slot = static_cast<uint32_t>(FreeSlot());
    Letter letter{.kind = LetterKind::kChunk,
                  .from = static_cast<uint32_t>(rank_),
                  .count = op.count,
                  .type = static_cast<uint32_t>(op.type),
                  .slot = slot,
                  .bytes = 0,
                  .last = i + 1 == pieces,
                  .flow = message.flow,
                  .posted_ns = 0};
    if (Moves(bytes)) {
      WriteChunk(op, i * piece, &letter);
      if (!segment_->Failure().ok()) return true;
    }
    TakeSlot(slot, true);
    letters_.emplace_back(to, letter);
  }
  ++peers_[to].unannounced;
  return true;
}

bool Communicator::SendChunks() {
  bool sent = false;
  for (auto next = sendable_.begin(); next != sendable_.end();) {
    const int to = *next;
    Peer& peer = peers_[to];
    if (platform_.takes_time() && !peer.sends.empty() && !peer.sends.front().begun) {
      ++next;
      continue;
    }
    if (!peer.sends.empty() && peer.ready.empty() && SendEarly(to, peer.sends.front())) {
      if (!segment_->Failure().ok()) return true;
      peer.sends.pop_front();
      if (!platform_.takes_time()) --messages_left_;
      sent = true;
      continue;
    }
    if (peer.sends.empty()) {
      next = sendable_.erase(next);
      continue;
    }
    if (peer.ready.empty()) {  // no room yet: tried again when a slot comes free
      ++next;
      continue;
    }
    OutgoingMessage& message = peer.sends.front();
    const Operation& op = *message.op;
    Letter letter{.kind = LetterKind::kChunk,
                  .from = static_cast<uint32_t>(rank_),
                  .count = op.count,
                  .type = static_cast<uint32_t>(op.type),
                  .slot = kNoSlot,
                  .bytes = 0,
                  .last = 1,
                  .flow = message.flow,
                  .posted_ns = 0};
    if (!message.checked) {
      if (!CheckMessage(rank_, letter, to, peer.ready.front())) return true;
      message.checked = true;
    }
    const uint64_t bytes = op.count * ElementBytes(op.type);
    if (Moves(bytes)) {
      const int slot = FreeSlot();
      if (slot < 0) return sent;
      letter.slot = static_cast<uint32_t>(slot);
      WriteChunk(op, message.offset, &letter);
      if (!segment_->Failure().ok()) return true;
      TakeSlot(letter.slot, false);
      message.offset += letter.bytes;
      letter.last = message.offset == bytes ? 1 : 0;
    }
    if (message.reserved != 0) {  // its receiver came at the same time
      reserved_slots_ -= message.reserved;
      FreedNow(message.reserved);
      message.reserved = 0;
    }
    letters_.emplace_back(to, letter);
    sent = true;
    if (letter.last != 0) {
      peer.ready.pop_front();
      peer.sends.pop_front();
      if (!platform_.takes_time()) --messages_left_;
    }
    ++next;  // one piece for each peer in turn
  }
  return sent;
}

}  // namespace hostnccl
