#include "src/graph/micro_batches.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status.h"
#include "src/graph/check.h"

namespace prism::graph {
namespace {

using trace::SequenceKind;

// A period is a distance between launches of one name, of the rarest ones, which a period may have
// several times.
constexpr size_t kRareNames = 16;
constexpr size_t kMostInPeriod = 64;
constexpr size_t kMaxCandidates = 1024;
constexpr size_t kLeastRepeated = 4;  // a fourth

absl::Status NoPeriod(const std::string& why) {
  return WithHint(absl::FailedPreconditionError(
                      absl::StrCat("the micro-batches of a step cannot be told apart: ", why)),
                  "capture the job with more micro-batches in a step: at least two, in a pipeline "
                  "more than it has stages");
}

// ---- A program in the order of its launches

struct Launches {
  std::vector<Enqueue> units;
  std::vector<uint64_t> names;            // of each unit; 0: a wait, a record
  std::vector<uint32_t> kernels;          // of each unit
  std::vector<std::vector<uint32_t>> of;  // [sequence][operation of a stream]: its unit

  explicit Launches(const Program& program) : units(program.Enqueues()) {
    for (const Sequence& sequence : program.sequences) of.emplace_back(sequence.ops.size(), kNone);
    std::map<std::pair<uint32_t, std::string>, uint64_t> known;  // with its stream
    std::vector<std::string> span_names(program.spans.size());
    for (uint32_t i = 0; i < units.size(); ++i) {
      const Place place = units[i].unit;
      const Op& op = program.sequences[place.sequence].ops[place.op];
      for (uint32_t k = 0; k < Length(op); ++k) of[place.sequence][place.op + k] = i;
      std::string name;
      kernels.push_back(0);
      if (op.kind == OpKind::kSpan) {
        std::string& span = span_names[op.a];
        if (span.empty()) {
          for (const uint32_t k : program.spans[op.a].kernels)
            absl::StrAppend(&span, program.kernels[k].name, "\n");
        }
        name = span;
        kernels.back() = static_cast<uint32_t>(program.spans[op.a].kernels.size());
      } else if (op.kind == OpKind::kComm) {
        // Of messages neither number nor sizes: they may depend on values.
        const Call& call = program.calls[op.a];
        name = absl::StrCat(call.participant);
        std::set<int> operations;
        for (uint32_t k = 0; k < op.detail; ++k) {
          const Op& part = program.sequences[place.sequence].ops[place.op + k];
          operations.insert(static_cast<int>(program.calls[part.a].op));
        }
        for (const int operation : operations) absl::StrAppend(&name, " ", operation);
      }
      const uint64_t number = known.size() + 1;
      names.push_back(
          name.empty() ? 0 : known.try_emplace({place.sequence, name}, number).first->second);
    }
  }

  static uint32_t Length(const Op& op) { return op.kind == OpKind::kComm ? op.detail : 1; }

