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
    segment_->member(from).message_slots.Free(letter.slot, now_ns_);
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

// The sends of a group are an all-to-all by hand, and count together, as a collective's parts do:
// each of them alone may be small however much the group moves.
bool Communicator::MessagesMove(const std::vector<Operation>& messages) const {
  uint64_t bytes = 0;
  for (const Operation& op : messages)
    if (op.kind == OpKind::kSend) bytes += op.count * ElementBytes(op.type);
  return bytes <= segment_->header().exact_bytes.load(std::memory_order_relaxed);
}

uint64_t Communicator::FreeEarlySlots() const {
  const uint64_t free = slots_.FreeSlots();
  if (platform_.takes_time()) return free;  // BeginMessages has counted
  return std::min<uint64_t>(free, kEarlySlots - slots_.EarlyBusy());
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
      const bool fits = slots_.EarlyInUse(now_ns_) + Pieces(bytes) <= kEarlySlots;
      if (i < peer.ready.size()) {
        if (fits && peer.ready[i].posted_ns == now_ns_) slots_.CountAsFreed(Pieces(bytes), now_ns_);
      } else if (fits) {
        message.reserved = Pieces(bytes);
        slots_.Reserve(message.reserved);
      } else {
        waits = true;
        break;
      }
      message.begun = true;
      message.flow = BeginMessageFlow(to, bytes);
    }
  }
  if (waits && slots_.EarlyFreedAt(now_ns_)) flow_wake_ns_ = std::min(flow_wake_ns_, now_ns_ + 1);
}

bool Communicator::SendEarly(int to, const OutgoingMessage& message) {
  const Operation& op = *message.op;
  const uint64_t bytes = op.count * ElementBytes(op.type), piece = segment_->slot_bytes();
  const uint64_t pieces = Pieces(bytes);
  if (pieces > FreeEarlySlots()) return false;
  slots_.EndReservation(message.reserved);
  for (uint64_t i = 0; i < pieces; ++i) {
    const auto slot = static_cast<uint32_t>(slots_.Free());
    Letter letter{.kind = LetterKind::kChunk,
                  .from = static_cast<uint32_t>(rank_),
                  .count = op.count,
                  .type = static_cast<uint32_t>(op.type),
                  .slot = slot,
                  .bytes = 0,
                  .last = i + 1 == pieces,
                  .flow = message.flow,
                  .posted_ns = 0};
    if (messages_move_ && bytes != 0) {
      WriteChunk(op, i * piece, &letter);
      if (!segment_->Failure().ok()) return true;
    }
    slots_.Take(slot, true, now_ns_);
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
    if (messages_move_ && bytes != 0) {
      const int slot = slots_.Free();
      if (slot < 0) return sent;
      letter.slot = static_cast<uint32_t>(slot);
      WriteChunk(op, message.offset, &letter);
      if (!segment_->Failure().ok()) return true;
      slots_.Take(letter.slot, false, now_ns_);
      message.offset += letter.bytes;
      letter.last = message.offset == bytes ? 1 : 0;
    }
    if (message.reserved != 0) {  // its receiver came at the same time
      slots_.EndReservation(message.reserved);
      slots_.CountAsFreed(message.reserved, now_ns_);
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
