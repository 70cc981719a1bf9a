// prism check: is a job whole, and do its ranks' communications fit together?
#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/program_output.h"
#include "src/cli/verbs.h"
#include "src/coordinator/diagnosis.h"
#include "src/graph/check.h"
#include "src/graph/graph.h"
#include "src/graph/matching_table.h"
#include "src/report/memory.h"
#include "src/report/report.h"
#include "src/report/waits.h"

namespace prism::cli {
namespace {

using Json = nlohmann::ordered_json;

// Each line of `text`, which end with a line's end.
std::string Indented(const std::string& text) {
  std::string out;
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = std::min(text.find('\n', at), text.size() - 1) + 1;
    out += "  " + text.substr(at, end - at);
  }
  return out;
}

class CheckVerb final : public Verb {
 public:
  const char* name() const override { return "check"; }
  const char* summary() const override {
    return "Tell whether a job is sound: a captured one, or a program run for its structure";
  }
  const char* examples() const override {
    return "  prism check prism-job\n"
           "  prism check --target h200x8:4 -- torchrun --nnodes 4 --nproc-per-node 8 train.py\n";
  }
  bool takes_command() const override { return true; }
  bool command_optional() const override { return true; }
  void AddOptions(CLI::App& app) override {
    app.add_option("DIR", directory_,
                   "Job directory to check; without it, the command is run first")
        ->type_name("");
    flags_.AddTo(app);
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    if (directory_.empty() == invocation.command.empty()) {
      return WithHint(
          absl::InvalidArgumentError(directory_.empty()
                                         ? "there is nothing to check"
                                         : "check takes a job directory or a command, not both"),
          "prism check DIR, or prism check [flags] -- command");
    }
    std::string directory = directory_;
    int program_code = kExitOk;
    if (!invocation.command.empty()) {
      PRISM_ASSIGN_OR_RETURN(const CaptureOptions options, flags_.Options());
      PRISM_ASSIGN_OR_RETURN(const CaptureResult result, CaptureProgram(options, invocation));
      directory = result.job;
      program_code = result.exit_code;
    }
    PRISM_ASSIGN_OR_RETURN(const JobDirectory job, JobDirectory::Open(directory));
    Json found;
    found["job"] = directory;
    found["state"] = StateName(job.state());
    found["reason"] = job.reason();
    if (const auto diagnosis = job.Read("diagnosis.json"); diagnosis.ok())
      found["diagnosis"] = *diagnosis;
    found["findings"] = Json::array();
    // A job that failed has torn traces; its diagnosis says more than they.
    const bool whole = job.state() == JobDirectory::State::kComplete;
    const bool readable = CheckTraces(job, whole, &found);
    const bool sound = whole && readable && found["findings"].empty();
    found["sound"] = sound;
    if (invocation.json) {
      PrintJson("prism.check", 1, found);
    } else {
      Print(found);
    }
    return sound ? kExitOk : program_code != kExitOk ? program_code : kExitUser;
  }

 private:
  // Of every program that the command ran. False: some trace cannot be read.
  bool CheckTraces(const JobDirectory& job, bool whole, Json* found) {
    std::vector<graph::Graph> graphs;
    uint32_t launches = 1;
    for (uint32_t launch = 1; launch <= launches; ++launch) {
      auto graph = graph::LoadJob(job.path(), {.allow_incomplete = !whole, .launch = launch});
      if (!graph.ok()) {
        (*found)["traces"] = std::string(graph.status().message());
        return false;
      }
      launches = graph->launches;
      graphs.push_back(*std::move(graph));
    }
    (*found)["world"] = graphs.back().world;
    (*found)["ranks"] = graphs.back().ranks.size();
    (*found)["launches"] = launches;
    (*found)["warnings"] = Json::array();
    for (const graph::Graph& graph : graphs) {
      for (const std::string& warning : graph.warnings) (*found)["warnings"].push_back(warning);
    }
    if (!whole) return true;
    // Ranks of a recorded job match their calls among themselves: nobody else counted them.
    const std::string mode = job.info().value("mode", "");
    const bool counted = mode != "record" && mode != "calibrate";
    const auto matching = job.Read("matching.json");
    if (counted && !matching.ok())
      (*found)["findings"].push_back(std::string(matching.status().message()));
    for (const graph::Graph& graph : graphs) {
      const std::string prefix =
          launches == 1 ? std::string() : fmt::format("program {}: ", graph.launch);
      std::vector<graph::Finding> findings = graph::CheckStructure(graph);
      if (matching.ok()) {
        for (graph::Finding& finding :
             graph::CompareWithMatching(graph, MatchingOf(graph, graphs, *matching)))
          findings.push_back(std::move(finding));
      }
      for (const graph::Finding& finding : findings)
        (*found)["findings"].push_back(prefix + finding.text);
    }
    const Json& info = job.info();
    if (launches == 1 && info.contains("world") && info["world"] != graphs[0].world) {
      (*found)["findings"].push_back(fmt::format("job.json says {} ranks, the traces are of {}",
                                                 info["world"].dump(), graphs[0].world));
    }
    CheckMemory(job.path(), graphs.back(), found);
    if ((*found)["findings"].empty()) FindWaits(job, &graphs.back(), found);
    return true;
  }

