#include "src/cli/report_flags.h"

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "src/base/status.h"

namespace prism::cli {

void AddNetworkFlag(CLI::App& app, std::string* path) {
  app.add_option("--network", *path,
                 "Measured communications to predict with, of prism netprofile; where it says "
                 "nothing, formulas do")
      ->type_name("FILE");
}

absl::StatusOr<std::shared_ptr<const engine::NetworkTable>> LoadNetwork(const std::string& path) {
  if (path.empty()) return nullptr;
  PRISM_ASSIGN_OR_RETURN(engine::NetworkProfile profile, engine::ReadNetworkProfile(path));
  return std::make_shared<const engine::NetworkTable>(std::move(profile));
}

void ReportFlags::AddTo(CLI::App& app) {
  app.add_option("DIR", directory_, "Job directory")->required();
  app.add_option("--target", target_,
                 "Machine to predict for: GPU[xCOUNT][:NODES]; the job's own by default")
      ->type_name("TARGET");
  AddNetworkFlag(app, &network_);
  app.add_option("--step-mark", step_mark_, "Steps begin at NVTX ranges or marks of this text")
      ->type_name("TEXT");
  app.add_option("--step-comm", step_comm_, "Steps end at collectives of this communicator")
      ->type_name("NUMBER");
  app.add_option("--step-every", step_every_, "with --step-comm: at every N-th one")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--seed", seed_, "Seed of the draws")->type_name("N")->capture_default_str();
  app.add_option("--jitter", jitter_, "Spread of every duration: sigma of a log-normal factor")
      ->type_name("SIGMA");
  app.add_option(
         "--draws", draws_,
         "Evaluations with drawn durations, for percentiles and an interval: with --jitter of that "
         "spread, else of what was measured in the job's other steps (100 with --jitter)")
      ->type_name("N");
  app.add_option("--threads", threads_,
                 "That evaluate at the same time (by default as many as the machine runs); results "
                 "do not depend on it")
      ->type_name("N");
  app.add_option("--timeline-ranks", timeline_ranks_, "Ranks in the timeline, evenly chosen")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--allow-incomplete", allow_incomplete_,
               "Go on with missing ranks and incomplete traces");
  app.add_option("--program", launch_,
                 "Which of several programs that the command ran, from 1; the last by default")
      ->type_name("N");
}

absl::StatusOr<report::ReportOptions> ReportFlags::Options() const {
  const auto bad = [](const char* flag, auto value, const char* hint) {
    return WithHint(absl::InvalidArgumentError(fmt::format("{} {} is out of range", flag, value)),
                    hint);
  };
  if (step_every_ < 1) return bad("--step-every", step_every_, "--step-every 1");
  if (draws_ != -1 && (draws_ < 1 || draws_ > 100'000))
    return bad("--draws", draws_, "--draws 100");
  if (!(jitter_ >= 0 && jitter_ <= 1))
    return bad("--jitter", jitter_, "--jitter 0.02 is two percent");
  if (threads_ < 0 || threads_ > 4096) return bad("--threads", threads_, "--threads 4");
  if (timeline_ranks_ < 1 || timeline_ranks_ > 100'000) {
    return bad("--timeline-ranks", timeline_ranks_, "--timeline-ranks 16");
  }
  if (launch_ < 0 || launch_ > UINT32_MAX) return bad("--program", launch_, "--program 1");
  report::ReportOptions o;
  o.launch = static_cast<uint32_t>(launch_);
  o.target = target_;
  PRISM_ASSIGN_OR_RETURN(o.network, LoadNetwork(network_));
  o.step.mark = step_mark_;
  if (step_comm_ >= 0) o.step.comm = static_cast<uint32_t>(step_comm_);
  o.step.every = static_cast<uint32_t>(step_every_);
  o.seed = seed_;
  o.jitter = jitter_;
  o.draws = draws_ != -1 ? static_cast<uint32_t>(draws_) : jitter_ > 0 ? 100 : 0;
  o.threads = static_cast<uint32_t>(threads_);
  o.timeline_ranks = static_cast<uint32_t>(timeline_ranks_);
  o.allow_incomplete = allow_incomplete_;
  return o;
}

}  // namespace prism::cli
