// Arena: a rank's shared memory as the controller sees it (wire/protocol.h: control words, then
// payload slots).
//
// Owns the mapping. Words are shared with the rank's threads: all access is atomic. Movable;
// thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(Arena arena, Arena::Map(fd, hello.arena_bytes));
//   if (Reached(arena.Load(post.arrival_word), post.arrival_value)) ...
//   arena.StoreAndWake(post.release_word, post.release_value);
#ifndef PRISM_COORDINATOR_ARENA_H_
#define PRISM_COORDINATOR_ARENA_H_

#include <cstddef>
#include <cstdint>

#include "src/base/status.h"

namespace prism::coordinator {

/// CUDA's definition of CU_STREAM_WAIT_VALUE_GEQ.
inline bool Reached(uint32_t word, uint32_t value) {
  return static_cast<int32_t>(word - value) >= 0;
}

class Arena {
 public:
  /// Maps `bytes` of the memory behind `fd`, which stays the caller's. Fails when the file is
  /// shorter.
  static absl::StatusOr<Arena> Map(int fd, uint64_t bytes);
  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  bool mapped() const { return base_ != nullptr; }
  uint64_t bytes() const { return bytes_; }
  /// True when [offset, offset + bytes) lies in the payload part.
  bool HoldsPayload(uint64_t offset, uint64_t bytes) const;
  std::byte* at(uint64_t offset) const { return base_ + offset; }
  uint32_t* word(uint32_t index) const;
  uint32_t Load(uint32_t index) const;
  void StoreAndWake(uint32_t index, uint32_t value) const;

 private:
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_ARENA_H_
