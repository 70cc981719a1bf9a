#include "src/interpose/nccl/mirror.h"

#include <algorithm>
#include <cstring>

#include "src/base/float_formats.h"

namespace prism::interpose::nccl {
namespace {

bool IsFloatingPoint(uint32_t dtype) {
  return dtype == ncclFloat16 || dtype == ncclFloat32 || dtype == ncclFloat64 ||
         dtype == ncclBfloat16;
}

/// What a reduction gives if every member brings what this one does, `in` being its part of that.
StandInSegment Reduced(const wire::OpRecord& record, uint64_t whole, uint64_t in, uint64_t out) {
  StandInSegment segment{in, out, record.out_bytes};
  constexpr uint64_t kUnit = 16;  // bytes that a stand-in moves at a time
  if (IsFloatingPoint(record.dtype) && ((whole | in | record.in_bytes) % kUnit) == 0) {
    segment.around = whole;
    segment.around_bytes = record.in_bytes;
  }
  return segment;
}

}  // namespace

void AddMirror(const Operation& operation, const std::vector<Operation*>& group,
               std::vector<StandInSegment>* segments) {
  const wire::OpRecord& record = operation.record;
  const auto in = reinterpret_cast<uint64_t>(operation.input);
  const auto out = reinterpret_cast<uint64_t>(operation.output);
  const auto size = static_cast<uint32_t>(operation.comm->size());
  const uint64_t own_part = static_cast<uint64_t>(operation.comm->rank()) * record.out_bytes;
  if (record.out_bytes == 0) return;
  switch (record.op) {
    case wire::Op::kAllReduce:
    case wire::Op::kReduce:
      return segments->push_back(Reduced(record, in, in, out));
    case wire::Op::kAllToAll:
      return segments->push_back({in, out, record.out_bytes});
    case wire::Op::kAllGather:
    case wire::Op::kGather:
      return segments->push_back({in, out, record.in_bytes, size});
    case wire::Op::kReduceScatter:
      return segments->push_back(Reduced(record, in, in + own_part, out));
    case wire::Op::kScatter:
      if (record.in_bytes == 0) return;  // not the root: it keeps what it has
      return segments->push_back({in + own_part, out, record.out_bytes});
    case wire::Op::kBroadcast:
      if (record.in_bytes == 0) return;
      return segments->push_back({in, out, record.out_bytes});
    case wire::Op::kSend:
      return;
    case wire::Op::kRecv:
      break;
  }
  for (const Operation* other : group) {
    if (other->record.op == wire::Op::kSend && other->comm == operation.comm &&
        other->record.peer == record.peer && other->record.in_bytes >= record.out_bytes) {
      return segments->push_back({reinterpret_cast<uint64_t>(other->input), out, record.out_bytes});
    }
  }
  segments->push_back({0, out, record.out_bytes});
}

void AddKept(const Operation& operation, const Recurrence::Kept& kept,
             std::vector<StandInSegment>* segments) {
  const wire::OpRecord& record = operation.record;
  const auto in = reinterpret_cast<uint64_t>(operation.input);
  const auto out = reinterpret_cast<uint64_t>(operation.output);
  const auto from = reinterpret_cast<uint64_t>(kept.slot.host);
  const uint64_t own = static_cast<uint64_t>(operation.comm->rank());
  const bool gathers = record.op == wire::Op::kAllGather || record.op == wire::Op::kGather;
  const bool shuffles = record.op == wire::Op::kAllToAll;
  if (gathers || shuffles) {
    // In place the own part is where it belongs, and must not be written over.
    const uint64_t part = record.out_bytes / static_cast<uint64_t>(operation.comm->size());
    const uint64_t end = (own + 1) * part;
    segments->push_back({from, out, own * part});
    segments->push_back({in + (shuffles ? own * part : 0), out + own * part, part});
    segments->push_back({from + end, out + end, record.out_bytes - end});
    return;
  }
  const uint64_t whole = record.out_bytes / kept.bytes, rest = record.out_bytes % kept.bytes;
  if (whole != 0) segments->push_back({from, out, kept.bytes, static_cast<uint32_t>(whole)});
  segments->push_back({from, out + whole * kept.bytes, rest});
}

bool NeedsArithmetic(const Operation& operation) {
  const wire::OpRecord& record = operation.record;
  const bool reduces = record.op == wire::Op::kAllReduce || record.op == wire::Op::kReduce ||
                       record.op == wire::Op::kReduceScatter;
  const bool scales = record.reduction == ncclSum || record.reduction == ncclProd ||
                      record.reduction == wire::kRedOpPreMulSum;
  return reduces && scales && record.out_bytes != 0 && operation.comm->size() > 1;
}

namespace {

template <class T>
T Repeated(T value, uint32_t reduction, uint32_t members, T scalar) {
  if (reduction == ncclProd) {
    T product = value;
    for (uint32_t i = 1; i < members; ++i) product = static_cast<T>(product * value);
    return product;
  }
  const T sum = static_cast<T>(value * static_cast<T>(members));
  return reduction == wire::kRedOpPreMulSum ? static_cast<T>(sum * scalar) : sum;
}

// `load` and `store` between what is stored and what is computed with.
template <class Stored, class Load, class Store>
void RepeatElements(const wire::OpRecord& record, uint32_t members, void* data, Load load,
                    Store store) {
  auto* const elements = static_cast<Stored*>(data);
  Stored bits;
  memcpy(&bits, &record.scalar_bits, sizeof bits);
  const auto scalar = load(bits);
  for (uint64_t i = 0; i < record.out_bytes / sizeof(Stored); ++i)
    elements[i] = store(Repeated(load(elements[i]), record.reduction, members, scalar));
}

template <class T>
void RepeatPlain(const wire::OpRecord& record, uint32_t members, void* data) {
  const auto same = [](T value) { return value; };
  RepeatElements<T>(record, members, data, same, same);
}

template <class Stored>
void RepeatSmall(const wire::OpRecord& record, uint32_t members, void* data,
                 const FloatFormat& format) {
  RepeatElements<Stored>(
      record, members, data, [&](Stored bits) { return Decode(format, bits); },
      [&](float value) { return static_cast<Stored>(Encode(format, value)); });
}

}  // namespace

void Repeat(const wire::OpRecord& record, uint32_t members, void* data) {
  switch (record.dtype) {  // integers are modular
    case ncclInt8:
    case ncclUint8:
      return RepeatPlain<uint8_t>(record, members, data);
    case ncclInt32:
    case ncclUint32:
      return RepeatPlain<uint32_t>(record, members, data);
    case ncclInt64:
    case ncclUint64:
      return RepeatPlain<uint64_t>(record, members, data);
    case ncclFloat32:
      return RepeatPlain<float>(record, members, data);
    case ncclFloat64:
      return RepeatPlain<double>(record, members, data);
    case ncclBfloat16:
      return RepeatElements<uint16_t>(record, members, data, &FloatFromBfloat16,
                                      &Bfloat16FromFloat);
    case ncclFloat16:
      return RepeatSmall<uint16_t>(record, members, data, kHalf);
    case ncclFloat8e4m3:
      return RepeatSmall<uint8_t>(record, members, data, kE4M3);
    case ncclFloat8e5m2:
      return RepeatSmall<uint8_t>(record, members, data, kE5M2);
    default:
      return;
  }
}

void AddTraffic(const Operation& operation, std::vector<StandInSegment>* segments) {
  const wire::OpRecord& record = operation.record;
  const auto in = reinterpret_cast<uint64_t>(operation.input);
  const auto out = reinterpret_cast<uint64_t>(operation.output);
  const auto n = static_cast<uint64_t>(operation.comm->size());
  constexpr uint64_t kAligned = ~uint64_t{15};
  switch (record.op) {
    case wire::Op::kAllReduce: {
      // 2 (n - 1) / n of the payload passes through; the mirror is one payload.
      const uint64_t more = (record.in_bytes - 2 * record.in_bytes / n) & kAligned;
      if (n > 2 && more != 0) segments->push_back({in, out, more});
      return;
    }
    case wire::Op::kReduceScatter: {
      const uint64_t others = (record.in_bytes - record.out_bytes) & kAligned;
      if (others != 0) segments->push_back({in, 0, others});
      return;
    }
    case wire::Op::kSend:
      return segments->push_back({in, 0, record.in_bytes});
    default:
      return;
  }
}

CUresult EnqueueSegments(const DriverCalls& driver, const std::vector<StandInSegment>& segments,
                         CUstream stream) {
  for (const StandInSegment& s : segments) {
    if (s.to == 0 || s.bytes == 0) continue;
    if (s.from == 0) {
      if (const CUresult result = driver.memset_async(s.to, 0, s.bytes * s.repeats, stream)) {
        return result;
      }
      continue;
    }
    if (s.to != s.from) {
      if (const CUresult result = driver.memcpy_async(s.to, s.from, s.bytes, stream)) {
        return result;
      }
    }
    // Twice as many each time: a thousand members are ten copies.
    for (uint64_t filled = 1; filled < s.repeats; filled *= 2) {
      const uint64_t more = std::min<uint64_t>(filled, s.repeats - filled);
      if (const CUresult result =
              driver.memcpy_async(s.to + filled * s.bytes, s.to, more * s.bytes, stream)) {
        return result;
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace prism::interpose::nccl
