// Oracles: closed forms worked out by hand, and a brute-force search over all codes of a format for
// the nearest value.
#include "hostcuda/nccl/arithmetic.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hostcuda/nccl/float_formats.h"

namespace hostnccl {
namespace {

// A format by its definition in the standard, independent of the code under test.
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  unsigned max_finite;

  long double Value(unsigned magnitude) const {
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const unsigned mantissa = magnitude & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == 0)
      return std::ldexp(static_cast<long double>(mantissa), 1 - bias - mantissa_bits);
    return std::ldexp(static_cast<long double>(mantissa + (1u << mantissa_bits)),
                      exponent - bias - mantissa_bits);
  }

  // Nearest, ties to the even code; what lies half a step beyond the greatest overflows unless the
  // greatest is even.
  unsigned Nearest(float value, unsigned canonical_nan) const {
    if (std::isnan(value)) return canonical_nan;
    const unsigned sign = std::signbit(value) ? 1u << (exponent_bits + mantissa_bits) : 0u;
    const long double magnitude = std::fabs(static_cast<long double>(value));
    unsigned low = 0,
             high =
                 max_finite +
                 1;  // Value(max_finite + 1) is the next step of the format without special codes
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      (Value(middle) <= magnitude ? low : high) = middle;
    }
    const long double below = magnitude - Value(low), above = Value(high) - magnitude;
    const unsigned code = above < below || (above == below && (high & 1u) == 0) ? high : low;
    if (code > max_finite) return has_infinity ? (max_finite + 1) | sign : canonical_nan;
    return code | sign;
  }
};
constexpr Format kHalf{5, 10, true, 0x7bff};
constexpr Format kBrain{8, 7, true, 0x7f7f};
constexpr Format kE4m3{4, 3, false, 0x7e};
constexpr Format kE5m2{5, 2, true, 0x7b};

std::vector<float> InterestingFloats() {
  std::vector<float> values = {
      0.0f,      -0.0f,      INFINITY, -INFINITY, NAN,         -NAN,        65504.0f,
      65519.99f, 65520.0f,   65536.0f, 448.0f,    463.99f,     464.0f,      464.01f,
      480.0f,    -464.01f,   57344.0f, 61439.9f,  61440.0f,    -61440.0f,   0x1p-24f,
      0x1p-25f,  0x1.8p-25f, 0x1p-14f, 0x1p-9f,   0x1p-10f,    0x1.8p-10f,  0x1p-16f,
      0x1p-17f,  0x1.8p-17f, 3.4e38f,  0x1p-149f, 0x1.fcp127f, 0x1.fep127f, 0x1.ffp127f};
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (int i = 0; i < 200000; ++i) {  // near fp16's and fp8's ranges
    values.push_back(std::ldexp(static_cast<float>(random() % 8192) / 4096.0f,
                                static_cast<int>(random() % 44) - 28));
  }
  return values;
}

TEST(FloatFormatsTest, EncodingGivesTheNearestCode) {
  for (float value : InterestingFloats()) {
    ASSERT_EQ(EncodeFloat16(value), kHalf.Nearest(value, 0x7e00)) << value;
    ASSERT_EQ(EncodeBfloat16(value), kBrain.Nearest(value, 0x7fc0)) << value;
    ASSERT_EQ(Float8e4m3::Encode(value), kE4m3.Nearest(value, 0x7f)) << value;
    ASSERT_EQ(Float8e5m2::Encode(value), kE5m2.Nearest(value, 0x7f)) << value;
  }
}

template <typename Decode>
void ExpectDecodes(const Format& format, Decode decode) {
  const unsigned sign = 1u << (format.exponent_bits + format.mantissa_bits);
  for (unsigned code = 0; code < sign; ++code) {
    const float value = decode(code), negative = decode(code | sign);
    if (code <= format.max_finite) {
      ASSERT_EQ(value, static_cast<float>(format.Value(code))) << code;
      ASSERT_EQ(negative, -value);
      ASSERT_TRUE(std::signbit(negative));
    } else if (format.has_infinity && code == format.max_finite + 1) {
      ASSERT_EQ(value, INFINITY);
      ASSERT_EQ(negative, -INFINITY);
    } else {
      ASSERT_TRUE(std::isnan(value) && std::isnan(negative)) << code;
    }
  }
}

TEST(FloatFormatsTest, DecodingIsTheDefinition) {
  ExpectDecodes(kHalf, [](unsigned code) { return DecodeFloat16(static_cast<uint16_t>(code)); });
  ExpectDecodes(kBrain, [](unsigned code) { return DecodeBfloat16(static_cast<uint16_t>(code)); });
  ExpectDecodes(kE4m3,
                [](unsigned code) { return Float8e4m3::Decode(static_cast<uint8_t>(code)); });
  ExpectDecodes(kE5m2,
                [](unsigned code) { return Float8e5m2::Decode(static_cast<uint8_t>(code)); });
}

