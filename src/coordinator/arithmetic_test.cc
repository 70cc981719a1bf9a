#include "src/coordinator/arithmetic.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"

namespace prism::coordinator {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
std::vector<T> ReduceAll(DataType dtype, Reduction reduction, std::vector<std::vector<T>> ranks,
                         std::vector<uint64_t> scalars = {}) {
  std::vector<const void*> inputs;
  for (const auto& rank : ranks) inputs.push_back(rank.data());
  std::vector<T> out(ranks[0].size());
  EXPECT_TRUE(
      ReduceElements({dtype, reduction, std::move(scalars)}, inputs, {out.data()}, out.size())
          .ok());
  return out;
}

TEST(ArithmeticTest, FloatSumGoesLeftToRightFromRankZero) {
  // 2^24 + 1 rounds back to 2^24; the other order would give 2^24 + 2.
  EXPECT_EQ(
      ReduceAll<float>(DataType::kFloat32, Reduction::kSum, {{16777216.0f}, {1.0f}, {1.0f}})[0],
      16777216.0f);
  EXPECT_EQ(
      ReduceAll<float>(DataType::kFloat32, Reduction::kSum, {{1.0f}, {1.0f}, {16777216.0f}})[0],
      16777218.0f);
}

TEST(ArithmeticTest, SixteenBitSumRoundsOnce) {
  // In bfloat16 256 + 1 is 256; a float accumulator keeps the ones: 256 + 1 + 1 = 258, which
  // bfloat16 holds.
  const uint16_t k256 = 0x4380, k1 = 0x3f80, k258 = 0x4381;
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kBfloat16, Reduction::kSum, {{k256}, {k1}, {k1}})[0],
            k258);
  // float16: 2048 + 1 + 1 = 2050.
  EXPECT_EQ(
      ReduceAll<uint16_t>(DataType::kFloat16, Reduction::kSum, {{0x6800}, {0x3c00}, {0x3c00}})[0],
      0x6801);
}

TEST(ArithmeticTest, DoubleKeepsDoublePrecision) {
  EXPECT_EQ(ReduceAll<double>(DataType::kFloat64, Reduction::kSum, {{16777216.0}, {1.0}, {1.0}})[0],
            16777218.0);
}

TEST(ArithmeticTest, MultiplyAndAddAreNotContracted) {
  // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: the last term is lost when the product is rounded first.
  const float x = 1.0f + 0x1p-12f;
  const float product = 1.0f + 0x1p-11f;
  const uint64_t scalar = std::bit_cast<uint32_t>(x);
  const auto out = ReduceAll<float>(DataType::kFloat32, Reduction::kPreMulSum, {{0.0f}, {x}},
                                    {std::bit_cast<uint32_t>(1.0f), scalar});
  EXPECT_EQ(out[0], product);
  const auto difference =
      ReduceAll<float>(DataType::kFloat32, Reduction::kPreMulSum, {{-product}, {x}},
                       {std::bit_cast<uint32_t>(1.0f), scalar});
  EXPECT_EQ(difference[0], 0.0f);
}

TEST(ArithmeticTest, PreMulSumUsesEachRanksScalarInTheOperationsType) {
  // bfloat16 scalars 2 and 0.5.
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kBfloat16, Reduction::kPreMulSum, {{0x4040}, {0x4080}},
                                {0x4000, 0x3f00})[0],
            0x4100);  // 3 * 2 + 4 * 0.5 = 8
  EXPECT_EQ(ReduceAll<int32_t>(DataType::kInt32, Reduction::kPreMulSum, {{3}, {-4}}, {2, 5})[0],
            -14);
}

TEST(ArithmeticTest, IntegersWrapAndAverageTruncates) {
  EXPECT_EQ(ReduceAll<int8_t>(DataType::kInt8, Reduction::kSum, {{100}, {100}})[0], -56);
  EXPECT_EQ(ReduceAll<uint8_t>(DataType::kUint8, Reduction::kSum, {{200}, {100}})[0], 44);
  EXPECT_EQ(ReduceAll<uint8_t>(DataType::kUint8, Reduction::kProd, {{200}, {3}})[0], 88);
  EXPECT_EQ(ReduceAll<int32_t>(DataType::kInt32, Reduction::kAvg, {{-3}, {-4}})[0], -3);
  EXPECT_EQ(ReduceAll<uint32_t>(DataType::kUint32, Reduction::kAvg, {{3}, {4}})[0], 3u);
  EXPECT_EQ(ReduceAll<int8_t>(DataType::kInt8, Reduction::kAvg, {{100}, {100}})[0],
            -28);  // -56 / 2
  EXPECT_EQ(ReduceAll<int64_t>(DataType::kInt64, Reduction::kSum,
                               {{std::numeric_limits<int64_t>::max()}, {1}})[0],
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ReduceAll<uint64_t>(DataType::kUint64, Reduction::kMax, {{1}, {~uint64_t{0}}})[0],
            ~uint64_t{0});
  EXPECT_EQ(ReduceAll<int64_t>(DataType::kInt64, Reduction::kMax, {{1}, {-1}})[0], 1);
  EXPECT_EQ(ReduceAll<int8_t>(DataType::kInt8, Reduction::kMin, {{1}, {-1}})[0], -1);
}

