// Communication cost: how long NCCL takes for one operation once all have come, by the formulas of
// its own tuning model (latency per call and per step, bandwidth of the narrowest tier; the fastest
// of ring and tree with the protocols LL, LL128 and Simple), on a target's topology. Stateless;
// thread-safe.
//
//   CollectiveNs(target.gpu, CommOp::kAllReduce, 1 << 20, PlacementOf(target, world_ranks));
#ifndef PRISM_ENGINE_COMMUNICATION_COST_H_
#define PRISM_ENGINE_COMMUNICATION_COST_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/engine/network_profile.h"
#include "src/engine/target.h"
#include "src/trace/format.h"

namespace prism::engine {

/// How the members of a communicator lie on the nodes.
struct Placement {
  uint32_t ranks = 1;
  uint32_t nodes = 1;
  uint32_t ranks_per_node = 1;  // on the fullest node
  uint32_t rails = 0;   // NICs of a node that the members have, all nodes together; 0: not known
  uint32_t leaves = 0;  // leaf switches of the nodes; 0: not known
  /// NICs by which a ring of the group leaves a node.
  uint32_t nics() const { return rails == 0 ? ranks_per_node : std::min(rails, ranks_per_node); }
};
/// `links`: null: not known.
Placement PlacementOf(const Target& target, std::span<const uint32_t> world_ranks,
                      const NetworkLinks* links = nullptr);

/// `bytes` is count x element size as passed to NCCL (AllGather: what one rank gives;
/// ReduceScatter: what one rank gets).
int64_t CollectiveNs(const Gpu& gpu, trace::CommOp op, uint64_t bytes, const Placement& placement);

/// Sends or receives of one group in one direction: bytes to peers on this node and beyond it.
int64_t PointToPointNs(const Gpu& gpu, uint64_t node_bytes, uint64_t network_bytes);

/// Size of an element of ncclDataType_t, 0 for a number that nccl.h lacks.
uint64_t ElementBytes(uint32_t nccl_type);

}  // namespace prism::engine

#endif  // PRISM_ENGINE_COMMUNICATION_COST_H_