  // How many units come up to a place, itself included.
  uint32_t UpTo(const Program& program, Place place) const {
    if (place.sequence == kNone) return 0;
    if (program.sequences[place.sequence].kind == SequenceKind::kStream)
      return of[place.sequence][place.op] + 1;
    uint32_t count = 0;
    for (uint32_t i = 0; i < units.size(); ++i) {
      if (units[i].by.sequence == place.sequence && units[i].by.op <= place.op) count = i + 1;
    }
    return count;
  }
};

// ---- Periods

struct Stretch {
  size_t first = 0, length = 0;
};

Stretch LongestStretch(std::span<const uint64_t> names, size_t period) {
  Stretch longest;
  size_t run = 0;
  for (size_t i = 0; i + period <= names.size(); ++i) {
    if (i + period < names.size() && names[i] == names[i + period]) {
      ++run;
      continue;
    }
    if (run > 0 && run + period > longest.length) longest = {i - run, run + period};
    run = 0;
  }
  return longest;
}

// Whether it is a shorter one several times.
bool IsRepeated(std::span<const uint64_t> word) {
  for (size_t part = 1; 2 * part <= word.size(); ++part) {
    if (word.size() % part == 0 &&
        std::equal(word.begin() + static_cast<std::ptrdiff_t>(part), word.end(), word.begin()))
      return true;
  }
  return false;
}

// How often the step has the period: what most of its names say.
uint64_t CountPeriods(std::span<const uint64_t> names, std::span<const uint64_t> word) {
  std::map<uint64_t, uint64_t> in_step, in_word, votes;
  for (const uint64_t name : names) ++in_step[name];
  for (const uint64_t name : word) ++in_word[name];
  for (const auto& [name, times] : in_word) {
    if (in_step[name] % times == 0) votes[in_step[name] / times] += times;
  }
  uint64_t count = 0;
  for (const auto& [periods, voices] : votes) {
    if (count == 0 || voices > votes[count]) count = periods;
  }
  return count;
}

// ---- Cutting periods out and putting them in

// Where a period begins, in every sequence.
using Cut = std::vector<uint32_t>;

// The operations of one period, named by the launches that they are or follow, so that they can be
// found again in another period that has more or fewer waits.
struct PeriodNames {
  using Name = std::array<uint32_t, 4>;  // sequence, launch, kind of what follows it, count
  Cut from;
  std::vector<std::vector<Name>> names;  // [sequence][operation from `from` on]
  std::map<Name, uint32_t> places;       // operation
};

struct StepPlan {
  std::vector<Cut> cuts;           // of the source periods, then the end of the last one
  std::vector<PeriodNames> names;  // of what is before the sources (a period at most), of each
  uint32_t more = 0;               // periods that are put in, at that end
  std::vector<Cut> begins;         // [copy]: where it is now

  uint32_t sources() const { return static_cast<uint32_t>(cuts.size() - 1); }
};

class Repeater {
 public:
  Repeater(const Program& program, uint32_t factor)
      : old_(program),
        factor_(factor),
        launches_(program),
        place_of_(program.slots),
        begin_cut_(program.sequences.size(), 0) {
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      for (uint32_t i = 0; i < program.sequences[s].ops.size(); ++i) {
        const uint32_t slot = program.sequences[s].ops[i].slot;
        if (slot != kNone) place_of_[slot] = {s, i};
      }
    }
  }

  // A step from one place to another (as in Steps::ends).
  absl::Status AddStep(Place from, Place to, RepeatedPeriods* found) {
    const uint32_t begin = launches_.UpTo(old_, from), end = launches_.UpTo(old_, to);
    begin_cut_ = CutBefore(begin);
    begin_ = begin;
    const Cut end_cut = CutBefore(end);
    std::vector<uint32_t> units, kernels;  // of what has names
    std::vector<uint64_t> names;
    for (uint32_t i = begin; i < end; ++i) {
      if (launches_.names[i] == 0) continue;
      units.push_back(i);
      names.push_back(launches_.names[i]);
      kernels.push_back(launches_.kernels[i]);
    }
    const auto [known, is_new] = periods_.try_emplace(names);
    if (is_new) known->second = FindStepPeriod(names, kernels);
    if (!known->second.has_value())
      return NoPeriod(absl::StrCat("nothing repeats in the ", names.size(), " launches of one"));
    const StepPeriod& period = *known->second;
    found->fewest = found->fewest == 0 ? period.count : std::min(found->fewest, period.count);
    found->most = std::max(found->most, period.count);
    // The last place in the stretch where periods can be parted, with no span under way. Not its
    // end: what is prepared there may be for something else than another period.
    const size_t last = period.first + period.length - 1;
    for (size_t at = last; at + period.period > last && at >= period.first + period.period; --at) {
      const auto sources = (at - period.first) / period.period;
      StepPlan plan;
      plan.more = static_cast<uint32_t>(period.count * (factor_ - 1));
      for (size_t k = 0; k <= sources; ++k) {
        plan.cuts.push_back(CutBefore(units[at - (sources - k) * period.period]));
      }
      if (!std::all_of(plan.cuts.begin(), plan.cuts.end(),
                       [&](const Cut& cut) { return IsClean(cut, end_cut); }))
        continue;
      const size_t first = at - sources * period.period;
      const size_t lead = std::min(first, period.period);
      plan.names.push_back(NamesOf(CutBefore(units[first - lead]), plan.cuts[0],
                                   static_cast<uint32_t>(period.period - lead)));
      for (size_t k = 0; k < sources; ++k)
        plan.names.push_back(NamesOf(plan.cuts[k], plan.cuts[k + 1], 0));
      steps_.push_back(std::move(plan));
      return absl::OkStatus();
    }
    return NoPeriod("spans of kernels go over all borders between them");
  }

