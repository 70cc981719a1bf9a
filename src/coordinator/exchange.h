// Exchange table: which bytes a rank contributes to an operation, which it gets, and how the one
// follows from the other.
//
// The table of docs/design/0001. Works on memory that it is given (the ranks' arenas); owns
// nothing. Thread-safe for different buffers.
//
//   ExchangeShape shape = ShapeOf(wire::Op::kReduceScatter, /*ranks=*/8, /*rank=*/3, /*root=*/-1,
//   count, 4); shape.in_bytes == 8 * count * 4; shape.out_bytes == count * 4
#ifndef PRISM_COORDINATOR_EXCHANGE_H_
#define PRISM_COORDINATOR_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/wire/protocol.h"

namespace prism::coordinator {

/// "AllReduce", "Send", ...; "operation 17" for a number that is none.
std::string OpName(wire::Op op);
/// True for AllReduce, Reduce and ReduceScatter.
bool HasReduction(wire::Op op);
/// True for Reduce, Broadcast, Gather and Scatter.
bool HasRoot(wire::Op op);
/// True for Send and Recv.
bool IsPointToPoint(wire::Op op);

struct ExchangeShape {
  uint64_t in_bytes = 0;   // contributed
  uint64_t out_bytes = 0;  // received
};

/// Returns the payload of `rank` of `ranks` in an operation on `count` elements of `element_bytes`,
/// as passed to NCCL.
ExchangeShape ShapeOf(wire::Op op, uint32_t ranks, uint32_t rank, int32_t root, uint64_t count,
                      uint64_t element_bytes);

/// One rank's memory in an operation; null where the table gives it no bytes.
struct ExchangeBuffers {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

struct ExchangeSpec {
  wire::Op op;
  uint32_t dtype;
  uint32_t reduction;
  int32_t root;  // -1 where there is none
  uint64_t count;
  std::vector<uint64_t> scalar_bits;  // PreMulSum: one a rank
};

/// Carries out a collective on all ranks' buffers, in rank order. In-place buffers as NCCL defines
/// them are allowed. A rank whose `out` is null receives nothing. Fails when an input that the
/// table asks for is missing.
absl::Status ExecuteCollective(const ExchangeSpec& spec, const std::vector<ExchangeBuffers>& ranks);

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_EXCHANGE_H_
