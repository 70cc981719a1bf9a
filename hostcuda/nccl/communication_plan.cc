#include "hostcuda/nccl/communication_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <unordered_map>

namespace hostnccl {
namespace {

/// Sums up bytes on links, for one byte of the communication.
class Loads {
 public:
  explicit Loads(const LinkTopology& topology) : topology_(topology) {}

  void Port(Place from, Place to, double bytes) {
    Add(LinkKind::kPortOut, Number(from), bytes);
    Add(LinkKind::kPortIn, Number(to), bytes);
  }
  /// From NIC to NIC of two nodes; returns the latency.
  double Network(uint32_t from, uint32_t from_rail, uint32_t to, uint32_t to_rail, double bytes) {
    Add(LinkKind::kRailOut, from * topology_.rails + from_rail, bytes);
    Add(LinkKind::kRailIn, to * topology_.rails + to_rail, bytes);
    const uint32_t from_leaf = topology_.LeafOf(from, from_rail);
    const uint32_t to_leaf = topology_.LeafOf(to, to_rail);
    if (from_leaf == to_leaf) return topology_.rail.latency_ns;
    Add(LinkKind::kLeafUp, from_leaf, bytes);
    Add(LinkKind::kLeafDown, to_leaf, bytes);
    return topology_.rail.latency_ns + topology_.spine_latency_ns;
  }
  /// From a GPU to a GPU; returns the latency.
  double Message(Place from, Place to, double bytes) {
    if (from == to) return 0;
    if (from.node == to.node) {
      Port(from, to, bytes);
      return topology_.port.latency_ns;
    }
    const uint32_t rail = topology_.RailOf(to.gpu);
    const double latency_ns = Network(from.node, rail, to.node, rail, bytes);
    if (topology_.RailOf(from.gpu) == rail) return latency_ns;
    Port(from, {from.node, to.gpu}, bytes);  // to the GPU at the receiver's rail
    return topology_.port.latency_ns + latency_ns;
  }
  /// Of a link of the ring or tree between nodes, from the GPU where the chain in a node ends to
  /// the one where the next begins.
  double Hop(Place from, Place from_nic, Place to_nic, double bytes) {
    if (from != from_nic) Port(from, from_nic, bytes);
    return Network(from_nic.node, topology_.RailOf(from_nic.gpu), to_nic.node,
                   topology_.RailOf(to_nic.gpu), bytes);
  }

  LinkPattern Pattern(double latency_ns) const {
    LinkPattern pattern;
    pattern.latency_ns = latency_ns;
    for (const auto& [link, bytes] : bytes_) {
      pattern.uses.push_back({link, bytes / topology_.BytesPerS(link) * 1e9});
      pattern.ns_per_byte = std::max(pattern.ns_per_byte, pattern.uses.back().ns_per_byte);
    }
    std::sort(pattern.uses.begin(), pattern.uses.end(),
              [](const auto& a, const auto& b) { return a.link < b.link; });
    return pattern;
  }

 private:
  uint32_t Number(Place place) const { return place.node * topology_.gpus_per_node + place.gpu; }
  void Add(LinkKind kind, uint32_t index, double bytes) {
    bytes_[LinkNumber(kind, index)] += bytes;
  }

  const LinkTopology& topology_;
  std::unordered_map<uint32_t, double> bytes_;
};

using Node = std::vector<Place>;  // its members

/// The channels of a ring or tree: each has every node's members, first the one at the NIC that the
/// channel uses.
std::vector<std::vector<Node>> ChannelsOf(const LinkTopology& topology, std::vector<Place> places) {
  std::sort(places.begin(), places.end());
  std::vector<Node> nodes;
  for (const Place& place : places) {
    if (nodes.empty() || nodes.back().front().node != place.node) nodes.emplace_back();
    nodes.back().push_back(place);
  }
  std::vector<std::vector<size_t>> at_rail(nodes.size());  // the first member at each rail
  size_t channels = nodes.size() == 1 ? 1 : SIZE_MAX;
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::set<uint32_t> rails;
    for (size_t member = 0; member < nodes[i].size(); ++member) {
      if (rails.insert(topology.RailOf(nodes[i][member].gpu)).second) at_rail[i].push_back(member);
    }
    channels = std::min(channels, at_rail[i].size());
  }
  std::vector<std::vector<Node>> result(channels, nodes);
  for (size_t channel = 0; channel < channels; ++channel) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      Node& node = result[channel][i];
      std::rotate(node.begin(), node.begin() + static_cast<long>(at_rail[i][channel]), node.end());
    }
  }
  return result;
}

/// `bytes` go over every link of the ring, but for the one that leads to `before` or away from
/// `behind`, where these are not null; a byte comes by `passes` times all links but one.
LinkPattern Ring(const LinkTopology& topology, const std::vector<std::vector<Node>>& channels,
                 double bytes, int passes, const Place* before, const Place* behind) {
  Loads loads(topology);
  double network_ns = 0;
  const double part = bytes / static_cast<double>(channels.size());
  for (const auto& nodes : channels) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      const Node& next = nodes[(i + 1) % nodes.size()];
      for (size_t member = 0; member < node.size(); ++member) {
        const bool last = member + 1 == node.size();
        const Place from = node[member], to = last ? next.front() : node[member + 1];
        if ((before != nullptr && to == *before) || (behind != nullptr && from == *behind))
          continue;
        if (from.node == to.node) {
          if (from != to) loads.Port(from, to, part);
        } else {
          network_ns = std::max(network_ns, loads.Hop(from, node.front(), to, part));
        }
      }
    }
  }
  size_t ranks = 0;
  for (const Node& node : channels.front()) ranks += node.size();
  const size_t nodes = channels.front().size();
  return loads.Pattern(passes * (static_cast<double>(ranks - nodes) * topology.port.latency_ns +
                                 static_cast<double>(nodes - 1) * network_ns));
}

