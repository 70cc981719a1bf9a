// prism check: is a job whole, and do its ranks' communications fit together?
#include <filesystem>

#include "fmt/format.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/capture_session.h"
#include "src/cli/verbs.h"
#include "src/graph/check.h"
#include "src/graph/graph.h"
#include "src/graph/matching_table.h"

namespace prism::cli {
namespace {

using Json = nlohmann::ordered_json;

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
      PRISM_ASSIGN_OR_RETURN(const CaptureResult result, RunCapture(options, invocation));
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
    const auto graph = graph::LoadJob(directory, {.allow_incomplete = !whole});
    if (graph.ok()) {
      found["world"] = graph->world;
      found["ranks"] = graph->ranks.size();
      found["warnings"] = graph->warnings;
      if (whole) {
        for (const graph::Finding& finding : graph::CheckStructure(*graph))
          found["findings"].push_back(finding.text);
        const auto matching = job.Read("matching.json");
        if (matching.ok()) {
          for (const graph::Finding& finding : graph::CompareWithMatching(*graph, *matching))
            found["findings"].push_back(finding.text);
        } else {
          found["findings"].push_back(std::string(matching.status().message()));
        }
      }
    } else {
      found["traces"] = std::string(graph.status().message());
    }
    const bool sound = whole && graph.ok() && found["findings"].empty();
    found["sound"] = sound;
    if (invocation.json) {
      PrintJson("prism.check", 1, found);
    } else {
      Print(found);
    }
    return sound ? kExitOk : program_code != kExitOk ? program_code : kExitUser;
  }

 private:
  static void Print(const Json& found) {
    fmt::print(
        "{}: {}{}\n", found["job"].get<std::string>(),
        found["sound"].get<bool>() ? "sound" : "not sound",
        found["state"] == "complete" ? "" : fmt::format(", {}", found["state"].get<std::string>()));
    if (found.contains("diagnosis")) {
      const Json& diagnosis = found["diagnosis"];
      fmt::print("  {}\n", diagnosis.value("headline", ""));
      for (const Json& party : diagnosis.value("parties", Json::array())) {
        std::string ranks;
        for (const Json& rank : party["ranks"]) ranks += (ranks.empty() ? "" : ",") + rank.dump();
        fmt::print("    rank {}: {}\n", ranks, party.value("text", ""));
        if (const std::string site = party.value("call_site", ""); !site.empty())
          fmt::print("      at {}\n", site);
      }
    } else if (const std::string reason = found.value("reason", ""); !reason.empty()) {
      fmt::print("  {}\n", reason);
    }
    if (found.contains("traces")) fmt::print("  traces: {}\n", found["traces"].get<std::string>());
    for (const Json& warning : found.value("warnings", Json::array()))
      fmt::print("  warning: {}\n", warning.get<std::string>());
    for (const Json& finding : found["findings"]) fmt::print("  {}\n", finding.get<std::string>());
    if (found["sound"].get<bool>()) {
      fmt::print("  {} ranks; every communication is answered, and no two contradict each other\n",
                 found.value("ranks", 0u));
    }
  }

  std::string directory_;
  CaptureFlags flags_;
};

}  // namespace

std::unique_ptr<Verb> MakeCheckVerb() { return std::make_unique<CheckVerb>(); }

}  // namespace prism::cli
