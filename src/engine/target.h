// Target: the cluster that a prediction is for. A GPU's figures come from a table
// (src/engine/targets/<name>.json, built in, or a file of the user's); the rest from the text
// "h200x8:2": GPU, GPUs a node, nodes.
//
// A plain value; parsing reads at most one file.
//
//   absl::StatusOr<Target> target = ParseTarget("h200x8:2");
#ifndef PRISM_ENGINE_TARGET_H_
#define PRISM_ENGINE_TARGET_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace prism::engine {

/// Latencies of NCCL's tuning model, in microseconds, for the protocols LL, LL128 and Simple.
struct ProtocolTable {
  double ll, ll128, simple;
};

/// Nanoseconds of host time by kind of call.
struct HostTimes {
  int64_t launch = 0;
  int64_t communication = 0;
  int64_t event = 0;  // record, wait
  int64_t synchronize = 0;
};

/// One kind of GPU in its usual server. Bandwidths are bytes a second in one direction.
struct Gpu {
  std::string name;  // "NVIDIA H200"
  uint64_t memory_bytes;
  uint64_t context_bytes;  // what a process's context takes from it
  double memory_bandwidth;
  std::map<std::string, double>
      flops;  // dense, by type of the inputs as in docs/reference/kernel-names.md: "bf16"
  double gemm_efficiency;    // of the peak, in large products
  double memory_efficiency;  // of the memory bandwidth, in streaming kernels
  uint32_t multiprocessors;
  int64_t kernel_floor_ns;     // no kernel is shorter
  int64_t kernel_gap_ns;       // between kernels of one stream
  int64_t launch_latency_ns;   // from the end of a launch call to the start on an idle GPU
  double host_link_bandwidth;  // copies between host and device
  int64_t copy_floor_ns;
  double assumed_bytes_per_thread;  // of kernels that say nothing about themselves

  double link_bandwidth;     // NVLink: what NCCL's rings reach
  double network_bandwidth;  // of one GPU's network adapter
  double network_efficiency;
  double ll_bandwidth_ratio, ll128_bandwidth_ratio;
  ProtocolTable ring_base_us, tree_base_us;  // per call
  ProtocolTable ring_link_us, tree_link_us;  // per step inside a node
  ProtocolTable ring_network_us, tree_network_us;
  double p2p_base_us, p2p_network_base_us;
  double p2p_bandwidth;  // of one send or all of a group, inside a node

  /// Host time of a call with the framework's work for it, where the trace has no times of its own.
  HostTimes host_ns;
  /// How far off durations of each source may be: [low, high] factors, indexed by
  /// trace::TimeSource.
  double range[4][2];
};

struct Target {
  std::string text;  // as parsed
  Gpu gpu = {};
  uint32_t gpus_per_node = 8;
  uint32_t nodes = 1;

  uint32_t gpus() const { return gpus_per_node * nodes; }
  uint32_t node_of(uint32_t rank) const { return rank / gpus_per_node; }
};

/// Names of the built-in GPUs, ascending.
std::vector<std::string> KnownGpus();

/// Parses "<gpu>[x<gpus a node>][:<nodes>]"; gpu: a built-in name or the path of a table.
/// InvalidArgument says what is known.
absl::StatusOr<Target> ParseTarget(std::string_view text);

/// Parses a GPU's table. InvalidArgument names the missing or wrong member.
absl::StatusOr<Gpu> ParseGpu(std::string_view json);

}  // namespace prism::engine

#endif  // PRISM_ENGINE_TARGET_H_
