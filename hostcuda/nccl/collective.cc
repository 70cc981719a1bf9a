// The collectives of Communicator: steps through shared slots.
#include <algorithm>
#include <cstring>

#include "hostcuda/nccl/communicator.h"

namespace hostnccl {
namespace {

// Up to so many bytes of all contributions together a rank reduces everything itself: one round
// less, the same bits.
constexpr uint64_t kReduceAloneBytes = uint64_t{128} << 10;
// Shares begin at cache lines of every type.
constexpr uint64_t kShareElements = 64;

bool HasParts(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll || kind == OpKind::kScatter;
}

void Copy(void* to, const void* from, uint64_t bytes) {
  if (to != from && bytes != 0) std::memmove(to, from, bytes);
}

}  // namespace

bool Communicator::Reached(std::atomic<uint64_t>& counter, uint64_t target) const {
  return counter.load(std::memory_order_acquire) >= target;
}

void Communicator::Count(std::atomic<uint64_t>& counter, uint64_t target) {
  if (counter.fetch_add(1, std::memory_order_acq_rel) + 1 == target) RingAll(true);
}

void Communicator::RunAlone(const Operation& op) {
  const uint64_t bytes = op.count * ElementBytes(op.type);
  if (IsReducing(op.kind) && op.reduction == Reduction::kPreMulSum) {
    uint64_t scalar = op.scalar_bits;
    if (op.scalar_address != nullptr)
      std::memcpy(&scalar, op.scalar_address, ElementBytes(op.type));
    Reduce(op.type, op.reduction, &op.send, &scalar, 1, op.count, op.recv);
  } else {
    Copy(op.recv, op.send, bytes);
  }
}

void Communicator::BeginCollective(const Operation& op) {
  const bool moves =
      PayloadBytes(op, ranks_) <= segment_->header().exact_bytes.load(std::memory_order_relaxed);
  Collective run;
  run.op = &op;
  run.index = collectives_++;
  run.element = ElementBytes(op.type);
  run.moves = moves;
  if (ranks_ == 1) {
    if (moves) RunAlone(op);
    run.steps = 0;
  } else if (moves) {
    run.step_elements = segment_->slot_bytes() / run.element;
    if (HasParts(op.kind)) run.step_elements = std::max<uint64_t>(run.step_elements / ranks_, 1);
    run.steps = std::max<uint64_t>((op.count + run.step_elements - 1) / run.step_elements, 1);
    run.shares = (op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduce) &&
                 op.count * run.element * ranks_ > kReduceAloneBytes;
  }
  collective_ = run;
  if (ranks_ > 1) ContributeCall();
}

// Says what this rank calls and compares with the first rank that has come to the same point.
bool Communicator::ContributeCall() {
  const Operation& op = *collective_.op;
  const uint64_t index = collective_.index;
  Member& self = segment_->self();
  const Signature signature = Signature::Of(op);
  uint64_t scalar = op.scalar_bits;
  if (op.scalar_address != nullptr) std::memcpy(&scalar, op.scalar_address, collective_.element);
  self.signature[index % 2] = signature;
  self.scalar_bits[index % 2] = scalar;
  self.collectives_started.store(index + 1, std::memory_order_release);
  std::atomic<uint64_t>& first_comer = segment_->header().first_comer[index % 2];
  uint64_t seen = first_comer.load(std::memory_order_acquire);
  const uint64_t mine = (index + 1) << 16 | static_cast<uint64_t>(rank_);
  while (seen >> 16 != index + 1) {
    if (first_comer.compare_exchange_weak(seen, mine, std::memory_order_acq_rel)) return true;
  }
  const int first = static_cast<int>(seen & 0xffff);
  const Signature other = segment_->member(first).signature[index % 2];
  if (other == signature) return true;
  Fail(Error(Code::kInvalidUsage,
             "mismatched collectives: as collective number %llu of a communicator of %d ranks, %s "
             "called %s, but %s called %s; all "
             "ranks must make the same calls in the same order",
             static_cast<unsigned long long>(index) + 1, ranks_, segment_->NameOf(rank_).c_str(),
             Describe(signature).c_str(), segment_->NameOf(first).c_str(),
             Describe(other).c_str()));
  return false;
}

bool Communicator::AdvanceCollective() {
  Collective& run = collective_;
  if (run.takes_time) return AdvanceFlow();
  StepCounters* counters = segment_->header().steps;
  const auto ranks = static_cast<uint64_t>(ranks_);
  bool advanced = false;
  if (segment_->header().failed.load(std::memory_order_acquire) != 0) return false;
  if (run.written < run.steps && run.written - run.read < kStepSlots) {
    const uint64_t step = steps_ + run.written;
    StepCounters& slot = counters[step % kStepSlots];
    const uint64_t use = step / kStepSlots;
    if (Reached(slot.read.value, ranks * use)) {
      WriteStep(run.written++);
      // A failure to write (no memory) must not look like a contribution.
      if (segment_->header().failed.load(std::memory_order_acquire) != 0) return true;
      if (run.shares) reduced_target_[step % kStepSlots] += ranks;
      Count(slot.written.value, ranks * (use + 1));
      advanced = true;
    }
  }
  if (run.shares && run.reduced < run.written) {
    const uint64_t step = steps_ + run.reduced;
    StepCounters& slot = counters[step % kStepSlots];
    if (Reached(slot.written.value, ranks * (step / kStepSlots + 1))) {
      ReduceStep(run.reduced++);
      if (segment_->header().failed.load(std::memory_order_acquire) != 0) return true;
      Count(slot.reduced.value, reduced_target_[step % kStepSlots]);
      advanced = true;
    }
  }
  if (run.read < (run.shares ? run.reduced : run.written)) {
    const uint64_t step = steps_ + run.read;
    StepCounters& slot = counters[step % kStepSlots];
    const uint64_t use = step / kStepSlots;
    const bool complete = run.shares
                              ? Reached(slot.reduced.value, reduced_target_[step % kStepSlots])
                              : Reached(slot.written.value, ranks * (use + 1));
    if (complete && segment_->header().failed.load(std::memory_order_acquire) == 0) {
      ReadStep(run.read++);
      Count(slot.read.value, ranks * (use + 1));
      advanced = true;
    }
  }
  if (run.read == run.steps) {
    steps_ += run.steps;
    segment_->self().collectives_completed.store(run.index + 1, std::memory_order_release);
    if (platform_.takes_time()) {
      run.takes_time = true;
    } else {
      run.op = nullptr;
    }
    advanced = true;
  }
  return advanced;
}

uint64_t Communicator::StepElements(uint64_t step) const {
  return std::min(collective_.step_elements,
                  collective_.op->count - step * collective_.step_elements);
}

void Communicator::WriteStep(uint64_t step) {
  const Collective& run = collective_;
  const Operation& op = *run.op;
  if (!run.moves || op.count == 0) return;
  const bool rooted_input = op.kind == OpKind::kBroadcast || op.kind == OpKind::kScatter;
  if (rooted_input && op.peer != rank_) return;
  const uint64_t offset = step * run.step_elements * run.element;
  const uint64_t bytes = StepElements(step) * run.element;
  const auto* input = static_cast<const std::byte*>(op.send) + offset;
  std::byte* slot = segment_->StepSlot(rank_, (steps_ + step) % kStepSlots);
  if (!HasParts(op.kind)) {
    Back(slot, bytes);
    if (segment_->Failure().ok()) Copy(slot, input, bytes);
    return;
  }
  const uint64_t part = run.step_elements * run.element;
  Back(slot, part * ranks_);
  if (!segment_->Failure().ok()) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    Copy(slot + rank * part, input + rank * op.count * run.element, bytes);
  }
}