  // Who is waited for, of a job that is timed. Waiting is no fault: the job stays sound.
  void FindWaits(const JobDirectory& job, graph::Graph* graph, Json* found) {
    std::vector<std::string> warnings;
    auto target = report::TargetOf(job.info(), graph->world, "", &warnings);
    absl::StatusOr<report::Waits> waits =
        target.ok() ? report::AnalyzeWaits(graph, {.target = *std::move(target)}) : target.status();
    if (!waits.ok()) {
      report::Waits unknown;
      unknown.unknown_because = std::string(waits.status().message());
      waits = std::move(unknown);
    }
    (*found)["waits"] = waits->Json();
    waits_ = waits->Text();
  }

  // Ranks whose figures are damaged, or are not there although others' are. Where nobody's are,
  // prism did not start the ranks.
  static void CheckMemory(const std::string& directory, const graph::Graph& graph, Json* found) {
    const std::vector<report::RankMemory> memory =
        report::ReadMemory(directory, graph.world, &graph, /*context_bytes=*/0);
    const bool any_known =
        std::any_of(memory.begin(), memory.end(), [](const auto& m) { return m.known; });
    for (const report::RankMemory& m : memory) {
      if (m.damaged || (any_known && !m.known))
        (*found)["findings"].push_back(fmt::format("rank {}: {}", m.rank, m.unknown_because));
    }
  }

  // The coordinator's table without the communicators of other programs than `graph`'s.
  static Json MatchingOf(const graph::Graph& graph, const std::vector<graph::Graph>& all,
                         const Json& table) {
    std::set<uint64_t> others;
    for (const graph::Graph& other : all) {
      if (&other == &graph) continue;
      for (const graph::Communicator& comm : other.communicators) others.insert(comm.number);
    }
    Json own = table;
    if (others.empty() || !own.is_object() || !own.contains("communicators") ||
        !own["communicators"].is_array()) {
      return own;
    }
    own["communicators"] = Json::array();
    for (const Json& entry : table["communicators"]) {
      const bool known = entry.is_object() && entry.contains("number") &&
                         entry["number"].is_number_unsigned() &&
                         others.count(entry["number"].get<uint64_t>()) != 0;
      if (!known) own["communicators"].push_back(entry);
    }
    return own;
  }

  void Print(const Json& found) const {
    fmt::print(
        "{}: {}{}\n", found["job"].get<std::string>(),
        found["sound"].get<bool>() ? "sound" : "not sound",
        found["state"] == "complete" ? "" : fmt::format(", {}", found["state"].get<std::string>()));
    if (found.contains("diagnosis")) {
      const auto diagnosis = coordinator::Diagnosis::FromJson(found["diagnosis"]);
      fmt::print("{}", Indented(diagnosis.Text() + "\n"));
      if (!diagnosis.hint.empty()) fmt::print("  hint: {}\n", diagnosis.hint);
    } else if (const std::string reason = found.value("reason", ""); !reason.empty()) {
      fmt::print("  {}\n", reason);
    }
    if (found.contains("traces")) fmt::print("  traces: {}\n", found["traces"].get<std::string>());
    for (const Json& warning : found.value("warnings", Json::array()))
      fmt::print("  warning: {}\n", warning.get<std::string>());
    for (const Json& finding : found["findings"]) fmt::print("  {}\n", finding.get<std::string>());
    if (found["sound"].get<bool>()) {
      const uint32_t ranks = found.value("ranks", 0u), launches = found.value("launches", 1u);
      fmt::print(
          "  {}{} rank{}; every communication is answered, and no two contradict each other\n",
          launches == 1 ? "" : fmt::format("{} programs, the last of ", launches), ranks,
          ranks == 1 ? "" : "s");
    }
    fmt::print("{}", Indented(waits_));
  }

  std::string directory_;
  CaptureFlags flags_;
  std::string waits_;  // as text
};

}  // namespace

std::unique_ptr<Verb> MakeCheckVerb() { return std::make_unique<CheckVerb>(); }

}  // namespace prism::cli
