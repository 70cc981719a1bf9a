#include "src/engine/communication_cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

namespace prism::engine {
namespace {

using trace::CommOp;

// NCCL's: trees reach 92 % of the ring's bandwidth.
constexpr double kTreeBandwidthRatio = 0.92;

struct Protocol {
  double ProtocolTable::*latency;
  double bandwidth_ratio;
};

double RingUs(const Gpu& gpu, const Protocol& p, double steps, double network_steps, double volume,
              double bandwidth) {
  return gpu.ring_base_us.*p.latency + (steps - network_steps) * gpu.ring_link_us.*p.latency +
         network_steps * gpu.ring_network_us.*p.latency +
         volume / (bandwidth * p.bandwidth_ratio) * 1e6;
}

double TreeUs(const Gpu& gpu, const Protocol& p, const Placement& at, double bytes,
              double bandwidth) {
  const double depth = std::ceil(std::log2(static_cast<double>(at.nodes)));
  return gpu.tree_base_us.*p.latency +
         2 * ((at.ranks_per_node - 1) * gpu.tree_link_us.*p.latency +
              depth * gpu.tree_network_us.*p.latency) +
         2 * bytes / (bandwidth * kTreeBandwidthRatio * p.bandwidth_ratio) * 1e6;
}

}  // namespace

Placement PlacementOf(const Target& target, std::span<const uint32_t> world_ranks,
                      const NetworkLinks* links) {
  std::map<uint32_t, uint32_t> nodes;
  std::set<uint32_t> nics, leaves;
  bool known = links != nullptr && !links->nic_of_gpu.empty();
  Placement placement;
  placement.ranks = static_cast<uint32_t>(world_ranks.size());
  for (uint32_t rank : world_ranks) {
    if (rank == trace::kUnknownRank) continue;
    placement.ranks_per_node = std::max(placement.ranks_per_node, ++nodes[target.node_of(rank)]);
    const uint32_t gpu = rank % target.gpus_per_node;
    known = known && gpu < links->nic_of_gpu.size();
    if (known) nics.insert(links->nic_of_gpu[gpu]);
    if (links != nullptr) leaves.insert(links->LeafOf(target.node_of(rank)));
  }
  placement.nodes = static_cast<uint32_t>(std::max<size_t>(nodes.size(), 1));
  if (placement.nodes == 1) return placement;
  if (known) placement.rails = static_cast<uint32_t>(nics.size());
  placement.leaves = static_cast<uint32_t>(leaves.size());
  return placement;
}

int64_t CollectiveNs(const Gpu& gpu, CommOp op, uint64_t bytes, const Placement& at) {
  const double n = at.ranks, size = static_cast<double>(bytes);
  if (at.ranks <= 1) {
    return gpu.kernel_floor_ns +
           std::llround(2e9 * size / (gpu.memory_bandwidth * gpu.memory_efficiency));
  }
  const double network = at.nics() * gpu.network_bandwidth * gpu.network_efficiency;
  double bandwidth = at.ranks_per_node > 1 ? gpu.link_bandwidth : network;
  if (at.nodes > 1) bandwidth = std::min(bandwidth, network);

  double steps = n - 1, network_steps = at.nodes > 1 ? at.nodes - 1 : 0, volume = 0;
  switch (op) {
    case CommOp::kAllReduce:
      steps *= 2;
      network_steps *= 2;
      volume = 2 * (n - 1) / n * size;
      break;
    case CommOp::kAllGather:
    case CommOp::kReduceScatter:
      volume = (n - 1) * size;
      break;
    case CommOp::kBroadcast:
    case CommOp::kReduce:
      volume = size;  // pipelined along the ring
      break;
    case CommOp::kAllToAll:
    case CommOp::kGather:
    case CommOp::kScatter: {
      const uint64_t near = (at.ranks_per_node - 1) * bytes,
                     far = (at.ranks - at.ranks_per_node) * bytes;
      return PointToPointNs(gpu, near, far);
    }
    case CommOp::kSend:
    case CommOp::kRecv:
      return at.nodes > 1 ? PointToPointNs(gpu, 0, bytes) : PointToPointNs(gpu, bytes, 0);
  }
  const Protocol protocols[] = {{&ProtocolTable::ll, gpu.ll_bandwidth_ratio},
                                {&ProtocolTable::ll128, gpu.ll128_bandwidth_ratio},
                                {&ProtocolTable::simple, 1.0}};
  double best_us = INFINITY;
  for (const Protocol& p : protocols) {
    best_us = std::min(best_us, RingUs(gpu, p, steps, network_steps, volume, bandwidth));
    if (op == CommOp::kAllReduce && at.nodes > 1)
      best_us = std::min(best_us, TreeUs(gpu, p, at, size, bandwidth));
  }
  return std::llround(best_us * 1e3);
}

int64_t PointToPointNs(const Gpu& gpu, uint64_t node_bytes, uint64_t network_bytes) {
  const double base_us = network_bytes > 0 ? gpu.p2p_network_base_us : gpu.p2p_base_us;
  const double near_us = static_cast<double>(node_bytes) / gpu.p2p_bandwidth * 1e6;
  const double far_us =
      static_cast<double>(network_bytes) / (gpu.network_bandwidth * gpu.network_efficiency) * 1e6;
  return std::llround((base_us + std::max(near_us, far_us)) * 1e3);
}

uint64_t ElementBytes(uint32_t nccl_type) {
  // int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8e4m3 float8e5m2
  static constexpr uint64_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return nccl_type < std::size(kBytes) ? kBytes[nccl_type] : 0;
}

}  // namespace prism::engine
