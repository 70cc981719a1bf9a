#include "src/interpose/nccl/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace prism::interpose::nccl {
namespace {

constexpr uint64_t kGranularity = uint64_t{2} << 20;
constexpr int kMaxChannels = 64;
constexpr int kNvlinkChannels = 24;  // of a node of GPUs joined by NVLink, two or more of them
constexpr int kNvlinkChannelsPerPeer = 36;  // two for each of 18 links

constexpr uint64_t kPeerTableBytes = 608;        // a channel's table, for each rank
constexpr uint64_t kConnectionHeadBytes = 4096;  // counters in front of a connection's buffers
constexpr uint64_t kSharedSteps = 16;
constexpr uint64_t kNetworkChunkBytes = uint64_t{128} << 10;

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

int PowerOfTwoUp(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// The rings that the search finds between nodes: one a GPU and adapter; doubled up to four of them
// (each alone then has the adapter's bandwidth still), and doubled again for both directions.
int NetworkChannels(int ranks_per_node) {
  return std::min(kMaxChannels, ranks_per_node <= 4 ? 4 * ranks_per_node : 2 * ranks_per_node);
}

bool Number(const char* name, uint64_t* value) {
  const char* text = getenv(name);
  if (text == nullptr || *text < '0' || *text > '9') return false;
  char* end = nullptr;
  const unsigned long long parsed = strtoull(text, &end, 0);
  if (*end != 0) return false;
  *value = parsed;
  return true;
}

}  // namespace

DeviceMemory::Settings DeviceMemory::Settings::FromEnvironment() {
  Settings settings;
  Number("NCCL_LL_BUFFSIZE", &settings.ll_bytes);
  Number("NCCL_LL128_BUFFSIZE", &settings.ll128_bytes);
  Number("NCCL_BUFFSIZE", &settings.simple_bytes);
  uint64_t value;
  for (const char* name : {"NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"}) {
    if (Number(name, &value) && value <= kMaxChannels) {
      settings.min_channels = std::max(settings.min_channels, static_cast<int>(value));
    }
  }
  for (const char* name : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"}) {
    if (Number(name, &value) && value > 0 && value <= kMaxChannels) {
      settings.max_channels = std::min(settings.max_channels, static_cast<int>(value));
    }
  }
  return settings;
}

DeviceMemory::DeviceMemory(const std::vector<uint32_t>& world_ranks, uint32_t ranks_per_node,
                           uint32_t rank, const Settings& settings)
    : settings_(settings), rank_(static_cast<int>(rank)) {
  std::map<uint32_t, int> members;
  for (const uint32_t world_rank : world_ranks) {
    node_of_.push_back(ranks_per_node == 0 ? 0 : world_rank / ranks_per_node);
    ++members[node_of_.back()];
  }
  const int size = static_cast<int>(world_ranks.size());
  nodes_ = std::max<int>(1, static_cast<int>(members.size()));
  ranks_per_node_ = std::max(1, size);
  for (const auto& [node, count] : members) ranks_per_node_ = std::min(ranks_per_node_, count);
  send_to_.resize(world_ranks.size());
  receive_from_.resize(world_ranks.size());

  channels_ = size <= 1     ? kMaxChannels  // nothing bounds the search
              : nodes_ == 1 ? kNvlinkChannels
                            : NetworkChannels(ranks_per_node_);
  channels_ = std::max(std::min(channels_, settings.max_channels), settings.min_channels);
  point_to_point_channels_ = PowerOfTwoUp(channels_);
  int per_peer = std::min(channels_, kNvlinkChannelsPerPeer);
  if (nodes_ > 1) per_peer = std::min(per_peer, 2 * size > 4 * channels_ ? 1 : 2);
  channels_per_peer_ = std::min(PowerOfTwoUp(per_peer), point_to_point_channels_);
}

uint64_t DeviceMemory::p2p_send_bytes() const { return RoundUp(kConnectionHeadBytes); }

uint64_t DeviceMemory::p2p_receive_bytes() const {
  return RoundUp(kConnectionHeadBytes + settings_.ll_bytes + settings_.ll128_bytes +
                 settings_.simple_bytes);
}

uint64_t DeviceMemory::network_bytes() const {  // LL's buffers are in host memory
  return RoundUp(settings_.ll128_bytes + settings_.simple_bytes);
}

uint64_t DeviceMemory::communicator_bytes() const {
  const uint64_t ranks = node_of_.size();
  const uint64_t channel = RoundUp(kPeerTableBytes * ranks) +
                           RoundUp(8 * (ranks + 1 + static_cast<uint64_t>(ranks_per_node_))) +
                           RoundUp(4 * ranks);
  const uint64_t all = static_cast<uint64_t>(std::max(channels_, point_to_point_channels_));
  return all * channel + kGranularity + RoundUp(4 * ranks);
}

uint64_t DeviceMemory::ConnectRing() {
  if (ring_) return 0;
  ring_ = true;
  const auto channels = static_cast<uint64_t>(channels_);
  // A node is entered and left once in each channel, at each of its GPUs equally often.
  const uint64_t outside = nodes_ == 1 ? 0 : channels / static_cast<uint64_t>(ranks_per_node_);
  return outside * 2 * network_bytes() +
         (channels - outside) * (p2p_receive_bytes() + p2p_send_bytes());
}

uint64_t DeviceMemory::ConnectTree() {
  if (tree_) return 0;
  tree_ = true;
  // Inside a node the tree is a chain in the ring's order, which lacks the way back. Between nodes
  // every edge of the n - 1 has two ends, each of which sends and receives.
  const auto channels = static_cast<uint64_t>(channels_);
  const auto local = static_cast<uint64_t>(ranks_per_node_), nodes = static_cast<uint64_t>(nodes_);
  const uint64_t chain = channels * (local - 1) / local;
  const uint64_t ends = (channels * 2 * (nodes - 1) + nodes * local - 1) / (nodes * local);
  return chain * (p2p_receive_bytes() + p2p_send_bytes()) + ends * 2 * network_bytes();
}

uint64_t DeviceMemory::ConnectPeer(int peer, bool send) {
  if (peer < 0 || peer >= static_cast<int>(node_of_.size()) || peer == rank_) return 0;
  std::vector<bool>& connected = send ? send_to_ : receive_from_;
  const auto index = static_cast<size_t>(peer);
  if (connected[index]) return 0;
  connected[index] = true;
  if (node_of_[index] == node_of_[static_cast<size_t>(rank_)]) {
    return static_cast<uint64_t>(channels_per_peer_) *
           (send ? p2p_send_bytes() : p2p_receive_bytes());
  }
  // Peers of other nodes share one pool in each direction.
  bool& pool = send ? network_send_ : network_receive_;
  if (pool) return 0;
  pool = true;
  return RoundUp(static_cast<uint64_t>(point_to_point_channels_) * kSharedSteps *
                 std::min(kNetworkChunkBytes, settings_.simple_bytes / 8));
}

uint64_t DeviceMemory::Connect(wire::Op op, int peer) {
  const int size = static_cast<int>(node_of_.size());
  if (size <= 1) return 0;
  uint64_t bytes = 0;
  switch (op) {
    case wire::Op::kAllReduce:
      // Between nodes small ones take the tree and large ones the ring; a job has both.
      bytes = ConnectRing();
      if (nodes_ > 1) bytes += ConnectTree();
      break;
    case wire::Op::kReduce:
    case wire::Op::kBroadcast:
    case wire::Op::kAllGather:
    case wire::Op::kReduceScatter:
      bytes = ConnectRing();
      break;
    // The others are sends and receives of one group.
    case wire::Op::kAllToAll:
      for (int i = 0; i < size; ++i) bytes += ConnectPeer(i, true) + ConnectPeer(i, false);
      break;
    case wire::Op::kGather:
    case wire::Op::kScatter: {
      const bool root_sends = op == wire::Op::kScatter;
      if (peer != rank_) return ConnectPeer(peer, !root_sends);
      for (int i = 0; i < size; ++i) bytes += ConnectPeer(i, root_sends);
      break;
    }
    case wire::Op::kSend:
      bytes = ConnectPeer(peer, true);
      break;
    case wire::Op::kRecv:
      bytes = ConnectPeer(peer, false);
      break;
  }
  return bytes;
}

}  // namespace prism::interpose::nccl
