// prism calibrate: time a captured job with one GPU: one rank of each kind runs, the others are
// copies of it.
#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/calibrate/slices.h"
#include "src/cli/capture_options.h"
#include "src/cli/job_info.h"
#include "src/cli/report_flags.h"
#include "src/cli/sandbox.h"
#include "src/cli/verbs.h"
#include "src/coordinator/received_payloads.h"
#include "src/trace/format.h"
#include "src/wire/protocol.h"

namespace prism::cli {
namespace {

class CalibrateVerb final : public Verb {
 public:
  const char* name() const override { return "calibrate"; }
  const char* summary() const override {
    return "Time a captured job on one GPU, a rank of each kind after the other";
  }
  const char* examples() const override {
    return "  prism calibrate job --device cuda --network netprofile.json --job calibrated\n"
           "  prism simulate calibrated --network netprofile.json\n";
  }
  bool takes_command() const override { return true; }
  bool command_optional() const override { return true; }
  void AddOptions(CLI::App& app) override {
    app.add_option("DIR", captured_, "Job directory of the captured job")
        ->required()
        ->type_name("DIR");
    app.add_option(
           "--spans", spans_,
           "How spans of an idle stream are timed on a GPU: held (the stream waits until all "
           "of the span is enqueued), or launched (as the host comes to it, gaps and all)")
        ->capture_default_str()
        ->type_name("HOW");
    AddNetworkFlag(app, &network_);
    clock_.AddTo(app);
    flags_.AddTo(app);
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(CaptureOptions options, flags_.Options());
    PRISM_RETURN_IF_ERROR(OneOf("--spans", spans_, {"held", "launched"}));
    if (!IsMeasured(options, clock_.is_virtual())) {
      return WithHint(absl::InvalidArgumentError("neither --device cuda nor --clock virtual is "
                                                 "given: there is nothing to time"),
                      "'prism simulate DIR' predicts from models alone");
    }
    PRISM_ASSIGN_OR_RETURN(const CapturedJob captured, OpenCaptured(captured_, network_));
    PRISM_RETURN_IF_ERROR(flags_.TakeTarget(captured.target, &options));
    PRISM_ASSIGN_OR_RETURN(const std::unique_ptr<VirtualClock> clock,
                           clock_.Join(captured, options, invocation));
    PRISM_ASSIGN_OR_RETURN(JobDirectory job,
                           JobDirectory::Create(options.job, options.force, wire::kProtocolVersion,
                                                trace::kFormatVersion));
    const std::vector<calibrate::Slice> slices = calibrate::Slices(captured.graph);
    auto& info = job.info();
    info["mode"] = "calibrate";
    info["captured"] = captured.path;
    info["command"] = invocation.command.empty() ? captured.command : invocation.command;
    info["target"] = DescribeTarget(options.target);
    info["world"] = captured.graph.world;
    info["slices"] = nlohmann::ordered_json::array();
    PRISM_RETURN_IF_ERROR(job.Save());
    for (const calibrate::Slice& slice : slices) {
      const absl::StatusOr<int> code =
          Measure(captured, slice, options, invocation, clock.get(), &job);
      if (!code.ok() || *code != 0) {
        const std::string why = code.ok() ? "a slice failed" : std::string(code.status().message());
        PRISM_RETURN_IF_ERROR(job.Seal(JobDirectory::State::kFailed, why));
        return code;
      }
    }
    // What a later emulation needs of the capture.
    std::error_code error;
    for (const std::string name : {"store.json", coordinator::kReceivedFile})
      std::filesystem::copy_file(captured.path + "/" + name, job.path() + "/" + name, error);
    PRISM_RETURN_IF_ERROR(job.Seal(JobDirectory::State::kComplete, ""));
    if (invocation.json) {
      PrintJson("prism.calibrate", 1,
                {{"job", job.path()}, {"world", captured.graph.world}, {"slices", info["slices"]}});
    } else {
      spdlog::info("calibrated {} ranks by {} slice{}: {}", captured.graph.world, slices.size(),
                   slices.size() == 1 ? "" : "s", job.path());
    }
    return kExitOk;
  }

 private:
  // Runs the slice's representative and writes the traces of all its ranks. Not 0: the program's
  // code.
  absl::StatusOr<int> Measure(const CapturedJob& captured, const calibrate::Slice& slice,
                              CaptureOptions options, const Invocation& invocation,
                              VirtualClock* clock, JobDirectory* job) const {
    const graph::Graph& graph = captured.graph;
    const uint32_t rank = graph.ranks[slice.representative].rank;
    std::vector<uint32_t> ranks;
    for (const uint32_t i : slice.ranks) ranks.push_back(graph.ranks[i].rank);
    spdlog::info("rank {} runs for rank{} {}", rank, ranks.size() == 1 ? "" : "s",
                 graph::RankList(ranks));
    options.job = fmt::format("{}/slices/{:05}", job->path(), rank);
    std::error_code error;
    std::filesystem::create_directory(job->path() + "/slices", error);
    PRISM_ASSIGN_OR_RETURN(
        const SandboxResult result,
        RunSandbox(captured, {.rank = rank, .hold = spans_ == "held", .clock = clock}, options,
                   invocation));
    if (!result.capture.reason.empty()) {
      spdlog::error("rank {} failed: {}", rank, result.capture.reason);
      return result.capture.exit_code == 0 ? kExitOwnFailure : result.capture.exit_code;
    }
    PRISM_ASSIGN_OR_RETURN(const trace::Reader measured,
                           trace::Reader::Open(result.capture.job + "/" + graph::TraceName(rank)));
    for (const uint32_t i : slice.ranks) {
      PRISM_ASSIGN_OR_RETURN(const trace::RankIdentity identity,
                             calibrate::IdentityOf(graph, slice.representative, i));
      PRISM_RETURN_IF_ERROR(trace::CopyAs(
          measured, identity, job->path() + "/" + graph::TraceName(graph.ranks[i].rank)));
    }
    job->info()["slices"].push_back(
        {{"rank", rank}, {"ranks", ranks}, {"seconds", result.capture.seconds}});
    PRISM_RETURN_IF_ERROR(job->Save());
    return 0;
  }

  CaptureFlags flags_;
  ClockFlag clock_;
  std::string captured_;
  std::string spans_ = "held";
  std::string network_;
};

}  // namespace

std::unique_ptr<Verb> MakeCalibrateVerb() { return std::make_unique<CalibrateVerb>(); }

}  // namespace prism::cli
