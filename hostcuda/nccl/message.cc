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
      peers_[from].ready.push_back(letter);
      sendable_.insert(from);
    } else if (!TakeChunk(letter)) {
      break;
    }
  }
  if (opened && segment_->self().wants_mailbox_space.exchange(0) != 0) RingAll(true);
  return opened;
}

bool Communicator::TakeChunk(const Letter& letter) {
  const auto from = static_cast<int>(letter.from);
  Peer& peer = peers_[from];
  if (peer.receives.empty()) {
    Fail(Error(Code::kInternalError,
               "rank %d got a piece of a message from rank %d that it did not announce", rank_,
               from));
    return false;
  }
  IncomingMessage& message = peer.receives.front();
  if (letter.slot != kNoSlot) {
    std::memcpy(static_cast<std::byte*>(message.op->recv) + message.offset,
                segment_->MessageSlot(from, letter.slot), letter.bytes);
    message.offset += letter.bytes;
    segment_->member(from).message_slot_busy[letter.slot].store(0, std::memory_order_release);
    Ring(from);
  }
  if (letter.last != 0) {
    peer.receives.pop_front();
    --messages_left_;
  }
  return true;
}

bool Communicator::SendChunks() {
  bool sent = false;
  for (auto next = sendable_.begin(); next != sendable_.end();) {
    const int to = *next;
    Peer& peer = peers_[to];
    if (peer.sends.empty() || peer.ready.empty()) {
      next = sendable_.erase(next);
      continue;
    }
    OutgoingMessage& message = peer.sends.front();
    const Operation& op = *message.op;
    if (!message.checked) {
      const Letter& ready = peer.ready.front();
      if (ready.count != op.count || ready.type != static_cast<uint32_t>(op.type)) {
        const Signature expected{OpKind::kRecv, static_cast<DataType>(ready.type), Reduction::kSum,
                                 -1, ready.count};
        Fail(Error(Code::kInvalidUsage,
                   "mismatched messages: %s called %s to rank %d, but %s called %s from rank %d",
                   segment_->NameOf(rank_).c_str(), Describe(Signature::Of(op)).c_str(), to,
                   segment_->NameOf(to).c_str(), Describe(expected).c_str(), rank_));
        return true;
      }
      message.checked = true;
    }
    const uint64_t bytes = op.count * ElementBytes(op.type);
    const bool moves =
        bytes != 0 && bytes <= segment_->header().exact_bytes.load(std::memory_order_relaxed);
    Letter letter{.kind = LetterKind::kChunk,
                  .from = static_cast<uint32_t>(rank_),
                  .count = 0,
                  .type = 0,
                  .slot = kNoSlot,
                  .bytes = 0,
                  .last = 1};
    if (moves) {
      auto& busy = segment_->self().message_slot_busy;
      const auto* free_slot = std::find_if(std::begin(busy), std::end(busy), [](auto& flag) {
        return flag.load(std::memory_order_acquire) == 0;
      });
      if (free_slot == std::end(busy)) return sent;
      letter.slot = static_cast<uint32_t>(free_slot - std::begin(busy));
      letter.bytes =
          static_cast<uint32_t>(std::min(bytes - message.offset, segment_->slot_bytes()));
      std::byte* slot = segment_->MessageSlot(rank_, letter.slot);
      Back(slot, letter.bytes);
      if (!segment_->Failure().ok()) return true;
      busy[letter.slot].store(1, std::memory_order_relaxed);
      std::memcpy(slot, static_cast<const std::byte*>(op.send) + message.offset, letter.bytes);
      message.offset += letter.bytes;
      letter.last = message.offset == bytes ? 1 : 0;
    }
    letters_.emplace_back(to, letter);
    sent = true;
    if (letter.last != 0) {
      peer.ready.pop_front();
      peer.sends.pop_front();
      --messages_left_;
    }
    ++next;  // one piece for each peer in turn
  }
  return sent;
}

}  // namespace hostnccl
