#include "src/coordinator/exchange.h"

#include <cstring>

#include "fmt/format.h"
#include "src/coordinator/arithmetic.h"

namespace prism::coordinator {
namespace {

using wire::Op;

void Move(std::byte* to, const std::byte* from, uint64_t bytes) {
  // In place the part of a rank is where it belongs already.
  if (to != nullptr && to != from && bytes != 0) std::memmove(to, from, bytes);
}

const std::byte* Part(const std::byte* base, uint64_t index, uint64_t bytes) {
  return base + index * bytes;
}
std::byte* Part(std::byte* base, uint64_t index, uint64_t bytes) {
  return base == nullptr ? nullptr : base + index * bytes;
}

}  // namespace

std::string OpName(Op op) {
  constexpr const char* kNames[wire::kOpCount] = {
      "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
      "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};
  const auto number = static_cast<uint32_t>(op);
  return number < wire::kOpCount ? kNames[number] : fmt::format("operation {}", number);
}

bool HasReduction(Op op) {
  return op == Op::kAllReduce || op == Op::kReduce || op == Op::kReduceScatter;
}
bool HasRoot(Op op) {
  return op == Op::kReduce || op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter;
}
bool IsPointToPoint(Op op) { return op == Op::kSend || op == Op::kRecv; }

ExchangeShape ShapeOf(Op op, uint32_t ranks, uint32_t rank, int32_t root, uint64_t count,
                      uint64_t element_bytes) {
  const uint64_t one = count * element_bytes;
  const uint64_t all = one * ranks;
  const bool is_root = static_cast<int64_t>(rank) == root;
  switch (op) {
    case Op::kAllReduce:
      return {one, one};
    case Op::kReduce:
      return {one, is_root ? one : 0};
    case Op::kBroadcast:
      return {is_root ? one : 0, one};
    case Op::kAllGather:
      return {one, all};
    case Op::kReduceScatter:
      return {all, one};
    case Op::kAllToAll:
      return {all, all};
    case Op::kGather:
      return {one, is_root ? all : 0};
    case Op::kScatter:
      return {is_root ? all : 0, one};
    case Op::kSend:
      return {one, 0};
    case Op::kRecv:
      return {0, one};
  }
  return {};
}

absl::Status ExecuteCollective(const ExchangeSpec& spec,
                               const std::vector<ExchangeBuffers>& ranks) {
  const uint64_t element_bytes = ElementBytes(spec.dtype);
  if (element_bytes == 0)
    return absl::InvalidArgumentError(DataTypeName(spec.dtype) + " is not a type");
  const auto n = static_cast<uint32_t>(ranks.size());
  const uint64_t bytes = spec.count * element_bytes;
  if (bytes == 0) return absl::OkStatus();
  if (HasRoot(spec.op) && (spec.root < 0 || static_cast<uint32_t>(spec.root) >= n)) {
    return absl::InvalidArgumentError(fmt::format("root {} of {} ranks", spec.root, n));
  }
  for (uint32_t rank = 0; rank < n; ++rank) {
    if (ranks[rank].in == nullptr &&
        ShapeOf(spec.op, n, rank, spec.root, spec.count, element_bytes).in_bytes != 0) {
      return absl::FailedPreconditionError(
          fmt::format("{}: rank {} brought no input", OpName(spec.op), rank));
    }
  }
  const ReductionSpec reduction{static_cast<DataType>(spec.dtype),
                                static_cast<Reduction>(spec.reduction), spec.scalar_bits};
  switch (spec.op) {
    case Op::kAllReduce:
    case Op::kReduce: {
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      for (uint32_t rank = 0; rank < n; ++rank) {
        inputs.push_back(ranks[rank].in);
        const bool receives = spec.op == Op::kAllReduce || static_cast<int64_t>(rank) == spec.root;
        if (receives && ranks[rank].out != nullptr) outputs.push_back(ranks[rank].out);
      }
      return ReduceElements(reduction, inputs, outputs, spec.count);
    }
    case Op::kReduceScatter:
      for (uint32_t part = 0; part < n; ++part) {
        if (ranks[part].out == nullptr) continue;
        std::vector<const void*> inputs;
        for (const ExchangeBuffers& rank : ranks) inputs.push_back(Part(rank.in, part, bytes));
        PRISM_RETURN_IF_ERROR(ReduceElements(reduction, inputs, {ranks[part].out}, spec.count));
      }
      return absl::OkStatus();
    case Op::kBroadcast:
      for (const ExchangeBuffers& rank : ranks)
        Move(rank.out, ranks[static_cast<uint32_t>(spec.root)].in, bytes);
      return absl::OkStatus();
    case Op::kAllGather:
      for (const ExchangeBuffers& to : ranks) {
        for (uint32_t from = 0; from < n; ++from)
          Move(Part(to.out, from, bytes), ranks[from].in, bytes);
      }
      return absl::OkStatus();
    case Op::kAllToAll:
      for (uint32_t to = 0; to < n; ++to) {
        for (uint32_t from = 0; from < n; ++from) {
          Move(Part(ranks[to].out, from, bytes), Part(ranks[from].in, to, bytes), bytes);
        }
      }
      return absl::OkStatus();
    case Op::kGather:
      for (uint32_t from = 0; from < n; ++from) {
        Move(Part(ranks[static_cast<uint32_t>(spec.root)].out, from, bytes), ranks[from].in, bytes);
      }
      return absl::OkStatus();
    case Op::kScatter:
      for (uint32_t to = 0; to < n; ++to) {
        Move(ranks[to].out, Part(ranks[static_cast<uint32_t>(spec.root)].in, to, bytes), bytes);
      }
      return absl::OkStatus();
    case Op::kSend:
    case Op::kRecv:
      break;
  }
  return absl::InternalError(OpName(spec.op) + " is not a collective");
}

}  // namespace prism::coordinator
