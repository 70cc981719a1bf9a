// The point-to-point messages of Communicator: announced by the receiver, written by the sender.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "hostcuda/nccl/communicator.h"

namespace hostnccl {
namespace {

constexpr uint32_t kNoSlot = UINT32_MAX;
// NCCL's buffer of a connection. (It has one for each channel; a message may take several.)
constexpr uint64_t kFifoSteps = 8, kFifoStepBytes = uint64_t{512} << 10;

}  // namespace

bool Communicator::AdvanceMessages() {
  bool advanced = OpenMailbox();
  BeginMessages();
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
      if (!peer.fifo.empty()) peer.fifo.pop_front();
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
    segment_->member(from).message_slots.Free(letter.slot);
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

void Communicator::WriteChunk(const Operation& op, uint64_t offset, Letter* letter) {
  const uint64_t bytes = op.count * ElementBytes(op.type);
  letter->bytes = static_cast<uint32_t>(std::min(bytes - offset, segment_->slot_bytes()));
  std::byte* slot = segment_->MessageSlot(rank_, letter->slot);
  Back(slot, letter->bytes);
  if (!segment_->Failure().ok()) return;
  std::memcpy(slot, static_cast<const std::byte*>(op.send) + offset, letter->bytes);
}

// Lets those messages go whose receivers have come, and those that fit into what is left of their
// peer's FIFO; on the virtual clock their flows begin. What fits at a time does not depend on who
// comes first: a receiver that comes makes room, and its own message goes all the same.
void Communicator::BeginMessages() {
  for (const int to : sendable_) {
    Peer& peer = peers_[to];
    uint64_t used = std::accumulate(peer.fifo.begin(), peer.fifo.end(), uint64_t{0});
    for (size_t i = 0; i < peer.sends.size(); ++i) {
      OutgoingMessage& message = peer.sends[i];
      if (message.begun) continue;
      const uint64_t bytes = message.op->count * ElementBytes(message.op->type);
      if (i >= peer.ready.size()) {
        const uint64_t steps = std::max<uint64_t>((bytes + kFifoStepBytes - 1) / kFifoStepBytes, 1);
        if (used + steps > kFifoSteps) break;
        used += steps;
        peer.fifo.push_back(steps);
      }
      message.begun = true;
      if (platform_.takes_time()) message.flow = BeginMessageFlow(to, bytes);
    }
  }
}

/// Writes a message whose receiver has not come; false: there are no slots for all of it.
bool Communicator::SendEarly(int to, const OutgoingMessage& message) {
  const Operation& op = *message.op;
  const uint64_t bytes = op.count * ElementBytes(op.type), piece = segment_->slot_bytes();
  const uint64_t slots = messages_move_ ? (bytes + piece - 1) / piece : 0;
  if (slots > std::min(slots_.FreeSlots(), kEarlySlots - slots_.EarlyBusy())) return false;
  const uint64_t letters = std::max<uint64_t>(slots, 1);
  for (uint64_t i = 0; i < letters; ++i) {
    Letter letter{.kind = LetterKind::kChunk,
                  .from = static_cast<uint32_t>(rank_),
                  .count = op.count,
                  .type = static_cast<uint32_t>(op.type),
                  .slot = kNoSlot,
                  .bytes = 0,
                  .last = i + 1 == letters,
                  .flow = message.flow};
    if (slots != 0) {
      letter.slot = static_cast<uint32_t>(slots_.Free());
      WriteChunk(op, i * piece, &letter);
      if (!segment_->Failure().ok()) return true;
      slots_.Take(letter.slot, true);
    }
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
    if (!peer.sends.empty() && !peer.sends.front().begun) {
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
    if (peer.ready.empty()) {  // no slots yet: tried again when one comes free
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
                  .flow = message.flow};
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
      slots_.Take(letter.slot, false);
      message.offset += letter.bytes;
      letter.last = message.offset == bytes ? 1 : 0;
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
