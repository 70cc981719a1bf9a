// Report: one model of what is known about a job, shown as text, JSON and a timeline.
//
// A job directory in any state gives a report: what cannot be known is left out and said.
// Stateless; thread-safe.
//
//   absl::StatusOr<Report> report = BuildReport("job", options);
//   std::cout << report->Text();
#ifndef PRISM_REPORT_REPORT_H_
#define PRISM_REPORT_REPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/report/memory.h"
#include "src/report/prediction.h"

namespace prism::report {

/// Where a job's timeline is written unless the user says otherwise, in its directory.
inline constexpr std::string_view kTimelineName = "timeline.pftrace.gz";

struct ReportOptions {
  std::string target = {};  // "": the job's own
  /// Measured durations of communications (engine/network_table.h); null: formulas alone.
  std::shared_ptr<const engine::NetworkTable> network = nullptr;
  graph::StepOptions step = {};
  uint64_t seed = 0;
  double jitter = 0;
  uint32_t draws = 0;
  uint32_t threads = 0;  // 0: as many as the machine runs
  uint32_t timeline_ranks = 32;
  bool allow_incomplete = false;
  uint32_t launch = 0;  // which of the programs that the command ran, from 1; 0: the last
  std::string timeline_path = {};  // "": none is written
  graph::Samples samples = graph::Samples::kOwn;
  bool align_communications = true;
  std::vector<StepDelay> delays = {};
  std::vector<engine::WhatIf> what_if = {};
};

struct Report {
  static constexpr int kSchemaVersion = 1;

  std::string directory;
  std::string command;
  std::string state;  // of job.json; "" without one
  std::string reason;
  std::string values;  // of job.json: what was computed on the host; "" for kernels on a GPU
  uint32_t world = 0;
  size_t roles = 0;  // distinct programs
  uint64_t nodes = 0;
  uint64_t trace_bytes = 0;
  std::vector<std::string> warnings;
  std::vector<std::string> findings;              // of the structure, and what does not fit
  std::map<std::string, uint32_t> fidelity_gaps;  // name -> ranks
  std::optional<Prediction> prediction;
  std::string no_prediction_because;
  bool nothing_to_predict = false;  // that is no failure: the job neither computed nor communicated
  std::string hint;                 // remedy for that
  std::vector<RankMemory> memory;
  uint64_t gpu_memory_bytes = 0;       // of the target
  std::vector<uint32_t> does_not_fit;  // ranks that need more than that
  std::string timeline_path;  // written now, or by an earlier simulation of the same result

  std::string Text() const;
  nlohmann::ordered_json Json() const;
};

/// The target that is wanted; "": the one that `job` (its job.json) names, else one that holds
/// `world` ranks, with a warning.
absl::StatusOr<engine::Target> TargetOf(const nlohmann::ordered_json& job, uint32_t world,
                                        std::string wanted, std::vector<std::string>* warnings);

/// Reads the job, predicts it on the target and writes the timeline. An error: there is no such
/// job, nothing in it is readable, or an option is wrong. A job that cannot be predicted still
/// gives a report.
absl::StatusOr<Report> BuildReport(const std::string& directory, const ReportOptions& options);

/// As BuildReport, but a job that cannot be predicted is an error; also writes DIR/simulate.json.
absl::StatusOr<Report> Simulate(const std::string& directory, const ReportOptions& options);

}  // namespace prism::report

#endif  // PRISM_REPORT_REPORT_H_
