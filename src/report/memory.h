// Memory of the ranks: what PyTorch's observer wrote about each rank (ranks/NNNNN/memory.json),
// with what the target takes beside it: the context, and NCCL's buffers as modelled in the trace.
//
// Stateless; thread-safe; reads files.
#ifndef PRISM_REPORT_MEMORY_H_
#define PRISM_REPORT_MEMORY_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "src/graph/graph.h"
#include "src/report/perfetto.h"

namespace prism::report {

struct RankMemory {
  uint32_t rank = 0;
  bool known = false;           // its memory.json says it all
  bool damaged = false;         // it is there and says nothing
  std::string unknown_because;  // else; then the peak is the trace's: what it took from the driver
  std::vector<std::pair<std::string, uint64_t>> owners;  // at the peak, as the observer names them
  uint64_t peak_allocated_bytes = 0;
  uint64_t peak_reserved_bytes = 0;
  uint32_t devices = 1;                  // that the rank uses; the figures are sums over them
  uint64_t largest_allocated_bytes = 0;  // peak of one device
  uint64_t largest_reserved_bytes = 0;
  uint64_t context_bytes = 0;              // of the target
  uint64_t nccl_bytes = 0;                 // modelled
  std::vector<std::string> out_of_memory;  // texts of the errors

  uint64_t total_bytes() const { return peak_reserved_bytes + context_bytes + nccl_bytes; }
  /// Of the fullest of its devices: all, and without the allocator's cache, which it can give back.
  uint64_t device_bytes() const {
    return largest_reserved_bytes + (context_bytes + nccl_bytes) / devices;
  }
  uint64_t device_needed_bytes() const {
    return largest_allocated_bytes + (context_bytes + nccl_bytes) / devices;
  }
};

/// Of all ranks of the job; `graph` may be null (then NCCL's part is not known). `context_bytes` is
/// what a context takes on the target; ranks without any work on a GPU have none.
std::vector<RankMemory> ReadMemory(const std::string& directory, uint32_t world,
                                   const graph::Graph* graph, uint64_t context_bytes);

/// Places in rank `rank`'s program (index in graph.ranks) at which its device memory changed, with
/// the bytes in use from then on, from its trace. Empty: the trace has none or cannot be read.
std::vector<std::pair<graph::Place, int64_t>> DeviceMemoryChanges(const graph::Graph& graph,
                                                                  uint32_t rank);

}  // namespace prism::report

#endif  // PRISM_REPORT_MEMORY_H_
