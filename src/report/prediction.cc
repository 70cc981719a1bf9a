#include "src/report/prediction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "src/base/parallel.h"
#include "src/base/status.h"
#include "src/engine/communication_cost.h"
#include "src/engine/cost_model.h"
#include "src/engine/engine.h"
#include "src/graph/measured.h"
#include "src/graph/micro_batches.h"

namespace prism::report {
namespace {

using engine::CostModel;
using engine::Factors;
using engine::Outcome;
using graph::Graph;
using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::Steps;

constexpr const char* kSourceNames[] = {"assumed", "modelled", "interpolated", "measured"};
// Shares come from evaluating with one part of the durations this much longer.
constexpr double kNudge = 0.01;
// Beyond this many operations each further evaluation takes seconds; the shares are left out.
constexpr uint64_t kMaxOpsForShares = 100'000'000;
// What everything waited for takes 60 bytes an operation.
constexpr uint64_t kMaxOpsForPath = 20'000'000;
// A rank is waited for if the others wait this share of the step more than it does.
constexpr double kStragglerShare = 0.02;

// When step k ends (k = 0: begins): when the last rank gets there.
std::vector<int64_t> StepEnds(const Outcome& outcome, size_t count) {
  std::vector<int64_t> ends(count + 1, 0);
  for (const engine::RankOutcome& rank : outcome.ranks) {
    for (size_t k = 0; k < std::min(rank.probes.size(), count + 1); ++k)
      ends[k] = std::max(ends[k], rank.probes[k]);
  }
  return ends;
}

// Training steps after the first two, or all where there are no more; without steps the whole run.
std::vector<int64_t> CountedSteps(const Outcome& outcome, const Steps& steps) {
  if (steps.ends.empty()) return {outcome.finish_ns};
  constexpr size_t kWarmUp = 2;
  const std::vector<int64_t> ends = StepEnds(outcome, steps.count());
  std::vector<int64_t> training;
  for (size_t k = 0; k < steps.count(); ++k) {
    if (steps.classes[k] == Steps::kTraining) training.push_back(ends[k + 1] - ends[k]);
  }
  if (training.size() > kWarmUp) training.erase(training.begin(), training.begin() + kWarmUp);
  return training;
}

int64_t Mean(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0}) /
         static_cast<int64_t>(std::max<size_t>(values.size(), 1));
}

int64_t Quantile(std::vector<int64_t>* values, double q) {
  const auto at = values->begin() +
                  std::lround(q * static_cast<double>(std::max<size_t>(values->size(), 1) - 1));
  std::nth_element(values->begin(), at, values->end());
  return *at;
}

// The reported step: the one of median duration among the training steps, without the first where
// there are others.
size_t MedianStep(const std::vector<StepTime>& steps) {
  std::vector<size_t> candidates;
  for (size_t k = 0; k < steps.size(); ++k) {
    if (steps[k].step_class == Steps::kTraining) candidates.push_back(k);
  }
  if (candidates.size() > 1) candidates.erase(candidates.begin());
  const auto middle = candidates.begin() + static_cast<std::ptrdiff_t>(candidates.size() / 2);
  std::nth_element(candidates.begin(), middle, candidates.end(), [&](size_t x, size_t y) {
    return std::pair(steps[x].ns, x) < std::pair(steps[y].ns, y);
  });
  return *middle;
}

std::vector<uint32_t> ChooseRanks(size_t ranks, uint32_t wanted) {
  std::vector<uint32_t> chosen;
  const size_t count = std::min<size_t>(ranks, wanted);
  for (size_t i = 0; i < count; ++i) chosen.push_back(static_cast<uint32_t>(i * ranks / count));
  return chosen;
}

int64_t Sub(int64_t x, int64_t y) { return std::max<int64_t>(0, x - y); }

