// Draws keyed by what they are for: the same key gives the same value in every process, in any
// order. Stateless, thread-safe.
//
//   double u = Uniform(seed, Stream::kJitter, {rank, step, layer, micro_batch});  // in [0, 1)
#ifndef MOE_TRAINER_RANDOM_H_
#define MOE_TRAINER_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace moe_trainer {

/// What is drawn; draws of different kinds are independent.
enum class Stream : uint64_t { kParameter, kToken, kPopularity, kCount, kJitter };

/// 64 random bits (SplitMix64's finalizer over the key).
inline uint64_t Bits(uint64_t seed, Stream stream, std::initializer_list<uint64_t> key) {
  const auto mix = [](uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  };
  uint64_t state = mix(mix(seed) ^ static_cast<uint64_t>(stream));
  for (const uint64_t part : key) state = mix(state ^ part);
  return state;
}

/// Uniform in [0, 1), a multiple of 2^-53.
inline double Uniform(uint64_t seed, Stream stream, std::initializer_list<uint64_t> key) {
  return static_cast<double>(Bits(seed, stream, key) >> 11) * 0x1p-53;
}

/// Standard normal (Box and Muller).
inline double Normal(uint64_t seed, Stream stream, std::initializer_list<uint64_t> key) {
  const uint64_t bits = Bits(seed, stream, key);
  const double radius = (static_cast<double>(bits >> 32) + 1) * 0x1p-32;  // in (0, 1]
  const double angle = static_cast<double>(bits & 0xffffffff) * 0x1p-32;
  return std::sqrt(-2 * std::log(radius)) * std::cos(2 * 3.14159265358979323846 * angle);
}

}  // namespace moe_trainer

#endif  // MOE_TRAINER_RANDOM_H_