void Communicator::ReduceFrom(uint32_t slot, uint64_t offset, uint64_t elements, void* output) {
  const Operation& op = *collective_.op;
  for (int rank = 0; rank < ranks_; ++rank) {
    inputs_[rank] = segment_->StepSlot(rank, slot) + offset;
    if (op.reduction == Reduction::kPreMulSum) {
      scalars_[rank] = segment_->member(rank).scalar_bits[collective_.index % 2];
    }
  }
  Reduce(op.type, op.reduction, inputs_.data(), scalars_.data(), ranks_, elements, output);
}

void Communicator::ReduceStep(uint64_t step) {
  const Collective& run = collective_;
  const uint64_t elements = StepElements(step);
  uint64_t share = (elements + ranks_ - 1) / ranks_;
  share = (share + kShareElements - 1) / kShareElements * kShareElements;
  const uint64_t begin = std::min(elements, share * rank_);
  const uint64_t end = std::min(elements, begin + share);
  if (begin == end) return;
  const uint32_t slot = (steps_ + step) % kStepSlots;
  std::byte* result = segment_->ResultSlot(slot) + begin * run.element;
  Back(result, (end - begin) * run.element);
  if (segment_->Failure().ok()) ReduceFrom(slot, begin * run.element, end - begin, result);
}

void Communicator::ReadStep(uint64_t step) {
  const Collective& run = collective_;
  const Operation& op = *run.op;
  if (!run.moves || op.count == 0) return;
  const uint64_t elements = StepElements(step);
  const uint64_t bytes = elements * run.element;
  const uint64_t offset = step * run.step_elements * run.element;
  const uint64_t stride = op.count * run.element;  // of ranks' parts in a gathered buffer
  const uint64_t part = run.step_elements * run.element;
  const uint32_t slot = (steps_ + step) % kStepSlots;
  const bool to_one = op.kind == OpKind::kReduce || op.kind == OpKind::kGather;
  if (to_one && op.peer != rank_) return;  // the others may have nowhere to put it
  std::byte* output = static_cast<std::byte*>(op.recv) + offset;
  switch (op.kind) {
    case OpKind::kReduce:
    case OpKind::kAllReduce:
      if (run.shares) {
        Copy(output, segment_->ResultSlot(slot), bytes);
      } else {
        ReduceFrom(slot, 0, elements, output);
      }
      return;
    case OpKind::kBroadcast:
      if (op.peer == rank_) {
        Copy(output, static_cast<const std::byte*>(op.send) + offset, bytes);
      } else {
        Copy(output, segment_->StepSlot(op.peer, slot), bytes);
      }
      return;
    case OpKind::kGather:
    case OpKind::kAllGather:
      for (int rank = 0; rank < ranks_; ++rank)
        Copy(output + rank * stride, segment_->StepSlot(rank, slot), bytes);
      return;
    case OpKind::kReduceScatter:
      ReduceFrom(slot, rank_ * part, elements, output);
      return;
    case OpKind::kAllToAll:
      for (int rank = 0; rank < ranks_; ++rank) {
        Copy(output + rank * stride, segment_->StepSlot(rank, slot) + rank_ * part, bytes);
      }
      return;
    case OpKind::kScatter:
      Copy(output, segment_->StepSlot(op.peer, slot) + rank_ * part, bytes);
      return;
    case OpKind::kSend:
    case OpKind::kRecv:
      return;
  }
}

}  // namespace hostnccl
