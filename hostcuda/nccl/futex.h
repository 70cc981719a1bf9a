// Sleeping on a 32-bit word that processes share.
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

/// Sleeps while `word` holds `expected`, at most timeout_ns; may wake early.
inline void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
  const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                         static_cast<long>(timeout_ns % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_FUTEX_H_
