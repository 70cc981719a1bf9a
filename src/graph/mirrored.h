// Mirrored: whether what a job communicates depends on values that nobody sent.
//
// Under exchange policy `control` (docs/design/0017-exchange-policies.md) large payloads move until
// they recur; from then on each rank goes on with its own data. Where the ranks then communicate
// otherwise than in the last step in which everything moved, the structure follows from such values
// (or from what happens once, such as DDP's buckets, which PyTorch lays out anew after a step).
// Kernels are not compared: a first step launches some that set the program up.
//
// Stateless; thread-safe.
#ifndef PRISM_GRAPH_MIRRORED_H_
#define PRISM_GRAPH_MIRRORED_H_

#include <cstdint>
#include <vector>

#include "src/graph/program.h"

namespace prism::graph {

struct MirroredSteps {
  uint32_t mirrored = 0;   // steps with payloads that did not move any more
  uint32_t different = 0;  // of them: communicate otherwise than the last exact step
  bool any_exact = false;  // there is such a step
};
/// `ends`: the program's of Steps (step.h).
MirroredSteps CompareMirrored(const Program& program, const std::vector<Place>& ends);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_MIRRORED_H_