  // The program with the periods that the steps have more; `origins`: of each sequence's
  // operations, in the old program. Moves `ends`. `rank` is one that has the program.
  Program Finish(const Rank& rank, std::vector<std::vector<uint32_t>>* origins,
                 std::vector<Place>* ends) {
    Program program = old_;
    PutIn(&program, origins);
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      for (uint32_t i = 0; i < program.sequences[s].ops.size(); ++i)
        SetReference({s, i}, {s, (*origins)[s][i]}, &program);
    }
    Renumber(rank, &program);
    for (Place& place : *ends) {
      if (place.sequence != kNone) place.op = now_[place.sequence][place.op];
    }
    return program;
  }

 private:
  struct Copy {
    uint32_t step = kNone;  // kNone: no copy
    uint32_t number = 0;
  };
  static constexpr int kNoPeriod = -2;

  // Of each sequence, what comes before the unit `unit` is enqueued; what a thread does after it
  // has enqueued the one before belongs to `unit`.
  Cut CutBefore(uint32_t unit) const {
    const bool later = unit >= begin_;
    Cut cut = later ? begin_cut_ : Cut(old_.sequences.size(), 0);
    for (uint32_t i = later ? begin_ : 0; i < unit; ++i) {
      const Enqueue& e = launches_.units[i];
      const Op& op = old_.sequences[e.unit.sequence].ops[e.unit.op];
      cut[e.unit.sequence] = e.unit.op + Launches::Length(op);
      cut[e.by.sequence] = e.by.op + 1;
    }
    return cut;
  }

  // No span is under way; none lasts longer than to `end`.
  bool IsClean(const Cut& cut, const Cut& end) const {
    for (uint32_t s = 0; s < cut.size(); ++s) {
      if (old_.sequences[s].kind != SequenceKind::kThread) continue;
      const std::vector<Op>& ops = old_.sequences[s].ops;
      std::vector<uint8_t> seen(cut.size(), 0);  // streams with a later span: earlier ones are done
      for (uint32_t i = cut[s]; i < end[s]; ++i) {
        if (ops[i].kind != OpKind::kEnqueueLast || seen[ops[i].a] != 0) continue;
        seen[ops[i].a] = 1;
        if (ops[i].b < cut[ops[i].a]) return false;
      }
    }
    return true;
  }

