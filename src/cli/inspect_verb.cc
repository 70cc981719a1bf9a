// prism inspect: what a trace file or a job directory holds, whatever state it is in.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "src/base/job_directory.h"
#include "src/cli/verbs.h"
#include "src/graph/check.h"
#include "src/graph/graph.h"
#include "src/graph/kernel_key.h"
#include "src/trace/reader.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShownCommunicators = 4;  // of one size
using trace::Node;
using trace::NodeKind;
using trace::Reader;
using trace::SequenceKind;

constexpr std::string_view NodeName(NodeKind kind) {
  switch (kind) {
    case NodeKind::kSpan:
      return "span";
    case NodeKind::kComm:
      return "comm";
    case NodeKind::kRecord:
      return "record";
    case NodeKind::kWait:
      return "wait";
    case NodeKind::kHostFunc:
      return "host_function";
    case NodeKind::kValueWrite:
      return "value_write";
    case NodeKind::kValueWait:
      return "value_wait";
    case NodeKind::kHost:
      return "host";
    case NodeKind::kEnqueue:
      return "enqueue";
    case NodeKind::kSync:
      return "sync";
    case NodeKind::kCommInit:
      return "comm_init";
    case NodeKind::kMark:
      return "mark";
    case NodeKind::kEnqueueLast:
      return "enqueue_last";
  }
  return "unknown";
}

constexpr std::string_view SourceName(trace::ValueSource source) {
  constexpr std::string_view kNames[] = {"generated", "recorded", "mirrored", "exact"};
  return kNames[static_cast<size_t>(source)];
}

std::string Describe(const Reader& r, const Node& n) {
  switch (n.kind) {
    case NodeKind::kSpan: {
      const trace::Span span = r.span(n.a);
      std::string text = fmt::format("{} kernels, hash {:016x}:", span.kernels.size(), span.hash);
      for (size_t i = 0; i < std::min<size_t>(span.kernels.size(), 3); ++i) {
        const trace::KernelRecord& k = r.kernels()[span.kernels[i]];
        text += fmt::format(" {}", r.string(k.name).substr(0, 60));
        if (k.bytes > 0) text += fmt::format(" ({} B)", k.bytes);
      }
      return span.kernels.size() > 3 ? text + " ..." : text;
    }
    case NodeKind::kComm: {
      const trace::CallRecord& c = r.calls()[n.a];
      return fmt::format("{} communicator {} #{} count {} type {} peer {} ({} B) at {}",
                         graph::CommOpName(static_cast<trace::CommOp>(c.op)), c.comm, n.b, c.count,
                         c.dtype, c.peer, c.bytes, r.string(c.call_site));
    }
    case NodeKind::kRecord:
    case NodeKind::kWait:
      return fmt::format("event {} version {}", n.a, n.b);
    case NodeKind::kHost:
      return fmt::format("{} calls, {} ns", n.a, n.b);
    case NodeKind::kEnqueue:
    case NodeKind::kEnqueueLast:
      return fmt::format("node {} of sequence {}", n.b, n.a);
    case NodeKind::kSync:
      switch (static_cast<trace::SyncKind>(n.detail)) {
        case trace::SyncKind::kHandoff:
          return fmt::format("thread {} up to node {}", n.a, n.b);
        case trace::SyncKind::kEvent:
        case trace::SyncKind::kQueryTrue:
          return fmt::format("event {} version {}", n.a, n.b);
        default:
          return fmt::format("first {} nodes of sequence {}", n.b, n.a);
      }
    case NodeKind::kCommInit:
      return fmt::format("communicator {}", n.a);
    case NodeKind::kMark:
      return std::string(r.string(n.a));
    default:
      return "";
  }
}

// Launches that are distinct, with their keys and how often each was made.
struct KernelRow {
  graph::Kernel kernel;
  uint64_t launches = 0;
};
std::vector<KernelRow> KernelsOf(const Reader& r) {
  std::vector<KernelRow> rows;
  for (const trace::KernelRecord& k : r.kernels()) {
    rows.push_back({{std::string(r.string(k.name)),
                     k.kind,
                     {k.grid[0], k.grid[1], k.grid[2]},
                     {k.block[0], k.block[1], k.block[2]},
                     k.shared_bytes,
                     k.bytes,
                     k.parameters},
                    0});
  }
  for (uint32_t s = 0; s < r.sequences().size(); ++s) {
    for (const Node& n : r.nodes(s)) {
      if (n.kind != NodeKind::kSpan) continue;
      for (const uint32_t k : r.span(n.a).kernels) ++rows[k].launches;
    }
  }
  return rows;
}

