#include "src/coordinator/arithmetic.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "fmt/format.h"

namespace prism::coordinator {
namespace {

template <typename Bits>
std::vector<float> DecodeTable(const FloatFormat& format) {
  std::vector<float> table(size_t{1} << (8 * sizeof(Bits)));
  for (size_t bits = 0; bits < table.size(); ++bits)
    table[bits] = Decode(format, static_cast<uint32_t>(bits));
  return table;
}

// What the accumulator loop needs to know of an element type.
template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                                  std::type_identity<T>>::type;
  static Accumulator Load(T value) { return static_cast<Accumulator>(value); }
  static T Store(Accumulator value) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(value)) return std::numeric_limits<T>::quiet_NaN();
    }
    return static_cast<T>(value);
  }
  static bool Less(Accumulator a, Accumulator b) { return static_cast<T>(a) < static_cast<T>(b); }
};
struct HalfElement {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t bits) { return FloatFromHalf(bits); }
  static uint16_t Store(float value) { return HalfFromFloat(value); }
  static bool Less(float a, float b) { return a < b; }
};
struct Bfloat16Element {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t bits) { return FloatFromBfloat16(bits); }
  static uint16_t Store(float value) { return Bfloat16FromFloat(value); }
  static bool Less(float a, float b) { return a < b; }
};
struct E4M3Element {
  using Stored = uint8_t;
  using Accumulator = float;
  static float Load(uint8_t bits) { return FloatFromE4M3(bits); }
  static uint8_t Store(float value) { return E4M3FromFloat(value); }
  static bool Less(float a, float b) { return a < b; }
};
struct E5M2Element {
  using Stored = uint8_t;
  using Accumulator = float;
  static float Load(uint8_t bits) { return FloatFromE5M2(bits); }
  static uint8_t Store(float value) { return E5M2FromFloat(value); }
  static bool Less(float a, float b) { return a < b; }
};

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

// Divides the accumulator by the number of ranks: integers truncating, and of the signed value for
// signed types.
template <typename Element>
typename Element::Accumulator Divide(typename Element::Accumulator value, size_t ranks) {
  using Accumulator = typename Element::Accumulator;
  using Stored = typename Element::Stored;
  if constexpr (std::is_floating_point_v<Accumulator>) {
    return value / static_cast<Accumulator>(ranks);
  } else if constexpr (std::is_signed_v<Stored>) {
    return static_cast<Accumulator>(static_cast<int64_t>(static_cast<Stored>(value)) /
                                    static_cast<int64_t>(ranks));
  } else {
    return static_cast<Accumulator>(static_cast<uint64_t>(value) / static_cast<uint64_t>(ranks));
  }
}

// Applies `step(accumulator, input)` in the accumulator's type. Unsigned types narrower than int
// would be promoted to int, where the product of two 16-bit numbers may overflow; the cast back is
// modular.
template <typename Element, Reduction kReduction>
void Accumulate(typename Element::Accumulator* accumulator, const typename Element::Stored* input,
                size_t count, typename Element::Accumulator scalar) {
  using Accumulator = typename Element::Accumulator;
  for (size_t i = 0; i < count; ++i) {
    const Accumulator value = Element::Load(input[i]);
    if constexpr (kReduction == Reduction::kSum) {
      accumulator[i] = static_cast<Accumulator>(accumulator[i] + value);
    } else if constexpr (kReduction == Reduction::kProd) {
      accumulator[i] = static_cast<Accumulator>(accumulator[i] * value);
    } else if constexpr (kReduction == Reduction::kPreMulSum) {
      const Accumulator scaled = static_cast<Accumulator>(value * scalar);
      accumulator[i] = static_cast<Accumulator>(accumulator[i] + scaled);
    } else if constexpr (kReduction == Reduction::kMax) {
      if (IsNan(value) ? !IsNan(accumulator[i]) : Element::Less(accumulator[i], value))
        accumulator[i] = value;
    } else {
      if (IsNan(value) ? !IsNan(accumulator[i]) : Element::Less(value, accumulator[i]))
        accumulator[i] = value;
    }
  }
}

template <typename Element>
void Reduce(const ReductionSpec& spec, const std::vector<const void*>& inputs,
            const std::vector<void*>& outputs, uint64_t count) {
  using Stored = typename Element::Stored;
  using Accumulator = typename Element::Accumulator;
  std::vector<Accumulator> scalars(inputs.size(), Accumulator{});
  for (size_t rank = 0; rank < spec.scalar_bits.size(); ++rank) {
    Stored stored;
    std::memcpy(&stored, &spec.scalar_bits[rank], sizeof stored);
    scalars[rank] = Element::Load(stored);
  }
  constexpr size_t kBlock = 2048;  // accumulators stay in the first-level cache
  std::array<Accumulator, kBlock> accumulator;
  std::array<Stored, kBlock> result;
  for (uint64_t first = 0; first < count; first += kBlock) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(kBlock, count - first));
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      const Stored* const input = static_cast<const Stored*>(inputs[rank]) + first;
      if (rank == 0) {
        for (size_t i = 0; i < n; ++i) accumulator[i] = Element::Load(input[i]);
        if (spec.reduction == Reduction::kPreMulSum) {
          for (size_t i = 0; i < n; ++i)
            accumulator[i] = static_cast<Accumulator>(accumulator[i] * scalars[0]);
        }
        continue;
      }
      switch (spec.reduction) {
        case Reduction::kSum:
        case Reduction::kAvg:
          Accumulate<Element, Reduction::kSum>(accumulator.data(), input, n, {});
          break;
        case Reduction::kProd:
          Accumulate<Element, Reduction::kProd>(accumulator.data(), input, n, {});
          break;
        case Reduction::kPreMulSum:
          Accumulate<Element, Reduction::kPreMulSum>(accumulator.data(), input, n, scalars[rank]);
          break;
        case Reduction::kMax:
          Accumulate<Element, Reduction::kMax>(accumulator.data(), input, n, {});
          break;
        case Reduction::kMin:
          Accumulate<Element, Reduction::kMin>(accumulator.data(), input, n, {});
          break;
      }
    }
    if (spec.reduction == Reduction::kAvg) {
      for (size_t i = 0; i < n; ++i)
        accumulator[i] = Divide<Element>(accumulator[i], inputs.size());
    }
    for (size_t i = 0; i < n; ++i) result[i] = Element::Store(accumulator[i]);
    for (void* output : outputs) {
      std::memcpy(static_cast<Stored*>(output) + first, result.data(), n * sizeof(Stored));
    }
  }
}

}  // namespace

