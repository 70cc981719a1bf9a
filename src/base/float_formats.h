// Small floating-point formats as bits, from their definitions. Needs nothing but libc.
//
//   float value = Decode(kHalf, bits);
//   uint32_t rounded = Encode(kHalf, value);   // to nearest, ties to even
#ifndef PRISM_BASE_FLOAT_FORMATS_H_
#define PRISM_BASE_FLOAT_FORMATS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace prism {

// A small floating format: sign, exponent, mantissa.
struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;  // false: the all-ones exponent holds numbers, only the all-ones pattern is NaN
  uint32_t nan;   // the canonical one

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  constexpr uint32_t all_ones() const { return sign_bit() - 1; }
  constexpr uint32_t infinity_bits() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
};
inline constexpr FloatFormat kHalf{5, 10, true, 0x7e00};
inline constexpr FloatFormat kE4M3{4, 3, false, 0x7f};
inline constexpr FloatFormat kE5M2{5, 2, true, 0x7f};

// Decodes from the definition: (-1)^s 2^(e-bias) 1.m, subnormals (-1)^s 2^(1-bias) 0.m. Exact in
// float.
inline float Decode(const FloatFormat& format, uint32_t bits) {
  const uint32_t magnitude = bits & format.all_ones();
  const float sign = (bits & format.sign_bit()) != 0 ? -1.0f : 1.0f;
  if (format.infinity ? magnitude > format.infinity_bits() : magnitude == format.all_ones()) {
    return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  }
  if (format.infinity && magnitude == format.infinity_bits()) {
    return sign * std::numeric_limits<float>::infinity();
  }
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const uint32_t mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
  const uint32_t significand = exponent == 0 ? mantissa : mantissa | (1u << format.mantissa_bits);
  const int scale = std::max(exponent, 1) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(static_cast<float>(significand), scale);
}

// Rounds to nearest, ties to even, by integer arithmetic on the magnitude in units of the target's
// last place.
inline uint32_t Encode(const FloatFormat& format, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) != 0 ? format.sign_bit() : 0;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // A NaN is canonical and without a sign, one that stands for an overflow too.
  if (magnitude > 0x7f800000u) return format.nan;
  if (magnitude == 0x7f800000u) return format.infinity ? sign | format.infinity_bits() : format.nan;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int lowest = 1 - format.bias();
  // Below half of the smallest subnormal everything is zero; it also keeps the shift in range.
  if (magnitude < 0x00800000u || exponent < lowest - format.mantissa_bits - 1) return sign;
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const int shift = 23 - format.mantissa_bits + std::max(0, lowest - exponent);
  const uint32_t kept = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0);
  // A carry out of the mantissa, or from subnormal to normal, moves into the exponent by itself.
  const uint32_t result =
      exponent < lowest
          ? rounded
          : (static_cast<uint32_t>(exponent + format.bias() - 1) << format.mantissa_bits) + rounded;
  if (format.infinity) return sign | std::min(result, format.infinity_bits());
  return result >= format.all_ones() ? format.nan : sign | result;
}

inline float FloatFromBfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t Bfloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  // Half of the last place, less one where the kept part is even: carries exactly when rounding
  // goes up.
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace prism

#endif  // PRISM_BASE_FLOAT_FORMATS_H_
