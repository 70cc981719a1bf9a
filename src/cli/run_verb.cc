// prism run: capture a program, then predict and report, each as its own verb does it.
#include "fmt/format.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/command_line.h"
#include "src/cli/program_output.h"
#include "src/cli/report_flags.h"
#include "src/cli/verbs.h"
#include "src/report/report.h"

namespace prism::cli {
namespace {

class RunVerb final : public Verb {
 public:
  const char* name() const override { return "run"; }
  const char* summary() const override {
    return "Capture a program, predict its step time, and report";
  }
  const char* examples() const override {
    return "  prism run --target h200x8:2 -- torchrun --nnodes 2 --nproc-per-node 8 train.py\n";
  }
  bool takes_command() const override { return true; }
  void AddOptions(CLI::App& app) override {
    flags_.AddTo(app);
    AddNetworkFlag(app, &network_);
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(const CaptureOptions options, flags_.Options());
    PRISM_ASSIGN_OR_RETURN(const auto network, LoadNetwork(network_));
    PRISM_ASSIGN_OR_RETURN(const CaptureResult result, CaptureProgram(options, invocation));
    if (!result.reason.empty()) {
      if (invocation.json) PrintJson("prism.capture", 1, result.Json());
      const std::string why = result.diagnosis.has_value() ? "" : ": " + result.reason;
      spdlog::error("the job failed after {:.1f} s{}; what there is, is in {}", result.seconds, why,
                    result.job);
      return result.exit_code;
    }
    spdlog::info("captured {} rank{}, {} communications, in {:.1f} s: {}", result.world,
                 result.world == 1 ? "" : "s", result.operations, result.seconds, result.job);
    // A prediction or report that fails is prism's failure; the program itself ended well. The
    // report shows the prediction, or why there is none; `simulate` only leaves its files here.
    const auto simulated = report::Simulate(
        result.job, {.network = network,
                     .timeline_path = result.job + "/" + std::string(report::kTimelineName)});
    if (!simulated.ok())
      spdlog::warn("no prediction: {}", std::string(simulated.status().message()));
    // With --json stdout carries one object: the report's.
    std::vector<std::string> arguments{invocation.program, "report", result.job};
    if (!network_.empty()) arguments.insert(arguments.end(), {"--network", network_});
    if (invocation.json) arguments.emplace_back("--json");
    if (RunCommandLine(AllVerbs(), arguments) != kExitOk) return kExitOwnFailure;
    // That there is nothing to predict is said above and no failure; a file that is not written is.
    const bool unwritten =
        !simulated.ok() && simulated.status().code() != absl::StatusCode::kFailedPrecondition;
    if (unwritten) return kExitOwnFailure;
    return result.exit_code;
  }

 private:
  CaptureFlags flags_;
  std::string network_;
};

}  // namespace

std::unique_ptr<Verb> MakeRunVerb() { return std::make_unique<RunVerb>(); }

}  // namespace prism::cli