  // `skipped`: launches of the period that are not between the cuts, at its beginning.
  PeriodNames NamesOf(const Cut& from, const Cut& to, uint32_t skipped) const {
    PeriodNames result{from, std::vector<std::vector<PeriodNames::Name>>(from.size()), {}};
    std::vector<std::pair<uint32_t, Place>> launched;  // by unit
    for (uint32_t s = 0; s < from.size(); ++s) {
      result.names[s].resize(to[s] - std::min(from[s], to[s]));
      if (old_.sequences[s].kind != SequenceKind::kStream) continue;
      for (uint32_t i = from[s]; i < to[s]; ++i)
        launched.emplace_back(launches_.of[s][i], Place{s, i});
    }
    std::sort(launched.begin(), launched.end(), [](const auto& x, const auto& y) {
      return std::pair(x.first, x.second.op) < std::pair(y.first, y.second.op);
    });
    const auto set = [&](Place place, const PeriodNames::Name& name) {
      result.names[place.sequence][place.op - from[place.sequence]] = name;
      result.places.try_emplace(name, place.op);
    };
    absl::flat_hash_map<uint64_t, uint32_t> launch_by;  // (thread, operation) that enqueues
    uint32_t launch = skipped, counts[2] = {0, 0}, before = kNone;
    for (const auto& [unit, place] : launched) {
      const bool waits = old_.sequences[place.sequence].ops[place.op].kind == OpKind::kWait;
      if (launches_.names[unit] != 0) {
        if (unit != before) {
          ++launch;
          counts[0] = counts[1] = 0;
        }
        set(place, {place.sequence, launch, 0, 0});
      } else {
        set(place, {place.sequence, launch, waits ? 2u : 1u, ++counts[waits]});
      }
      before = unit;
      const Place by = launches_.units[unit].by;
      launch_by[uint64_t{by.sequence} << 32 | by.op] = launch;
    }
    for (uint32_t s = 0; s < from.size(); ++s) {
      if (old_.sequences[s].kind != SequenceKind::kThread) continue;
      uint32_t since = 0, last = 0;
      for (uint32_t i = from[s]; i < to[s]; ++i, ++since) {
        if (const auto by = launch_by.find(uint64_t{s} << 32 | i); by != launch_by.end()) {
          last = by->second;
          since = 0;
        }
        set({s, i}, {s, last, 3, since});
      }
    }
    return result;
  }

  void PutIn(Program* program, std::vector<std::vector<uint32_t>>* origins) {
    const size_t sequences = old_.sequences.size();
    origins->assign(sequences, {});
    copies_.assign(sequences, {});
    now_.assign(sequences, {});
    for (StepPlan& step : steps_) step.begins.assign(step.more, Cut(sequences, 0));
    program->op_count = 0;
    for (uint32_t s = 0; s < sequences; ++s) {
      const Sequence& source = old_.sequences[s];
      Sequence& sequence = program->sequences[s];
      sequence.ops.clear();
      sequence.provenance.clear();
      const auto put = [&](uint32_t from, Copy copy) {
        Op op = source.ops[from];
        if (copy.step != kNone && op.slot != kNone) op.slot = program->slots++;
        sequence.ops.push_back(op);
        sequence.provenance.push_back(source.provenance[from]);
        (*origins)[s].push_back(from);
        copies_[s].push_back(copy);
      };
      uint32_t next = 0;
      for (uint32_t i = 0; i <= source.ops.size(); ++i) {
        for (; next < steps_.size() && steps_[next].cuts.back()[s] == i; ++next) {
          StepPlan& step = steps_[next];
          for (uint32_t copy = 0; copy < step.more; ++copy) {
            const uint32_t period = copy % step.sources();
            step.begins[copy][s] = static_cast<uint32_t>(sequence.ops.size());
            for (uint32_t k = step.cuts[period][s]; k < step.cuts[period + 1][s]; ++k)
              put(k, {next, copy});
          }
        }
        if (i == source.ops.size()) break;
        now_[s].push_back(static_cast<uint32_t>(sequence.ops.size()));
        put(i, {});
      }
      program->op_count += sequence.ops.size();
    }
  }

  // Which source of the step an operation is in; -1: what is before them.
  static int PeriodOf(const StepPlan& step, Place place) {
    const uint32_t s = place.sequence;
    if (place.op < step.names[0].from[s] || place.op >= step.cuts.back()[s]) return kNoPeriod;
    int period = -1;
    while (place.op >= step.cuts[static_cast<size_t>(period) + 1][s]) ++period;
    return period;
  }

  // Where that operation of source `period` is in the `placed`-th period (sources, then copies);
  // without sequence: it has none such.
  Place Corresponding(const StepPlan& step, Place place, int period, int64_t placed) const {
    const int64_t sources = step.sources();
    if (placed < -1 || placed >= sources + step.more) return {};
    const bool is_copy = placed >= sources;
    const int64_t source = is_copy ? (placed - sources) % sources : placed;
    const PeriodNames& names = step.names[static_cast<size_t>(period) + 1];
    const PeriodNames& others = step.names[static_cast<size_t>(source + 1)];
    const uint32_t s = place.sequence;
    const auto found = others.places.find(names.names[s][place.op - names.from[s]]);
    if (found == others.places.end()) return {};
    if (!is_copy) return {s, now_[s][found->second]};
    return {s,
            step.begins[static_cast<size_t>(placed - sources)][s] + found->second - others.from[s]};
  }

