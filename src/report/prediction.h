// Prediction: what the engine says about a job's steps on a target, with where every figure comes
// from.
//
// Stateless; thread-safe, but Predict adds slots to the graph's programs.
//
//   PredictOptions options{.target = *engine::ParseTarget("h200x8:2")};
//   absl::StatusOr<Prediction> p = Predict(&graph, options);
#ifndef PRISM_REPORT_PREDICTION_H_
#define PRISM_REPORT_PREDICTION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/engine/engine.h"
#include "src/engine/network_table.h"
#include "src/engine/target.h"
#include "src/engine/what_if.h"
#include "src/graph/graph.h"
#include "src/graph/measured.h"
#include "src/graph/step.h"
#include "src/report/path_rows.h"

namespace prism::report {

/// A what-if: host time that a rank spends besides, at the beginning of every training step.
struct StepDelay {
  uint32_t rank;  // world rank
  int64_t ns;
};

/// Ranks that are timed by what others took.
struct Retimed {
  std::vector<uint32_t> ranks;  // world ranks
  /// Of ranks that were timed so and ran as well: time of their spans over what it is, less 1.
  std::vector<double> differences;
};

struct PredictOptions {
  engine::Target target = {};
  std::shared_ptr<const engine::NetworkTable> network = nullptr;  // null: formulas alone
  graph::StepOptions step = {};
  uint64_t seed = 0;
  /// Evaluations with drawn durations, for percentiles: of a log-normal factor whose sigma is
  /// `jitter`, or where that is 0 of what was measured in other steps.
  uint32_t draws = 0;
  double jitter = 0;
  /// That evaluate at the same time; each takes memory for the state of all ranks. 0: as many as
  /// the machine runs. Results do not depend on it.
  uint32_t threads = 0;
  /// Ranks whose timelines are kept, evenly chosen; the others are summed up only.
  uint32_t timeline_ranks = 32;
  bool tolerate_missing = false;
  Retimed retimed = {};
  /// Whose measurements stand for a step's (graph/measured.h).
  graph::Samples samples = graph::Samples::kOwn;
  std::vector<StepDelay> delays = {};
  std::vector<engine::WhatIf> what_if = {};
};

/// How far a mean step may be off for one reason: ends of a 90 % interval, as parts of it.
struct WidthSource {
  std::string name;
  double low = 0, high = 0;  // both >= 0
  /// Whether it is another mean that the model may as well have, about which there is all the
  /// chance that there is about this one.
  bool other_mean = false;
};

/// 90 % interval of the mean over as many steps as are counted.
struct MeanInterval {
  int64_t low_ns = 0, mean_ns = 0, high_ns = 0;  // the mean is that of the draws
  /// What makes it wide, each on its own. The ends are by the root of their squares' sum, of other
  /// means and of the rest each: from the farthest mean by the rest.
  std::vector<WidthSource> sources;
};

struct StepTime {
  uint32_t step_class;  // index in class_names; 0: training
  int64_t begin_ns;     // when the last rank began it
  int64_t ns;
};

/// One rank in the step that is reported.
struct RankTime {
  uint32_t rank;
  int64_t step_ns;
  int64_t compute_ns;  // some span runs
  int64_t exposed_ns;  // a communication is in progress (or waited for) and no span runs
  int64_t idle_ns;     // neither
  double flops;        // of products, convolutions and attention
};

/// Communications of one kind in one kind of group, a step and rank.
struct CommunicationRow {
  std::string group;  // "8 ranks, stride 1"
  std::string operation;
  uint32_t communicators;  // of this kind in the job
  double calls;
  double bytes;        // that a rank contributes (receives: gets)
  double transfer_ns;  // after all have come
  double wait_ns;      // for the others
};

/// What a measured network profile gave to a prediction. Counts are of distinct calls of the ranks.
struct NetworkUse {
  std::string gpu;
  bool isolated = false;  // of isolated calls, as far as measured
  uint64_t measured = 0, interpolated = 0, modelled = 0;
  std::vector<std::string> modelled_operations;  // of which the profile has nothing that fits
};

struct Prediction {
  std::string target;
  std::string gpu;
  uint64_t seed = 0;
  /// Empty: no steps were found, and the figures are of the whole run; says why.
  std::string whole_run_because;
  std::string step_hint;
  std::string method;
  std::vector<std::string> notes;
  std::vector<std::string> class_names;
  std::vector<StepTime> steps;
  size_t reported_step = 0;

  int64_t step_ns = 0;  // the median training step, or the whole run
  /// The same step without the what-ifs, if there are some.
  std::optional<int64_t> without_what_if_ns;
  int64_t low_ns = 0, high_ns = 0;  // every duration at the end of its source's stated range
  /// Over the draws: 10th, 50th and 90th percentile of a training step (the run, if there are no
  /// steps) after the first two.
  std::optional<std::array<int64_t, 3>> percentiles;
  std::optional<MeanInterval> mean_interval;
  /// Parts of the step that disappear with a source's or kind's durations (on the critical path);
  /// the rest is latency and gaps.
  double by_source[4] = {};
  double compute_share = 0, communication_share = 0, host_share = 0;
  double peak_utilization = 0;  // flops of the products over the GPU's bf16 peak
  std::optional<NetworkUse> network;

  std::vector<RankTime> ranks;  // those with timelines
  std::vector<CommunicationRow> communications;
  /// Ranks that others wait for, if any rank waits clearly less than the rest.
  std::vector<std::pair<uint32_t, double>>
      stragglers;  // world rank, ns a step that the others wait more than it
  /// What the reported step (or the run) is made of; empty for a job that is too large.
  std::vector<PathRow> critical_path;
  uint64_t operations = 0;

  nlohmann::ordered_json Json() const;
};

/// What a prediction was made of, for the timeline file.
struct Evaluated {
  engine::Outcome outcome;         // with timelines
  graph::Steps steps;              // without ends if none were found
  std::vector<uint32_t> timeline;  // indices of ranks with timelines
  std::vector<engine::Delay> delays;
};

/// FailedPrecondition: the job cannot run to its end (the message says what waits). A job without
/// steps is predicted as a whole, unless the options need steps. Samples change the graph's
/// durations.
absl::StatusOr<Prediction> Predict(graph::Graph* graph, const PredictOptions& options,
                                   Evaluated* evaluated = nullptr);

/// How a group of ranks lies in the world: "world of 16", "8 ranks, stride 2".
std::string GroupName(const std::vector<uint32_t>& world_ranks, uint32_t world);

/// What a Student-distributed value of so many degrees of freedom (1 or more) is below in 95 %.
double StudentQuantile95(double freedom);

/// Total length of the union of half-open intervals. Sorts its argument.
int64_t UnionNs(std::vector<std::pair<int64_t, int64_t>>* intervals);

}  // namespace prism::report

#endif  // PRISM_REPORT_PREDICTION_H_