TEST(ArithmeticTest, AverageDividesTheAccumulator) {
  EXPECT_EQ(ReduceAll<float>(DataType::kFloat32, Reduction::kAvg, {{1}, {0}, {0}})[0], 1.0f / 3.0f);
  // float16: 65504 + 65504 overflows the type, not the accumulator.
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kFloat16, Reduction::kAvg, {{0x7bff}, {0x7bff}})[0],
            0x7bff);
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kFloat16, Reduction::kSum, {{0x7bff}, {0x7bff}})[0],
            0x7c00);
}

TEST(ArithmeticTest, MinAndMaxPropagateNan) {
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    EXPECT_TRUE(std::isnan(ReduceAll<float>(DataType::kFloat32, reduction, {{1}, {kNan}, {2}})[0]));
    EXPECT_TRUE(std::isnan(ReduceAll<float>(DataType::kFloat32, reduction, {{kNan}, {1}, {2}})[0]));
    EXPECT_TRUE(std::isnan(
        ReduceAll<double>(DataType::kFloat64, reduction, {{1}, {2}, {std::nan("")}})[0]));
    EXPECT_EQ(ReduceAll<uint8_t>(DataType::kFloat8E4M3, reduction, {{0x38}, {0x7f}})[0] & 0x7f,
              0x7f);
  }
  EXPECT_EQ(ReduceAll<float>(DataType::kFloat32, Reduction::kMax, {{-kInf}, {-2}, {-3}})[0], -2.0f);
}

TEST(ArithmeticTest, OutputMayBeAnInputAndBlocksAreSeamless) {
  std::vector<int32_t> a(5000), b(5000);
  for (int i = 0; i < 5000; ++i) a[i] = i, b[i] = 2 * i;
  ASSERT_TRUE(ReduceElements({DataType::kInt32, Reduction::kSum, {}}, {a.data(), b.data()},
                             {a.data(), b.data()}, 5000)
                  .ok());
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(a[i], 3 * i);
    ASSERT_EQ(b[i], 3 * i);
  }
}

// Every value of a format against its published extremes, and every round trip.
TEST(ArithmeticTest, SmallFormatsHaveTheirPublishedExtremes) {
  EXPECT_EQ(FloatFromE4M3(0x7e), 448.0f);
  EXPECT_EQ(FloatFromE4M3(0x08), 0x1p-6f);
  EXPECT_EQ(FloatFromE4M3(0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(FloatFromE4M3(0xff)));
  EXPECT_EQ(FloatFromE5M2(0x7b), 57344.0f);
  EXPECT_EQ(FloatFromE5M2(0x01), 0x1p-16f);
  EXPECT_EQ(FloatFromE5M2(0xfc), -kInf);
  EXPECT_TRUE(std::isnan(FloatFromE5M2(0x7d)));
  EXPECT_EQ(FloatFromHalf(0x7bff), 65504.0f);
  EXPECT_EQ(FloatFromHalf(0x0001), 0x1p-24f);
  EXPECT_EQ(FloatFromHalf(0x8000), -0.0f);
  EXPECT_TRUE(std::signbit(FloatFromHalf(0x8000)));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    if (!std::isnan(FloatFromHalf(h))) {
      ASSERT_EQ(HalfFromFloat(FloatFromHalf(h)), h);
    }
    if (!std::isnan(FloatFromBfloat16(h))) {
      ASSERT_EQ(Bfloat16FromFloat(FloatFromBfloat16(h)), h);
    }
    const auto b = static_cast<uint8_t>(bits);
    if (!std::isnan(FloatFromE4M3(b))) {
      ASSERT_EQ(E4M3FromFloat(FloatFromE4M3(b)), b);
    }
    if (!std::isnan(FloatFromE5M2(b))) {
      ASSERT_EQ(E5M2FromFloat(FloatFromE5M2(b)), b);
    }
  }
}

