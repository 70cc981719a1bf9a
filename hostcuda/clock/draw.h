// Drawn jitter: a log-normal factor that is a function of what it is drawn for.
//
// Pure; any thread.
//
//   double factor = LogNormalFactor(0.05, seed, {rank, stream, sequence});
#ifndef HOSTCUDA_CLOCK_DRAW_H_
#define HOSTCUDA_CLOCK_DRAW_H_

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace hostcuda {

/// Scrambles a word: the finalizer of splitmix64.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Returns a factor of mean 1 whose logarithm has standard deviation `sigma`.
inline double LogNormalFactor(double sigma, uint64_t seed, std::initializer_list<uint64_t> words) {
  if (sigma == 0) return 1;
  uint64_t key = Mix(seed);
  for (const uint64_t word : words) key = Mix(key ^ word);
  const auto uniform = [](uint64_t bits) {  // in (0, 1)
    return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  };
  // Box and Muller.
  const double normal =
      std::sqrt(-2 * std::log(uniform(key))) * std::cos(2 * M_PI * uniform(Mix(key + 1)));
  return std::exp(sigma * normal - sigma * sigma / 2);
}

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_DRAW_H_