float FloatFromHalf(uint16_t bits) {
  static const std::vector<float> table = DecodeTable<uint16_t>(kHalf);
  return table[bits];
}
uint16_t HalfFromFloat(float value) { return static_cast<uint16_t>(Encode(kHalf, value)); }

float FloatFromE4M3(uint8_t bits) {
  static const std::vector<float> table = DecodeTable<uint8_t>(kE4M3);
  return table[bits];
}
uint8_t E4M3FromFloat(float value) { return static_cast<uint8_t>(Encode(kE4M3, value)); }
float FloatFromE5M2(uint8_t bits) {
  static const std::vector<float> table = DecodeTable<uint8_t>(kE5M2);
  return table[bits];
}
uint8_t E5M2FromFloat(float value) { return static_cast<uint8_t>(Encode(kE5M2, value)); }

uint64_t ElementBytes(uint32_t dtype) {
  constexpr uint64_t kBytes[kDataTypeCount] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return dtype < kDataTypeCount ? kBytes[dtype] : 0;
}

std::string DataTypeName(uint32_t dtype) {
  constexpr const char* kNames[kDataTypeCount] = {
      "int8",    "uint8",   "int32",   "uint32",   "int64",       "uint64",
      "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  return dtype < kDataTypeCount ? kNames[dtype] : fmt::format("type {}", dtype);
}

std::string ReductionName(uint32_t reduction) {
  switch (static_cast<Reduction>(reduction)) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kProd:
      return "prod";
    case Reduction::kMax:
      return "max";
    case Reduction::kMin:
      return "min";
    case Reduction::kAvg:
      return "avg";
    case Reduction::kPreMulSum:
      return "premulsum";
  }
  return fmt::format("reduction {}", reduction);
}

absl::Status ReduceElements(const ReductionSpec& spec, const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs, uint64_t count) {
  if (inputs.empty()) return absl::InternalError("a reduction without inputs");
  if (spec.scalar_bits.size() != (spec.reduction == Reduction::kPreMulSum ? inputs.size() : 0)) {
    return absl::InternalError(fmt::format("{} scalars for {} inputs of {}",
                                           spec.scalar_bits.size(), inputs.size(),
                                           ReductionName(static_cast<uint32_t>(spec.reduction))));
  }
  if (ElementBytes(static_cast<uint32_t>(spec.dtype)) == 0) {
    return absl::InvalidArgumentError(
        fmt::format("ncclDataType_t {} is not a type", static_cast<uint32_t>(spec.dtype)));
  }
  switch (spec.reduction) {
    case Reduction::kSum:
    case Reduction::kProd:
    case Reduction::kMax:
    case Reduction::kMin:
    case Reduction::kAvg:
    case Reduction::kPreMulSum:
      break;
    default:
      return absl::InvalidArgumentError(
          fmt::format("ncclRedOp_t {} is not a reduction", static_cast<uint32_t>(spec.reduction)));
  }
  if (inputs.size() == 1 && spec.reduction != Reduction::kPreMulSum) {
    // As NCCL does: the bytes are copied, a signalling NaN stays one.
    const uint64_t bytes = count * ElementBytes(static_cast<uint32_t>(spec.dtype));
    for (void* output : outputs) {
      if (output != inputs[0] && bytes != 0) std::memmove(output, inputs[0], bytes);
    }
    return absl::OkStatus();
  }
  switch (spec.dtype) {
    case DataType::kInt8:
      Reduce<Plain<int8_t>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kUint8:
      Reduce<Plain<uint8_t>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kInt32:
      Reduce<Plain<int32_t>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kUint32:
      Reduce<Plain<uint32_t>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kInt64:
      Reduce<Plain<int64_t>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kUint64:
      Reduce<Plain<uint64_t>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kFloat16:
      Reduce<HalfElement>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kFloat32:
      Reduce<Plain<float>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kFloat64:
      Reduce<Plain<double>>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kBfloat16:
      Reduce<Bfloat16Element>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kFloat8E4M3:
      Reduce<E4M3Element>(spec, inputs, outputs, count);
      return absl::OkStatus();
    case DataType::kFloat8E5M2:
      Reduce<E5M2Element>(spec, inputs, outputs, count);
      return absl::OkStatus();
  }
  return absl::InternalError("a type without a reduction");
}

}  // namespace prism::coordinator
