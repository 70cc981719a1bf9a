// LinkTopology: the links of the cluster that a job on the virtual clock plays, and where its ranks
// sit.
//
//   port   each GPU's way to the others of its node, out and in (NVLink)
//   rail   each NIC, out and in; GPUs of a node that share a NIC have consecutive numbers
//   leaf   NICs of one rail of `nodes_per_leaf` nodes are on one leaf switch, which does not block;
//          its ways up to and down from the spine may be narrower than its NICs together
//
// The table is a JSON file (HOSTNCCL_TOPOLOGY); docs/design/0013-link-model.md shows one. All keys
// are optional, unknown ones are refused; without a file it is nodes of eight H200s with a 400 Gb/s
// NIC each. All members of a communicator must have the same one.
//
// Immutable once read; thread-safe.
//
//   LinkTopology topology;
//   if (!LinkTopology::Read("links.json", &topology, &error)) ...
#ifndef HOSTCUDA_NCCL_LINK_TOPOLOGY_H_
#define HOSTCUDA_NCCL_LINK_TOPOLOGY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hostnccl {

/// Where a rank sits. Lives in shared memory.
struct Place {
  uint32_t node = 0;
  uint32_t gpu = 0;  // of the node
  friend auto operator<=>(const Place&, const Place&) = default;
};

/// GPUs of all nodes together; so many of each kind of link there are at most.
inline constexpr uint32_t kMaxPlaces = 8192;

enum class LinkKind : uint32_t { kPortOut, kPortIn, kRailOut, kRailIn, kLeafUp, kLeafDown };
inline constexpr uint32_t kLinkKinds = 6;
inline constexpr uint32_t kMaxLinks = kLinkKinds * kMaxPlaces;

/// A way of NCCL's to put bytes on a link: quick for few (flags travel with the data), or dense.
struct Protocol {
  double latency_factor = 1;
  double bytes_factor = 1;
};

struct LinkTopology {
  struct Tier {
    double latency_ns;
    double bytes_per_s;  // of one link, each direction
  };
  struct Slow {
    LinkKind out, in;
    uint32_t index;
    double factor;  // of the bandwidth
  };

  uint32_t gpus_per_node = 8;
  double base_ns = 6000;  // what a communication takes beside its steps: the kernel's start
  Tier port{700, 3.7e11};
  uint32_t rails = 8;  // NICs of a node, as many as GPUs or a part of them
  Tier rail{2500, 4.8e10};
  double spine_latency_ns = 1500;  // more than through a leaf
  uint32_t nodes_per_leaf = 32;
  double oversubscription = 1;  // bandwidth of a leaf's NICs over that of its ways up
  std::vector<Protocol> protocols = {{1, 2}, {5, 1}};
  double sigma = 0;  // of the log-normal factor on every communication
  uint64_t seed = 1;
  std::vector<Slow> slow;

  /// Applies the table in `path`. False, and what is wrong with it, where it is no such table.
  static bool Read(const std::string& path, LinkTopology* topology, std::string* error);

  uint32_t RailOf(uint32_t gpu) const { return gpu * rails / gpus_per_node; }
  uint32_t LeafOf(uint32_t node, uint32_t rail_of_node) const {
    return node / nodes_per_leaf * rails + rail_of_node;
  }
  double BytesPerS(uint32_t link) const;
  /// Returns a number that is equal for equal topologies.
  uint64_t Digest() const;
};

inline uint32_t LinkNumber(LinkKind kind, uint32_t index) {
  return static_cast<uint32_t>(kind) * kMaxPlaces + index;
}

/// Returns where this process's rank with CUDA device `device` (of the machine) sits: its
/// launcher's node, GROUP_RANK or SLURM_NODEID, else the rank's number over LOCAL_WORLD_SIZE or
/// over the GPUs of a node. A machine with more devices than a node has GPUs plays several nodes.
Place PlaceOfProcess(const LinkTopology& topology, uint32_t device);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_LINK_TOPOLOGY_H_
