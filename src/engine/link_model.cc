#include "src/engine/link_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace prism::engine {
namespace {

using trace::CommOp;

struct Algorithm {
  double port_steps, nic_steps;
  double port_bytes, nic_bytes, leaf_bytes;  // on each link, for a byte of the call
};

// The parent in a binary tree in which every second one is a leaf; -1 for the first one.
int64_t Parent(int64_t i, int64_t count) {
  if (i == 0) return -1;
  const int64_t bit = i & -i, parent = (i ^ bit) | bit << 1;
  return parent >= count ? i ^ bit : parent;
}

// Two binary trees, half of the bytes by each, up and down; inner nodes of one are leaves of the
// other. Returns how often a byte leaves the block of nodes that it leaves most often, of `blocks`
// equal ones.
double TreesOut(int64_t nodes, int64_t blocks) {
  std::vector<int64_t> edges(static_cast<size_t>(blocks), 0);
  const auto block = [&](int64_t node) { return static_cast<size_t>(node * blocks / nodes); };
  const auto add = [&](int64_t node, int64_t parent) {
    if (block(node) == block(parent)) return;
    ++edges[block(node)];
    ++edges[block(parent)];
  };
  for (int64_t i = 1; i < nodes; ++i) {
    const int64_t parent = Parent(i, nodes);
    add(i, parent);
    // The second tree is the first one mirrored, or turned by one where the number is odd.
    if (nodes % 2 == 0) {
      add(nodes - 1 - i, nodes - 1 - parent);
    } else {
      add((i + 1) % nodes, (parent + 1) % nodes);
    }
  }
  return static_cast<double>(*std::max_element(edges.begin(), edges.end())) / 2;
}

std::vector<Algorithm> AlgorithmsOf(CommOp op, const Placement& at) {
  const double n = at.ranks, nodes = at.nodes, per_node = at.ranks_per_node;
  const bool several = at.nodes > 1, far = at.leaves > 1;
  const double nics = at.nics();
  // Along a ring, that often as a byte comes by every link but one.
  const auto ring = [&](double passes, double bytes) {
    return Algorithm{passes * (n - nodes), passes * (nodes - 1), per_node > 1 ? bytes : 0,
                     several ? bytes / nics : 0, far ? bytes / nics : 0};
  };
  switch (op) {
    case CommOp::kAllReduce: {
      std::vector<Algorithm> algorithms = {ring(2, 2 * (n - 1) / n)};
      if (!several) return algorithms;
      // Chains in the nodes and trees between them.
      const double levels = std::bit_width(at.nodes) - 1;
      algorithms.push_back({2 * (per_node - 1), 2 * levels, 2 * (per_node - 1) / per_node,
                            TreesOut(at.nodes, at.nodes) / nics,
                            far ? TreesOut(at.nodes, at.leaves) / nics : 0});
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
      return {{by_port, several ? 1.0 : 0, by_port, several ? 1.0 : 0, far ? 1.0 : 0}};
    }
    case CommOp::kAllToAll:
    case CommOp::kGather:
    case CommOp::kScatter:
      break;
  }
  const double of_leaf = far ? n / at.leaves : n;
  return {{1, several ? 1.0 : 0, n - 1, several ? per_node / nics * (n - per_node) : 0,
           of_leaf * (n - of_leaf) / nics}};
}

}  // namespace

LinkModel::Estimate LinkModel::Of(CommOp op, double bytes, const Placement& at,
                                  const Speed& speed) const {
  Estimate best{INFINITY, 0, 0, 0};
  for (const Algorithm& a : AlgorithmsOf(op, at)) {
    for (const Protocol& p : protocols) {
      Estimate e{0, a.port_bytes * p.port_ns_per_byte * bytes / speed.port,
                 a.nic_bytes * p.nic_ns_per_byte * bytes / speed.nic,
                 a.leaf_bytes * p.nic_ns_per_byte * leaf_share * bytes};
      e.ns = base_ns + a.port_steps * p.port_step_ns +
             a.nic_steps * (at.leaves > 1 ? p.leaf_step_ns : p.nic_step_ns) + e.busiest_ns();
      if (e.ns < best.ns) best = e;
    }
  }
  return best;
}

}  // namespace prism::engine
