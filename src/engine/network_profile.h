// Network profile: how long communications take on a machine, as measured by `prism netprofile` or
// imported from nccl-tests. The file is described in docs/reference/netprofile.md.
//
// Plain values; reading checks everything that a look-up relies on. Stateless; thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(NetworkProfile profile, ReadNetworkProfile("netprofile.json"));
//   for (const NetworkEntry& e : profile.entries) ...
#ifndef PRISM_ENGINE_NETWORK_PROFILE_H_
#define PRISM_ENGINE_NETWORK_PROFILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/trace/format.h"

namespace prism::engine {

/// One operation of one size on one group of ranks.
struct NetworkEntry {
  trace::CommOp op = trace::CommOp::kAllReduce;  // kSend: a message in one direction
  /// ncclDataType_t of a reduction; none for operations that only move bytes.
  std::optional<uint32_t> type = {};
  uint32_t ranks = 0, nodes = 1;
  uint64_t bytes = 0;  // count x element size as passed to NCCL
  /// Of a call by itself; else of one of many in a row on its stream.
  bool isolated = false;
  double median_ns = 0, p10_ns = 0, p90_ns = 0;
  uint64_t samples = 0;
  /// How many of a node's NICs the members have, all nodes together (NetworkLinks); 0: not known.
  uint32_t rails = 0;
  /// On how many leaf switches their nodes are (NetworkLinks::nodes_per_leaf); 0: not known.
  uint32_t leaves = 0;
};

/// How GPUs share links; what else is known of them follows from the entries.
struct NetworkLinks {
  /// What a receive takes whose message has come before.
  double receive_ns = 0;
  /// By GPU of a node: GPUs with one number share a NIC. Empty: not known.
  std::vector<uint32_t> nic_of_gpu;
  /// Numbers of the nodes that were measured, a group's first; empty: not known.
  std::vector<uint32_t> nodes = {};
  /// Nodes, as they are numbered, of a leaf switch, to each other nearer than to others; 0: all
  /// that were measured are equally far.
  uint32_t nodes_per_leaf = 0;
  /// How much of a leaf's way to the others a message takes that fills a NIC; 0: nothing that was
  /// measured filled it.
  double leaf_share = 0;

  uint32_t LeafOf(uint32_t node) const { return nodes_per_leaf == 0 ? 0 : node / nodes_per_leaf; }
};

struct NetworkProfile {
  /// For people, but for machine["gpu"] and machine["device"].
  nlohmann::ordered_json machine = nlohmann::ordered_json::object();
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  /// None: communications are predicted as if each had the links for itself.
  std::optional<NetworkLinks> links;
  std::vector<NetworkEntry> entries;

  std::string gpu() const { return machine.value("gpu", ""); }
  /// What a call takes on the host, in ns; 0: not measured.
  double call_ns() const { return settings.value("call_ns", 0.0); }
  /// From the end of an enqueuing call on an idle stream to the return of a call that waits for the
  /// work, less the work, in ns: a start's and a waking host's; none: not measured.
  std::optional<double> sync_ns() const {
    return settings.contains("sync_ns") ? std::optional(settings["sync_ns"].get<double>())
                                        : std::nullopt;
  }
};

/// Whether the time of an operation may depend on the type of its elements.
bool IsReduction(trace::CommOp op);

/// "bf16" of an ncclDataType_t; "" for a number that nccl.h lacks.
std::string_view TypeName(uint32_t nccl_type);
std::optional<uint32_t> TypeOf(std::string_view name);
/// Names of all types.
std::vector<std::string> TypeNames();

/// Takes AllReduce, allreduce, all_reduce and all-reduce alike. Recv is none: a message is a Send.
std::optional<trace::CommOp> ProfiledOpOf(std::string_view name);
/// Most ranks of a group, and the largest number of a node.
inline constexpr uint64_t kMaxProfiledRanks = 1 << 20;

/// Names of all operations that a profile may have.
std::vector<std::string> ProfiledOpNames();

/// InvalidArgument says which entry and member is wrong, and what it is.
absl::StatusOr<NetworkProfile> ParseNetworkProfile(std::string_view json);
/// The same of a file, which every message names.
absl::StatusOr<NetworkProfile> ReadNetworkProfile(const std::string& path);

/// What several, of one machine with ranks placed in different ways, say together; at least one.
/// What is in several is the first's; of links the most that one has found.
NetworkProfile MergeNetworkProfiles(std::vector<NetworkProfile> profiles);

/// The file's text: one entry a line.
std::string SerializeNetworkProfile(const NetworkProfile& profile);

}  // namespace prism::engine

#endif  // PRISM_ENGINE_NETWORK_PROFILE_H_
