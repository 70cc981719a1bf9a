// Arithmetic of reductions, as docs/design/0001 defines it: left to right from rank 0, accumulator
// float for 8-, 16- and 32-bit floating types, double for 64 bit, modular for integers; one
// rounding at the end.
//
// hostcuda's NCCL implements the same definition; neither includes the other, both are tested on
// closed-form vectors. Stateless; thread-safe. Compiled without contraction of multiply and add.
//
//   std::vector<const void*> inputs = {rank0, rank1, rank2};
//   std::vector<void*> outputs = {rank0, rank1, rank2};            // may be the inputs
//   PRISM_RETURN_IF_ERROR(ReduceElements({DataType::kBfloat16, Reduction::kSum}, inputs, outputs,
//   count));
#ifndef PRISM_COORDINATOR_ARITHMETIC_H_
#define PRISM_COORDINATOR_ARITHMETIC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/float_formats.h"
#include "src/base/status.h"

namespace prism::coordinator {

/// Element types with ncclDataType_t's numbers.
enum class DataType : uint32_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4M3 = 10,
  kFloat8E5M2 = 11,
};
inline constexpr uint32_t kDataTypeCount = 12;

/// Reductions with ncclRedOp_t's numbers, and PreMulSum with the wire's.
enum class Reduction : uint32_t {
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,
  kPreMulSum = 100
};

/// Bytes of an element; 0 for a number that is no type.
uint64_t ElementBytes(uint32_t dtype);
/// "float32", "bfloat16", ...; "type 17" for a number that is none.
std::string DataTypeName(uint32_t dtype);
/// "sum", "avg", ...; "reduction 17" for a number that is none.
std::string ReductionName(uint32_t reduction);

struct ReductionSpec {
  DataType dtype;
  Reduction reduction;
  /// PreMulSum: every rank's scalar, in the operation's type, in the low bits. Empty otherwise.
  std::vector<uint64_t> scalar_bits;
};

/// Reduces `count` elements of `inputs` (rank order) into every one of `outputs`. An output may be
/// one of the inputs, at the same address; other overlap is not allowed. Fails for an unknown type,
/// reduction or number of scalars.
absl::Status ReduceElements(const ReductionSpec& spec, const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs, uint64_t count);

/// Conversions, exposed for tests. Rounding is to nearest, ties to even. e4m3 (no infinity): what
/// rounds beyond 448 becomes NaN; e5m2: what rounds beyond 57344 becomes infinity.
float FloatFromHalf(uint16_t bits);
uint16_t HalfFromFloat(float value);
using prism::Bfloat16FromFloat;
using prism::FloatFromBfloat16;
float FloatFromE4M3(uint8_t bits);
uint8_t E4M3FromFloat(float value);
float FloatFromE5M2(uint8_t bits);
uint8_t E5M2FromFloat(float value);

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_ARITHMETIC_H_