/// Reduces one element a rank, given and returned as bits.
uint64_t ReduceBits(DataType type, Reduction reduction, const std::vector<uint64_t>& inputs,
                    std::vector<uint64_t> scalars = {}) {
  std::vector<const void*> pointers;
  for (const uint64_t& input : inputs) pointers.push_back(&input);
  scalars.resize(inputs.size());
  uint64_t output = 0;
  Reduce(type, reduction, pointers.data(), scalars.data(), static_cast<int>(inputs.size()), 1,
         &output);
  return output;
}
uint64_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

struct Vector {
  const char* what;
  DataType type;
  Reduction reduction;
  std::vector<uint64_t> inputs;
  uint64_t expected;
  std::vector<uint64_t> scalars = {};
};

TEST(ReduceTest, ClosedForms) {
  using enum DataType;
  using enum Reduction;
  const Vector vectors[] = {
      {"bf16 256 + 1 is a tie, to even", kBfloat16, kSum, {0x4380, 0x3f80}, 0x4380},
      {"bf16 256 + 1 + 1 rounds once: 258", kBfloat16, kSum, {0x4380, 0x3f80, 0x3f80}, 0x4381},
      {"bf16 greatest + greatest overflows", kBfloat16, kSum, {0x7f7f, 0x7f7f}, 0x7f80},
      {"bf16 1 / 3", kBfloat16, kAvg, {0x3f80, 0, 0}, 0x3eab},
      {"fp16 2048 + 1 is a tie, to even", kFloat16, kSum, {0x6800, 0x3c00}, 0x6800},
      {"fp16 2048 + 1 + 1 rounds once: 2050", kFloat16, kSum, {0x6800, 0x3c00, 0x3c00}, 0x6801},
      {"fp16 65504 + 16 overflows", kFloat16, kSum, {0x7bff, 0x4c00}, 0x7c00},
      {"fp16 65504 + 8 does not", kFloat16, kSum, {0x7bff, 0x4800}, 0x7bff},
      {"fp16 65504 + 65504 - 65504 does not overflow on the way",
       kFloat16,
       kSum,
       {0x7bff, 0x7bff, 0xfbff},
       0x7bff},
      {"fp16 smallest subnormals add up", kFloat16, kSum, {1, 1, 1}, 3},
      {"fp16 half of the smallest is a tie, to 0", kFloat16, kAvg, {1, 0}, 0},
      {"fp16 3/2 of the smallest is a tie, to 2", kFloat16, kAvg, {3, 0}, 2},
      {"e4m3 448 + 16 = 464 is a tie, to 448", kFloat8e4m3, kSum, {0x7e, 0x58}, 0x7e},
      {"e4m3 448 + 18 is NaN", kFloat8e4m3, kSum, {0x7e, 0x59}, 0x7f},
      {"e4m3 -448 - 32 is the NaN without sign", kFloat8e4m3, kSum, {0xfe, 0xe0}, 0x7f},
      {"e4m3 448 + 448 - 448 does not overflow on the way",
       kFloat8e4m3,
       kSum,
       {0x7e, 0x7e, 0xfe},
       0x7e},
      {"e4m3 16 + 1 is a tie, to 16", kFloat8e4m3, kSum, {0x58, 0x38}, 0x58},
      {"e5m2 57344 + 4096 is a tie, to infinity", kFloat8e5m2, kSum, {0x7b, 0x6c}, 0x7c},
      {"e5m2 57344 + 2048 is not", kFloat8e5m2, kSum, {0x7b, 0x68}, 0x7b},
      {"e5m2 infinity - infinity", kFloat8e5m2, kSum, {0x7c, 0xfc}, 0x7f},
      {"fp32 from rank 0: (1e8 + 1) - 1e8 = 0",
       kFloat32,
       kSum,
       {Bits(1e8f), Bits(1.0f), Bits(-1e8f)},
       Bits(0.0f)},
      {"fp32 from rank 0: (1e8 - 1e8) + 1 = 1",
       kFloat32,
       kSum,
       {Bits(1e8f), Bits(-1e8f), Bits(1.0f)},
       Bits(1.0f)},
      {"fp32 product", kFloat32, kProd, {Bits(3.0f), Bits(-0.5f), Bits(8.0f)}, Bits(-12.0f)},
      {"fp32 product overflows on the way",
       kFloat32,
       kProd,
       {Bits(1e30f), Bits(1e30f), Bits(1e-30f)},
       Bits(INFINITY)},
      {"fp32 average divides by 3",
       kFloat32,
       kAvg,
       {Bits(1.0f), Bits(0.0f), Bits(0.0f)},
       0x3eaaaaab},
      {"fp32 average overflows before it divides",
       kFloat32,
       kAvg,
       {Bits(3e38f), Bits(3e38f)},
       Bits(INFINITY)},
      {"fp32 infinity - infinity", kFloat32, kSum, {0x7f800000, 0xff800000}, 0x7fc00000},
      {"fp32 NaN payload and sign are dropped",
       kFloat32,
       kSum,
       {0xffabcdef, Bits(1.0f)},
       0x7fc00000},
      {"fp32 max, NaN first", kFloat32, kMax, {0x7fc00001, Bits(1.0f)}, 0x7fc00000},
      {"fp32 max, NaN last", kFloat32, kMax, {Bits(1.0f), 0xffc00001}, 0x7fc00000},
      {"fp32 min, NaN in the middle",
       kFloat32,
       kMin,
       {Bits(1.0f), 0x7f800001, Bits(0.0f)},
       0x7fc00000},
      {"fp32 min of -inf and NaN", kFloat32, kMin, {0xff800000, 0x7fc00000}, 0x7fc00000},
      {"fp32 max(+0, -0) keeps rank 0's", kFloat32, kMax, {Bits(0.0f), Bits(-0.0f)}, Bits(0.0f)},
      {"fp32 max(-0, +0) keeps rank 0's", kFloat32, kMax, {Bits(-0.0f), Bits(0.0f)}, Bits(-0.0f)},
      {"fp32 min(+0, -0) keeps rank 0's", kFloat32, kMin, {Bits(0.0f), Bits(-0.0f)}, Bits(0.0f)},
      {"fp32 -0 + -0 = -0", kFloat32, kSum, {Bits(-0.0f), Bits(-0.0f)}, Bits(-0.0f)},
      {"bf16 max with NaN", kBfloat16, kMax, {0x3f80, 0xffff}, 0x7fc0},
      {"fp16 min with NaN", kFloat16, kMin, {0x7c01, 0x3c00}, 0x7e00},
      // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11; a fused multiply-add would leave
      // 2^-24.
      {"fp32 PreMulSum rounds the product",
       kFloat32,
       kPreMulSum,
       {Bits(-1.00048828125f), Bits(0x1.001p0f)},
       Bits(0.0f),
       {Bits(1.0f), Bits(0x1.001p0f)}},
      {"fp32 PreMulSum: a scalar for each rank",
       kFloat32,
       kPreMulSum,
       {Bits(2.0f), Bits(3.0f)},
       Bits(12.0f),
       {Bits(0.0f), Bits(4.0f)}},
      {"fp16 PreMulSum does not round the product to fp16",
       kFloat16,
       kPreMulSum,
       {0x7bff, 0xfbff},
       0x7bff,
       {0x4000, 0x3c00}},  // 2 * 65504 - 65504
      {"bf16 PreMulSum", kBfloat16, kPreMulSum, {0x4000, 0x4040}, 0x4020, {0x3f00, 0x3f00}},
      {"int32 PreMulSum wraps", kInt32, kPreMulSum, {0x80000001, 5}, 7, {2, 1}},
      {"fp64 sum", kFloat64, kSum, {Bits(0.1), Bits(0.2)}, 0x3fd3333333333334},
      {"fp64 from rank 0", kFloat64, kSum, {Bits(1e16), Bits(1.0), Bits(1.0)}, Bits(1e16)},
      {"fp64 average", kFloat64, kAvg, {Bits(1.0), Bits(0.0), Bits(0.0)}, 0x3fd5555555555555},
      {"fp64 NaN", kFloat64, kMin, {0xfff0000000000001, Bits(1.0)}, 0x7ff8000000000000},
      {"int8 wraps: 100 + 100 = -56", kInt8, kSum, {100, 100}, 200},
      {"int8 average of the wrapped sum: 300 is 44, 44 / 3", kInt8, kAvg, {100, 100, 100}, 14},
      {"int8 average truncates towards 0: -7 / 2", kInt8, kAvg, {0xfc, 0xfd}, 0xfd},
      {"uint8 average of the wrapped sum: 144 / 2", kUint8, kAvg, {200, 200}, 72},
      {"int8 compares signed", kInt8, kMax, {0xff, 1}, 1},
      {"uint8 compares unsigned", kUint8, kMax, {0xff, 1}, 0xff},
      {"int32 product wraps", kInt32, kProd, {0x10000, 0x10001}, 0x10000},
      {"int32 min", kInt32, kMin, {5, 0xfffffffb}, 0xfffffffb},
      {"uint32 sum wraps", kUint32, kSum, {0xffffffff, 2}, 1},
      {"int64 sum wraps", kInt64, kSum, {0x7fffffffffffffff, 1}, 0x8000000000000000},
      {"int64 average of the least", kInt64, kAvg, {0x8000000000000000, 0}, 0xc000000000000000},
      {"uint64 average", kUint64, kAvg, {0xffffffffffffffff, 0}, 0x7fffffffffffffff},
      {"uint64 max", kUint64, kMax, {1, 0x8000000000000000}, 0x8000000000000000},
  };
  for (const Vector& vector : vectors) {
    EXPECT_EQ(ReduceBits(vector.type, vector.reduction, vector.inputs, vector.scalars),
              vector.expected)
        << vector.what;
  }
}

