// What a communication does to the links: how long it takes alone, and what share of each link's
// bandwidth it uses meanwhile.
//
// Algorithms are NCCL's. A collective's ring goes through the GPUs of a node by their ports and
// from node to node by a NIC; over several nodes there is a ring for each rail that all of them
// have, with its part of the bytes. An all-reduce over several nodes may also go by chains in the
// nodes and double binary trees between them. Gather, scatter, all-to-all and messages go from
// sender to receiver: in another node by the receiver's rail, to which a port of the sender's node
// leads. The quickest of algorithms and protocols is taken, by the time that it takes alone: base,
// steps' latencies, and the bytes of the busiest link over its bandwidth.
//
// Pure functions; any thread.
//
//   LinkPattern ring = CollectivePatterns(topology, places, OpKind::kAllReduce, 0)[0];
//   Plan plan = PlanOf(topology, {ring}, bytes);
#ifndef HOSTCUDA_NCCL_COMMUNICATION_PLAN_H_
#define HOSTCUDA_NCCL_COMMUNICATION_PLAN_H_

#include <cstdint>
#include <vector>

#include "hostcuda/nccl/link_topology.h"
#include "hostcuda/nccl/operation.h"

namespace hostnccl {

/// An algorithm on given places, for any number of bytes.
struct LinkPattern {
  struct Use {
    uint32_t link;
    double ns_per_byte;  // time of the link for a byte of the communication
  };
  double latency_ns = 0;
  double ns_per_byte = 0;  // the busiest link's
  std::vector<Use> uses;   // by link
};

/// Of a link, while a communication goes on.
struct LinkShare {
  uint32_t link;
  uint32_t share;  // in units of 1 / kWholeLink
  friend bool operator==(const LinkShare&, const LinkShare&) = default;
};
inline constexpr uint32_t kWholeLink = 1u << 30;

struct Plan {
  double ns = 0;  // alone
  std::vector<LinkShare> shares;
};

/// Returns the algorithms that there are for a collective; `root` is ignored where it has none. A
/// byte is one of the call's `count` elements.
std::vector<LinkPattern> CollectivePatterns(const LinkTopology& topology,
                                            const std::vector<Place>& places, OpKind kind,
                                            int root);
LinkPattern MessagePattern(const LinkTopology& topology, Place from, Place to);

/// Returns the quickest of `patterns` and protocols for so many bytes. At least one pattern.
Plan PlanOf(const LinkTopology& topology, const std::vector<LinkPattern>& patterns, uint64_t bytes);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_COMMUNICATION_PLAN_H_
