// DeviceMemory: the device memory that NVIDIA's NCCL would take for one member of a communicator.
//
// Modelled: a closed form of what NCCL 2.28.9 allocates, from its public source (channel.cc and
// init.cc: tables of a channel; transport/p2p.cc and net.cc: buffers of a connection;
// transport/generic.cc and enqueue.cc: who is connected when; graph/connect.cc and paths.cc:
// numbers of channels). NCCL allocates by cuMemCreate, so every allocation is rounded to 2 MiB, and
// it connects peers at the first operation that needs them. Checked against two H200s to 2 MiB
// (device_memory_test.cc); nothing is checked against more than one node. Assumed: NVLink between
// the GPUs of a node, one adapter with GPUDirect RDMA a GPU between nodes, ranks placed node by
// node. Not modelled: NVLink SHARP (NVLS), PAT, CollNet, what a PXN proxy holds for its neighbours,
// registered buffers, resources shared by a split.
//
// Not thread-safe.
//
//   DeviceMemory memory(world_ranks, /*ranks_per_node=*/8, /*rank=*/0,
//   Settings::FromEnvironment()); reserve(memory.communicator_bytes()); // when it is made
//   reserve(memory.Connect(wire::Op::kAllReduce, /*peer=*/-1));            // 0 the next time
#ifndef PRISM_INTERPOSE_NCCL_DEVICE_MEMORY_H_
#define PRISM_INTERPOSE_NCCL_DEVICE_MEMORY_H_

#include <cstdint>
#include <vector>

#include "src/wire/protocol.h"

namespace prism::interpose::nccl {

class DeviceMemory {
 public:
  /// NCCL's kernels with their local memory, taken once a device by the first communicator.
  /// Measured on H200: what two-rank DDP and FSDP2 programs take beside PyTorch's allocator
  /// (1,612.9 MiB), less a program without NCCL (750.9), 24 connected channels (288) and the
  /// communicator's own tables (196).
  static constexpr uint64_t kKernelBytes = uint64_t{378} << 20;

  /// Sizes and bounds that NCCL's environment variables and its config set.
  struct Settings {
    uint64_t ll_bytes = uint64_t{8} * 512 * 8 * 16;      // NCCL_LL_BUFFSIZE
    uint64_t ll128_bytes = uint64_t{120} * 640 * 8 * 8;  // NCCL_LL128_BUFFSIZE
    uint64_t simple_bytes = uint64_t{4} << 20;           // NCCL_BUFFSIZE
    int min_channels = 0, max_channels = 64;             // NCCL_{MIN,MAX}_{CTAS,NCHANNELS}

    static Settings FromEnvironment();
  };

  /// `world_ranks` of the members, of which `rank` is this one; ranks_per_node 0: one node.
  DeviceMemory(const std::vector<uint32_t>& world_ranks, uint32_t ranks_per_node, uint32_t rank,
               const Settings& settings);

  /// Tables of the communicator and its channels.
  uint64_t communicator_bytes() const;
  /// Bytes of the connections that an operation needs and that no operation before it did. `peer`:
  /// root, or peer of a send or receive.
  uint64_t Connect(wire::Op op, int peer);

  /// Channels of collectives; of sends and receives; of those the ones that one peer uses.
  int channels() const { return channels_; }
  int point_to_point_channels() const { return point_to_point_channels_; }
  int channels_per_peer() const { return channels_per_peer_; }
  int nodes() const { return nodes_; }
  int ranks_per_node() const { return ranks_per_node_; }

 private:
  uint64_t ConnectRing();
  uint64_t ConnectTree();
  uint64_t ConnectPeer(int peer, bool send);

  // Device memory of one connection of one channel, by direction.
  uint64_t p2p_send_bytes() const;
  uint64_t p2p_receive_bytes() const;
  uint64_t network_bytes() const;

  const Settings settings_;
  const int rank_;
  std::vector<uint32_t> node_of_;  // by rank of the communicator
  int nodes_ = 1;
  int ranks_per_node_ = 1;  // the fewest on a node
  int channels_ = 0, point_to_point_channels_ = 0, channels_per_peer_ = 0;

  bool ring_ = false, tree_ = false;
  bool network_send_ = false, network_receive_ = false;
  std::vector<bool> send_to_, receive_from_;
};

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_DEVICE_MEMORY_H_