  // Where what `origin` waited for, an operation at `target`, is for `who` that it has become.
  Place Target(Place who, Place origin, Place target) const {
    const Copy& copy = copies_[who.sequence][who.op];
    Place found;
    if (copy.step != kNone) {
      const StepPlan& step = steps_[copy.step];
      const auto source = static_cast<int>(copy.number % step.sources());
      const int period = PeriodOf(step, target);
      if (period == source) {
        return {target.sequence, step.begins[copy.number][target.sequence] + target.op -
                                     step.cuts[static_cast<size_t>(source)][target.sequence]};
      }
      // As many periods before.
      if (period != kNoPeriod)
        found = Corresponding(step, target, period,
                              int64_t{step.sources()} + copy.number - (source - period));
    } else {
      const auto step = std::partition_point(
          steps_.begin(), steps_.end(),
          [&](const StepPlan& plan) { return plan.cuts.back()[target.sequence] <= target.op; });
      if (step != steps_.end() && origin.op >= step->cuts.back()[origin.sequence]) {
        const int period = PeriodOf(*step, target);
        if (period != kNoPeriod)
          found = Corresponding(*step, target, period, int64_t{period} + step->more);
      }
    }
    // What is not of the period is before it, in the copies' eyes, too.
    if (found.sequence == kNone) found = {target.sequence, now_[target.sequence][target.op]};
    return found;
  }

  void SetReference(Place who, Place origin, Program* program) const {
    Op& op = program->sequences[who.sequence].ops[who.op];
    if (op.kind == OpKind::kEnqueue || op.kind == OpKind::kEnqueueLast) {
      op.b = Target(who, origin, {op.a, op.b}).op;
    } else if (op.kind == OpKind::kWait && place_of_[op.a].sequence != kNone) {
      // Adding a slot does not move operations.
      op.a = program->AddSlot(Target(who, origin, place_of_[op.a]));
    }
  }

  // Communications count again, in the order of their launches.
  static void Renumber(const Rank& rank, Program* program) {
    std::map<std::tuple<uint32_t, int32_t, bool>, uint32_t> next;
    for (Participant& participant : program->participants) participant.collectives = 0;
    for (const Place place : program->EnqueueOrder()) {
      std::vector<Op>& ops = program->sequences[place.sequence].ops;
      for (uint32_t i = place.op; i < place.op + Launches::Length(ops[place.op]); ++i) {
        if (ops[i].kind != OpKind::kComm) break;
        const Call& call = program->calls[ops[i].a];
        if (IsCollective(call.op)) {
          ops[i].b = program->participants[call.participant].collectives++;
        } else {
          const bool sends = call.op == trace::CommOp::kSend;
          ops[i].b = next[{call.participant, rank.peer[ops[i].a], sends}]++;
        }
      }
    }
  }

  const Program& old_;
  const uint32_t factor_;
  const Launches launches_;
  std::vector<Place> place_of_;                                         // of each slot
  uint32_t begin_ = 0;                                                  // of the last step
  Cut begin_cut_;                                                       // where that is
  std::map<std::vector<uint64_t>, std::optional<StepPeriod>> periods_;  // by names
  std::vector<StepPlan> steps_;
  std::vector<std::vector<Copy>> copies_;   // [sequence][new operation]
  std::vector<std::vector<uint32_t>> now_;  // [sequence][old operation]
};

}  // namespace

