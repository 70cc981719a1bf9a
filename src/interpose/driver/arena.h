// Arena: the memory that a rank shares with the controller: control words, and slots for payloads.
//
// Owns one sparse memfd, mapped here and by the controller (wire/protocol.h describes the layout).
// Slots are powers of two and are reused last in, first out, so that the pages touched stay few and
// warm. On a GPU the parts in use are registered with CUDA, when first needed: a copy is then
// asynchronous, and streams can wait on control words. Thread-safe; Give and WordGive are called
// from host functions of streams.
//
//   Arena arena;
//   arena.Create(wire::kArenaBytes, reason, sizeof reason);
//   ArenaSlot slot;
//   if (arena.Take(bytes, &slot)) { ...; arena.Give(slot); }
#ifndef PRISM_INTERPOSE_DRIVER_ARENA_H_
#define PRISM_INTERPOSE_DRIVER_ARENA_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "src/interpose/core_table.h"
#include "src/wire/protocol.h"

namespace prism::interpose {

class Arena {
 public:
  /// Makes [address, address + bytes) known to CUDA; false: it stays pageable.
  using RegisterFunction = bool (*)(void* address, size_t bytes);

  bool Create(uint64_t bytes, char* reason, size_t reason_bytes);
  void SetRegister(RegisterFunction function) { register_ = function; }
  /// In a forked child: unmaps, so that the child keeps no page of the rank alive.
  void Abandon();

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }

  /// False: the arena is full, or `bytes` is more than it could ever hold.
  bool Take(uint64_t bytes, ArenaSlot* slot);
  void Give(const ArenaSlot& slot);

  /// A free control word, zeroed. Waits for one to be given back when all are taken, as a launch
  /// waits when the queue of a GPU is full.
  uint32_t WordTake();
  void WordGive(uint32_t index);
  uint32_t* Word(uint32_t index) { return reinterpret_cast<uint32_t*>(base_) + index; }
  void Ring();

 private:
  static constexpr int kSmallestClass = 12;  // 4 KiB: payloads never share a page
  static constexpr int kClasses = 64;
  static constexpr uint64_t kRegisterStep = uint64_t{16} << 20;

  int fd_ = -1;
  char* base_ = nullptr;
  uint64_t bytes_ = 0;
  RegisterFunction register_ = nullptr;

  std::mutex mutex_;
  uint64_t next_ = wire::kControlBytes;        // first byte never handed out
  uint64_t registered_ = wire::kControlBytes;  // end of the last registered part
  bool words_registered_ = false;
  std::vector<uint64_t> free_[kClasses];

  std::mutex word_mutex_;
  std::condition_variable word_given_;
  uint32_t next_word_ = wire::kFirstFreeWord;
  std::vector<uint32_t> free_words_;
};

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_ARENA_H_
