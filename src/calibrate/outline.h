// Outline: what a rank does, without how much of it.
//
// Ranks of a mixture of experts have the same program but for sizes: how many rows an expert gets
// decides grids of kernels, bytes of messages, and which messages there are at all. Two traces with
// one shape launch kernels of the same names in the same order on the same streams, communicate at
// the same places with communicators of the same sizes, and wait at the same places. Immutable.
//
//   const Outline outline = OutlineOf(captured);
//   outline.shape == OutlineOf(other).shape
//   outline.items[0][7].size     // blocks, or bytes of a copy
#ifndef PRISM_CALIBRATE_OUTLINE_H_
#define PRISM_CALIBRATE_OUTLINE_H_

#include <cstdint>
#include <vector>

#include "src/trace/reader.h"

namespace prism::calibrate {

/// A launch, a group of communications, or another node of a stream.
struct Item {
  /// Of launches name, kind, block and shared memory; of communications their communicators, and of
  /// collectives the operation; of others the kind of node.
  uint64_t what;
  uint64_t size = 0;             // of launches: blocks; bytes of copies and sets
  uint32_t parameters = 0;       // of launches, as in trace::KernelRecord
  uint32_t kernel = UINT32_MAX;  // of launches, in the trace's table
  uint64_t node = 0;             // in its sequence; launches of a span share it
  uint32_t nodes = 1;            // of a group

  bool launches() const { return kernel != UINT32_MAX; }
};

struct Outline {
  /// Numbers in the trace of its streams and threads, in order of creation.
  std::vector<uint32_t> streams, threads;
  std::vector<uint32_t> communicators;   // job-wide numbers, in the order in which they are made
  std::vector<std::vector<Item>> items;  // of each stream
  uint64_t shape = 0;
};

/// `communicators`: see Outline; empty: in the trace's own order.
Outline OutlineOf(const trace::Reader& trace, std::vector<uint32_t> communicators = {});

/// What tells a launch, or a span of `count` of them, from others of the same kernel: its kernels,
/// and two items before and behind.
uint64_t SiteOf(const std::vector<Item>& items, size_t first, size_t count);

}  // namespace prism::calibrate

#endif  // PRISM_CALIBRATE_OUTLINE_H_