std::optional<StepPeriod> FindStepPeriod(std::span<const uint64_t> names,
                                         std::span<const uint32_t> kernels) {
  absl::flat_hash_map<uint64_t, std::vector<size_t>> found;
  for (size_t i = 0; i < names.size(); ++i) found[names[i]].push_back(i);
  std::vector<std::pair<size_t, size_t>> rare;  // (times, first)
  for (const auto& [name, at] : found) {
    if (at.size() > 1) rare.emplace_back(at.size(), at[0]);
  }
  std::sort(rare.begin(), rare.end());
  if (rare.size() > kRareNames) rare.resize(kRareNames);
  std::set<size_t> candidates;
  for (const auto& [times, first] : rare) {
    const std::vector<size_t>& at = found[names[first]];
    for (size_t apart = 1; apart < std::min(at.size(), kMostInPeriod); ++apart) {
      for (size_t i = apart; i < at.size() && candidates.size() < kMaxCandidates; ++i)
        candidates.insert(at[i] - at[i - apart]);
    }
  }
  const uint64_t all_kernels = std::accumulate(kernels.begin(), kernels.end(), uint64_t{0});
  std::optional<StepPeriod> best;
  for (const size_t period : candidates) {  // ascending: of equal ones the shortest
    const Stretch stretch = LongestStretch(names, period);
    // What is as it was a period before: of two micro-batches a forward pass at least.
    const size_t repeated = stretch.length - std::min(period, stretch.length);
    if (kLeastRepeated * repeated < period) continue;
    if (best.has_value() && repeated <= best->length - best->period) continue;
    const auto word = names.subspan(stretch.first + stretch.length - period, period);
    if (IsRepeated(word)) continue;
    const absl::flat_hash_set<uint64_t> own(word.begin(), word.end());
    uint64_t foreign_kernels = 0, foreign_before = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (own.contains(names[i])) continue;
      foreign_kernels += kernels[i];
      foreign_before += i < stretch.first;
    }
    if ((all_kernels > 0 && 2 * foreign_kernels >= all_kernels) || 2 * foreign_before > period)
      continue;
    const uint64_t count = CountPeriods(names, word);
    if (count > 1) best = {stretch.first, stretch.length, period, count};
  }
  return best;
}

absl::StatusOr<RepeatedPeriods> RepeatMicroBatches(uint32_t factor, Graph* graph, Steps* steps) {
  RepeatedPeriods found;
  std::vector<std::vector<std::vector<uint32_t>>> origins(graph->programs.size());
  for (uint32_t p = 0; p < graph->programs.size(); ++p) {
    std::vector<Place>& ends = steps->ends[p];
    const auto rank = std::find_if(graph->ranks.begin(), graph->ranks.end(),
                                   [&](const Rank& r) { return r.program == p; });
    if (ends.empty() || rank == graph->ranks.end()) continue;
    Repeater repeater(graph->programs[p], factor);
    for (size_t k = 0; k + 1 < ends.size(); ++k) {
      if (steps->classes[k] != Steps::kTraining) continue;
      const absl::Status added = repeater.AddStep(ends[k], ends[k + 1], &found);
      if (!added.ok()) {
        return WithHint(absl::FailedPreconditionError(absl::StrCat(
                            "rank ", rank->rank, ", step ", k, ": ", std::string(added.message()))),
                        HintOf(added));
      }
    }
    graph->programs[p] = repeater.Finish(*rank, &origins[p], &ends);
  }
  graph->ops = 0;
  for (Rank& rank : graph->ranks) {
    graph->ops += graph->program_of(rank).op_count;
    for (size_t s = 0; s < rank.measured_ns.size() && s < origins[rank.program].size(); ++s) {
      if (graph->program_of(rank).sequences[s].kind != SequenceKind::kStream ||
          rank.measured_ns[s].empty())
        continue;
      std::vector<int64_t> measured;
      for (const uint32_t origin : origins[rank.program][s])
        measured.push_back(origin < rank.measured_ns[s].size() ? rank.measured_ns[s][origin] : -1);
      rank.measured_ns[s] = std::move(measured);
    }
  }
  // Orders of communicators were the job's before.
  if (const std::vector<Finding> findings = CheckStructure(*graph, 1);
      !findings.empty() && findings[0].kind != FindingKind::kOrder)
    return NoPeriod("with more of them communications would not fit: " + findings[0].text);
  return found;
}

}  // namespace prism::graph