TEST(ReduceTest, Int8AverageOfMoreRanksThanTheTypeHolds) {
  EXPECT_EQ(ReduceBits(DataType::kInt8, Reduction::kAvg, std::vector<uint64_t>(200, 1)),
            0u);  // 200 wraps to -56; -56 / 200
  EXPECT_EQ(ReduceBits(DataType::kUint8, Reduction::kAvg, std::vector<uint64_t>(200, 1)), 1u);
}

TEST(ReduceTest, TheCallersFloatingPointModeDoesNotMatter) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(0xffc0);  // flush to zero, denormals are zero, round toward zero
  const uint64_t subnormal = ReduceBits(DataType::kFloat32, Reduction::kSum, {1, 1});
  const uint64_t half = ReduceBits(DataType::kFloat16, Reduction::kSum, {1, 1});
  const uint64_t third = ReduceBits(DataType::kFloat32, Reduction::kAvg, {Bits(2.0f), 0, 0});
  const unsigned after = _mm_getcsr() & 0xffc0;
  _mm_setcsr(saved);
  EXPECT_EQ(subnormal, 2u);
  EXPECT_EQ(half, 2u);
  EXPECT_EQ(third, 0x3f2aaaabu);
  EXPECT_EQ(after, 0xffc0u);
}

// Long arrays take the vectorized path; a sum of two floats in double and back is correctly
// rounded, so this is an oracle.
TEST(ReduceTest, EveryElementOfALongArrayIsSummedInRankOrder) {
  constexpr int kRanks = 5;
  constexpr size_t kCount = 3001;
  std::mt19937 random(7);
  std::vector<std::vector<float>> floats(kRanks, std::vector<float>(kCount));
  std::vector<std::vector<uint16_t>> halves(kRanks, std::vector<uint16_t>(kCount)), brains = halves;
  std::vector<const void*> float_inputs, half_inputs, brain_inputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kCount; ++i) {
      floats[rank][i] = std::ldexp(static_cast<float>(static_cast<int>(random())),
                                   static_cast<int>(random() % 40) - 50);
      halves[rank][i] = static_cast<uint16_t>(random() % 0x7800 | (random() & 0x8000));
      brains[rank][i] = static_cast<uint16_t>(random() % 0x7000 | (random() & 0x8000));
    }
    float_inputs.push_back(floats[rank].data());
    half_inputs.push_back(halves[rank].data());
    brain_inputs.push_back(brains[rank].data());
  }
  std::vector<float> sums(kCount);
  std::vector<uint16_t> half_sums(kCount), brain_averages(kCount);
  Reduce(DataType::kFloat32, Reduction::kSum, float_inputs.data(), nullptr, kRanks, kCount,
         sums.data());
  Reduce(DataType::kFloat16, Reduction::kSum, half_inputs.data(), nullptr, kRanks, kCount,
         half_sums.data());
  Reduce(DataType::kBfloat16, Reduction::kAvg, brain_inputs.data(), nullptr, kRanks, kCount,
         brain_averages.data());
  for (size_t i = 0; i < kCount; ++i) {
    double sum = floats[0][i], half = DecodeFloat16(halves[0][i]),
           brain = DecodeBfloat16(brains[0][i]);
    for (int rank = 1; rank < kRanks; ++rank) {
      sum = static_cast<float>(sum + floats[rank][i]);
      half = static_cast<float>(half + DecodeFloat16(halves[rank][i]));
      brain = static_cast<float>(brain + DecodeBfloat16(brains[rank][i]));
    }
    ASSERT_EQ(Bits(sums[i]), Bits(static_cast<float>(sum))) << i;
    ASSERT_EQ(half_sums[i], kHalf.Nearest(static_cast<float>(half), 0x7e00)) << i;
    ASSERT_EQ(brain_averages[i], kBrain.Nearest(static_cast<float>(brain / kRanks), 0x7fc0)) << i;
  }
}

}  // namespace
}  // namespace hostnccl
