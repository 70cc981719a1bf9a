#include "src/graph/measured.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status.h"

namespace prism::graph {
namespace {

using trace::SequenceKind;

constexpr size_t kWarmUpSteps = 2;

// ---- Communications

// Smallest measurement of each meeting of one communicator or channel, by sequence; -1: none.
using Minima = std::vector<int64_t>;

void Lower(Minima* minima, uint32_t sequence, int64_t ns) {
  if (sequence >= minima->size()) minima->resize(sequence + 1, -1);
  int64_t& least = (*minima)[sequence];
  if (least < 0 || ns < least) least = ns;
}

// Calls visit(first, measured) for every communication, or group of them, of a rank's streams.
template <typename Visit>
void ForEachGroup(const Program& program, std::vector<std::vector<int64_t>>* measured,
                  const Visit& visit) {
  for (size_t s = 0; s < program.sequences.size() && s < measured->size(); ++s) {
    const Sequence& sequence = program.sequences[s];
    if (sequence.kind != SequenceKind::kStream || (*measured)[s].size() < sequence.ops.size())
      continue;
    for (size_t i = 0; i < sequence.ops.size(); ++i) {
      const Op& first = sequence.ops[i];
      if (first.kind == OpKind::kComm && first.detail > 0) visit(&first, &(*measured)[s][i]);
    }
  }
}

// ---- Samples

int64_t Median(std::vector<int64_t>* values) {
  const auto middle = values->begin() + static_cast<std::ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  if (values->size() % 2 == 1) return *middle;
  const int64_t below = *std::max_element(values->begin(), middle);
  return below + (*middle - below) / 2;
}

struct Range {
  uint32_t begin, end;
};

// Where each step begins in each sequence: [sequence][step], with the end of the last one. What is
// enqueued up to a step's end belongs to it, and of a thread what it does up to its last enqueue of
// the step.
std::vector<std::vector<uint32_t>> StepCuts(const Program& program,
                                            const std::vector<Place>& ends) {
  const std::vector<Enqueue> order = program.Enqueues();
  std::vector<std::vector<uint32_t>> position(program.sequences.size());
  for (size_t s = 0; s < program.sequences.size(); ++s)
    position[s].resize(program.sequences[s].ops.size(), 0);
  for (uint32_t i = 0; i < order.size(); ++i) {
    const Place unit = order[i].unit;
    const Op& op = program.sequences[unit.sequence].ops[unit.op];
    const uint32_t count = op.kind == OpKind::kComm ? op.detail : 1;
    for (uint32_t k = 0; k < count; ++k) position[unit.sequence][unit.op + k] = i;
  }
  std::vector<std::vector<uint32_t>> cuts(program.sequences.size());
  std::vector<uint32_t> done(program.sequences.size(), 0);
  uint32_t at = 0;  // of the order
  for (const Place end : ends) {
    uint32_t upto = 0;
    const bool on_thread =
        end.sequence != kNone && program.sequences[end.sequence].kind == SequenceKind::kThread;
    if (on_thread) {
      for (uint32_t i = 0; i < order.size(); ++i) {
        if (order[i].by.sequence == end.sequence && order[i].by.op < end.op) upto = i + 1;
      }
    } else if (end.sequence != kNone) {
      upto = position[end.sequence][end.op] + 1;
    }
    for (; at < upto; ++at) {
      const auto& [unit, by] = order[at];
      const Op& op = program.sequences[unit.sequence].ops[unit.op];
      done[unit.sequence] = unit.op + (op.kind == OpKind::kComm ? op.detail : 1);
      done[by.sequence] = by.op + 1;
    }
    if (on_thread) done[end.sequence] = std::max(done[end.sequence], end.op + 1);
    for (size_t s = 0; s < cuts.size(); ++s) cuts[s].push_back(done[s]);
  }
  return cuts;
}

// What one sequence did in one step.
struct StepTimes {
  std::vector<OpKind> shape;  // steps with another one do not correspond
  std::vector<int64_t> ns;    // -1: not measured
  // Of each duration: with which others it adds up to what the step took. The calls of a group have
  // one interval, so only its first counts.
  enum class Part : uint8_t { kNone, kSpans, kCommunications, kHost };
  std::vector<Part> parts;
};

// Durations of a stream's nodes.
class StreamSteps {
 public:
  StreamSteps(const std::vector<Op>& ops, std::vector<int64_t>* measured)
      : ops_(ops), measured_(*measured) {}

