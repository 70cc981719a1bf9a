// prism record: run a program for real, and keep what each of its ranks did.
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/program_output.h"
#include "src/cli/record_session.h"
#include "src/cli/verbs.h"

namespace prism::cli {
namespace {

class RecordVerb final : public Verb {
 public:
  const char* name() const override { return "record"; }
  const char* summary() const override {
    return "Run a program on real GPUs, one a rank, and keep what each did";
  }
  const char* examples() const override {
    return "  prism record --job truth -- torchrun --nproc-per-node 2 train.py\n"
           "  prism check truth && prism report truth\n"
           "  prism record --device host --job truth -- torchrun --nproc-per-node 2 train.py\n";
  }
  bool takes_command() const override { return true; }
  void AddOptions(CLI::App& app) override {
    app.add_option("--job", job_, "Directory for everything that is kept")
        ->capture_default_str()
        ->type_name("DIR");
    app.add_flag("--force", force_, "Replace an earlier job in that directory");
    app.add_option("--device", device_,
                   "What runs the kernels: cuda, or host (hostcuda and its NCCL, without a GPU)")
        ->capture_default_str()
        ->type_name("WHAT");
    app.add_option("--target", target_,
                   "What this machine is, GPUxCOUNT; by default its GPUs, with host h200x8")
        ->type_name("TARGET");
    app.add_option("--values", values_,
                   "What is computed on host: none, control (what control flow needs), cpu "
                   "(everything)")
        ->capture_default_str()
        ->type_name("WHAT");
    app.add_flag(
        "--kernel-parameters", kernel_parameters_,
        "Also tell launches apart by their parameters other than pointers, where names say "
        "nothing of the size (prism inspect --kernels)");
    app.add_option("--tee", tee_,
                   "Whether the program's output is shown as well as kept: none, all")
        ->capture_default_str()
        ->type_name("WHOSE");
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(const RecordOptions options, Options());
    std::optional<OutputOnStderr> output;
    if (invocation.json) output.emplace();
    PRISM_ASSIGN_OR_RETURN(const RecordResult result, RunRecord(options, invocation));
    output.reset();
    if (invocation.json) {
      PrintJson("prism.record", 1, result.Json());
    } else if (result.reason.empty()) {
      spdlog::info("recorded {} of {} rank{}, {} communications, in {:.1f} s: {}", result.ranks,
                   result.world, result.world == 1 ? "" : "s", result.communications,
                   result.seconds, result.job);
    } else {
      spdlog::error("the job failed after {:.1f} s: {}; what there is, is in {}", result.seconds,
                    result.reason, result.job);
    }
    return result.exit_code;
  }

 private:
  absl::StatusOr<RecordOptions> Options() const {
    PRISM_RETURN_IF_ERROR(OneOf("--device", device_, {"cuda", "host"}));
    PRISM_RETURN_IF_ERROR(OneOf("--values", values_, {"none", "control", "cpu"}));
    if (tee_ == "rank0") {
      return WithHint(absl::InvalidArgumentError(
                          "--tee rank0: a recorded job's ranks write where their launcher lets "
                          "them, prism sees the output of all together"),
                      "--tee all, and torchrun's own --local-ranks-filter 0 or --log-dir");
    }
    PRISM_RETURN_IF_ERROR(OneOf("--tee", tee_, {"none", "all"}));
    RecordOptions options;
    options.device = device_ == "host" ? Device::kHost : Device::kCuda;
    if (!target_.empty()) {
      PRISM_ASSIGN_OR_RETURN(options.target, ParseTarget(target_));
      if (options.target->nodes != 1) {
        return WithHint(
            absl::UnimplementedError(
                fmt::format("--target {}: recording spans one machine, this is one of {} nodes",
                            target_, options.target->nodes)),
            fmt::format("--target {}x{}", options.target->gpu.key, options.target->gpus_per_node));
      }
    }
    options.values = values_;
    options.job = job_;
    options.force = force_;
    options.kernel_parameters = kernel_parameters_;
    options.shown = tee_ != "none";
    return options;
  }

  std::string device_ = "cuda";
  std::string values_ = "none";
  std::string target_;
  std::string job_ = "prism-job";
  std::string tee_ = "all";
  bool force_ = false;
  bool kernel_parameters_ = false;
};

}  // namespace

std::unique_ptr<Verb> MakeRecordVerb() { return std::make_unique<RecordVerb>(); }

}  // namespace prism::cli
