// Content hashes of launches and spans, as format.h defines them. Header-only: the shims use it
// too. Stateless.
#ifndef PRISM_TRACE_CONTENT_HASH_H_
#define PRISM_TRACE_CONTENT_HASH_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/trace/format.h"

namespace prism::trace {

inline uint64_t Fnv(uint64_t hash, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * kFnvPrime;
  return hash;
}

inline uint64_t KernelHash(std::string_view name, const KernelRecord& k) {
  uint64_t hash = Fnv(kFnvOffset, name.data(), name.size());
  hash = Fnv(hash, &k.kind, sizeof(k.kind));
  hash = Fnv(hash, k.grid, sizeof(k.grid));
  hash = Fnv(hash, k.block, sizeof(k.block));
  hash = Fnv(hash, &k.shared_bytes, sizeof(k.shared_bytes));
  return Fnv(hash, &k.bytes, sizeof(k.bytes));
}

/// `hash`: of the kernels before, kFnvOffset for none.
inline uint64_t ExtendSpanHash(uint64_t hash, uint64_t kernel_hash) {
  return (hash ^ kernel_hash) * kFnvPrime;
}

}  // namespace prism::trace

#endif  // PRISM_TRACE_CONTENT_HASH_H_