  StepTimes Read(Range r) const {
    StepTimes times;
    for (uint32_t i = r.begin; i < r.end; ++i) {
      times.shape.push_back(ops_[i].kind);
      times.ns.push_back(measured_[i]);
      times.parts.push_back(ops_[i].kind != OpKind::kComm ? StepTimes::Part::kSpans
                            : ops_[i].detail > 0          ? StepTimes::Part::kCommunications
                                                          : StepTimes::Part::kNone);
    }
    return times;
  }
  void Write(Range r, const std::vector<int64_t>& ns) {
    for (uint32_t i = r.begin; i < r.end; ++i) {
      if (measured_[i] >= 0 && ns[i - r.begin] >= 0) measured_[i] = ns[i - r.begin];
    }
  }
  uint64_t Count(Range r) const {
    return static_cast<uint64_t>(std::count_if(measured_.begin() + r.begin,
                                               measured_.begin() + r.end,
                                               [](int64_t ns) { return ns >= 0; }));
  }

 private:
  const std::vector<Op>& ops_;
  std::vector<int64_t>& measured_;
};

// Host time of a thread: what lies between two visible operations is one duration, however many
// segments it is made of. After these, the times since the last launches.
class ThreadSteps {
 public:
  explicit ThreadSteps(std::vector<Op>* ops) : ops_(*ops) {}

  StepTimes Read(Range r) const { return Read(ops_, r); }
  static StepTimes Read(const std::vector<Op>& ops, Range r) {
    StepTimes times;
    std::vector<int64_t> since;
    times.ns.push_back(0);
    for (uint32_t i = r.begin; i < r.end; ++i) {
      if (ops[i].kind == OpKind::kHost) times.ns.back() += ops[i].b;
      if (!Visible(ops[i])) continue;
      times.shape.push_back(ops[i].kind);
      since.push_back(ops[i].kind == OpKind::kEnqueueLast ? ops[i].detail : 0);
      times.ns.push_back(0);
    }
    times.parts.assign(times.ns.size(), StepTimes::Part::kHost);
    times.ns.insert(times.ns.end(), since.begin(), since.end());
    times.parts.resize(times.ns.size(), StepTimes::Part::kNone);
    return times;
  }
  void Write(Range r, const std::vector<int64_t>& ns) {
    const size_t visible = ns.size() / 2;
    size_t at = 0;
    int64_t rest = ns[0];
    for (uint32_t i = r.begin; i < r.end; ++i) {
      if (ops_[i].kind == OpKind::kHost) {
        ops_[i].b = static_cast<uint32_t>(std::min<int64_t>(rest, UINT32_MAX));
        rest -= ops_[i].b;
      } else if (Visible(ops_[i])) {
        if (ops_[i].kind == OpKind::kEnqueueLast)
          ops_[i].detail = static_cast<uint16_t>(ns[visible + 1 + at]);
        // Where this step has no segment the next one takes it.
        rest += ns[++at];
      }
    }
  }
  uint64_t Count(Range r) const {
    return static_cast<uint64_t>(
        std::count_if(ops_.begin() + r.begin, ops_.begin() + r.end,
                      [](const Op& op) { return op.kind == OpKind::kHost; }));
  }

  static bool Visible(const Op& op) {
    return op.kind != OpKind::kHost && op.kind != OpKind::kNothing;
  }

