// SplitMix: a number that looks random, of a key; the same for the same key (Steele, Lea, Flood:
// Fast splittable pseudorandom number generators, 2014).
#ifndef PRISM_BASE_SPLIT_MIX_H_
#define PRISM_BASE_SPLIT_MIX_H_

#include <cstdint>

namespace prism {

inline uint64_t SplitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace prism

#endif  // PRISM_BASE_SPLIT_MIX_H_
