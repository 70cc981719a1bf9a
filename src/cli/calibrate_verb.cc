// prism calibrate: time a captured job with one GPU: some ranks of each kind run, and the others
// are copies of them, or are timed by what they took.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/calibrate/kinds.h"
#include "src/calibrate/retime.h"
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

// Ranks that are timed by others are not off by more, or all of their kind run.
constexpr double kTrusted = 0.02;

class CalibrateVerb final : public Verb {
 public:
  const char* name() const override { return "calibrate"; }
  const char* summary() const override {
    return "Time a captured job on one GPU, some ranks of each kind one after the other";
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
    app.add_option("--slices", most_slices_,
                   "Most ranks that run of those that differ in sizes alone, as experts do; the "
                   "others are timed by what these took (0: all run)")
        ->capture_default_str()
        ->type_name("N");
    app.add_option(
           "--check", check_,
           "Ranks that are timed by others and run all the same, to say how far off that is; "
           "where it is above 2 %, all ranks of their kind run")
        ->capture_default_str()
        ->type_name("N");
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
    PRISM_ASSIGN_OR_RETURN(const CapturedJob captured,
                           OpenCaptured(captured_, network_, options.job));
    PRISM_RETURN_IF_ERROR(flags_.TakeTarget(captured.target, &options));
    PRISM_ASSIGN_OR_RETURN(const std::unique_ptr<VirtualClock> clock,
                           clock_.Join(captured, options, invocation));
    PRISM_ASSIGN_OR_RETURN(JobDirectory job,
                           JobDirectory::Create(options.job, options.force, wire::kProtocolVersion,
                                                trace::kFormatVersion));
    PRISM_ASSIGN_OR_RETURN(const std::vector<calibrate::Kind> kinds,
                           calibrate::KindsOf(captured.graph, most_slices_));
    auto& info = job.info();
    info["mode"] = "calibrate";
    info["captured"] = captured.path;
    info["command"] = invocation.command.empty() ? captured.command : invocation.command;
    info["target"] = DescribeTarget(options.target);
    info["world"] = captured.graph.world;
    info["slices"] = nlohmann::ordered_json::array();
    PRISM_RETURN_IF_ERROR(job.Save());
    Calibration calibration{captured, options, invocation, clock.get(), &job, {}};
    for (const uint32_t rank : calibrate::Sampled(kinds, check_)) calibration.sampled.insert(rank);
    for (const calibrate::Kind& kind : kinds) {
      const absl::StatusOr<int> code = Calibrate(kind, &calibration);
      if (!code.ok() || *code != 0) {
        const std::string why = code.ok() ? "a slice failed" : std::string(code.status().message());
        PRISM_RETURN_IF_ERROR(job.Seal(JobDirectory::State::kFailed, why));
        return code;
      }
    }
    const std::string retimed = Describe(calibration.retimed, &info);
    // What a later emulation needs of the capture.
    std::error_code error;
    for (const std::string name : {"store.json", coordinator::kReceivedFile}) {
      const std::string from = captured.path + "/" + name;
      if (!std::filesystem::exists(from, error)) continue;
      std::filesystem::copy_file(from, job.path() + "/" + name, error);
      if (error) return ErrnoStatus(error.value(), "copy " + from);
    }
    PRISM_RETURN_IF_ERROR(job.Seal(JobDirectory::State::kComplete, ""));
    if (invocation.json) {
      PrintJson("prism.calibrate", 1,
                {{"job", job.path()},
                 {"world", captured.graph.world},
                 {"slices", info["slices"]},
                 {"retimed", info["retimed"]}});
    } else {
      const size_t slices = info["slices"].size();
      spdlog::info("calibrated {} ranks by {} slice{}{}: {}", captured.graph.world, slices,
                   slices == 1 ? "" : "s", retimed, job.path());
    }
    return kExitOk;
  }

 private:
  // Ranks that did not run.
  struct Retimed {
    struct Check {
      uint32_t rank;
      calibrate::Work retimed, measured;
      double difference() const {
        return static_cast<double>(retimed.span_ns) /
                   static_cast<double>(std::max<int64_t>(measured.span_ns, 1)) -
               1;
      }
    };
    std::vector<uint32_t> ranks, refused;  // refused: had to run after all
    calibrate::Work work;
    std::vector<Check> checks;
  };
  struct Calibration {
    const CapturedJob& captured;
    const CaptureOptions& options;
    const Invocation& invocation;
    VirtualClock* clock;
    JobDirectory* job;
    std::set<uint32_t> sampled;  // indices in Graph::ranks
    Retimed retimed = {};

    std::string PathOf(uint32_t index) const {
      return job->path() + "/" + graph::TraceName(captured.graph.ranks[index].rank);
    }
  };