 private:
  std::vector<Op>& ops_;
};

// Medians of each duration. Interruptions make durations skewed: the medians of a step's parts add
// up to less than the median step, so they are scaled to add up to it.
std::vector<int64_t> Medians(const std::vector<const StepTimes*>& samples) {
  const StepTimes& first = *samples[0];
  std::vector<int64_t> medians(first.ns.size(), -1), values;
  for (size_t i = 0; i < medians.size(); ++i) {
    values.clear();
    for (const StepTimes* sample : samples) {
      if (sample->ns[i] >= 0) values.push_back(sample->ns[i]);
    }
    if (!values.empty()) medians[i] = Median(&values);
  }
  using Part = StepTimes::Part;
  for (const Part part : {Part::kSpans, Part::kCommunications, Part::kHost}) {
    int64_t sum = 0, count = 0;
    std::vector<int64_t> sums(samples.size(), 0);
    for (size_t i = 0; i < medians.size(); ++i) {
      if (first.parts[i] != part || medians[i] < 0) continue;
      sum += medians[i];
      ++count;
      for (size_t k = 0; k < samples.size(); ++k)
        sums[k] += std::max<int64_t>(0, samples[k]->ns[i]);
    }
    const int64_t wanted = Median(&sums);
    // Medians of even numbers of values are rounded.
    if (sum == 0 || std::abs(wanted - sum) <= count) continue;
    const double factor = static_cast<double>(wanted) / static_cast<double>(sum);
    Part of = Part::kNone;
    for (size_t i = 0; i < medians.size(); ++i) {
      // Followers of a group come behind its first.
      if (first.parts[i] != Part::kNone) of = first.parts[i];
      const bool follows = part == Part::kCommunications && first.parts[i] == Part::kNone;
      if (of != part || (first.parts[i] == Part::kNone && !follows) || medians[i] < 0) continue;
      medians[i] = std::llround(static_cast<double>(medians[i]) * factor);
    }
  }
  return medians;
}

struct TrainingSteps {
  std::vector<Range> ranges;
  std::vector<size_t> sampled;  // positions
};

template <typename SequenceSteps>
void ResampleSequence(SequenceSteps sequence, const TrainingSteps& steps, bool whole,
                      Resampled* result) {
  std::vector<StepTimes> samples;
  std::map<std::vector<OpKind>, std::vector<const StepTimes*>> by_shape;
  for (size_t n : steps.sampled) samples.push_back(sequence.Read(steps.ranges[n]));
  for (const StepTimes& sample : samples) by_shape[sample.shape].push_back(&sample);
  const auto most = std::max_element(
      by_shape.begin(), by_shape.end(),
      [](const auto& x, const auto& y) { return x.second.size() < y.second.size(); });
  const std::vector<int64_t> medians = Medians(most->second);
  for (size_t n = 0; n < steps.ranges.size(); ++n) {
    const std::vector<OpKind> shape = sequence.Read(steps.ranges[n]).shape;
    const std::vector<int64_t>* ns = shape == most->first ? &medians : nullptr;
    if (whole) {
      // The nearest sampled step of the same shape, the earlier of two.
      size_t distance = SIZE_MAX;
      ns = nullptr;
      for (size_t k = 0; k < samples.size(); ++k) {
        const size_t m = steps.sampled[k], away = m > n ? m - n : n - m;
        if (away < distance && samples[k].shape == shape) {
          distance = away;
          ns = &samples[k].ns;
        }
      }
    }
    if (ns != nullptr) sequence.Write(steps.ranges[n], *ns);
    (ns != nullptr ? result->replaced : result->kept) += sequence.Count(steps.ranges[n]);
  }
}

}  // namespace

std::vector<std::vector<int64_t>> MeasuredNs(const trace::Reader& trace) {
  std::vector<std::vector<int64_t>> medians;
  if (trace.timings().empty()) return medians;
  medians.resize(trace.sequences().size());
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, std::vector<int64_t>> several;
  for (const trace::Timing& t : trace.timings()) {
    std::vector<int64_t>& own = medians[t.sequence];
    if (own.empty()) own.resize(trace.nodes(t.sequence).size(), -1);
    for (uint64_t i = 0; i < t.ns.size() && t.first + i < own.size(); ++i) {
      if (t.ns[i] < 0) continue;
      int64_t& ns = own[t.first + i];
      if (ns >= 0) {
        std::vector<int64_t>& samples = several[{t.sequence, t.first + i}];
        if (samples.empty()) samples.push_back(ns);
        samples.push_back(t.ns[i]);
      } else {
        ns = t.ns[i];
      }
    }
  }
  for (auto& [node, samples] : several) {
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    medians[node.first][node.second] = *middle;
  }
  return medians;
}

void AlignCommunications(Graph* graph) {
  if (std::all_of(graph->ranks.begin(), graph->ranks.end(),
                  [](const Rank& r) { return r.measured_ns.empty(); })) {
    return;
  }
  std::vector<Minima> comms(graph->communicators.size()), channels(graph->channels.size());
  const auto minima_of = [&](const Rank& rank, const Program& program, const Op& op) {
    const uint32_t channel = rank.channel[op.a];
    return channel != kNone ? &channels[channel]
                            : &comms[rank.comm[program.calls[op.a].participant]];
  };
  const auto interval = [](const Op* first, const int64_t* ns) {
    return *std::max_element(ns, ns + first->detail);
  };
  for (Rank& rank : graph->ranks) {
    const Program& program = graph->program_of(rank);
    ForEachGroup(program, &rank.measured_ns, [&](const Op* first, const int64_t* ns) {
      const int64_t own = interval(first, ns);
      if (own < 0) return;
      for (const Op* op = first; op < first + first->detail; ++op)
        Lower(minima_of(rank, program, *op), op->b, own);
    });
  }
  for (Rank& rank : graph->ranks) {
    const Program& program = graph->program_of(rank);
    ForEachGroup(program, &rank.measured_ns, [&](const Op* first, int64_t* ns) {
      int64_t least = interval(first, ns);
      if (least < 0) return;
      // A send that does not wait for its receive has measured nothing but itself.
      for (const Op* op = first; op < first + first->detail && !EndsEarly(program, first); ++op)
        least = std::min(least, (*minima_of(rank, program, *op))[op->b]);
      std::fill(ns, ns + first->detail, least);
    });
  }
}

namespace {

constexpr std::pair<Samples, std::string_view> kSamples[] = {{Samples::kOwn, "own"},
                                                             {Samples::kOdd, "odd"},
                                                             {Samples::kEven, "even"},
                                                             {Samples::kAll, "all"},
                                                             {Samples::kOddSteps, "odd-steps"},
                                                             {Samples::kEvenSteps, "even-steps"}};

}  // namespace

std::string_view SamplesName(Samples samples) {
  return kSamples[static_cast<size_t>(samples)].second;
}

std::optional<Samples> SamplesOf(std::string_view name) {
  for (const auto& [samples, own] : kSamples) {
    if (own == name) return samples;
  }
  return std::nullopt;
}

namespace {

absl::Status RequireMeasured(const Graph& graph) {
  const bool measured = std::any_of(graph.ranks.begin(), graph.ranks.end(),
                                    [](const Rank& r) { return !r.measured_ns.empty(); }) ||
                        std::any_of(graph.programs.begin(), graph.programs.end(),
                                    [](const Program& p) { return p.host_timed; });
  if (measured) return absl::OkStatus();
  return WithHint(absl::FailedPreconditionError("nothing in this job is measured"),
                  "samples need a job that `prism record` or `prism calibrate` made");
}

}  // namespace

absl::StatusOr<Resampled> Resample(Graph* graph, const Steps& steps, Samples samples) {
  Resampled result;
  if (samples == Samples::kOwn) return result;
  PRISM_RETURN_IF_ERROR(RequireMeasured(*graph));
  const bool whole = samples == Samples::kOddSteps || samples == Samples::kEvenSteps;
  const bool odd = samples == Samples::kOdd || samples == Samples::kOddSteps;
  std::vector<size_t> training, sampled;  // steps; positions among the training steps
  for (size_t k = 0; k < steps.count(); ++k) {
    if (steps.classes[k] != Steps::kTraining) continue;
    const size_t n = training.size();
    training.push_back(k);
    if (n >= kWarmUpSteps && (samples == Samples::kAll || (n % 2 == 1) == odd))
      sampled.push_back(n);
  }
  if (sampled.empty()) {
    return WithHint(absl::FailedPreconditionError(absl::StrCat(
                        "the job has ", training.size(), " training steps; without the first ",
                        kWarmUpSteps, " there is none to take samples from")),
                    "record more steps");
  }
  result.steps = sampled.size();

  for (uint32_t p = 0; p < graph->programs.size(); ++p) {
    if (p >= steps.ends.size() || steps.ends[p].size() != steps.count() + 1) continue;
    Program& program = graph->programs[p];
    const std::vector<std::vector<uint32_t>> cuts = StepCuts(program, steps.ends[p]);
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      TrainingSteps ranges{{}, sampled};
      for (size_t k : training) ranges.ranges.push_back({cuts[s][k], cuts[s][k + 1]});
      std::vector<Op>& ops = program.sequences[s].ops;
      if (program.sequences[s].kind == SequenceKind::kThread) {
        ResampleSequence(ThreadSteps(&ops), ranges, whole, &result);
        continue;
      }
      for (Rank& rank : graph->ranks) {
        if (rank.program != p || s >= rank.measured_ns.size()) continue;
        std::vector<int64_t>& ns = rank.measured_ns[s];
        if (ns.size() >= ops.size())
          ResampleSequence(StreamSteps(ops, &ns), ranges, whole, &result);
      }
    }
  }
  return result;
}