std::string ParametersText(uint32_t parameters) {
  if (parameters == trace::kParametersUnknown) return "-";
  if (parameters == trace::kParametersVary) return "vary";
  return fmt::format("{:08x}", parameters);
}

nlohmann::ordered_json FileJson(const Reader& r) {
  nlohmann::ordered_json j;
  j["path"] = r.path();
  j["version"] = r.version();
  j["rank"] = r.rank();
  j["world"] = r.world();
  j["state"] = std::string(trace::CompletenessName(r.completeness()));
  if (!r.problem().empty()) j["problem"] = r.problem();
  if (r.seal().has_value()) j["exit_code"] = r.seal()->exit_code;
  j["bytes"] = r.file_bytes();
  j["nodes"] = r.node_count();
  if (r.node_count() > 0) {
    j["bytes_per_node"] = static_cast<double>(r.file_bytes()) / static_cast<double>(r.node_count());
  }
  j["tables"] = {{"strings", r.string_count()},
                 {"kernels", r.kernels().size()},
                 {"spans", r.span_count()},
                 {"calls", r.calls().size()},
                 {"communicators", r.communicators().size()},
                 {"timing_chunks", r.timings().size()}};
  uint64_t memory = 0;
  for (const auto& chunk : r.memory()) memory += chunk.size();
  j["tables"]["memory"] = memory;
  struct Payloads {
    uint64_t communications = 0, bytes = 0;
  };
  std::map<std::string, Payloads> payloads;
  for (uint32_t s = 0; s < r.sequences().size(); ++s) {
    const trace::SequenceRecord& record = r.sequences()[s];
    nlohmann::ordered_json sequence;
    sequence["kind"] = record.kind == SequenceKind::kStream ? "stream" : "thread";
    sequence["name"] = std::string(r.string(record.name));
    sequence["device"] = record.device;
    sequence["nodes"] = r.nodes(s).size();
    std::map<std::string, uint64_t> kinds;
    for (const Node& n : r.nodes(s)) {
      ++kinds[std::string(NodeName(n.kind))];
      if (n.kind != NodeKind::kComm) continue;
      Payloads& of = payloads[std::string(SourceName(trace::ValueSourceOf(n)))];
      ++of.communications;
      of.bytes += r.calls()[n.a].bytes;
    }
    sequence["kinds"] = kinds;
    j["sequences"].push_back(std::move(sequence));
  }
  // Where what the rank received came from: exact payloads really moved.
  for (const auto& [source, of] : payloads)
    j["payloads"][source] = {{"communications", of.communications}, {"bytes", of.bytes}};
  for (const trace::Communicator& c : r.communicators()) {
    j["communicators"].push_back({{"number", c.record.comm},
                                  {"size", c.record.size},
                                  {"rank", c.record.rank},
                                  {"channel_bytes", c.record.channel_bytes}});
  }
  return j;
}

void PrintFile(const Reader& r, bool nodes) {
  fmt::print("{}: PrismTrace {} of rank {} of {}, {}\n", r.path(), r.version(), r.rank(), r.world(),
             r.problem().empty() ? "sealed" : r.problem());
  if (r.seal().has_value()) fmt::print("  exit code      {}\n", r.seal()->exit_code);
  fmt::print("  size           {} bytes, {} nodes, {:.1f} bytes a node\n", r.file_bytes(),
             r.node_count(),
             r.node_count() == 0
                 ? 0.0
                 : static_cast<double>(r.file_bytes()) / static_cast<double>(r.node_count()));
  fmt::print("  tables         {} strings, {} kernels, {} spans, {} calls, {} communicators\n",
             r.string_count(), r.kernels().size(), r.span_count(), r.calls().size(),
             r.communicators().size());
  for (const trace::Communicator& c : r.communicators()) {
    fmt::print("  communicator   {}: rank {} of {}\n", c.record.comm, c.record.rank, c.record.size);
  }
  for (uint32_t s = 0; s < r.sequences().size(); ++s) {
    const trace::SequenceRecord& record = r.sequences()[s];
    std::map<NodeKind, uint64_t> kinds;
    for (const Node& n : r.nodes(s)) ++kinds[n.kind];
    if (kinds.empty() && !nodes) continue;
    std::string text;
    for (const auto& [kind, count] : kinds) text += fmt::format(" {} {}", count, NodeName(kind));
    fmt::print("  {:<3}{} {:<12} {:>8} nodes:{}\n", s,
               record.kind == SequenceKind::kStream ? "stream" : "thread", r.string(record.name),
               r.nodes(s).size(), text);
    if (!nodes) continue;
    uint64_t index = 0;
    for (const Node& n : r.nodes(s)) {
      fmt::print("    {:>7} {:<13} {}\n", index++, NodeName(n.kind), Describe(r, n));
    }
  }
}

