// Sleeping on a 32-bit word that processes share, in a way that lets the virtual clock move.
#ifndef HOSTCUDA_NCCL_FUTEX_H_
#define HOSTCUDA_NCCL_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace hostnccl {

/// On the virtual clock: HostcudaTable::await_word. Null: none.
inline std::atomic<void (*)(const uint32_t* word, uint32_t seen)> await_on_clock{nullptr};

/// Sleeps while `word` holds `expected`, at most timeout_ns (on the virtual clock about a second);
/// may wake early.
inline void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
  if (const auto await = await_on_clock.load(std::memory_order_relaxed); await != nullptr) {
    await(reinterpret_cast<const uint32_t*>(&word), expected);
    return;
  }
  const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                         static_cast<long>(timeout_ns % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_FUTEX_H_