  // Runs what has to run of a kind and times the rest. Not 0: the program's code.
  absl::StatusOr<int> Calibrate(const calibrate::Kind& kind, Calibration* calibration) const {
    for (const calibrate::Slice& slice : kind.slices) {
      PRISM_ASSIGN_OR_RETURN(const int code, Measure(slice, calibration));
      if (code != 0) return code;
    }
    if (kind.retimed.empty()) return 0;
    const graph::Graph& graph = calibration->captured.graph;
    std::vector<trace::Reader> measured;
    std::vector<calibrate::Outline> outlines;
    calibrate::LaunchTimes times;
    for (const calibrate::Slice& slice : kind.slices) {
      const uint32_t ran = slice.representative;
      PRISM_ASSIGN_OR_RETURN(const trace::Reader captured,
                             trace::Reader::Open(graph.ranks[ran].path));
      PRISM_ASSIGN_OR_RETURN(trace::Reader trace, trace::Reader::Open(calibration->PathOf(ran)));
      outlines.push_back(calibrate::OutlineOf(trace, calibrate::OutlineOf(captured).communicators));
      measured.push_back(std::move(trace));
      calibrate::Learn({measured.back(), outlines.back()}, &times);
    }
    Retimed& retimed = calibration->retimed;
    std::vector<Retimed::Check> checks;
    bool trusted = true;
    // Those first that run all the same.
    for (const bool check : {true, false}) {
      size_t next = 0;
      for (const calibrate::Slice& slice : kind.retimed) {
        calibrate::Slice refused;
        for (const uint32_t index : slice.ranks) {
          // Host times are one rank's; which one's, goes round.
          const size_t like = next++ % measured.size();
          const uint32_t rank = graph.ranks[index].rank;
          if (std::any_of(checks.begin(), checks.end(),
                          [&](const Retimed::Check& checked) { return checked.rank == rank; })) {
            continue;
          }
          if (check && calibration->sampled.count(index) == 0) continue;
          const auto refuse = [&] {
            retimed.refused.push_back(rank);
            refused.ranks.push_back(index);
          };
          if (!trusted) {
            refuse();
            continue;
          }
          PRISM_ASSIGN_OR_RETURN(const trace::Reader captured,
                                 trace::Reader::Open(graph.ranks[index].path));
          const absl::StatusOr<calibrate::Work> work = calibrate::Retime(
              {measured[like], outlines[like]}, {captured, calibrate::OutlineOf(captured)}, &times,
              calibration->PathOf(index));
          if (absl::IsFailedPrecondition(work.status())) {
            if (check) continue;
            spdlog::info("{}", std::string(work.status().message()));
            refuse();
            continue;
          }
          if (!work.ok()) return work.status();
          if (check) {
            PRISM_ASSIGN_OR_RETURN(const int code, Measure({index, {index}}, calibration));
            if (code != 0) return code;
            PRISM_ASSIGN_OR_RETURN(const trace::Reader truth,
                                   trace::Reader::Open(calibration->PathOf(index)));
            checks.push_back({rank, *work, calibrate::WorkOf(truth)});
            continue;
          }
          retimed.ranks.push_back(rank);
          retimed.work.span_ns += work->span_ns;
          retimed.work.spans += work->spans;
          retimed.work.interpolated += work->interpolated;
        }
        if (refused.ranks.empty()) continue;
        // One runs for all of its program.
        refused.representative = refused.ranks.front();
        PRISM_ASSIGN_OR_RETURN(const int code, Measure(refused, calibration));
        if (code != 0) return code;
      }
      const auto off = std::find_if(
          checks.begin(), checks.end(),
          [](const Retimed::Check& checked) { return std::abs(checked.difference()) > kTrusted; });
      if (!check || off == checks.end()) continue;
      spdlog::info("rank {} would be {:.1f} % off if it were timed by others: all of its kind run",
                   off->rank, 100 * off->difference());
      trusted = false;
    }
    if (trusted) retimed.checks.insert(retimed.checks.end(), checks.begin(), checks.end());
    return 0;
  }

  // What was not run, and how far off that is: for people, and in `info`.
  static std::string Describe(const Retimed& retimed, nlohmann::ordered_json* info) {
    nlohmann::ordered_json json{{"ranks", retimed.ranks},
                                {"refused", retimed.refused},
                                {"spans", retimed.work.spans},
                                {"interpolated", retimed.work.interpolated},
                                {"checked", nlohmann::ordered_json::array()},
                                {"largest_difference", nullptr}};
    double largest = 0;
    for (const Retimed::Check& check : retimed.checks) {
      if (std::abs(check.difference()) >= std::abs(largest)) largest = check.difference();
      json["checked"].push_back({{"rank", check.rank},
                                 {"span_ns", check.measured.span_ns},
                                 {"retimed_span_ns", check.retimed.span_ns},
                                 {"difference", check.difference()}});
    }
    if (!retimed.checks.empty()) json["largest_difference"] = largest;
    (*info)["retimed"] = std::move(json);
    if (retimed.ranks.empty()) return "";
    const std::string off = retimed.checks.empty()
                                ? std::string(", which was not checked")
                                : fmt::format(", off by at most {:.2f} % in {} that ran as well",
                                              100 * largest, retimed.checks.size());
    return fmt::format(", {} ranks timed by these{}", retimed.ranks.size(), off);
  }

  // Runs the slice's representative and writes the traces of all its ranks. Not 0: the program's
  // code.
  absl::StatusOr<int> Measure(const calibrate::Slice& slice, Calibration* calibration) const {
    const CapturedJob& captured = calibration->captured;
    JobDirectory* const job = calibration->job;
    CaptureOptions options = calibration->options;
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
        RunSandbox(captured, {.rank = rank, .hold = spans_ == "held", .clock = calibration->clock},
                   options, calibration->invocation));
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
  uint32_t most_slices_ = 4, check_ = 2;
};

}  // namespace

std::unique_ptr<Verb> MakeCalibrateVerb() { return std::make_unique<CalibrateVerb>(); }

}  // namespace prism::cli
