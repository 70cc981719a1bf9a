// Link model: what NCCL's algorithms do to links of a machine whose latencies and bandwidths were
// measured, one message at a time. It carries a measured time over to another group, and says how
// busy a communication keeps each link.
//
// Steps and bytes are those of NCCL's tuning model (rings; trees for all-reduces over several
// nodes); a protocol is a latency a step and a time a byte on each kind of link. The quickest of
// all is taken.
//
// Nodes of several leaf switches are taken to be as many of each, one leaf's after the other's.
//
// A value; thread-safe.
//
//   LinkModel model{base_ns, {{.port_step_ns = 700, .port_ns_per_byte = 0.004}}};
//   LinkModel::Estimate e = model.Of(CommOp::kAllReduce, 1 << 20, placement);
#ifndef PRISM_ENGINE_LINK_MODEL_H_
#define PRISM_ENGINE_LINK_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/engine/communication_cost.h"

namespace prism::engine {

struct LinkModel {
  struct Protocol {
    double port_step_ns = 0, nic_step_ns = 0;
    double leaf_step_ns = 0;  // from NIC to NIC of another leaf
    double port_ns_per_byte = 0, nic_ns_per_byte = 0;
  };
  struct Estimate {
    double ns;
    /// Nanoseconds that each member's port (in each direction), each NIC, and a leaf's way to the
    /// others are busy meanwhile, at the speed that it has.
    double port_ns, nic_ns, leaf_ns;
    double busiest_ns() const { return std::max({port_ns, nic_ns, leaf_ns}); }
  };

  /// Of bandwidths: of the group's slowest port and NIC.
  struct Speed {
    double port = 1, nic = 1;
  };

  double base_ns = 0;
  std::vector<Protocol> protocols;   // at least one
  double leaf_share = 0;             // NetworkLinks::leaf_share
  bool ports = false, nics = false;  // which of these are known
  bool leaves = false;

  /// Whether all links that a group there uses are known.
  bool Knows(const Placement& at) const {
    return (at.ranks_per_node == 1 || ports) && (at.nodes == 1 || nics) &&
           (at.leaves <= 1 || leaves);
  }
  /// `bytes` as in CollectiveNs; kSend and kRecv: one message.
  Estimate Of(trace::CommOp op, double bytes, const Placement& at) const {
    return Of(op, bytes, at, {});
  }
  /// The same on slower or faster links, on which another algorithm or protocol may be the
  /// quickest.
  Estimate Of(trace::CommOp op, double bytes, const Placement& at, const Speed& speed) const;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_LINK_MODEL_H_
