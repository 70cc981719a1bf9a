#include "src/report/memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/trace/reader.h"

namespace prism::report {
namespace {

using nlohmann::ordered_json;

uint64_t Unsigned(const ordered_json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<uint64_t>() : 0;
}

// What the rank's shim says of NCCL's memory; the last line that does counts.
uint64_t NcclPeakBytes(const std::string& meta) {
  uint64_t peak = 0;
  std::istringstream lines(meta);
  for (std::string line; std::getline(lines, line);) {
    const ordered_json j = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (j.is_object() && j.contains("nccl_memory")) peak = Unsigned(j["nccl_memory"], "peak_bytes");
  }
  return peak;
}

}  // namespace

std::vector<RankMemory> ReadMemory(const std::string& directory, uint32_t world,
                                   const graph::Graph* graph, const ordered_json& job) {
  uint64_t context = 0;
  if (job.is_object() && job.contains("target"))
    context = Unsigned(job["target"], "gpu_context_bytes");
  std::vector<RankMemory> ranks(world);
  for (uint32_t rank = 0; rank < world; ++rank) {
    RankMemory& m = ranks[rank];
    m.rank = rank;
    m.context_bytes = context;
    std::ifstream in(absl::StrCat(directory, "/", absl::StrFormat("ranks/%05u/memory.json", rank)));
    if (!in) continue;
    const ordered_json j = ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (!j.is_object()) continue;
    m.known = true;
    if (const auto devices = j.find("devices"); devices != j.end() && devices->is_array()) {
      for (const ordered_json& device : *devices) {
        m.peak_allocated_bytes += Unsigned(device, "max_allocated_bytes");
        m.peak_reserved_bytes += Unsigned(device, "max_reserved_bytes");
      }
    }
    if (const auto owners = j.find("owners"); owners != j.end() && owners->is_object()) {
      for (const auto& [name, bytes] : owners->items()) {
        if (bytes.is_number()) m.owners.emplace_back(name, bytes.get<uint64_t>());
      }
    }
    if (const auto errors = j.find("out_of_memory"); errors != j.end() && errors->is_array()) {
      for (const ordered_json& e : *errors) {
        if (!e.is_object()) continue;
        if (e.contains("text") && e["text"].is_string()) {
          m.out_of_memory.push_back(e["text"].get<std::string>());
        } else {
          m.out_of_memory.push_back(absl::StrCat("asked for ", Unsigned(e, "requested_bytes"),
                                                 " bytes, ", Unsigned(e, "free_bytes"), " of ",
                                                 Unsigned(e, "total_bytes"), " were free"));
        }
      }
    }
  }
  if (graph != nullptr) {
    std::vector<uint64_t> peak_of_meta;
    for (const std::string& meta : graph->metas) peak_of_meta.push_back(NcclPeakBytes(meta));
    for (const graph::Rank& r : graph->ranks) {
      if (r.rank >= world) continue;
      const uint64_t peak = r.meta == graph::kNone ? 0 : peak_of_meta[r.meta];
      ranks[r.rank].nccl_bytes = std::max(peak, r.channel_bytes);
    }
  }
  return ranks;
}

std::vector<std::pair<graph::Place, int64_t>> DeviceMemoryChanges(const std::string& directory,
                                                                  const graph::Graph& graph,
                                                                  uint32_t rank) {
  std::vector<std::pair<graph::Place, int64_t>> changes;
  const auto trace =
      trace::Reader::Open(absl::StrCat(directory, "/", graph::TraceName(graph.ranks[rank].rank)),
                          {.allow_incomplete = true, .check_nodes = false});
  if (!trace.ok()) return changes;
  const graph::Program& program = graph.program_of(graph.ranks[rank]);
  int64_t in_use = 0;
  for (const auto& chunk : trace->memory()) {
    for (const trace::MemoryRecord& m : chunk) {
      if (m.kind != trace::MemoryKind::kDevice && m.kind != trace::MemoryKind::kModelled) continue;
      in_use += m.bytes;
      // The change happened before node host_node of its thread: when the node before it was done.
      graph::Place place;
      if (m.thread < program.sequences.size() &&
          program.sequences[m.thread].kind == trace::SequenceKind::kThread) {
        const uint32_t op = graph::OpAtNode(trace->nodes(m.thread), m.host_node);
        if (op > 0 && op <= program.sequences[m.thread].ops.size()) place = {m.thread, op - 1};
      }
      changes.emplace_back(place, in_use);
    }
  }
  return changes;
}

}  // namespace prism::report
