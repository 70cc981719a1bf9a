#include "src/interpose/driver/rounds.h"

#include <algorithm>

namespace prism::interpose::driver {

Rounds& Rounds::Get() {
  static auto* rounds = new Rounds;
  return *rounds;
}

void Rounds::Launched(bool updates) {
  if (!updates) {
    since_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const uint64_t since = since_.load(std::memory_order_relaxed);
  const uint64_t shortest = shortest_.load(std::memory_order_relaxed);
  if (rounds_ != 0 && (since == 0 || 2 * since < shortest)) return;
  // Before the first update lies what sets the program up, too.
  shortest_.store(rounds_ == 0 ? since : std::min(since, shortest), std::memory_order_relaxed);
  since_.store(0, std::memory_order_relaxed);
  rounds_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace prism::interpose::driver
