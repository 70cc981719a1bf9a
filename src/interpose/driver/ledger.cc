#include "src/interpose/driver/ledger.h"

namespace prism::interpose {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

void Ledger::SetLimit(uint64_t limit_bytes, uint64_t context_bytes) {
  std::lock_guard lock(mutex_);
  limit_bytes_ = limit_bytes;
  context_bytes_ = context_bytes;
}

uint64_t Ledger::AllocatedLocked() const {
  return large_bytes_ + RoundUp(small_bytes_, kGranularity);
}

bool Ledger::Reserve(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  uint64_t large = large_bytes_, small = small_bytes_;
  if (bytes <= kSmall) {
    small += RoundUp(bytes, kSmallGranularity);
  } else {
    large += RoundUp(bytes, kGranularity);
  }
  const uint64_t after = large + RoundUp(small, kGranularity);
  if (limit_bytes_ != 0 &&
      (bytes > limit_bytes_ || after + context_bytes_ > limit_bytes_ || after < bytes)) {
    return false;
  }
  large_bytes_ = large;
  small_bytes_ = small;
  requested_bytes_ += bytes;
  ++allocations_;
  if (after > peak_bytes_) peak_bytes_ = after;
  return true;
}

void Ledger::Return(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes <= kSmall) {
    small_bytes_ -= RoundUp(bytes, kSmallGranularity);
  } else {
    large_bytes_ -= RoundUp(bytes, kGranularity);
  }
  requested_bytes_ -= bytes;
  --allocations_;
}

Ledger::Figures Ledger::figures() const {
  std::lock_guard lock(mutex_);
  return {requested_bytes_, AllocatedLocked(), peak_bytes_,
          limit_bytes_,     context_bytes_,    allocations_};
}

uint64_t Ledger::free_bytes() const {
  std::lock_guard lock(mutex_);
  const uint64_t taken = AllocatedLocked() + context_bytes_;
  return taken > limit_bytes_ ? 0 : limit_bytes_ - taken;
}

bool Ledger::NewPeak() {
  std::lock_guard lock(mutex_);
  if (peak_bytes_ <= told_peak_ + told_peak_ / 100) return false;
  told_peak_ = peak_bytes_;
  return true;
}

}  // namespace prism::interpose
