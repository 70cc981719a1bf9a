// prism report: everything that is known about a job.
#include "fmt/format.h"
#include "src/cli/report_flags.h"
#include "src/cli/verbs.h"
#include "src/report/report.h"

namespace prism::cli {
namespace {

class ReportVerb final : public Verb {
 public:
  const char* name() const override { return "report"; }
  const char* summary() const override {
    return "Show memory, communication and the predicted step of a job";
  }
  const char* examples() const override {
    return "prism report job\nprism report job --json | jq .memory";
  }
  void AddOptions(CLI::App& app) override {
    flags_.AddTo(app);
    app.add_option("--timeline", timeline_, "Also write a Perfetto file")->type_name("FILE");
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    PRISM_ASSIGN_OR_RETURN(report::ReportOptions options, flags_.Options());
    options.timeline_path = timeline_;
    PRISM_ASSIGN_OR_RETURN(const report::Report report,
                           report::BuildReport(flags_.directory(), options));
    if (invocation.json) {
      PrintJson("prism.report", report::Report::kSchemaVersion, report.Json());
    } else {
      fmt::print("{}", report.Text());
    }
    return report.prediction.has_value() || report.nothing_to_predict ? kExitOk : kExitUser;
  }

 private:
  ReportFlags flags_;
  std::string timeline_;
};

}  // namespace

std::unique_ptr<Verb> MakeReportVerb() { return std::make_unique<ReportVerb>(); }

}  // namespace prism::cli