// Rows of the ranks with timelines, and the communications of their reported step.
void Summarize(const Graph& graph, const CostModel& model, const Evaluated& evaluated,
               bool has_steps, Prediction* p) {
  struct Key {
    std::string group;
    std::string operation;
    auto operator<=>(const Key&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  std::map<Key, CommunicationRow> rows;
  std::vector<std::string> group_names;
  std::map<std::string, uint32_t> group_counts;
  for (const graph::Communicator& c : graph.communicators) {
    group_names.push_back(GroupName(c.world_ranks, graph.world));
    ++group_counts[group_names.back()];
  }
  std::vector<std::vector<const engine::Interval*>> by_rank(graph.ranks.size());
  for (const engine::Interval& i : evaluated.outcome.timeline) by_rank[i.rank].push_back(&i);

  for (uint32_t r : evaluated.timeline) {
    const graph::Rank& rank = graph.ranks[r];
    const graph::Program& program = graph.program_of(rank);
    const engine::RankOutcome& outcome = evaluated.outcome.ranks[r];
    int64_t begin = 0, end = outcome.finish_ns;
    if (has_steps) {
      if (outcome.probes.size() < p->reported_step + 2) continue;  // a rank without steps
      begin = std::max<int64_t>(0, outcome.probes[p->reported_step]);
      end = outcome.probes[p->reported_step + 1];
    }
    std::vector<double> flops_of_kernel;
    for (const graph::Kernel& k : program.kernels) {
      const auto work = engine::ParseKernelWork(k);
      flops_of_kernel.push_back(work.has_value() ? work->flops : 0);
    }
    RankTime row{rank.rank, end - begin, 0, 0, 0, 0};
    std::vector<std::pair<int64_t, int64_t>> spans, both;
    for (const engine::Interval* i : by_rank[r]) {
      const graph::Sequence& sequence = program.sequences[i->sequence];
      if (sequence.kind != trace::SequenceKind::kStream) continue;
      const int64_t from = std::max(i->start_ns, begin), to = std::min(i->end_ns, end);
      const Op& op = sequence.ops[i->op];
      if (from < to) {
        both.emplace_back(from, to);
        if (op.kind == OpKind::kSpan) spans.emplace_back(from, to);
      }
      if (i->end_ns <= begin || i->end_ns > end) continue;
      if (op.kind == OpKind::kSpan) {
        for (uint32_t k : program.spans[op.a].kernels) row.flops += flops_of_kernel[k];
      } else if (op.kind == OpKind::kComm) {
        const graph::Call& call = program.calls[op.a];
        const uint32_t comm = rank.comm[call.participant];
        CommunicationRow& c = rows[{group_names[comm], std::string(graph::CommOpName(call.op))}];
        c.calls += 1;
        c.bytes += static_cast<double>(call.count * engine::ElementBytes(call.dtype));
        // Calls of a group run side by side: each stands for its part of the group's time.
        uint32_t first = i->op;
        while (sequence.ops[first].detail == 0) --first;
        const double side_by_side = sequence.ops[first].detail;
        c.transfer_ns += static_cast<double>(i->end_ns - i->met_ns) / side_by_side;
        c.wait_ns += static_cast<double>(i->met_ns - i->start_ns) / side_by_side;
      }
    }
    row.compute_ns = UnionNs(&spans);
    const int64_t busy = UnionNs(&both);
    row.exposed_ns = busy - row.compute_ns;
    row.idle_ns = Sub(row.step_ns, busy);
    p->ranks.push_back(row);
  }
  const auto ranks = static_cast<double>(std::max<size_t>(p->ranks.size(), 1));
  for (auto& [key, row] : rows) {
    row.group = key.group;
    row.operation = key.operation;
    row.communicators = group_counts[key.group];
    for (double* value : {&row.calls, &row.bytes, &row.transfer_ns, &row.wait_ns}) *value /= ranks;
    p->communications.push_back(row);
  }
  std::sort(p->communications.begin(), p->communications.end(),
            [](const CommunicationRow& x, const CommunicationRow& y) {
              return x.transfer_ns > y.transfer_ns;
            });
  double flops = 0;
  for (const RankTime& r : p->ranks) flops += r.flops / ranks;
  const auto peak = model.target().gpu.flops.find("bf16");
  if (peak != model.target().gpu.flops.end() && p->step_ns > 0) {
    p->peak_utilization = flops / (peak->second * static_cast<double>(p->step_ns) / 1e9);
  }
}

// What the step's end waited for, since its beginning; without steps the run's.
std::vector<engine::PathStep> StepPath(const Graph& graph, const Evaluated& evaluated,
                                       bool has_steps, size_t step) {
  const engine::History& history = evaluated.outcome.history;
  uint32_t last = 0;
  graph::Place place;
  int64_t end_ns = -1, since_ns = 0;
  for (uint32_t r = 0; r < graph.ranks.size(); ++r) {
    if (has_steps) {
      const std::vector<int64_t>& probes = evaluated.outcome.ranks[r].probes;
      if (step + 1 >= probes.size()) continue;
      since_ns = std::max(since_ns, probes[step]);
      if (probes[step + 1] <= end_ns) continue;
      end_ns = probes[step + 1];
      last = r;
      place = evaluated.steps.ends[graph.ranks[r].program][step + 1];
      continue;
    }
    for (uint32_t s = 0; s < history[r].size(); ++s) {
      if (history[r][s].empty() || history[r][s].back().end_ns <= end_ns) continue;
      end_ns = history[r][s].back().end_ns;
      last = r;
      place = {s, static_cast<uint32_t>(history[r][s].size() - 1)};
    }
  }
  if (place.sequence == kNone) return {};
  return engine::CriticalPath(history, last, place, since_ns);
}

NetworkUse UseOf(const engine::NetworkTable& table, const Graph& graph,
                 const engine::Durations& durations) {
  NetworkUse use{table.profile().gpu(), table.isolated(), 0, 0, 0, {}};
  std::set<std::string> missing;
  for (size_t r = 0; r < graph.ranks.size(); ++r) {
    const graph::Program& program = graph.program_of(graph.ranks[r]);
    for (size_t call = 0; call < program.calls.size(); ++call) {
      const engine::TimeSource source = durations.calls[r][call].source;
      use.measured += source == engine::TimeSource::kMeasured;
      use.interpolated += source == engine::TimeSource::kInterpolated;
      if (source != engine::TimeSource::kModelled) continue;
      ++use.modelled;
      missing.emplace(graph::CommOpName(program.calls[call].op));
    }
  }
  use.modelled_operations.assign(missing.begin(), missing.end());
  return use;
}

bool ChangesJob(const PredictOptions& options) {
  return std::any_of(options.what_if.begin(), options.what_if.end(),
                     [](const engine::WhatIf& what_if) { return what_if.changes_job(); });
}

// The reported step of the job as it is.
absl::StatusOr<int64_t> StepWithoutWhatIfs(Graph graph, const PredictOptions& options) {
  PredictOptions plain = options;
  plain.what_if.clear();
  plain.delays.clear();
  plain.draws = 0;
  PRISM_ASSIGN_OR_RETURN(const Prediction p, Predict(&graph, plain, nullptr));
  return p.step_ns;
}

// Delays at the beginnings of the training steps, with a note for each.
absl::StatusOr<std::vector<engine::Delay>> PlaceDelays(const Graph& graph, const Steps& steps,
                                                       const std::vector<StepDelay>& wanted,
                                                       std::vector<std::string>* notes) {
  std::vector<engine::Delay> delays;
  for (const StepDelay& delay : wanted) {
    PRISM_ASSIGN_OR_RETURN(const uint32_t index, graph::RankIndex(graph, delay.rank, " to delay"));
    const graph::Rank& rank = graph.ranks[index];
    const std::vector<graph::Place> begins =
        graph::StepBeginnings(graph.program_of(rank), steps.ends[rank.program]);
    size_t delayed = 0;
    for (size_t k = 0; k < begins.size(); ++k) {
      if (steps.classes[k] != Steps::kTraining || begins[k].sequence == kNone) continue;
      delays.push_back({index, begins[k], delay.ns});
      ++delayed;
    }
    if (delayed == 0) {
      return WithHint(absl::FailedPreconditionError(absl::StrCat(
                          "rank ", delay.rank, " has no training steps that could be delayed")),
                      "say what a step is: --step-mark TEXT (an NVTX range)");
    }
    notes->push_back(absl::StrCat("what if rank ", delay.rank, " had ",
                                  static_cast<double>(delay.ns) / 1e6,
                                  " ms more host time at the beginning of every training step"));
  }
  return delays;
}

// By index in Graph::ranks; empty: none.
std::vector<uint8_t> RetimedOf(const Graph& graph, const Retimed& retimed) {
  if (retimed.ranks.empty()) return {};
  std::vector<uint8_t> flags;
  for (const graph::Rank& rank : graph.ranks) {
    flags.push_back(std::find(retimed.ranks.begin(), retimed.ranks.end(), rank.rank) !=
                    retimed.ranks.end());
  }
  return flags;
}

// The mean step of these durations.
using MeanOf = std::function<absl::StatusOr<int64_t>(const engine::Durations&)>;

// Of a normal distribution: nine of ten lie between so many standard deviations on either side.
constexpr double kNormal90 = 1.645;

// Interval of the mean step: `steps` as predicted, `together` as they are where copies of one
// measurement are slow in the same steps, `means` of the draws.
absl::StatusOr<MeanInterval> IntervalOf(
    const std::vector<int64_t>& steps, const std::vector<int64_t>& together,
    std::vector<int64_t>* means, const Retimed& retimed,
    const std::function<engine::Durations(const Factors&)>& durations, const MeanOf& mean_of,
    const engine::Target& target) {
  MeanInterval interval;
  const auto mean = static_cast<double>(std::max<int64_t>(Mean(steps), 1));
  interval.mean_ns = Mean(*means);
  const auto drawn = static_cast<double>(interval.mean_ns);
  const auto add = [&](const char* name, double low, double high, bool other_mean = false) {
    if (low > 0 || high > 0)
      interval.sources.push_back({name, std::max(0.0, low), std::max(0.0, high), other_mean});
  };
  // By what the mean changes, either way.
  const auto add_ends = [&](const char* name,
                            const std::array<engine::Durations, 2>& ends) -> absl::Status {
    double low = 0, high = 0;
    for (const engine::Durations& end : ends) {
      PRISM_ASSIGN_OR_RETURN(const int64_t ns, mean_of(end));
      const double off = static_cast<double>(ns) / mean - 1;
      low = std::max(low, -off);
      high = std::max(high, off);
    }
    add(name, low, high);
    return absl::OkStatus();
  };
  add("chance of steps, and figures of the profile",
      (drawn - static_cast<double>(Quantile(means, 0.05))) / drawn,
      (static_cast<double>(Quantile(means, 0.95)) - drawn) / drawn);
  // Draws combine the ranks' steps anew. Which of them happened together may matter (routing) or
  // not (the chance of a kernel), and the mean is told both ways.
  add("which steps of the ranks come together", 1 - drawn / mean, drawn / mean - 1, true);
  // The steps that are predicted are a few themselves. What copies of one measurement are off they
  // are off alike, however they come together.
  if (const auto n = static_cast<double>(together.size()); n > 1) {
    const auto of_steps = static_cast<double>(std::max<int64_t>(Mean(together), 1));
    double squares = 0;
    for (const int64_t ns : together)
      squares += std::pow(static_cast<double>(ns) / of_steps - 1, 2);
    const double error = StudentQuantile95(n - 1) * std::sqrt(squares / (n - 1) / n);
    add("few measured steps", error, error);
  }
  if (!retimed.ranks.empty() && !retimed.differences.empty()) {
    double squares = 0;
    for (const double difference : retimed.differences) squares += difference * difference;
    const auto n = static_cast<double>(retimed.differences.size());
    const double off = StudentQuantile95(n) * std::sqrt(squares / n);
    std::array<engine::Durations, 2> ends = {durations({}), durations({})};
    ends[0].retimed_span_scale *= std::exp(-off);
    ends[1].retimed_span_scale *= std::exp(off);
    PRISM_RETURN_IF_ERROR(add_ends("ranks timed by others", ends));
  }
  // All calls that have a doubt of one kind are off alike.
  const auto add_doubt = [&](const char* name, double engine::CallTime::*doubt,
                             const auto& change) -> absl::Status {
    std::array<engine::Durations, 2> ends = {durations({}), durations({})};
    bool any = false;
    for (size_t side : {0, 1}) {
      for (std::vector<engine::CallTime>& calls : ends[side].calls) {
        for (engine::CallTime& call : calls) {
          if (call.*doubt <= 0) continue;
          any = true;
          change((side == 0 ? -kNormal90 : kNormal90) * call.*doubt, &ends[side], &call);
        }
      }
    }
    return any ? add_ends(name, ends) : absl::OkStatus();
  };
  const auto change_ns = [](double off, engine::Durations*, engine::CallTime* call) {
    call->ns = std::llround(static_cast<double>(call->ns) * std::exp(off));
  };
  PRISM_RETURN_IF_ERROR(
      add_doubt("sizes that were not measured", &engine::CallTime::size_doubt, change_ns));
  PRISM_RETURN_IF_ERROR(
      add_doubt("groups that were not measured", &engine::CallTime::group_doubt, change_ns));
  // A link that bytes cross has a share, however small (docs/design/0014-contention.md).
  const auto change_shares = [](double off, engine::Durations* d, engine::CallTime* call) {
    for (uint32_t i = 0; i < call->shares; ++i) {
      uint32_t& share = d->shares[call->first_share + i].share;
      share = static_cast<uint32_t>(
          std::clamp(share * (1 + off), 1.0, static_cast<double>(engine::kWholeLink)));
    }
  };
  PRISM_RETURN_IF_ERROR(
      add_doubt("shares of links", &engine::CallTime::share_doubt, change_shares));
  // What is neither measured nor told from what was may be off in one direction everywhere.
  Factors ranges[2];
  for (size_t s = 0; s <= static_cast<size_t>(engine::TimeSource::kModelled); ++s) {
    for (size_t side : {0, 1}) ranges[side].by_source[s] = target.gpu.range[s][side];
  }
  PRISM_RETURN_IF_ERROR(
      add_ends("ranges of what is not measured", {durations(ranges[0]), durations(ranges[1])}));
  double low[2] = {}, high[2] = {};  // of the rest, of other means
  for (const WidthSource& source : interval.sources) {
    low[source.other_mean] = std::hypot(low[source.other_mean], source.low);
    high[source.other_mean] = std::hypot(high[source.other_mean], source.high);
  }
  interval.low_ns = std::llround(mean * (1 - std::min(low[0] + low[1], 1.0)));
  interval.high_ns = std::llround(mean * (1 + high[0] + high[1]));
  return interval;
}

}  // namespace

double StudentQuantile95(double freedom) {
  if (freedom < 1.5) return std::tan(0.45 * std::numbers::pi);
  if (freedom < 2.5) return 0.9 * std::sqrt(2 / (4 * 0.95 * 0.05));
  // Cornish and Fisher's expansion.
  constexpr double kZ = 1.6448536;
  const double z2 = kZ * kZ;
  return kZ *
         (1 + (z2 + 1) / (4 * freedom) + (5 * z2 * z2 + 16 * z2 + 3) / (96 * freedom * freedom) +
          (3 * z2 * z2 * z2 + 19 * z2 * z2 + 17 * z2 - 15) / (384 * std::pow(freedom, 3)));
}

std::string GroupName(const std::vector<uint32_t>& world_ranks, uint32_t world) {
  const size_t n = world_ranks.size();
  if (n == world) return absl::StrCat("world of ", n);
  if (n < 2) return absl::StrCat(n, " rank");
  if (std::find(world_ranks.begin(), world_ranks.end(), kNone) != world_ranks.end())
    return absl::StrCat(n, " ranks, not all known");
  if (std::set<uint32_t>(world_ranks.begin(), world_ranks.end()).size() == 1)
    return absl::StrCat(n, " devices of a rank");
  const uint32_t stride = world_ranks[1] - world_ranks[0];
  bool even = true;
  for (size_t i = 1; i < n; ++i) even = even && world_ranks[i] - world_ranks[i - 1] == stride;
  return even ? absl::StrCat(n, " ranks, stride ", static_cast<int32_t>(stride))
              : absl::StrCat(n, " ranks, irregular");
}

int64_t UnionNs(std::vector<std::pair<int64_t, int64_t>>* intervals) {
  std::sort(intervals->begin(), intervals->end());
  int64_t total = 0, end = INT64_MIN;
  for (const auto& [from, to] : *intervals) {
    if (to <= end) continue;
    total += to - std::max(from, end);
    end = to;
  }
  return total;
}

absl::StatusOr<Prediction> Predict(Graph* graph, const PredictOptions& options,
                                   Evaluated* evaluated) {
  Prediction p;
  engine::Target target = options.target;
  p.gpu = target.gpu.name;
  p.seed = options.seed;
  if (target.gpus() < graph->world) {
    return WithHint(
        absl::InvalidArgumentError(absl::StrCat("the job has ", graph->world, " ranks, target ",
                                                target.text, " has ", target.gpus(), " GPUs")),
        absl::StrCat("--target with at least ",
                     (graph->world + target.gpus_per_node - 1) / target.gpus_per_node, " nodes of ",
                     target.gpus_per_node));
  }
  if (ChangesJob(options)) {
    PRISM_ASSIGN_OR_RETURN(p.without_what_if_ns, StepWithoutWhatIfs(*graph, options));
    for (const engine::WhatIf& what_if : options.what_if)
      PRISM_RETURN_IF_ERROR(engine::ChangeReplicas(what_if, graph, &target));
  }
  p.target = target.text;

  Evaluated own;
  Evaluated& result = evaluated != nullptr ? *evaluated : own;
  absl::StatusOr<Steps> steps = graph::DetectSteps(graph, options.step);
  const bool has_steps = steps.ok();
  if (has_steps) {
    result.steps = *std::move(steps);
    switch (result.steps.method) {
      case Steps::Method::kPeriod:
        p.method = "period";
        break;
      case Steps::Method::kNames:
        p.method = "period of names";
        break;
      case Steps::Method::kOptimizer:
        p.method = "optimizer";
        break;
      case Steps::Method::kMark:
        p.method = "marks";
        break;
      case Steps::Method::kCalls:
        p.method = "calls";
        break;
    }
    p.notes = result.steps.notes;
    p.class_names = result.steps.class_names;
  } else {
    // An override that names nothing is the user's mistake; nothing found by ourselves is a
    // property of the job.
    if (!options.step.mark.empty() || options.step.comm.has_value() ||
        options.samples != graph::Samples::kOwn || !options.delays.empty()) {
      return steps.status();
    }
    p.whole_run_because = std::string(steps.status().message());
    p.step_hint = HintOf(steps.status());
  }

  if (options.draws > 0 && options.jitter == 0 && options.samples != graph::Samples::kOwn) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        "--draws takes each step's own measurements, and "
                        "--samples ",
                        std::string(graph::SamplesName(options.samples)), " replaces them")),
                    "--samples own, or --jitter SIGMA");
  }
  if (options.samples != graph::Samples::kOwn) {
    PRISM_ASSIGN_OR_RETURN(const graph::Resampled resampled,
                           graph::Resample(graph, result.steps, options.samples));
    const bool whole = options.samples == graph::Samples::kOddSteps ||
                       options.samples == graph::Samples::kEvenSteps;
    p.notes.push_back(absl::StrCat(
        whole ? "steps are taken from " : "measured durations are medians over ", resampled.steps,
        " training steps (", std::string(graph::SamplesName(options.samples)), ")",
        resampled.kept == 0
            ? std::string()
            : absl::StrCat("; ", resampled.kept, " of ", resampled.kept + resampled.replaced,
                           " are in steps that differ and keep their own")));
  }
  for (const engine::WhatIf& what_if : options.what_if) {
    if (what_if.kind != engine::WhatIf::Kind::kMicroBatches) continue;
    if (!has_steps) return steps.status();
    PRISM_ASSIGN_OR_RETURN(
        const graph::RepeatedPeriods found,
        graph::RepeatMicroBatches(static_cast<uint32_t>(what_if.factor), graph, &result.steps));
    p.notes.push_back(
        absl::StrCat("a step was found to repeat its period ", found.fewest,
                     found.most == found.fewest ? std::string() : absl::StrCat(" to ", found.most),
                     " times a rank"));
  }
  PRISM_ASSIGN_OR_RETURN(result.delays,
                         PlaceDelays(*graph, result.steps, options.delays, &p.notes));

  const CostModel model(target, options.network);
  if (options.network != nullptr)
    p.network = UseOf(*options.network, *graph, model.DurationsOf(*graph));
  const std::vector<uint8_t> retimed = RetimedOf(*graph, options.retimed);
  const auto durations = [&](const Factors& factors) {
    auto d = engine::DurationsIf(options.what_if, *graph, model, factors);
    d->retimed = retimed;  // it is one: checked before
    return *std::move(d);
  };
  if (!options.what_if.empty()) {
    PRISM_RETURN_IF_ERROR(engine::DurationsIf(options.what_if, *graph, model).status());
    for (const engine::WhatIf& what_if : options.what_if)
      p.notes.push_back("what if " + what_if.Text());
  }
  const auto evaluate = [&](const engine::Durations& d, const engine::DurationDraw* draw,
                            bool timeline, uint32_t iteration) -> absl::StatusOr<Outcome> {
    engine::Options o;
    if (has_steps) o.probes = &result.steps.ends;
    o.draw = draw;
    o.iteration = iteration;
    o.seed = options.seed;
    o.doubts = draw != nullptr;
    o.tolerate_missing = options.tolerate_missing;
    o.delays = result.delays;
    if (timeline) {
      o.history = graph->ops <= kMaxOpsForPath;
      o.timeline.resize(graph->ranks.size(), 0);
      for (uint32_t r : result.timeline) o.timeline[r] = 1;
    }
    return engine::Evaluate(*graph, d, o);
  };
  const size_t count = has_steps ? result.steps.count() : 0;
  const auto step_of = [&](const Outcome& outcome) {
    if (!has_steps) return outcome.finish_ns;
    const std::vector<int64_t> ends = StepEnds(outcome, count);
    return ends[p.reported_step + 1] - ends[p.reported_step];
  };

  result.timeline = ChooseRanks(graph->ranks.size(), options.timeline_ranks);
  const engine::Durations plain = durations({});
  std::vector<int64_t> together;  // the steps, if copies of one measurement are slow together
  if (has_steps && options.samples == graph::Samples::kOwn) {
    if (options.draws > 0) {
      PRISM_ASSIGN_OR_RETURN(const Outcome outcome, evaluate(plain, nullptr, false, 0));
      together = CountedSteps(outcome, result.steps);
    }
    if (const size_t copies = graph::TakeTurns(graph, result.steps); copies > 0) {
      p.notes.push_back(absl::StrCat(copies, " of ", graph->ranks.size(),
                                     " ranks take turns in the measured steps of others"));
    }
  }
  PRISM_ASSIGN_OR_RETURN(result.outcome, evaluate(plain, nullptr, true, 0));
  p.operations = result.outcome.operations;
  if (has_steps && options.draws > 0 && together.empty())
    together = CountedSteps(result.outcome, result.steps);
  if (has_steps) {
    const std::vector<int64_t> ends = StepEnds(result.outcome, count);
    for (size_t k = 0; k < count; ++k) {
      p.steps.push_back({result.steps.classes[k], ends[k], ends[k + 1] - ends[k]});
    }
    p.reported_step = MedianStep(p.steps);
  }
  p.step_ns = step_of(result.outcome);
  if (!options.what_if.empty() && !p.without_what_if_ns.has_value()) {
    engine::Options o;
    if (has_steps) o.probes = &result.steps.ends;
    o.seed = options.seed;
    o.tolerate_missing = options.tolerate_missing;
    PRISM_ASSIGN_OR_RETURN(const Outcome without,
                           engine::Evaluate(*graph, model.DurationsOf(*graph), o));
    p.without_what_if_ns = step_of(without);
  }
  if (!result.outcome.history.empty()) {
    p.critical_path = PathRows(*graph, model, StepPath(*graph, result, has_steps, p.reported_step));
    result.outcome.history.clear();
  }

  if (graph->ops <= kMaxOpsForShares) {
    std::vector<Factors> changed(9);  // both ends of the range, each source, what takes time
    for (size_t s = 0; s < 4; ++s) {
      for (size_t side : {0, 1}) changed[side].by_source[s] = target.gpu.range[s][side];
      changed[2 + s].by_source[s] += kNudge;
    }
    changed[6].compute += kNudge;
    changed[7].communication += kNudge;
    changed[8].host += kNudge;
    std::vector<int64_t> step_ns(changed.size());
    PRISM_RETURN_IF_ERROR(
        InParallel(changed.size(), options.threads, [&](size_t i) -> absl::Status {
          PRISM_ASSIGN_OR_RETURN(const Outcome outcome,
                                 evaluate(durations(changed[i]), nullptr, false, 0));
          step_ns[i] = step_of(outcome);
          return absl::OkStatus();
        }));
    p.low_ns = step_ns[0];
    p.high_ns = step_ns[1];
    const auto share = [&](size_t i) {
      const double more = static_cast<double>(step_ns[i] - p.step_ns);
      return p.step_ns == 0
                 ? 0.0
                 : std::clamp(more / (kNudge * static_cast<double>(p.step_ns)), 0.0, 1.0);
    };
    for (size_t s = 0; s < 4; ++s) p.by_source[s] = share(2 + s);
    p.compute_share = share(6);
    p.communication_share = share(7);
    p.host_share = share(8);
  } else {
    p.notes.push_back("shares and range are left out for a job of this size");
  }
  if (options.draws > 0) {
    std::unique_ptr<const engine::DurationDraw> draw;
    if (options.jitter > 0) {
      draw = std::make_unique<engine::LogNormalDraw>(options.seed, options.jitter);
    } else if (!has_steps) {
      return WithHint(
          absl::FailedPreconditionError("steps are drawn from each other, and none were found: " +
                                        p.whole_run_because),
          p.step_hint);
    } else {
      PRISM_ASSIGN_OR_RETURN(graph::StepSamples samples,
                             graph::StepSamples::Of(*graph, result.steps));
      p.notes.push_back(absl::StrCat("draws are of ", samples.count(), " measured steps"));
      draw = std::make_unique<engine::SampleDraw>(*graph, std::move(samples), options.seed);
    }
    std::vector<std::vector<int64_t>> drawn(options.draws);
    PRISM_RETURN_IF_ERROR(InParallel(drawn.size(), options.threads, [&](size_t i) -> absl::Status {
      PRISM_ASSIGN_OR_RETURN(const Outcome outcome,
                             evaluate(plain, draw.get(), false, static_cast<uint32_t>(i)));
      drawn[i] = CountedSteps(outcome, result.steps);
      return absl::OkStatus();
    }));
    std::vector<int64_t> samples, means;
    for (const std::vector<int64_t>& steps_ns : drawn) {
      samples.insert(samples.end(), steps_ns.begin(), steps_ns.end());
      means.push_back(Mean(steps_ns));
    }
    p.percentiles = {Quantile(&samples, 0.1), Quantile(&samples, 0.5), Quantile(&samples, 0.9)};
    PRISM_ASSIGN_OR_RETURN(p.mean_interval,
                           IntervalOf(
                               CountedSteps(result.outcome, result.steps), together, &means,
                               options.retimed, durations,
                               [&](const engine::Durations& d) -> absl::StatusOr<int64_t> {
                                 PRISM_ASSIGN_OR_RETURN(const Outcome outcome,
                                                        evaluate(d, nullptr, false, 0));
                                 return Mean(CountedSteps(outcome, result.steps));
                               },
                               target));
  }

  Summarize(*graph, model, result, has_steps, &p);

  // Who waits least is waited for.
  std::vector<std::pair<double, uint32_t>> waits;
  const double steps_run = std::max<double>(static_cast<double>(count), 1);
  double mean = 0;
  for (size_t r = 0; r < graph->ranks.size(); ++r) {
    const double wait = static_cast<double>(result.outcome.ranks[r].wait_ns) / steps_run;
    waits.emplace_back(wait, graph->ranks[r].rank);
    mean += wait / static_cast<double>(graph->ranks.size());
  }
  std::sort(waits.begin(), waits.end());
  for (size_t i = 0; i < std::min<size_t>(waits.size(), 3) && graph->ranks.size() > 1; ++i) {
    if (mean - waits[i].first > kStragglerShare * static_cast<double>(p.step_ns)) {
      p.stragglers.emplace_back(waits[i].second, mean - waits[i].first);
    }
  }
  return p;
}

