// The arithmetic of reductions: what a reduction over ranks is, to the bit
// (docs/design/0001-fix-first.md).
//
// Left to right from rank 0 in an accumulator (float for fp8, fp16, bf16, fp32; double for fp64;
// modular integers), one rounding to nearest even at the end, canonical NaN. Pure functions,
// thread-safe, no state. The caller's floating-point mode (flush to zero, rounding direction) does
// not matter: it is set and restored around each call.
//
//   const void* inputs[2] = {of_rank_0, of_rank_1};
//   Reduce(DataType::kBfloat16, Reduction::kAvg, inputs, nullptr, 2, count, result);
#ifndef HOSTCUDA_NCCL_ARITHMETIC_H_
#define HOSTCUDA_NCCL_ARITHMETIC_H_

#include <cstddef>
#include <cstdint>

namespace hostnccl {

/// Numbered like ncclDataType_t.
enum class DataType : uint8_t {
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
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};
inline constexpr int kDataTypes = 12;

/// The first five are numbered like ncclRedOp_t.
enum class Reduction : uint8_t {
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,
  kPreMulSum = 5
};
inline constexpr int kReductions = 6;

/// Returns the size in bytes of one element.
size_t ElementBytes(DataType type);

/// Reduces `count` elements of `ranks` inputs into `output`. Inputs and output are aligned to the
/// element; `output` may be an input of a single rank, else must not overlap. `scalar_bits`
/// (PreMulSum only, else ignored) holds one scalar a rank, of the element type, in the low bytes.
void Reduce(DataType type, Reduction reduction, const void* const* inputs,
            const uint64_t* scalar_bits, int ranks, size_t count, void* output);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_ARITHMETIC_H_