size_t TakeTurns(Graph* graph, const Steps& steps) {
  std::vector<size_t> training;
  for (size_t k = 0; k < steps.count(); ++k) {
    if (steps.classes[k] == Steps::kTraining) training.push_back(k);
  }
  // By what was measured of a program; where ranks differ, a comparison ends soon.
  const auto before = [&](uint32_t x, uint32_t y) {
    const Rank &a = graph->ranks[x], &b = graph->ranks[y];
    return std::tie(a.program, a.measured_ns) < std::tie(b.program, b.measured_ns);
  };
  std::map<uint32_t, std::vector<uint32_t>, decltype(before)> copies_of(before);
  for (uint32_t r = 0; r < graph->ranks.size(); ++r) {
    const Rank& rank = graph->ranks[r];
    if (rank.measured_ns.empty() || rank.program >= steps.ends.size() ||
        steps.ends[rank.program].size() != steps.count() + 1)
      continue;
    const auto [first, is_new] = copies_of.try_emplace(r);
    if (!is_new) first->second.push_back(r);
  }
  size_t count = 0;
  for (const auto& [first, copies] : copies_of) {
    if (copies.empty()) continue;
    count += copies.size();
    const Program& program = graph->program_of(graph->ranks[first]);
    const std::vector<std::vector<int64_t>>& measured = graph->ranks[first].measured_ns;
    const std::vector<std::vector<uint32_t>> cuts =
        StepCuts(program, steps.ends[graph->ranks[first].program]);
    // Of each step what it takes on all streams: what was slow together stays so.
    std::vector<std::vector<Place>> spans(training.size());
    std::map<std::vector<uint64_t>, std::vector<size_t>> alike;
    for (size_t n = kWarmUpSteps; n < training.size(); ++n) {
      std::vector<uint64_t> work;
      for (uint32_t s = 0; s < measured.size(); ++s) {
        const std::vector<Op>& ops = program.sequences[s].ops;
        if (measured[s].size() < ops.size()) continue;
        for (uint32_t i = cuts[s][training[n]]; i < cuts[s][training[n] + 1]; ++i) {
          if (ops[i].kind != OpKind::kSpan) continue;
          spans[n].push_back({s, i});
          work.push_back(uint64_t{s} << 32 | ops[i].a);
        }
      }
      alike[std::move(work)].push_back(n);
    }
    for (size_t c = 0; c < copies.size(); ++c) {
      std::vector<std::vector<int64_t>>& own = graph->ranks[copies[c]].measured_ns;
      for (const auto& [work, of] : alike) {
        for (size_t k = 0; k < of.size(); ++k) {
          const std::vector<Place>& from = spans[of[(k + c + 1) % of.size()]];
          const std::vector<Place>& to = spans[of[k]];
          for (size_t i = 0; i < to.size(); ++i)
            own[to[i].sequence][to[i].op] = measured[from[i].sequence][from[i].op];
        }
      }
    }
  }
  return count;
}

