// prism simulate: predicts the step time of a captured job, writes simulate.json and a timeline.
#include "fmt/format.h"
#include "src/cli/report_flags.h"
#include "src/cli/verbs.h"
#include "src/report/report.h"

namespace prism::cli {
namespace {

class SimulateVerb final : public Verb {
 public:
  const char* name() const override { return "simulate"; }
  const char* summary() const override { return "Predict the step time of a captured job"; }
  const char* examples() const override {
    return "prism simulate job\nprism simulate job --target b200x8:4\nprism simulate job --jitter "
           "0.02 --draws 100 --json";
  }
  void AddOptions(CLI::App& app) override {
    flags_.AddTo(app);
    app.add_option("--timeline", timeline_,
                   "Perfetto file to write, or none; DIR/timeline.pftrace.gz by default")
        ->type_name("FILE");
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(report::ReportOptions options, flags_.Options());
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
};

}  // namespace

std::unique_ptr<Verb> MakeSimulateVerb() { return std::make_unique<SimulateVerb>(); }

}  // namespace prism::cli