/// The parent in a binary tree in which every second rank is a leaf; -1 for rank 0.
int Parent(int rank, int ranks) {
  if (rank == 0) return -1;
  const int bit = rank & -rank;
  const int parent = (rank ^ bit) | (bit << 1);
  return parent >= ranks ? rank ^ bit : parent;
}

/// The parent in the second tree, whose leaves are inner nodes of the first one.
int SecondParent(int rank, int ranks) {
  const bool mirrored = ranks % 2 == 0;
  const auto turn = [&](int r) { return mirrored ? ranks - 1 - r : (r + ranks - 1) % ranks; };
  const int parent = Parent(turn(rank), ranks);
  if (parent < 0) return -1;
  return mirrored ? ranks - 1 - parent : (parent + 1) % ranks;
}

LinkPattern Tree(const LinkTopology& topology, const std::vector<std::vector<Node>>& channels) {
  Loads loads(topology);
  double network_ns = 0;
  size_t longest = 0;
  const int nodes = static_cast<int>(channels.front().size());
  const double part = 1 / static_cast<double>(channels.size());
  for (const auto& channel : channels) {
    for (int i = 0; i < nodes; ++i) {
      const Node& node = channel[i];
      longest = std::max(longest, node.size());
      for (size_t member = 1; member < node.size(); ++member) {
        if (node[member] == node[member - 1]) continue;
        loads.Port(node[member], node[member - 1], part);
        loads.Port(node[member - 1], node[member], part);
      }
      for (const int parent : {Parent(i, nodes), SecondParent(i, nodes)}) {
        if (parent < 0) continue;
        const Place here = node.front(), there = channel[parent].front();
        network_ns = std::max({network_ns, loads.Hop(here, here, there, part / 2),
                               loads.Hop(there, there, here, part / 2)});
      }
    }
  }
  const int levels = std::bit_width(static_cast<unsigned>(nodes)) - 1;
  return loads.Pattern(
      2 * (static_cast<double>(longest - 1) * topology.port.latency_ns + levels * network_ns));
}

}  // namespace

std::vector<LinkPattern> CollectivePatterns(const LinkTopology& topology,
                                            const std::vector<Place>& places, OpKind kind,
                                            int root) {
  const auto ranks = static_cast<double>(places.size());
  if (places.size() == 1) return {LinkPattern{}};
  switch (kind) {
    case OpKind::kAllReduce: {
      const auto channels = ChannelsOf(topology, places);
      std::vector<LinkPattern> patterns = {
          Ring(topology, channels, 2 * (ranks - 1) / ranks, 2, nullptr, nullptr)};
      if (channels.front().size() > 1) patterns.push_back(Tree(topology, channels));
      return patterns;
    }
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
      return {Ring(topology, ChannelsOf(topology, places), ranks - 1, 1, nullptr, nullptr)};
    case OpKind::kBroadcast:
      return {Ring(topology, ChannelsOf(topology, places), 1, 1, &places[root], nullptr)};
    case OpKind::kReduce:
      return {Ring(topology, ChannelsOf(topology, places), 1, 1, nullptr, &places[root])};
    case OpKind::kAllToAll:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kSend:
    case OpKind::kRecv:
      break;
  }
  Loads loads(topology);
  double latency_ns = 0;
  for (int from = 0; from < static_cast<int>(places.size()); ++from) {
    if (kind == OpKind::kScatter && from != root) continue;
    for (int to = 0; to < static_cast<int>(places.size()); ++to) {
      if (kind == OpKind::kGather && to != root) continue;
      latency_ns = std::max(latency_ns, loads.Message(places[from], places[to], 1));
    }
  }
  return {loads.Pattern(latency_ns)};
}

LinkPattern MessagePattern(const LinkTopology& topology, Place from, Place to) {
  Loads loads(topology);
  const double latency_ns = loads.Message(from, to, 1);
  return loads.Pattern(latency_ns);
}

Plan PlanOf(const LinkTopology& topology, const std::vector<LinkPattern>& patterns,
            uint64_t bytes) {
  Plan best;
  const LinkPattern* pattern = nullptr;
  double link_bytes = 0;
  for (const LinkPattern& candidate : patterns) {
    for (const Protocol& protocol : topology.protocols) {
      const double on_links = static_cast<double>(bytes) * protocol.bytes_factor;
      const double ns = topology.base_ns + candidate.latency_ns * protocol.latency_factor +
                        candidate.ns_per_byte * on_links;
      if (pattern != nullptr && ns >= best.ns) continue;
      best.ns = ns;
      pattern = &candidate;
      link_bytes = on_links;
    }
  }
  if (bytes == 0 || best.ns == 0) return best;
  best.shares.reserve(pattern->uses.size());
  for (const LinkPattern::Use& use : pattern->uses) {
    const double share = std::min(use.ns_per_byte * link_bytes / best.ns, 1.0);
    best.shares.push_back({use.link, static_cast<uint32_t>(share * kWholeLink)});
  }
  return best;
}

}  // namespace hostnccl
