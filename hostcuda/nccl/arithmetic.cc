#include "hostcuda/nccl/arithmetic.h"

#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hostcuda/nccl/float_formats.h"

namespace hostnccl {
namespace {

/// Round to nearest, subnormals kept, exceptions masked, for the scope: threads of the program may
/// have changed any of it.
class DefaultFloatingPointMode {
 public:
  DefaultFloatingPointMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatingPointMode() { _mm_setcsr(saved_); }
  DefaultFloatingPointMode(const DefaultFloatingPointMode&) = delete;
  DefaultFloatingPointMode& operator=(const DefaultFloatingPointMode&) = delete;

 private:
  const unsigned saved_;
};

using DecodeTable = std::array<float, 256>;

template <typename Format>
DecodeTable MakeDecodeTable() {
  DecodeTable table;
  for (int code = 0; code < 256; ++code) table[code] = Format::Decode(static_cast<uint8_t>(code));
  return table;
}

// How a type is held in memory, in which type it is accumulated, and how one becomes the other.
template <typename T>
struct Integer {
  using Storage = T;
  using Accumulator = std::make_unsigned_t<T>;
  using Ordered = T;
  static Accumulator Load(Storage value) { return static_cast<Accumulator>(value); }
  static Storage Store(Accumulator value) { return static_cast<Storage>(value); }
  static Accumulator Average(Accumulator sum, int ranks) {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<Accumulator>(static_cast<Wide>(static_cast<T>(sum)) /
                                    static_cast<Wide>(ranks));
  }
};

template <typename T>
struct Real {
  using Accumulator = T;
  using Ordered = T;
  static Accumulator Average(Accumulator sum, int ranks) { return sum / static_cast<T>(ranks); }
};

struct Float32 : Real<float> {
  using Storage = float;
  static float Load(float value) { return value; }
  static float Store(float value) {
    return value == value ? value : std::numeric_limits<float>::quiet_NaN();
  }
};
struct Float64 : Real<double> {
  using Storage = double;
  static double Load(double value) { return value; }
  static double Store(double value) {
    return value == value ? value : std::numeric_limits<double>::quiet_NaN();
  }
};
struct Float16 : Real<float> {
  using Storage = uint16_t;
  static float Load(uint16_t value) { return DecodeFloat16(value); }
  static uint16_t Store(float value) { return EncodeFloat16(value); }
};
struct Bfloat16 : Real<float> {
  using Storage = uint16_t;
  static float Load(uint16_t value) { return DecodeBfloat16(value); }
  static uint16_t Store(float value) { return EncodeBfloat16(value); }
};
template <typename Format>
struct Float8 : Real<float> {
  using Storage = uint8_t;
  static float Load(uint8_t value) {
    static const DecodeTable table = MakeDecodeTable<Format>();
    return table[value];
  }
  static uint8_t Store(float value) { return Format::Encode(value); }
};

template <typename Type, Reduction kReduction>
typename Type::Accumulator Combine(typename Type::Accumulator sum,
                                   typename Type::Accumulator value) {
  using Accumulator = typename Type::Accumulator;
  using Ordered = typename Type::Ordered;
  if constexpr (kReduction == Reduction::kProd) {
    return static_cast<Accumulator>(sum * value);
  } else if constexpr (kReduction == Reduction::kMax) {
    const bool takes = (static_cast<Ordered>(value) > static_cast<Ordered>(sum)) | (value != value);
    return takes ? value : sum;
  } else if constexpr (kReduction == Reduction::kMin) {
    const bool takes = (static_cast<Ordered>(value) < static_cast<Ordered>(sum)) | (value != value);
    return takes ? value : sum;
  } else {
    return static_cast<Accumulator>(sum + value);
  }
}

// A block of accumulators stays in the first-level cache while the ranks' inputs stream through it;
// each element's order of operations is rank 0, 1, 2, ..., whatever the vector width.
template <typename Type, Reduction kReduction>
void ReduceAs(const void* const* inputs, const uint64_t* scalar_bits, int ranks, size_t count,
              void* output) {
  using Storage = typename Type::Storage;
  using Accumulator = typename Type::Accumulator;
  constexpr size_t kBlock = 1024;
  alignas(64) Accumulator sums[kBlock];
  const auto scalar = [&](int rank) {
    Storage value;
    std::memcpy(&value, &scalar_bits[rank], sizeof value);  // little endian: the low bytes
    return Type::Load(value);
  };
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t block = std::min(kBlock, count - begin);
    const auto* first = static_cast<const Storage*>(inputs[0]) + begin;
    if constexpr (kReduction == Reduction::kPreMulSum) {
      const Accumulator factor = scalar(0);
      for (size_t i = 0; i < block; ++i)
        sums[i] = static_cast<Accumulator>(Type::Load(first[i]) * factor);
    } else {
      for (size_t i = 0; i < block; ++i) sums[i] = Type::Load(first[i]);
    }
    for (int rank = 1; rank < ranks; ++rank) {
      const auto* input = static_cast<const Storage*>(inputs[rank]) + begin;
      if constexpr (kReduction == Reduction::kPreMulSum) {
        const Accumulator factor = scalar(rank);
        for (size_t i = 0; i < block; ++i) {
          const auto scaled = static_cast<Accumulator>(Type::Load(input[i]) * factor);
          sums[i] = static_cast<Accumulator>(sums[i] + scaled);
        }
      } else {
        for (size_t i = 0; i < block; ++i)
          sums[i] = Combine<Type, kReduction>(sums[i], Type::Load(input[i]));
      }
    }
    auto* result = static_cast<Storage*>(output) + begin;
    if constexpr (kReduction == Reduction::kAvg) {
      for (size_t i = 0; i < block; ++i) result[i] = Type::Store(Type::Average(sums[i], ranks));
    } else {
      for (size_t i = 0; i < block; ++i) result[i] = Type::Store(sums[i]);
    }
  }
}

template <typename Type>
void ReduceType(Reduction reduction, const void* const* inputs, const uint64_t* scalar_bits,
                int ranks, size_t count, void* output) {
  switch (reduction) {
    case Reduction::kSum:
      return ReduceAs<Type, Reduction::kSum>(inputs, scalar_bits, ranks, count, output);
    case Reduction::kProd:
      return ReduceAs<Type, Reduction::kProd>(inputs, scalar_bits, ranks, count, output);
    case Reduction::kMax:
      return ReduceAs<Type, Reduction::kMax>(inputs, scalar_bits, ranks, count, output);
    case Reduction::kMin:
      return ReduceAs<Type, Reduction::kMin>(inputs, scalar_bits, ranks, count, output);
    case Reduction::kAvg:
      return ReduceAs<Type, Reduction::kAvg>(inputs, scalar_bits, ranks, count, output);
    case Reduction::kPreMulSum:
      return ReduceAs<Type, Reduction::kPreMulSum>(inputs, scalar_bits, ranks, count, output);
  }
}

}  // namespace

size_t ElementBytes(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2:
      return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

void Reduce(DataType type, Reduction reduction, const void* const* inputs,
            const uint64_t* scalar_bits, int ranks, size_t count, void* output) {
  const DefaultFloatingPointMode mode;
  switch (type) {
    case DataType::kInt8:
      return ReduceType<Integer<int8_t>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kUint8:
      return ReduceType<Integer<uint8_t>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kInt32:
      return ReduceType<Integer<int32_t>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kUint32:
      return ReduceType<Integer<uint32_t>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kInt64:
      return ReduceType<Integer<int64_t>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kUint64:
      return ReduceType<Integer<uint64_t>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kFloat16:
      return ReduceType<Float16>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kFloat32:
      return ReduceType<Float32>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kFloat64:
      return ReduceType<Float64>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kBfloat16:
      return ReduceType<Bfloat16>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kFloat8e4m3:
      return ReduceType<Float8<Float8e4m3>>(reduction, inputs, scalar_bits, ranks, count, output);
    case DataType::kFloat8e5m2:
      return ReduceType<Float8<Float8e5m2>>(reduction, inputs, scalar_bits, ranks, count, output);
  }
}

}  // namespace hostnccl
