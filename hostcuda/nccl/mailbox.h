// Mailbox: a bounded queue in shared memory, many producers, one consumer.
//
// Zero-filled memory is an empty mailbox. Neither side ever blocks or spins: a full mailbox
// refuses, and the producer tries again when its doorbell rings. A producer that dies between
// claiming a cell and filling it leaves the consumer stuck at that cell; Stuck() tells.
//
//   Mailbox box(&tail, cells, kMailboxCells);
//   if (!box.Push(letter)) ...;              // any process
//   uint64_t head = 0; Letter letter;
//   while (box.Pop(&head, &letter)) ...;     // the owner
#ifndef HOSTCUDA_NCCL_MAILBOX_H_
#define HOSTCUDA_NCCL_MAILBOX_H_

#include <atomic>
#include <cstdint>

namespace hostnccl {

enum class LetterKind : uint32_t {
  kReady = 1,  // the receiver of a message has come: the sender may write
  kChunk = 2,  // a piece of a message lies in a slot of the sender
};

struct Letter {
  LetterKind kind;
  uint32_t from;   // rank in the communicator
  uint64_t count;  // elements of the whole message, expected or sent
  uint32_t type;   // DataType, likewise
  uint32_t slot;   // kChunk: slot of the sender; UINT32_MAX: none
  uint32_t bytes;  // kChunk: in the slot
  uint32_t last;   // kChunk: the message ends with it
  uint64_t flow;   // kChunk, with `last`: the message's number in the FlowTable
};

struct alignas(64) MailboxCell {
  std::atomic<uint64_t> turn;  // 2 * lap: free; 2 * lap + 1: filled
  Letter letter;
};
static_assert(sizeof(MailboxCell) == 64);

class Mailbox {
 public:
  Mailbox(std::atomic<uint64_t>* tail, MailboxCell* cells, uint64_t capacity)
      : tail_(tail), cells_(cells), capacity_(capacity) {}

  /// Appends a letter; false: the mailbox is full.
  bool Push(const Letter& letter) {
    uint64_t position = tail_->load(std::memory_order_relaxed);
    for (;;) {
      MailboxCell& cell = cells_[position % capacity_];
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == 2 * (position / capacity_)) {
        if (tail_->compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
          cell.letter = letter;
          cell.turn.store(turn + 1, std::memory_order_release);
          return true;
        }
      } else {
        const uint64_t seen = position;
        position = tail_->load(std::memory_order_relaxed);
        if (position == seen) return false;
      }
    }
  }

  /// Takes the oldest letter; `head` is the consumer's own count of letters taken. False: there is
  /// none.
  bool Pop(uint64_t* head, Letter* letter) {
    MailboxCell& cell = cells_[*head % capacity_];
    const uint64_t filled = 2 * (*head / capacity_) + 1;
    if (cell.turn.load(std::memory_order_acquire) != filled) return false;
    *letter = cell.letter;
    cell.turn.store(filled + 1, std::memory_order_release);
    ++*head;
    return true;
  }

  /// Returns whether a cell is claimed but not filled: for a moment, or for ever if its producer
  /// died.
  bool Stuck(uint64_t head) const {
    return tail_->load(std::memory_order_relaxed) > head &&
           cells_[head % capacity_].turn.load(std::memory_order_acquire) !=
               2 * (head / capacity_) + 1;
  }

 private:
  std::atomic<uint64_t>* tail_;
  MailboxCell* cells_;
  uint64_t capacity_;
};

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_MAILBOX_H_