absl::StatusOr<StepSamples> StepSamples::Of(const Graph& graph, const Steps& steps) {
  PRISM_RETURN_IF_ERROR(RequireMeasured(graph));
  std::vector<size_t> training;
  for (size_t k = 0; k < steps.count(); ++k) {
    if (steps.classes[k] == Steps::kTraining) training.push_back(k);
  }
  if (training.size() < kWarmUpSteps + 2) {
    return WithHint(absl::FailedPreconditionError(absl::StrCat(
                        "the job has ", training.size(),
                        " training steps; to draw from them takes ", kWarmUpSteps + 2)),
                    "measure more steps");
  }
  StepSamples samples(graph);
  samples.count_ = training.size() - kWarmUpSteps;
  samples.cuts_.resize(graph.programs.size());
  for (uint32_t p = 0; p < graph.programs.size(); ++p) {
    if (p >= steps.ends.size() || steps.ends[p].size() != steps.count() + 1) continue;
    const Program& program = graph.programs[p];
    const std::vector<std::vector<uint32_t>> at = StepCuts(program, steps.ends[p]);
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      const std::vector<Op>& ops = program.sequences[s].ops;
      const bool thread = program.sequences[s].kind == SequenceKind::kThread;
      Cut cut;
      if (thread) cut.places.resize(ops.size(), 0);
      std::map<std::vector<OpKind>, uint32_t> groups;
      for (size_t n = 0; n < training.size(); ++n) {
        const Range range{at[s][training[n]], at[s][training[n] + 1]};
        cut.begins.push_back(range.begin);
        cut.ends.push_back(range.end);
        std::vector<OpKind> shape;
        if (thread) {
          StepTimes times = ThreadSteps::Read(ops, range);
          uint32_t place = 0;
          for (uint32_t i = range.begin; i < range.end; ++i) {
            cut.places[i] = place;
            if (ThreadSteps::Visible(ops[i])) ++place;
          }
          shape = std::move(times.shape);
          times.ns.resize(shape.size() + 1);
          cut.host_ns.push_back(std::move(times.ns));
        } else {
          for (uint32_t i = range.begin; i < range.end; ++i) shape.push_back(ops[i].kind);
        }
        const auto [group, is_new] =
            groups.try_emplace(std::move(shape), static_cast<uint32_t>(cut.groups.size()));
        if (is_new) cut.groups.emplace_back();
        cut.alike.push_back(group->second);
        if (n >= kWarmUpSteps) cut.groups[group->second].push_back(static_cast<uint32_t>(n));
      }
      samples.cuts_[p].push_back(std::move(cut));
    }
  }
  return samples;
}

