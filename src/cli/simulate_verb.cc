// prism simulate: predicts the step time of a captured job, writes simulate.json and a timeline.
#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "src/base/duration.h"
#include "src/cli/report_flags.h"
#include "src/cli/verbs.h"
#include "src/report/report.h"

namespace prism::cli {
namespace {

// "1:5ms"
absl::StatusOr<report::StepDelay> ParseDelay(const std::string& text) {
  const size_t colon = text.find(':');
  report::StepDelay delay{};
  const char* const end = text.data() + std::min(colon, text.size());
  const auto [stop, error] = std::from_chars(text.data(), end, delay.rank);
  if (colon == std::string::npos || error != std::errc() || stop != end) {
    return WithHint(absl::InvalidArgumentError(fmt::format("--delay {} is no RANK:TIME", text)),
                    "--delay 1:5ms");
  }
  PRISM_ASSIGN_OR_RETURN(delay.ns, ParseDuration(text.substr(colon + 1)));
  constexpr int64_t kMostNs = int64_t{24} * 3600 * 1'000'000'000;
  if (delay.ns > kMostNs) {
    return WithHint(absl::InvalidArgumentError(fmt::format("--delay {} is more than a day", text)),
                    "--delay 1:5ms");
  }
  return delay;
}

class SimulateVerb final : public Verb {
 public:
  const char* name() const override { return "simulate"; }
  const char* summary() const override { return "Predict the step time of a captured job"; }
  const char* examples() const override {
    return "prism simulate job\nprism simulate job --target b200x8:4\nprism simulate job --jitter "
           "0.02 --draws 100 --json\nprism simulate job --samples odd --delay 1:5ms\nprism "
           "simulate job "
           "--what-if replicas:2=2 --what-if micro-batches=2";
  }
  void AddOptions(CLI::App& app) override {
    flags_.AddTo(app);
    app.add_option("--timeline", timeline_,
                   "Perfetto file to write, or none; DIR/timeline.pftrace.gz by default")
        ->type_name("FILE");
    app.add_option("--samples", samples_,
                   "Which measurements of a recorded job stand for a step's: own (each step's); "
                   "medians over odd, even or all training steps, counted from 0, without the "
                   "first two; odd-steps or even-steps: what the nearest such step has")
        ->type_name("WHICH")
        ->capture_default_str();
    app.add_flag("--waits-as-measured", waits_as_measured_,
                 "Leave in a recorded communication what its rank waited for others, so that it "
                 "waits twice: what aligning communications adds");
    app.add_option("--delay", delays_,
                   "What if: TIME more of host time on RANK at the beginning of every training "
                   "step (1:5ms); may be repeated")
        ->type_name("RANK:TIME")
        ->expected(1)
        ->take_all();
    app.add_option(
           "--what-if", what_if_,
           "What if something took FACTOR times as long, or had FACTOR times its bandwidth: "
           "rank:R=F (its kernels), host:R=F, kernel:NAME=F, communicator:N=F, port:R=F, "
           "nic:NODE.NIC=F; or a NIC let no more than so much through (nic:NODE.NIC=24GB/s); or "
           "there were F times as many replicas (replicas:N=F) or micro-batches "
           "(micro-batches=F), or rank R failed and its replica were gone (failed:R.N), where N is "
           "a "
           "communicator of one rank of each replica; may be repeated")
        ->type_name("WHAT[:WHICH][=FACTOR]")
        ->expected(1)
        ->take_all();
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(report::ReportOptions options, flags_.Options());
    const std::optional<graph::Samples> samples = graph::SamplesOf(samples_);
    if (!samples.has_value()) {
      return WithHint(absl::InvalidArgumentError(fmt::format("--samples {} is unknown", samples_)),
                      "own, odd, even, all, odd-steps or even-steps");
    }
    options.samples = *samples;
    options.align_communications = !waits_as_measured_;
    for (const std::string& text : delays_) {
      PRISM_ASSIGN_OR_RETURN(const report::StepDelay delay, ParseDelay(text));
      options.delays.push_back(delay);
    }
    for (const std::string& text : what_if_) {
      PRISM_ASSIGN_OR_RETURN(const engine::WhatIf what_if, engine::ParseWhatIf(text));
      options.what_if.push_back(what_if);
    }
    if (timeline_ != "none") {
      options.timeline_path = timeline_.empty()
                                  ? flags_.directory() + "/" + std::string(report::kTimelineName)
                                  : timeline_;
    }
    PRISM_ASSIGN_OR_RETURN(const report::Report report,
                           report::Simulate(flags_.directory(), options));
    if (invocation.json) {
      nlohmann::ordered_json j = report.prediction->Json();
      if (!report.timeline_path.empty()) j["timeline"] = report.timeline_path;
      PrintJson("prism.simulate", report::Report::kSchemaVersion, j);
    } else {
      fmt::print("{}", report.Text());
    }
    return kExitOk;
  }

 private:
  ReportFlags flags_;
  std::string timeline_;
  std::string samples_ = "own";
  bool waits_as_measured_ = false;
  std::vector<std::string> what_if_;
  std::vector<std::string> delays_;
};

}  // namespace

std::unique_ptr<Verb> MakeSimulateVerb() { return std::make_unique<SimulateVerb>(); }

}  // namespace prism::cli
