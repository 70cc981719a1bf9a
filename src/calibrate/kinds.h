// Kinds: which ranks of a captured job have to run so that all of it is timed.
//
// Ranks that share a program do the same, so one of each program runs. Ranks whose programs differ
// in sizes alone (Outline) are of one kind: some of them run, from the least work to the most, and
// the others are timed by what those took (Retime). Where launches carry hashes of their parameters
// (PRISM_KERNEL_PARAMETERS), ranks of a kind, and of one program, contradict the same others in
// those that are the same every time (what a straggler states of its kernels, say), and so never
// each other; who says nothing where others disagree is none of theirs. Kinds do not depend on the
// order of the ranks. Stateless.
//
//   PRISM_ASSIGN_OR_RETURN(const std::vector<Kind> kinds, KindsOf(graph, 4));
#ifndef PRISM_CALIBRATE_KINDS_H_
#define PRISM_CALIBRATE_KINDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "src/calibrate/slices.h"
#include "src/graph/graph.h"

namespace prism::calibrate {

struct Kind {
  std::vector<Slice> slices;   // one of each runs
  std::vector<Slice> retimed;  // none of these
};

/// At most `most_slices` of a kind; 0: all, nothing is retimed. Fails as trace::Reader::Open().
absl::StatusOr<std::vector<Kind>> KindsOf(const graph::Graph& graph, uint32_t most_slices);

/// `count` of the ranks that are retimed, spread over all of them: to be run as well and compared.
std::vector<uint32_t> Sampled(const std::vector<Kind>& kinds, uint32_t count);

}  // namespace prism::calibrate

#endif  // PRISM_CALIBRATE_KINDS_H_
