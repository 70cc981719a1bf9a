#include "src/report/memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
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

// What a rank's memory.json says. False: it is not one.
bool ReadObserver(const ordered_json& j, RankMemory* m) {
  if (!j.is_object() || (j.contains("schema") && j["schema"] != "prism.rank-memory")) return false;
  const auto devices = j.find("devices");
  if (devices == j.end() || !devices->is_array()) return false;
  for (const ordered_json& device : *devices) {
    if (!device.is_object()) return false;
    const uint64_t allocated = Unsigned(device, "max_allocated_bytes");
    const uint64_t reserved = Unsigned(device, "max_reserved_bytes");
    m->peak_allocated_bytes += allocated;
    m->peak_reserved_bytes += reserved;
    m->largest_allocated_bytes = std::max(m->largest_allocated_bytes, allocated);
    m->largest_reserved_bytes = std::max(m->largest_reserved_bytes, reserved);
  }
  m->devices = std::max<uint32_t>(1, static_cast<uint32_t>(devices->size()));
  if (const auto owners = j.find("owners"); owners != j.end() && owners->is_object()) {
    for (const auto& [name, bytes] : owners->items()) {
      if (bytes.is_number()) m->owners.emplace_back(name, bytes.get<uint64_t>());
    }
  }
  if (const auto errors = j.find("out_of_memory"); errors != j.end() && errors->is_array()) {
    for (const ordered_json& e : *errors) {
      if (!e.is_object()) continue;
      if (e.contains("text") && e["text"].is_string()) {
        m->out_of_memory.push_back(e["text"].get<std::string>());
      } else {
        m->out_of_memory.push_back(absl::StrCat("asked for ", Unsigned(e, "requested_bytes"),
                                                " bytes, ", Unsigned(e, "free_bytes"), " of ",
                                                Unsigned(e, "total_bytes"), " were free"));
      }
    }
  }
  return true;
}

// True when `path` was written before the program that the graph is of began, by one that the same
// command ran before it.
bool OfAnotherProgram(const std::string& path, const graph::Graph& graph) {
  if (graph.launches == 1) return false;
  struct stat status {};
  if (graph.launch != graph.launches || stat(path.c_str(), &status) != 0) return true;
  return static_cast<uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
             static_cast<uint64_t>(status.st_mtim.tv_nsec) <
         graph.start_unix_ns;
}

// Most bytes that a rank had taken from the driver at a time, by its trace.
uint64_t PeakOfTrace(const std::string& path) {
  const auto trace = trace::Reader::Open(path, {.allow_incomplete = true, .check_nodes = false});
  if (!trace.ok()) return 0;
  int64_t in_use = 0, peak = 0;
  for (const auto& chunk : trace->memory()) {
    for (const trace::MemoryRecord& m : chunk) {
      if (m.kind == trace::MemoryKind::kDevice) peak = std::max(peak, in_use += m.bytes);
    }
  }
  return static_cast<uint64_t>(peak);
}

}  // namespace

std::vector<RankMemory> ReadMemory(const std::string& directory, uint32_t world,
                                   const graph::Graph* graph, uint64_t context_bytes) {
  std::vector<RankMemory> ranks(world);
  for (uint32_t rank = 0; rank < world; ++rank) {
    RankMemory& m = ranks[rank];
    const std::string name = absl::StrFormat("ranks/%05u/memory.json", rank);
    const std::string path = absl::StrCat(directory, "/", name);
    std::ifstream in(path);
    if (!in) {
      m.unknown_because = absl::StrCat(name, " is not there");
    } else if (graph != nullptr && OfAnotherProgram(path, *graph)) {
      m.unknown_because = absl::StrCat(name, " is of another program that the command ran");
    } else if (const ordered_json j = ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
               ReadObserver(j, &m)) {
      m.known = true;
    } else {
      m = {};
      m.damaged = true;
      m.unknown_because = absl::StrCat(name, " is damaged");
      if (j.is_object() && j.contains("failures") && j["failures"].is_array() &&
          !j["failures"].empty() && j["failures"][0].is_string()) {
        absl::StrAppend(&m.unknown_because, ": ", j["failures"][0].get<std::string>());
      }
    }
    m.rank = rank;
    if (m.peak_reserved_bytes > 0) m.context_bytes = m.devices * context_bytes;
  }
  if (graph != nullptr) {
    std::vector<uint64_t> peak_of_meta;
    for (const std::string& meta : graph->metas) peak_of_meta.push_back(NcclPeakBytes(meta));
    for (const graph::Rank& r : graph->ranks) {
      if (r.rank >= world) continue;
      RankMemory& m = ranks[r.rank];
      const uint64_t peak = r.meta == graph::kNone ? 0 : peak_of_meta[r.meta];
      m.nccl_bytes = std::max(peak, r.channel_bytes);
      if (!m.known) m.peak_reserved_bytes = m.largest_reserved_bytes = PeakOfTrace(r.path);
      const bool works = graph->program_of(r).op_count > 0 || m.total_bytes() > 0;
      m.context_bytes = works ? m.devices * context_bytes : 0;
    }
  }
  return ranks;
}

std::vector<std::pair<graph::Place, int64_t>> DeviceMemoryChanges(const graph::Graph& graph,
                                                                  uint32_t rank) {
  std::vector<std::pair<graph::Place, int64_t>> changes;
  const auto trace =
      trace::Reader::Open(graph.ranks[rank].path, {.allow_incomplete = true, .check_nodes = false});
  if (!trace.ok()) return changes;
  const graph::Program& program = graph.program_of(graph.ranks[rank]);
  std::map<uint32_t, uint32_t> threads;  // of the trace -> of the program
  int64_t in_use = 0;
  for (const auto& chunk : trace->memory()) {
    for (const trace::MemoryRecord& m : chunk) {
      if (m.kind != trace::MemoryKind::kDevice && m.kind != trace::MemoryKind::kModelled) continue;
      in_use += m.bytes;
      // The change happened before node host_node of its thread: when the node before it was done.
      graph::Place place;
      if (m.thread < trace->sequences().size()) {
        const auto [thread, inserted] = threads.try_emplace(m.thread, graph::kNone);
        if (inserted) thread->second = graph::SequenceOf(program, *trace, m.thread);
        const uint32_t op = graph::OpAtNode(trace->nodes(m.thread), m.host_node);
        if (thread->second != graph::kNone && op > 0 &&
            op <= program.sequences[thread->second].ops.size())
          place = {thread->second, op - 1};
      }
      changes.emplace_back(place, in_use);
    }
  }
  return changes;
}

}  // namespace prism::report
