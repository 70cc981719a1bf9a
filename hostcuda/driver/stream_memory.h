// The words that streams write and wait for: cuStreamWriteValue and cuStreamWaitValue.
//
// A store also wakes whoever sleeps on the word (FUTEX_WAKE, shared), so that a stream of another
// process that waits for it goes on at once; a wait sleeps on the word. Thread-safe.
#ifndef HOSTCUDA_DRIVER_STREAM_MEMORY_H_
#define HOSTCUDA_DRIVER_STREAM_MEMORY_H_

#include <cuda.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <type_traits>

#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/engine.h"

namespace hostcuda {

/// True where a stream may use the word: aligned, and in memory that CUDA knows of.
inline bool FindWord(CUdeviceptr address, uint64_t bytes, MemoryRange* range) {
  return address % bytes == 0 && Driver::Get()->memory().Find(address, range) &&
         range->accessible && address + bytes <= range->base + range->bytes;
}

template <class Word>
int StoreWord(CUdeviceptr address, Word value) {
  auto* word = reinterpret_cast<Word*>(address);
  __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return kDone;
}

/// As CUDA defines the conditions: GEQ is a signed comparison of the difference.
template <class Word>
bool WordSatisfies(Word now, Word value, unsigned flags) {
  using Signed = std::make_signed_t<Word>;
  switch (flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<Signed>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & value) != 0;
    default:
      return static_cast<Word>(~(now | value)) != 0;
  }
}

template <class Word>
int PollWord(CUdeviceptr address, Word value, unsigned flags, PollState& state) {
  const Word now = __atomic_load_n(reinterpret_cast<const Word*>(address), __ATOMIC_ACQUIRE);
  if (WordSatisfies(now, value, flags)) return kDone;
  state.WaitFor(reinterpret_cast<const void*>(address), static_cast<uint32_t>(now));
  if constexpr (sizeof(Word) == 8) {
    state.WaitFor(reinterpret_cast<const void*>(address + 4), static_cast<uint32_t>(now >> 32));
  }
  return kPending;
}

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_STREAM_MEMORY_H_
