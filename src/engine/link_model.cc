#include "src/engine/link_model.h"

#include <bit>
#include <cmath>

namespace prism::engine {
namespace {

using trace::CommOp;

struct Algorithm {
  double port_steps, nic_steps;
  double port_bytes, nic_bytes;  // on each link, for a byte of the call
};

std::vector<Algorithm> AlgorithmsOf(CommOp op, const Placement& at) {
  const double n = at.ranks, nodes = at.nodes, per_node = at.ranks_per_node;
  const bool several = at.nodes > 1;
  const double nics = at.nics();
  // Along a ring, that often as a byte comes by every link but one.
  const auto ring = [&](double passes, double bytes) {
    return Algorithm{passes * (n - nodes), passes * (nodes - 1), per_node > 1 ? bytes : 0,
                     several ? bytes / nics : 0};
  };
  switch (op) {
    case CommOp::kAllReduce: {
      std::vector<Algorithm> algorithms = {ring(2, 2 * (n - 1) / n)};
      if (!several) return algorithms;
      // Chains in the nodes and two binary trees between them, half of the bytes by each, up and
      // down. Between two nodes a byte goes once each way; a larger tree's inner nodes have two
      // children, and are leaves of the other tree.
      const double levels = std::bit_width(at.nodes) - 1;
      algorithms.push_back({2 * (per_node - 1), 2 * levels, 2 * (per_node - 1) / per_node,
                            (at.nodes == 2   ? 1
                             : at.nodes == 3 ? 1.5
                                             : 2) /
                                nics});
      return algorithms;
    }
    case CommOp::kAllGather:
    case CommOp::kReduceScatter:
      return {ring(1, n - 1)};
    case CommOp::kBroadcast:
    case CommOp::kReduce:
      return {ring(1, 1)};
    case CommOp::kSend:
    case CommOp::kRecv: {
      // To another NIC than its own a sender's node has a port lead.
      const double by_port = !several || at.rails > 1 ? 1 : 0;
      return {{by_port, several ? 1.0 : 0, by_port, several ? 1.0 : 0}};
    }
    case CommOp::kAllToAll:
    case CommOp::kGather:
    case CommOp::kScatter:
      break;
  }
  return {{1, several ? 1.0 : 0, n - 1, several ? per_node / nics * (n - per_node) : 0}};
}

}  // namespace

LinkModel::Estimate LinkModel::Of(CommOp op, double bytes, const Placement& at) const {
  Estimate best{INFINITY, 0, 0};
  for (const Algorithm& a : AlgorithmsOf(op, at)) {
    for (const Protocol& p : protocols) {
      Estimate e{0, a.port_bytes * p.port_ns_per_byte * bytes,
                 a.nic_bytes * p.nic_ns_per_byte * bytes};
      e.ns = base_ns + a.port_steps * p.port_step_ns + a.nic_steps * p.nic_step_ns + e.busiest_ns();
      if (e.ns < best.ns) best = e;
    }
  }
  return best;
}

}  // namespace prism::engine