class InspectVerb final : public Verb {
 public:
  const char* name() const override { return "inspect"; }
  const char* summary() const override { return "Show what a trace or a job directory holds"; }
  const char* examples() const override {
    return "prism inspect job\nprism inspect job/trace/rank-00003.prt --nodes | less";
  }
  void AddOptions(CLI::App& app) override {
    app.add_option("PATH", path_, "trace file or job directory")->required();
    app.add_flag("--nodes", nodes_, "print every node");
    app.add_flag("--kernels", kernels_,
                 "print every distinct launch with its key; of a trace file");
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    std::error_code error;
    if (fs::is_directory(path_, error)) return RunJob(invocation);
    const char* const hint = "PATH is a job directory or one of its trace/rank-*.prt files";
    if (!fs::exists(path_, error))
      return WithHint(absl::NotFoundError(path_ + ": No such file or directory"), hint);
    absl::StatusOr<int> code = RunFile(invocation);
    if (code.ok() || fs::path(path_).extension() == ".prt") return code;
    return WithHint(code.status(), hint);
  }

 private:
  absl::StatusOr<int> RunFile(const Invocation& invocation) {
    PRISM_ASSIGN_OR_RETURN(const Reader reader, Reader::Open(path_, {.allow_incomplete = true}));
    if (invocation.json) {
      nlohmann::ordered_json j = FileJson(reader);
      if (nodes_) {
        for (const trace::CallRecord& c : reader.calls()) {
          j["calls"].push_back(
              {{"communicator", c.comm},
               {"operation", std::string(graph::CommOpName(static_cast<trace::CommOp>(c.op)))},
               {"type", c.dtype},
               {"reduction", c.reduction},
               {"peer", c.peer},
               {"count", c.count},
               {"bytes", c.bytes},
               {"group", c.group},
               {"call_site", std::string(reader.string(c.call_site))}});
        }
        // What span nodes name by number: the names of the kernels that a span launches.
        for (uint32_t s = 0; s < reader.span_count(); ++s) {
          nlohmann::ordered_json names = nlohmann::ordered_json::array();
          for (const uint32_t kernel : reader.span(s).kernels)
            names.push_back(
                graph::NormalizedKernelName(reader.string(reader.kernels()[kernel].name)));
          j["spans"].push_back(std::move(names));
        }
        for (uint32_t s = 0; s < reader.sequences().size(); ++s) {
          for (const Node& n : reader.nodes(s)) {
            j["sequences"][s]["list"].push_back(
                {std::string(NodeName(n.kind)), n.a, n.b, n.detail});
          }
        }
      }
      for (const KernelRow& row : kernels_ ? KernelsOf(reader) : std::vector<KernelRow>()) {
        const graph::Kernel& k = row.kernel;
        j["kernels"].push_back({{"key", fmt::format("{:016x}", graph::KernelKey(k))},
                                {"name", graph::NormalizedKernelName(k.name)},
                                {"grid", k.grid},
                                {"block", k.block},
                                {"shared_bytes", k.shared_bytes},
                                {"bytes", k.bytes},
                                {"parameters", ParametersText(k.parameters)},
                                {"launches", row.launches}});
      }
      PrintJson("prism.inspect", 1, j);
    } else {
      PrintFile(reader, nodes_);
      for (const KernelRow& row : kernels_ ? KernelsOf(reader) : std::vector<KernelRow>()) {
        const graph::Kernel& k = row.kernel;
        fmt::print("  {:016x} {:>8} launches, grid {}, block {}, shared {}, parameters {}: {}\n",
                   graph::KernelKey(k), row.launches, fmt::join(k.grid, "x"),
                   fmt::join(k.block, "x"), k.shared_bytes, ParametersText(k.parameters),
                   graph::NormalizedKernelName(k.name));
      }
    }
    return kExitOk;
  }

