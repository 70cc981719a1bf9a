// prism capture: run a program as ranks of a target, and keep who communicated what with whom.
#include "fmt/format.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/program_output.h"
#include "src/cli/verbs.h"

namespace prism::cli {
namespace {

class CaptureVerb final : public Verb {
 public:
  const char* name() const override { return "capture"; }
  const char* summary() const override {
    return "Run a program as ranks of a target and keep what each did";
  }
  const char* examples() const override {
    return "  prism capture --target h200x8:2 --job moe -- torchrun --nnodes 2 --nproc-per-node 8 "
           "train_moe.py\n"
           "  prism capture --values cpu --job mlp -- python train.py\n"
           "  prism capture --device cuda --target h200x8 --job gpt -- bash pretrain.sh\n";
  }
  bool takes_command() const override { return true; }
  void AddOptions(CLI::App& app) override { flags_.AddTo(app); }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(const CaptureOptions options, flags_.Options());
    PRISM_ASSIGN_OR_RETURN(const CaptureResult result, CaptureProgram(options, invocation));
    if (invocation.json) {
      PrintJson("prism.capture", 1, result.Json());
    } else if (result.reason.empty()) {
      spdlog::info("captured {} rank{}, {} communications, in {:.1f} s: {}", result.world,
                   result.world == 1 ? "" : "s", result.operations, result.seconds, result.job);
    } else {
      // A diagnosis has been said when it was found.
      const std::string why = result.diagnosis.has_value() ? "" : ": " + result.reason;
      spdlog::error("the job failed after {:.1f} s{}; what there is, is in {}", result.seconds, why,
                    result.job);
    }
    return result.exit_code;
  }

 private:
  CaptureFlags flags_;
};

}  // namespace

std::unique_ptr<Verb> MakeCaptureVerb() { return std::make_unique<CaptureVerb>(); }

}  // namespace prism::cli
