// Target: the machine that a job is meant for, "h200x8:2" = 2 nodes of 8 H200s.
//
// Figures are those that a process sees on the real machine (cuDeviceTotalMem, a context's cost).
// Stateless; thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(Target target, ParseTarget("h200x8:2"));
//   target.gpus_per_node == 8; target.nodes == 2; target.gpu.memory_bytes == 150109880320
#ifndef PRISM_BASE_TARGET_H_
#define PRISM_BASE_TARGET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace prism {

struct GpuModel {
  const char* key;         // "h200"
  const char* name;        // as cuDeviceGetName says it
  uint64_t memory_bytes;   // as cuDeviceTotalMem says it
  uint64_t context_bytes;  // what a process's context takes from it
};

struct Target {
  GpuModel gpu;
  uint32_t gpus_per_node = 0;
  uint32_t nodes = 1;
  std::string text;  // as given, in lower case

  uint32_t gpus() const { return gpus_per_node * nodes; }
};

const std::vector<GpuModel>& KnownGpus();

/// Parses GPUxCOUNT[:NODES], in any case of letters. Fails with the grammar, or the nearest known
/// GPU, as a hint.
absl::StatusOr<Target> ParseTarget(std::string_view text);

/// Tells whether a job of `world` ranks, `per_node` of them on a node, fits the target's nodes
/// exactly.
absl::Status CheckWorld(const Target& target, uint32_t world, uint32_t per_node);

}  // namespace prism

#endif  // PRISM_BASE_TARGET_H_