  absl::StatusOr<int> RunJob(const Invocation& invocation) {
    std::vector<std::string> paths;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(path_) / "trace", error)) {
      if (entry.path().extension() == ".prt") paths.push_back(entry.path().string());
    }
    if (paths.empty()) {
      return WithHint(
          absl::NotFoundError(absl::StrCat(path_, " holds no traces (", graph::TraceName(0), ")")),
          "`prism capture --job DIR -- PROGRAM` makes a job directory");
    }
    std::sort(paths.begin(), paths.end());
    nlohmann::ordered_json job;
    job["path"] = path_;
    // Traces may be kept without their job.json.
    std::string job_state;
    if (const auto opened = JobDirectory::Open(path_); opened.ok()) {
      job["state"] = job_state = StateName(opened->state());
      job["reason"] = opened->reason();
    } else if (opened.status().code() != absl::StatusCode::kNotFound) {
      job["state"] = job_state = "unknown";
      job["reason"] = std::string(opened.status().message());
    }
    uint64_t bytes = 0, nodes = 0;
    std::map<std::string, uint64_t> states;
    std::vector<std::string> lines;
    for (const std::string& path : paths) {
      const auto reader = Reader::Open(path, {.allow_incomplete = true});
      if (!reader.ok()) {
        ++states["unreadable"];
        lines.push_back(std::string(reader.status().message()));
        job["ranks"].push_back(
            {{"path", path}, {"state", "unreadable"}, {"problem", lines.back()}});
        continue;
      }
      ++states[std::string(trace::CompletenessName(reader->completeness()))];
      bytes += reader->file_bytes();
      nodes += reader->node_count();
      if (invocation.json) {
        job["ranks"].push_back(FileJson(*reader));
      } else if (nodes_) {
        PrintFile(*reader, true);
      } else if (!reader->problem().empty()) {
        lines.push_back(absl::StrCat("rank ", reader->rank(), ": ", reader->problem()));
      }
    }
    job["states"] = states;
    job["bytes"] = bytes;
    job["nodes"] = nodes;
    if (!invocation.json) {
      std::string text;
      for (const auto& [state, count] : states)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, state);
      if (!job_state.empty()) {
        const std::string reason = job["reason"].get<std::string>();
        fmt::print("{}: {}{}\n", path_, job_state, reason.empty() ? "" : ": " + reason);
      }
      fmt::print("{}: {} traces ({}), {} nodes, {} bytes\n", path_, paths.size(), text, nodes,
                 bytes);
      for (const std::string& line : lines) fmt::print("  {}\n", line);
    }
    if (const auto graph = graph::LoadJob(path_, {.allow_incomplete = true}); graph.ok()) {
      job["world"] = graph->world;
      job["launches"] = graph->launches;
      if (!invocation.json && graph->launches > 1)
        fmt::print("  {} programs, one after the other; of the last:\n", graph->launches);
      job["programs"] = graph->programs.size();
      job["communicators"] = graph->communicators.size();
      for (const graph::Communicator& c : graph->communicators)
        job["groups"].push_back({{"communicator", c.number}, {"world_ranks", c.world_ranks}});
      job["warnings"] = graph->warnings;
      const std::vector<graph::Finding> findings = graph::CheckStructure(*graph);
      for (const graph::Finding& f : findings) job["findings"].push_back(f.text);
      if (!invocation.json) {
        fmt::print("  {} of {} ranks in {} distinct role{}\n", graph->ranks.size(), graph->world,
                   graph->programs.size(), graph->programs.size() == 1 ? "" : "s");
        std::map<uint32_t, std::vector<const graph::Communicator*>> sizes;
        for (const graph::Communicator& c : graph->communicators) sizes[c.size()].push_back(&c);
        for (const auto& [size, of_size] : sizes) {
          std::vector<std::string> members;
          for (const graph::Communicator* c : of_size) {
            members.push_back(fmt::format("{}: {}", c->number, graph::RankList(c->world_ranks, 4)));
            if (members.size() == kShownCommunicators) break;
          }
          fmt::print("    {} communicator{} of {} rank{} ({}{})\n", of_size.size(),
                     of_size.size() == 1 ? "" : "s", size, size == 1 ? "" : "s",
                     fmt::join(members, "; "), members.size() < of_size.size() ? "; ..." : "");
        }
        for (const std::string& warning : graph->warnings) fmt::print("  warning: {}\n", warning);
        for (const graph::Finding& f : findings) fmt::print("  problem: {}\n", f.text);
      }
    } else {
      job["problem"] = std::string(graph.status().message());
      if (!invocation.json) fmt::print("  no graph: {}\n", std::string(graph.status().message()));
    }
    if (invocation.json) PrintJson("prism.inspect", 1, job);
    return kExitOk;
  }

  std::string path_;
  bool nodes_ = false;
  bool kernels_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeInspectVerb() { return std::make_unique<InspectVerb>(); }

}  // namespace prism::cli
