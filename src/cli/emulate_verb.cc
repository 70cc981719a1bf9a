// prism emulate: run one rank of a captured job for real, and play all others.
#include <string>

#include "fmt/format.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/report_flags.h"
#include "src/cli/sandbox.h"
#include "src/cli/verbs.h"
#include "src/graph/measured.h"
#include "src/graph/step.h"

namespace prism::cli {
namespace {

class EmulateVerb final : public Verb {
 public:
  const char* name() const override { return "emulate"; }
  const char* summary() const override {
    return "Run one rank of a captured job for real and play the others";
  }
  const char* examples() const override {
    return "  prism emulate job --rank 0 --job emulated\n"
           "  prism emulate calibrated --device cuda --network netprofile.json --job emulated -- "
           "torchrun --nproc-per-node 8 train.py\n"
           "  prism emulate job --values cpu --rules rules.json --job emulated\n";
  }
  bool takes_command() const override { return true; }
  bool command_optional() const override { return true; }
  void AddOptions(CLI::App& app) override {
    app.add_option("DIR", captured_, "Job directory of the captured or calibrated job")
        ->required()
        ->type_name("DIR");
    app.add_option("--rank", rank_, "World rank that runs for real")
        ->capture_default_str()
        ->type_name("RANK");
    app.add_option("--peers", peers_,
                   "How the other ranks are played: timed (as long as their traces or a table say "
                   "that they take), instant (always there first), or auto (timed if their traces "
                   "have times)")
        ->capture_default_str()
        ->type_name("HOW");
    app.add_option("--stand-in", stand_in_,
                   "What stands for NCCL's kernels on a GPU: kernel (of the same name, which moves "
                   "bytes through local memory), or stall (the stream waits)")
        ->capture_default_str()
        ->type_name("WHAT");
    app.add_option(
           "--samples", samples_,
           "Which measurements stand for a step of a played rank: own (each step's), or all "
           "(medians over the training steps without the first two)")
        ->capture_default_str()
        ->type_name("WHICH");
    app.add_option(
           "--rules", rules_,
           "File that says what the rank is given by which communications: its own data, "
           "zeros, noise, what was recorded, or a router's counts (docs/reference/rules.md)")
        ->type_name("FILE");
    AddNetworkFlag(app, &network_);
    clock_.AddTo(app);
    flags_.AddTo(app);
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(CaptureOptions options, flags_.Options());
    PRISM_RETURN_IF_ERROR(OneOf("--peers", peers_, {"auto", "timed", "instant"}));
    PRISM_RETURN_IF_ERROR(OneOf("--stand-in", stand_in_, {"kernel", "stall"}));
    PRISM_RETURN_IF_ERROR(OneOf("--samples", samples_, {"own", "all"}));
    if (!options.device.has_value()) {
      return WithHint(absl::InvalidArgumentError("--device none: a job without CUDA has nothing "
                                                 "to emulate"),
                      "--device host, or cuda");
    }
    PRISM_ASSIGN_OR_RETURN(CapturedJob captured, OpenCaptured(captured_, network_, options.job));
    if (samples_ != "own") {
      PRISM_ASSIGN_OR_RETURN(const graph::Steps steps, graph::DetectSteps(&captured.graph));
      PRISM_RETURN_IF_ERROR(
          graph::Resample(&captured.graph, steps, *graph::SamplesOf(samples_)).status());
    } else if (HasTimes(captured.graph)) {
      // Without steps all is played as it was measured.
      const absl::StatusOr<graph::Steps> steps = graph::DetectSteps(&captured.graph);
      if (steps.ok()) graph::TakeTurns(&captured.graph, *steps);
    }
    PRISM_RETURN_IF_ERROR(flags_.TakeTarget(captured.target, &options));
    const uint32_t world = captured.graph.world;
    if (rank_ >= world) {
      return WithHint(
          absl::InvalidArgumentError(fmt::format("--rank {}: the job has {} ranks", rank_, world)),
          fmt::format("--rank 0 to {}", world - 1));
    }
    const bool instant = peers_ == "instant" || (peers_ == "auto" && !HasTimes(captured.graph));
    const char* const how = instant ? "instant" : "timed";
    spdlog::info("rank {} of {} runs, the others are played ({})", rank_, world, how);
    PRISM_ASSIGN_OR_RETURN(const std::unique_ptr<VirtualClock> clock,
                           clock_.Join(captured, options, invocation));
    const Sandbox sandbox{.rank = rank_,
                          .peers = instant ? Peers::kInstant : Peers::kTimed,
                          .stall = stand_in_ == "stall",
                          .clock = clock.get(),
                          .rules = rules_};
    PRISM_ASSIGN_OR_RETURN(const SandboxResult result,
                           RunSandbox(captured, sandbox, options, invocation));
    const CaptureResult& run = result.capture;
    if (invocation.json) {
      nlohmann::ordered_json json = run.Json();
      json["rank"] = rank_;
      json["peers"] = how;
      json["communications"] = result.communications;
      json["resized"] = result.resized;
      if (!rules_.empty()) json["ruled"] = result.ruled;
      PrintJson("prism.emulate", 1, json);
    } else if (run.reason.empty()) {
      spdlog::info("emulated rank {} of {}, {} communications, in {:.1f} s: {}", rank_, world,
                   result.communications, run.seconds, run.job);
    } else {
      const std::string why = run.diagnosis.has_value() ? "" : ": " + run.reason;
      spdlog::error("the job failed after {:.1f} s{}; what there is, is in {}", run.seconds, why,
                    run.job);
    }
    return run.exit_code;
  }

 private:
  static bool HasTimes(const graph::Graph& graph) {
    for (const graph::Rank& rank : graph.ranks) {
      if (rank.measured_ns.empty() || !graph.program_of(rank).host_timed) return false;
    }
    return true;
  }

  CaptureFlags flags_;
  ClockFlag clock_;
  std::string captured_;
  std::string network_;
  std::string rules_;
  std::string peers_ = "auto";
  std::string samples_ = "own";
  std::string stand_in_ = "kernel";
  uint32_t rank_ = 0;
};

}  // namespace

std::unique_ptr<Verb> MakeEmulateVerb() { return std::make_unique<EmulateVerb>(); }

}  // namespace prism::cli
