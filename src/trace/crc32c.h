// CRC-32C (Castagnoli, reflected), as iSCSI, ext4 and absl::crc32c compute it. Header-only: the
// shims use it too.
//
// Uses the SSE 4.2 instruction where the processor has it, else a table of 8 x 256 entries.
// Thread-safe.
#ifndef PRISM_TRACE_CRC32C_H_
#define PRISM_TRACE_CRC32C_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace prism::trace {
namespace crc32c_internal {

struct Tables {
  std::array<std::array<uint32_t, 256>, 8> t{};
  constexpr Tables() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
      t[0][i] = crc;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
    }
  }
};
inline constexpr Tables kTables;

inline uint32_t ExtendPortable(uint32_t crc, const unsigned char* p, size_t n) {
  const auto& t = kTables.t;
  for (; n >= 8; p += 8, n -= 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = t[7][low & 255] ^ t[6][low >> 8 & 255] ^ t[5][low >> 16 & 255] ^ t[4][low >> 24] ^
          t[3][high & 255] ^ t[2][high >> 8 & 255] ^ t[1][high >> 16 & 255] ^ t[0][high >> 24];
  }
  for (; n > 0; ++p, --n) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 255];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) inline uint32_t ExtendSse42(uint32_t crc, const unsigned char* p,
                                                              size_t n) {
  uint64_t c = crc;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    c = __builtin_ia32_crc32di(c, word);
  }
  auto narrow = static_cast<uint32_t>(c);
  for (; n > 0; ++p, --n) narrow = __builtin_ia32_crc32qi(narrow, *p);
  return narrow;
}
#endif

}  // namespace crc32c_internal

/// Returns the CRC of the bytes that gave `crc` (0 for none) followed by `data`.
inline uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (sse42) return ~crc32c_internal::ExtendSse42(~crc, p, bytes);
#endif
  return ~crc32c_internal::ExtendPortable(~crc, p, bytes);
}

}  // namespace prism::trace

#endif  // PRISM_TRACE_CRC32C_H_