nlohmann::ordered_json Prediction::Json() const {
  nlohmann::ordered_json j;
  j["target"] = target;
  j["gpu"] = gpu;
  j["seed"] = seed;
  if (!whole_run_because.empty()) j["whole_run_because"] = whole_run_because;
  j["step_ns"] = step_ns;
  if (without_what_if_ns.has_value()) j["without_what_if_ns"] = *without_what_if_ns;
  j["range_ns"] = {low_ns, high_ns};
  if (percentiles.has_value()) {
    j["percentiles_ns"] = {
        {"p10", (*percentiles)[0]}, {"p50", (*percentiles)[1]}, {"p90", (*percentiles)[2]}};
  }
  if (mean_interval.has_value()) {
    nlohmann::ordered_json sources = nlohmann::ordered_json::array();
    for (const WidthSource& source : mean_interval->sources)
      sources.push_back({{"name", source.name},
                         {"low", source.low},
                         {"high", source.high},
                         {"other_mean", source.other_mean}});
    j["mean_interval_ns"] = {{"low", mean_interval->low_ns},
                             {"mean", mean_interval->mean_ns},
                             {"high", mean_interval->high_ns},
                             {"sources", sources}};
  }
  for (size_t s = 0; s < 4; ++s) j["share_by_source"][kSourceNames[s]] = by_source[s];
  j["share_by_kind"] = {
      {"compute", compute_share}, {"communication", communication_share}, {"host", host_share}};
  j["peak_utilization"] = peak_utilization;
  if (network.has_value()) {
    j["network"] = {{"gpu", network->gpu},
                    {"isolated", network->isolated},
                    {"calls",
                     {{"measured", network->measured},
                      {"interpolated", network->interpolated},
                      {"modelled", network->modelled}}},
                    {"modelled_operations", network->modelled_operations}};
  }
  j["steps"] = nlohmann::ordered_json::array();
  for (const StepTime& s : steps) {
    j["steps"].push_back(
        {{"class", class_names[s.step_class]}, {"begin_ns", s.begin_ns}, {"ns", s.ns}});
  }
  if (!steps.empty()) {
    j["reported_step"] = reported_step;
    j["method"] = method;
  }
  j["ranks"] = nlohmann::ordered_json::array();
  for (const RankTime& r : ranks) {
    j["ranks"].push_back({{"rank", r.rank},
                          {"step_ns", r.step_ns},
                          {"compute_ns", r.compute_ns},
                          {"exposed_communication_ns", r.exposed_ns},
                          {"idle_ns", r.idle_ns},
                          {"flops", r.flops}});
  }
  j["communications"] = nlohmann::ordered_json::array();
  for (const CommunicationRow& c : communications) {
    j["communications"].push_back({{"group", c.group},
                                   {"operation", c.operation},
                                   {"communicators", c.communicators},
                                   {"calls", c.calls},
                                   {"bytes", c.bytes},
                                   {"transfer_ns", c.transfer_ns},
                                   {"wait_ns", c.wait_ns}});
  }
  j["stragglers"] = nlohmann::ordered_json::array();
  for (const auto& [rank, ns] : stragglers)
    j["stragglers"].push_back({{"rank", rank}, {"others_wait_more_ns", ns}});
  j["critical_path"] = nlohmann::ordered_json::array();
  for (const PathRow& row : critical_path) {
    j["critical_path"].push_back({{"kind", PathKindName(row.kind)},
                                  {"what", row.what},
                                  {"ns", row.ns},
                                  {"times", row.times},
                                  {"ranks", row.ranks}});
  }
  j["notes"] = notes;
  j["operations"] = operations;
  return j;
}

}  // namespace prism::report
