// Conversions between float and the 8- and 16-bit floating-point formats.
//
// Decoding is exact. Encoding rounds to nearest even, gives the canonical NaN (sign 0), and
// overflows to infinity, or, for e4m3, which has none, to NaN. The 16-bit ones are free of branches
// so that loops over them vectorize. They need the default floating-point mode (no flush to zero);
// Reduce() provides it.
#ifndef HOSTCUDA_NCCL_FLOAT_FORMATS_H_
#define HOSTCUDA_NCCL_FLOAT_FORMATS_H_

#include <bit>
#include <cstdint>

namespace hostnccl {

inline constexpr uint32_t kFloatInfinity = 0x7f800000u;

inline float DecodeBfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t EncodeBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > kFloatInfinity ? 0x7fc0u : rounded);
}

inline float DecodeFloat16(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  // The exponent's bias differs by 112; a multiplication also normalizes what is subnormal in fp16.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  const uint32_t special = (magnitude << 13) | kFloatInfinity;
  return std::bit_cast<float>((magnitude >= 0x7c00u ? special : finite) | (uint32_t{bits} & 0x8000u)
                                                                              << 16);
}

inline uint16_t EncodeFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the result is subnormal: adding 0.5 aligns its last place with the float's, and the
  // addition rounds.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t signed_value =
      (magnitude >= 0x47800000u ? 0x7c00u : finite) | (bits >> 16 & 0x8000u);
  return static_cast<uint16_t>(magnitude > kFloatInfinity ? 0x7e00u : signed_value);
}

/// A format of one sign bit, `kExponentBits` and `kMantissaBits`; `kMaxFinite` is the greatest
/// magnitude's code.
template <int kExponentBits, int kMantissaBits, uint32_t kMaxFinite, uint32_t kOverflow>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kNan = 0x7f;

  static float Decode(uint8_t bits) {
    const uint32_t sign = (uint32_t{bits} & 0x80u) << 24;
    const uint32_t magnitude = bits & 0x7fu;
    if (magnitude > kMaxFinite) {
      const bool infinite = kOverflow != kNan && magnitude == kOverflow;
      return std::bit_cast<float>(sign | (infinite ? kFloatInfinity : 0x7fc00000u));
    }
    const uint32_t exponent = magnitude >> kMantissaBits;
    const uint32_t mantissa = magnitude & ((1u << kMantissaBits) - 1);
    const float unit = std::bit_cast<float>(
        static_cast<uint32_t>(127 - kBias - kMantissaBits + (exponent ? exponent : 1)) << 23);
    const float value =
        static_cast<float>(exponent ? mantissa + (1u << kMantissaBits) : mantissa) * unit;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }

  static uint8_t Encode(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > kFloatInfinity) return kNan;
    int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;  // in the small format
    uint32_t significand = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0u);
    int shift = 23 - kMantissaBits;
    if (exponent < 1) {  // subnormal here: drop as many more bits as the exponent is short of
      shift += 1 - exponent;
      exponent = 1;
      if (shift > 25) shift = 25;  // below half of the smallest: rounds to 0
    }
    const uint32_t half = 1u << (shift - 1);
    const uint32_t kept = significand >> shift;
    const uint32_t rest = significand & ((1u << shift) - 1);
    const uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u);
    // A carry out of the mantissa is a carry into the exponent, and of the largest subnormal into
    // the first normal.
    const uint32_t code = (static_cast<uint32_t>(exponent - 1) << kMantissaBits) + rounded;
    if (exponent > (1 << kExponentBits) || code > kMaxFinite) {
      return static_cast<uint8_t>(kOverflow == kNan ? kNan : (kOverflow | sign));
    }
    return static_cast<uint8_t>(code | sign);
  }
};

using Float8e4m3 = SmallFloat<4, 3, 0x7e, 0x7f>;
using Float8e5m2 = SmallFloat<5, 2, 0x7b, 0x7c>;

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_FLOAT_FORMATS_H_
