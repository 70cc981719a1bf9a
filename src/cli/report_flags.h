// Flags that `simulate` and `report` share. Single-threaded.
//
//   ReportFlags flags; flags.AddTo(app); ... PRISM_ASSIGN_OR_RETURN(report::ReportOptions o,
//   flags.Options());
#ifndef PRISM_CLI_REPORT_FLAGS_H_
#define PRISM_CLI_REPORT_FLAGS_H_

#include <memory>
#include <string>

#include "CLI/App.hpp"
#include "src/report/report.h"

namespace prism::cli {

/// Adds --network to a verb that predicts.
void AddNetworkFlag(CLI::App& app, std::string* path);
/// Reads the profile; null for "".
absl::StatusOr<std::shared_ptr<const engine::NetworkTable>> LoadNetwork(const std::string& path);

class ReportFlags {
 public:
  void AddTo(CLI::App& app);
  absl::StatusOr<report::ReportOptions> Options() const;
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::string target_;
  std::string network_;
  std::string step_mark_;
  int64_t step_comm_ = -1;
  int64_t step_every_ = 1;
  uint64_t seed_ = 0;
  double jitter_ = 0;
  int64_t draws_ = -1;  // not given
  int64_t threads_ = 0;
  int64_t timeline_ranks_ = 32;
  bool allow_incomplete_ = false;
  int64_t launch_ = 0;
};

}  // namespace prism::cli

#endif  // PRISM_CLI_REPORT_FLAGS_H_
