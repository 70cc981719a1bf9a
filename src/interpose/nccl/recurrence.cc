#include "src/interpose/nccl/recurrence.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>

namespace prism::interpose::nccl {
namespace {

std::atomic<uint64_t> g_kept_bytes{0};

bool IsMessage(wire::Op op) { return op == wire::Op::kSend || op == wire::Op::kRecv; }
bool IsReduction(wire::Op op) {
  return op == wire::Op::kAllReduce || op == wire::Op::kReduce || op == wire::Op::kReduceScatter;
}
/// 0 of messages: their sizes follow from values, as those of experts' tokens do.
int SizeClass(const wire::OpRecord& record) {
  return IsMessage(record.op) ? 0 : static_cast<int>(std::bit_width(record.count));
}

}  // namespace

Recurrence::~Recurrence() {
  for (auto& [at, unit] : kept_) {
    for (auto& [key, kept] : unit) {
      g_kept_bytes.fetch_sub(kept.bytes);
      core_->arena_give(&kept.slot);
    }
  }
}

int64_t Recurrence::KeyOf(size_t index, const wire::OpRecord& record) {
  return IsMessage(record.op) ? record.peer : -1 - static_cast<int64_t>(index);
}

Recurrence::Place Recurrence::Begin(uint32_t round, const wire::OpRecord& record) {
  const Kind kind{IsMessage(record.op) ? wire::Op::kRecv : record.op, SizeClass(record)};
  std::lock_guard lock(mutex_);
  if (round != round_) units_.clear();
  round_ = round;
  return {round, kind, units_[kind]++};
}

bool Recurrence::Recurs(const Place& place, const wire::OpRecord& record) {
  const Signature signature{record.op, record.dtype, record.reduction, record.peer,
                            SizeClass(record)};
  std::lock_guard lock(mutex_);
  const auto found = first_round_.find(signature);
  if (found != first_round_.end()) return found->second < place.round;
  if (first_round_.size() < kSignatures) first_round_[signature] = place.round;
  return false;
}

const Recurrence::Kept* Recurrence::Keep(const CoreTable& core, const Place& place, size_t index,
                                         const wire::OpRecord& record) {
  // What is reduced follows from own data.
  if (record.out_bytes == 0 || IsReduction(record.op)) return nullptr;
  // A root that gives has what it gives.
  if ((record.op == wire::Op::kBroadcast || record.op == wire::Op::kScatter) &&
      record.in_bytes != 0) {
    return nullptr;
  }
  // Of a collective all or nothing: its parts are those of members.
  if (!IsMessage(record.op) && record.out_bytes > kKeptBytes) return nullptr;
  const uint64_t bytes = std::min(record.out_bytes, kKeptBytes);
  std::lock_guard lock(mutex_);
  auto& unit = kept_[{place.kind, place.ordinal}];
  const auto [at, inserted] = unit.try_emplace(KeyOf(index, record));
  // What is kept is not changed any more: streams may read it.
  if (!inserted) return nullptr;
  if (g_kept_bytes.fetch_add(bytes) + bytes > kKeptTotalBytes ||
      !core.arena_take(bytes, &at->second.slot)) {
    g_kept_bytes.fetch_sub(bytes);
    unit.erase(at);
    return nullptr;
  }
  at->second.op = record.op;
  at->second.round = place.round;
  at->second.bytes = bytes;
  core_ = &core;
  // Streams that nothing orders may read it before it is filled.
  memset(at->second.slot.host, 0, bytes);
  return &at->second;
}

const Recurrence::Kept* Recurrence::Find(const Place& place, size_t index,
                                         const wire::OpRecord& record) const {
  std::lock_guard lock(mutex_);
  const auto unit = kept_.find({place.kind, place.ordinal});
  if (unit == kept_.end()) return nullptr;
  // What the unit itself keeps is not there yet.
  const auto serves = [&](const Kept& kept) {
    return kept.round < place.round && kept.op == record.op;
  };
  const auto same = unit->second.find(KeyOf(index, record));
  if (same != unit->second.end() && serves(same->second)) {
    const bool fits = IsMessage(record.op) || same->second.bytes == record.out_bytes;
    return fits ? &same->second : nullptr;
  }
  if (!IsMessage(record.op)) return nullptr;
  const auto other = std::find_if(unit->second.begin(), unit->second.end(),
                                  [&](const auto& entry) { return serves(entry.second); });
  return other == unit->second.end() ? nullptr : &other->second;
}

}  // namespace prism::interpose::nccl