double StepSamples::Ratio(uint32_t rank, uint32_t sequence, uint32_t op, uint64_t key) const {
  const Rank& who = graph_->ranks[rank];
  if (cuts_[who.program].empty()) return 1;
  const Cut& cut = cuts_[who.program][sequence];
  const auto after = std::upper_bound(cut.begins.begin(), cut.begins.end(), op);
  if (after == cut.begins.begin()) return 1;
  const auto step = static_cast<size_t>(after - cut.begins.begin()) - 1;
  if (op >= cut.ends[step]) return 1;
  const std::vector<uint32_t>& alike = cut.groups[cut.alike[step]];
  if (alike.empty()) return 1;
  const Op& what = graph_->programs[who.program].sequences[sequence].ops[op];
  uint64_t chance = key + step * 0x9e3779b97f4a7c15;
  if (what.kind != OpKind::kComm) chance += (uint64_t{rank} + 1) * 0xd1342543de82ef95;
  chance = (chance ^ chance >> 30) * 0xbf58476d1ce4e5b9;
  chance = (chance ^ chance >> 27) * 0x94d049bb133111eb;
  const uint32_t drawn = alike[(chance ^ chance >> 31) % alike.size()];
  int64_t own, other;
  if (!cut.places.empty()) {
    own = cut.host_ns[step][cut.places[op]];
    other = cut.host_ns[drawn][cut.places[op]];
  } else {
    if (sequence >= who.measured_ns.size()) return 1;
    const std::vector<int64_t>& ns = who.measured_ns[sequence];
    const uint32_t twin = cut.begins[drawn] + (op - cut.begins[step]);
    if (std::max(op, twin) >= ns.size()) return 1;
    own = ns[op];
    other = ns[twin];
  }
  return own > 0 && other >= 0 ? static_cast<double>(other) / static_cast<double>(own) : 1;
}

}  // namespace prism::graph
