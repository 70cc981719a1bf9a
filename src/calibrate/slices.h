// Slices: which ranks of a captured job have to run so that all of it is timed.
//
// Ranks that share a program do the same (graph::Graph), so one of each program runs, and the
// others are copies of it under their own communicators and peers (trace::CopyAs). Stateless.
//
//   for (const Slice& slice : Slices(graph)) ...   // run slice.representative
//   trace::CopyAs(measured, *IdentityOf(graph, slice.representative, 3), path);
#ifndef PRISM_CALIBRATE_SLICES_H_
#define PRISM_CALIBRATE_SLICES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "src/graph/graph.h"
#include "src/trace/copy_as.h"

namespace prism::calibrate {

struct Slice {
  uint32_t representative;      // index in Graph::ranks
  std::vector<uint32_t> ranks;  // that do as it does, itself included
};

/// One slice a program, in the order of their first ranks.
std::vector<Slice> Slices(const graph::Graph& graph);

/// What a copy of rank `from`'s trace needs to be rank `to`'s (indices in Graph::ranks).
/// FailedPrecondition: they do not share a program.
absl::StatusOr<trace::RankIdentity> IdentityOf(const graph::Graph& graph, uint32_t from,
                                               uint32_t to);

}  // namespace prism::calibrate

#endif  // PRISM_CALIBRATE_SLICES_H_