// Between two neighbours the midpoint goes to the even one, and the floats next to it to the nearer
// one.
template <typename Bits, typename Decode, typename Encode>
void CheckRounding(Bits last_finite, Decode decode, Encode encode) {
  for (uint32_t low = 0; low < last_finite; ++low) {
    const float a = decode(static_cast<Bits>(low)), b = decode(static_cast<Bits>(low + 1));
    const float middle = a + (b - a) / 2;  // exact: one more bit than the format
    ASSERT_EQ(encode(middle), low % 2 == 0 ? low : low + 1) << low;
    ASSERT_EQ(encode(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(encode(std::nextafter(middle, kInf)), low + 1) << low;
    ASSERT_EQ(encode(-std::nextafter(middle, kInf)),
              (low + 1) | (Bits{1} << (8 * sizeof(Bits) - 1)))
        << low;
  }
}

TEST(ArithmeticTest, RoundsToNearestEven) {
  CheckRounding<uint16_t>(0x7bff, FloatFromHalf, HalfFromFloat);
  CheckRounding<uint8_t>(0x7e, FloatFromE4M3, E4M3FromFloat);
  CheckRounding<uint8_t>(0x7b, FloatFromE5M2, E5M2FromFloat);
  EXPECT_EQ(Bfloat16FromFloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(Bfloat16FromFloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(Bfloat16FromFloat(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
}

TEST(ArithmeticTest, OverflowIsNanInE4M3AndInfinityElsewhere) {
  EXPECT_EQ(E4M3FromFloat(464.0f), 0x7e);  // the tie with what would be 480
  EXPECT_EQ(E4M3FromFloat(std::nextafter(464.0f, kInf)), 0x7f);
  EXPECT_EQ(E4M3FromFloat(-kInf), 0x7f);
  EXPECT_EQ(E5M2FromFloat(61440.0f), 0x7c);
  EXPECT_EQ(E5M2FromFloat(std::nextafter(61440.0f, 0.0f)), 0x7b);
  EXPECT_EQ(HalfFromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(HalfFromFloat(1e-40f), 0);
  EXPECT_EQ(ReduceAll<uint8_t>(DataType::kFloat8E4M3, Reduction::kSum, {{0x7e}, {0x7e}})[0], 0x7f);
}

TEST(ArithmeticTest, StoredNanIsCanonical) {
  const float negative = std::bit_cast<float>(0xffc12345u);
  EXPECT_EQ(std::bit_cast<uint32_t>(
                ReduceAll<float>(DataType::kFloat32, Reduction::kSum, {{negative}, {1}})[0]),
            0x7fc00000u);
  EXPECT_EQ(std::bit_cast<uint64_t>(
                ReduceAll<double>(DataType::kFloat64, Reduction::kMax, {{1}, {-std::nan("7")}})[0]),
            0x7ff8000000000000u);
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kFloat16, Reduction::kSum, {{0xfe01}, {0}})[0], 0x7e00);
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kBfloat16, Reduction::kSum, {{0xffff}, {0}})[0], 0x7fc0);
  EXPECT_EQ(ReduceAll<uint8_t>(DataType::kFloat8E4M3, Reduction::kSum, {{0xfe}, {0xfe}})[0], 0x7f);
  EXPECT_EQ(ReduceAll<uint8_t>(DataType::kFloat8E5M2, Reduction::kSum, {{0xff}, {0}})[0], 0x7f);
}

TEST(ArithmeticTest, EqualZerosKeepTheLowerRanksSign) {
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    EXPECT_TRUE(
        std::signbit(ReduceAll<float>(DataType::kFloat32, reduction, {{-0.0f}, {0.0f}})[0]));
    EXPECT_FALSE(
        std::signbit(ReduceAll<float>(DataType::kFloat32, reduction, {{0.0f}, {-0.0f}})[0]));
  }
}

TEST(ArithmeticTest, OneRankCopiesButPreMulSumScales) {
  EXPECT_EQ(ReduceAll<uint16_t>(DataType::kBfloat16, Reduction::kSum, {{0xff81}})[0], 0xff81);
  EXPECT_EQ(
      ReduceAll<uint16_t>(DataType::kBfloat16, Reduction::kPreMulSum, {{0x4040}}, {0x4000})[0],
      0x40c0);
}

TEST(ArithmeticTest, UnknownTypeOrReductionIsRefused) {
  int32_t x = 1;
  EXPECT_EQ(ReduceElements({static_cast<DataType>(12), Reduction::kSum, {}}, {&x}, {&x}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReduceElements({DataType::kInt32, static_cast<Reduction>(9), {}}, {&x}, {&x}, 1).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace prism::coordinator
