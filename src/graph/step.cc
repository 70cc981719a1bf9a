#include "src/graph/step.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/optimizer_kernel.h"
#include "src/base/status.h"

namespace prism::graph {
namespace {

using trace::CommOp;
using trace::kFnvOffset;
using trace::kFnvPrime;
using trace::MarkKind;
using trace::SequenceKind;

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kFnvPrime;
  return hash ^ hash >> 29;
}

uint64_t HashText(std::string_view text) {
  uint64_t hash = kFnvOffset;
  for (unsigned char c : text) hash = (hash ^ c) * kFnvPrime;
  return hash;
}

// Positions at which `tokens` has period `period`, summed over all stretches of at least two
// periods, and the longest one.
struct Stretches {
  size_t covered = 0;
  Repetition longest;
};
Stretches FindStretches(std::span<const Token> tokens, size_t period) {
  Stretches result;
  size_t run = 0;
  for (size_t i = 0; i + period <= tokens.size(); ++i) {
    if (i + period < tokens.size() && tokens[i] == tokens[i + period]) {
      ++run;
      continue;
    }
    // The first communication of a step that follows something else has other spans before it.
    const size_t begin = i - run;
    if (run > 0 && begin > 0 && tokens[begin - 1].comm != 0 &&
        tokens[begin - 1].comm == tokens[begin - 1 + period].comm) {
      ++run;
    }
    if (run >= period) {
      const size_t length = run + period;
      result.covered += length;
      if (length > result.longest.length) result.longest = {i - run, length, period};
    }
    run = 0;
  }
  return result;
}

// Runs of optimizer tokens in one period, cyclically.
size_t OptimizerBlocks(std::span<const Token> word) {
  size_t blocks = 0;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool before = word[(i + word.size() - 1) % word.size()].optimizer;
    blocks += word[i].optimizer && (!before || word.size() == 1);
  }
  if (blocks == 0 && !word.empty() && word[0].optimizer) blocks = 1;  // all of them
  return blocks;
}

// "p contains a span found once per period"; where there are no spans at all, a communication.
bool HasUniqueToken(std::span<const Token> word) {
  absl::flat_hash_map<uint64_t, size_t> count;
  bool spans = false;
  for (const Token& t : word) {
    spans = spans || t.span != 0;
    ++count[t.span];
  }
  if (!spans) {
    count.clear();
    for (const Token& t : word) ++count[t.comm];
    count.erase(0);
  }
  count.erase(0);
  return spans || !count.empty()
             ? std::any_of(count.begin(), count.end(), [](const auto& c) { return c.second == 1; })
             : true;
}

struct ParsedStep {
  size_t first, length;
  bool training;
  uint64_t hash;  // of the others: content
};

// Splits tokens into steps of `word` and what lies between. The first token of a step after
// something else begins with other spans (the end of what was before), so there only its
// communication must agree.
std::vector<ParsedStep> Parse(std::span<const Token> tokens, std::span<const Token> word) {
  std::vector<ParsedStep> steps;
  const auto matches = [&](size_t at) {
    if (at + word.size() > tokens.size()) return false;
    for (size_t i = 1; i < word.size(); ++i) {
      if (tokens[at + i] != word[i]) return false;
    }
    if (word[0].comm == 0 || word.size() == 1) return tokens[at] == word[0];
    return tokens[at].comm == word[0].comm;
  };
  size_t other = 0;  // first token that is in no step yet
  for (size_t i = 0; i <= tokens.size();) {
    const bool end = i == tokens.size();
    if (!end && !matches(i)) {
      ++i;
      continue;
    }
    if (other < i) {
      uint64_t hash = kFnvOffset;
      for (size_t k = other; k < i; ++k) hash = Mix(hash, tokens[k].comm);
      steps.push_back({other, i - other, false, hash});
    }
    if (end) break;
    steps.push_back({i, word.size(), true, 0});
    i += word.size();
    other = i;
  }
  return steps;
}

// Tokens in which the optimizer has run to its end.
std::vector<size_t> OptimizerEnds(std::span<const Token> tokens) {
  std::vector<size_t> ends;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].optimizer) continue;
    // Communications of a sharded optimizer lie between its kernels.
    const bool goes_on =
        tokens[i].optimizer_last && i + 1 < tokens.size() && tokens[i + 1].optimizer;
    if (!goes_on) ends.push_back(i);
  }
  return ends;
}

// Whether the repetition is one of parts of steps, or of a few of many steps: then the steps have
// no constant period.
bool StepsDiffer(std::span<const Token> tokens, const std::vector<ParsedStep>& parsed) {
  size_t first = parsed.size(), last = 0, training = 0;
  for (size_t i = 0; i < parsed.size(); ++i) {
    if (!parsed[i].training) continue;
    first = std::min(first, i);
    last = i;
    ++training;
  }
  if (const size_t runs = OptimizerEnds(tokens).size(); runs > 0 && training > 0) {
    // An optimizer may run in several parts (a kind of parameter each), the same in every step.
    const size_t parts =
        OptimizerEnds(tokens.subspan(parsed[last].first, parsed[last].length)).size();
    return parts == 0 || 2 * training * parts < runs;
  }
  // Without an optimizer by name: what lies between steps is evaluations and checkpoints, which
  // come back as they were; between the layers of steps that differ it is something else each time.
  std::set<uint64_t> kinds;
  size_t between = 0;
  for (size_t i = first; i < last; ++i) {
    if (parsed[i].training) continue;
    ++between;
    uint64_t hash = kFnvOffset;
    for (const Token& t : tokens.subspan(parsed[i].first, parsed[i].length)) {
      hash = Mix(Mix(hash, t.comm), t.span);
    }
    kinds.insert(hash);
  }
  if (between >= 2 && 2 * kinds.size() > between) return true;
  // Steps are not followed by more than they are themselves.
  const size_t end = parsed[last].first + parsed[last].length;
  return training > 0 && tokens.size() - end > end - parsed[first].first;
}

struct ProgramSteps {
  std::vector<Place> ends;
  std::vector<uint64_t> kinds;  // of each step: 0 training, else the hash of its content
};

// Steps of one program; what is before the first training step is warm-up and what is after the
// last one is left out.
std::optional<ProgramSteps> StepsOf(const Program& program, TokenDetail detail) {
  const std::vector<Token> tokens = Tokens(program, detail);
  const std::optional<Repetition> repetition = FindRepetition(tokens);
  if (!repetition.has_value()) return std::nullopt;
  const std::span<const Token> all(tokens);
  // The last period: the first one may begin with other spans.
  const size_t last = repetition->first +
                      repetition->length / repetition->period * repetition->period -
                      repetition->period;
  std::span<const Token> word = all.subspan(last, repetition->period);
  // The optimizer ends a step: its spans are those before the first communication of the next one.
  size_t shift = 0;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool before = word[(i + word.size() - 1) % word.size()].optimizer;
    if (word[i].comm != 0 ? word[i].optimizer && !before : !word[i].optimizer && before) shift = i;
  }
  word = all.subspan(shift == 0 ? last : last + shift - repetition->period, repetition->period);
  const std::vector<ParsedStep> parsed = Parse(tokens, word);
  if (StepsDiffer(tokens, parsed)) return std::nullopt;
  ProgramSteps steps;
  size_t last_training = 0;
  for (size_t i = 0; i < parsed.size(); ++i) {
    if (parsed[i].training) last_training = i;
  }
  for (size_t i = 0; i <= last_training && i < parsed.size(); ++i) {
    const bool warm_up = !parsed[i].training && steps.kinds.empty();
    if (steps.ends.empty()) {
      const size_t begin = warm_up ? parsed[i].first + parsed[i].length : parsed[i].first;
      steps.ends.push_back(begin == 0 ? Place() : tokens[begin - 1].place);
    }
    if (warm_up) continue;
    steps.ends.push_back(tokens[parsed[i].first + parsed[i].length - 1].place);
    steps.kinds.push_back(parsed[i].training ? 0 : parsed[i].hash);
  }
  if (steps.kinds.empty()) return std::nullopt;
  return steps;
}

absl::Status NoSteps(std::string_view why) {
  return WithHint(absl::NotFoundError(
                      absl::StrCat("no steps found: ", absl::string_view(why.data(), why.size()))),
                  "say what a step is: --step-mark TEXT (an NVTX range), or --step-comm NUMBER "
                  "--step-every N (the N-th "
                  "collective of a communicator)");
}

absl::StatusOr<Steps> StepsByMark(Graph* graph, const StepOptions& options) {
  Steps steps;
  steps.method = Steps::Method::kMark;
  size_t count = SIZE_MAX;
  for (const Program& program : graph->programs) {
    std::vector<Place> ends;
    // Marks of one thread delimit the steps; the end of the last range ends the last one.
    for (uint32_t s = 0; s < program.sequences.size() && ends.empty(); ++s) {
      Place last_pop;
      std::vector<bool> named_ranges;
      const std::vector<Op>& ops = program.sequences[s].ops;
      for (uint32_t i = 0; i < ops.size(); ++i) {
        if (ops[i].kind != OpKind::kMark) continue;
        const auto kind = static_cast<MarkKind>(ops[i].detail);
        if (kind == MarkKind::kRangePop) {
          if (named_ranges.empty()) continue;
          if (named_ranges.back()) last_pop = {s, i};
          named_ranges.pop_back();
          continue;
        }
        const bool named = options.mark.empty() ? kind == MarkKind::kStep
                                                : program.strings[ops[i].a] == options.mark;
        if (kind == MarkKind::kRangePush) named_ranges.push_back(named);
        if (named) ends.push_back({s, i});
      }
      if (!ends.empty() && last_pop.sequence != kNone && last_pop.op > ends.back().op)
        ends.push_back(last_pop);
    }
    if (ends.size() >= 2) count = std::min(count, ends.size() - 1);
    steps.ends.push_back(std::move(ends));
  }
  if (count == SIZE_MAX) {
    return NoSteps(absl::StrCat("no rank has two marks \"", options.mark, "\"").c_str());
  }
  for (size_t p = 0; p < steps.ends.size(); ++p) {
    std::vector<Place>& ends = steps.ends[p];
    if (ends.size() < 2) {
      ends.clear();
    } else if (ends.size() > count + 1) {
      ends.erase(ends.begin(), ends.end() - static_cast<std::ptrdiff_t>(count + 1));
    }
  }
  steps.classes.assign(count, Steps::kTraining);
  steps.class_names = {"step"};
  return steps;
}

absl::StatusOr<Steps> StepsByCalls(Graph* graph, const StepOptions& options) {
  Steps steps;
  steps.method = Steps::Method::kCalls;
  steps.ends.resize(graph->programs.size());
  size_t count = SIZE_MAX;
  bool known = false;
  for (const Rank& rank : graph->ranks) {
    for (uint32_t participant = 0; participant < rank.comm.size(); ++participant) {
      if (graph->communicators[rank.comm[participant]].number != *options.comm) continue;
      known = true;
      std::vector<Place>& ends = steps.ends[rank.program];
      if (!ends.empty()) continue;
      const Program& program = graph->program_of(rank);
      for (uint32_t s = 0; s < program.sequences.size(); ++s) {
        for (uint32_t i = 0; i < program.sequences[s].ops.size(); ++i) {
          const Op& op = program.sequences[s].ops[i];
          if (op.kind == OpKind::kComm && program.calls[op.a].participant == participant &&
              IsCollective(program.calls[op.a].op) &&
              (op.b + 1) % std::max(options.every, 1u) == 0) {
            ends.push_back({s, i});
          }
        }
      }
      if (!ends.empty()) count = std::min(count, ends.size() - 1);
    }
  }
  if (!known) return NoSteps(absl::StrCat("there is no communicator ", *options.comm).c_str());
  if (count == SIZE_MAX || count == 0) {
    return NoSteps(absl::StrCat("communicator ", *options.comm, " has fewer than 2 x ",
                                options.every, " collectives")
                       .c_str());
  }
  for (std::vector<Place>& ends : steps.ends) {
    if (ends.size() > count + 1) ends.resize(count + 1);
  }
  steps.classes.assign(count, Steps::kTraining);
  steps.class_names = {"step"};
  return steps;
}

absl::StatusOr<Steps> StepsByPeriod(Graph* graph, TokenDetail detail) {
  std::vector<std::optional<ProgramSteps>> found;
  std::map<size_t, size_t> votes;  // training steps -> ranks
  std::vector<size_t> ranks(graph->programs.size(), 0);
  for (const Rank& rank : graph->ranks) ++ranks[rank.program];
  const auto training_steps = [](const ProgramSteps& s) {
    return static_cast<size_t>(std::count(s.kinds.begin(), s.kinds.end(), 0));
  };
  for (size_t p = 0; p < graph->programs.size(); ++p) {
    found.push_back(StepsOf(graph->programs[p], detail));
    if (found.back().has_value()) votes[training_steps(*found.back())] += ranks[p];
  }
  if (votes.empty())
    return NoSteps(
        "nothing that the ranks do repeats with a constant period (fewer than two steps, or steps "
        "that differ)");
  // A rank whose share of the step is made of equal parts sees several periods in a step; the
  // fewest steps that most ranks see, of those that others see a multiple of.
  size_t steps_wanted = 0, best = 0;
  for (const auto& [count, own] : votes) {
    size_t support = 0;
    for (const auto& [other, n] : votes)
      support += other % count == 0 || (other > count && other - count <= 1) ? n : 0;
    if (support > best) {
      best = support;
      steps_wanted = count;
    }
  }
  Steps steps;
  steps.method = detail == TokenDetail::kShapes ? Steps::Method::kPeriod : Steps::Method::kNames;
  steps.ends.resize(graph->programs.size());
  steps.class_names = {"training"};
  const ProgramSteps* reference = nullptr;
  size_t without = 0;
  for (size_t p = 0; p < found.size(); ++p) {
    if (!found[p].has_value()) {
      without += ranks[p];
      continue;
    }
    ProgramSteps& own = *found[p];
    const size_t count = training_steps(own);
    if (count != steps_wanted && count % steps_wanted == 0 && own.kinds.size() == count) {
      const size_t merge = count / steps_wanted;
      ProgramSteps merged;
      for (size_t i = 0; i < own.ends.size(); i += merge) merged.ends.push_back(own.ends[i]);
      merged.kinds.assign(steps_wanted, 0);
      own = std::move(merged);
    } else if (count > steps_wanted) {
      // An incomplete first step that others count as warm-up.
      size_t drop = count - steps_wanted;
      while (drop > 0) {
        drop -= own.kinds.front() == 0;
        own.kinds.erase(own.kinds.begin());
        own.ends.erase(own.ends.begin());
      }
    } else if (count < steps_wanted) {
      without += ranks[p];
      continue;
    }
    if (reference == nullptr) reference = &own;
    if (own.kinds.size() != reference->kinds.size()) {
      // Others saw something between the steps that this rank took no part in, or the reverse: keep
      // what both have.
      const auto only_training = [](ProgramSteps& s) {
        for (size_t i = s.kinds.size(); i-- > 0;) {
          if (s.kinds[i] == 0) continue;
          // What lies between counts to the step that follows.
          s.kinds.erase(s.kinds.begin() + static_cast<std::ptrdiff_t>(i));
          s.ends.erase(s.ends.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
      };
      for (size_t q = 0; q <= p; ++q) {
        if (found[q].has_value()) only_training(*found[q]);
      }
    }
  }
  if (reference == nullptr) return NoSteps("the ranks disagree on how often they repeat");
  absl::flat_hash_map<uint64_t, uint32_t> class_of{{0, 0}};
  for (uint64_t kind : reference->kinds) {
    const auto [it, inserted] =
        class_of.try_emplace(kind, static_cast<uint32_t>(steps.class_names.size()));
    if (inserted) steps.class_names.push_back(absl::StrCat("other ", steps.class_names.size()));
    steps.classes.push_back(it->second);
  }
  for (size_t p = 0; p < found.size(); ++p) {
    if (found[p].has_value() && found[p]->kinds.size() == reference->kinds.size())
      steps.ends[p] = found[p]->ends;
  }
  if (without > 0) {
    steps.notes.push_back(
        absl::StrCat(without, " of ", graph->ranks.size(),
                     " ranks repeat differently and do not count for the step's end"));
  }
  return steps;
}

// Steps end where the optimizer has run.
absl::StatusOr<Steps> StepsByOptimizer(Graph* graph) {
  Steps steps;
  steps.method = Steps::Method::kOptimizer;
  size_t count = SIZE_MAX, without = 0;
  std::vector<size_t> ranks(graph->programs.size(), 0);
  for (const Rank& rank : graph->ranks) ++ranks[rank.program];
  for (size_t p = 0; p < graph->programs.size(); ++p) {
    std::vector<Place> ends;
    const std::vector<Token> tokens = Tokens(graph->programs[p], TokenDetail::kNames);
    for (size_t i : OptimizerEnds(tokens)) ends.push_back(tokens[i].place);
    if (ends.size() >= 2) {
      count = std::min(count, ends.size() - 1);
    } else {
      ends.clear();
      without += ranks[p];
    }
    steps.ends.push_back(std::move(ends));
  }
  if (count == SIZE_MAX)
    return NoSteps("nothing that the ranks do repeats, and no optimizer is recognised");
  for (std::vector<Place>& ends : steps.ends) {
    if (ends.size() > count + 1)
      ends.erase(ends.begin(), ends.end() - static_cast<std::ptrdiff_t>(count + 1));
  }
  steps.classes.assign(count, Steps::kTraining);
  steps.class_names = {"training"};
  steps.notes.push_back(
      "what the ranks do differs from step to step (in shapes, or with values): a step ends where "
      "the "
      "optimizer runs");
  if (without > 0)
    steps.notes.push_back(
        absl::StrCat(without, " ranks run no optimizer and do not count for the step's end"));
  return steps;
}

}  // namespace

namespace {

class Beginnings {
 public:
  Beginnings(const Program& program, size_t steps) : program_(program), order_(program.Enqueues()) {
    optimizer_.resize(program.spans.size());
    computes_.resize(program.spans.size());
    for (size_t i = 0; i < program.spans.size(); ++i) {
      for (uint32_t k : program.spans[i].kernels) {
        const Kernel& kernel = program.kernels[k];
        optimizer_[i] = optimizer_[i] || IsOptimizerKernel(kernel.name);
        computes_[i] = computes_[i] || kernel.kind == trace::KernelKind::kKernel ||
                       kernel.kind == trace::KernelKind::kGraph;
      }
    }
    position_.resize(program.sequences.size());
    for (size_t s = 0; s < program.sequences.size(); ++s)
      position_[s].resize(program.sequences[s].ops.size(), order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      const Place unit = order_[i].unit;
      const uint32_t count = IsComm(i) ? OpOf(i).detail : 1;
      for (uint32_t k = 0; k < count; ++k) position_[unit.sequence][unit.op + k] = i;
    }
    of_thread_.resize(program.slots, false);
    for (const Sequence& s : program.sequences) {
      if (s.kind != SequenceKind::kThread) continue;
      for (const Op& op : s.ops) {
        if (op.slot != kNone) of_thread_[op.slot] = true;
      }
    }
    FindOptimizerEnds(steps);
  }

  /// Where a step begins whose predecessor ended with `end`; `next` is its own end.
  Place After(Place end, Place next) const {
    if (end.sequence == kNone) return order_.empty() ? Place() : order_.front().by;
    if (program_.sequences[end.sequence].kind == SequenceKind::kThread)
      return {end.sequence, end.op + 1};
    const size_t at = position_[end.sequence][end.op];
    if (at >= order_.size()) return Place();
    const bool next_on_stream =
        next.sequence != kNone && program_.sequences[next.sequence].kind == SequenceKind::kStream;
    return AfterLaunch(
        Anchor(at, next_on_stream ? position_[next.sequence][next.op] : order_.size()));
  }

 private:
  const Op& OpOf(size_t i) const {
    return program_.sequences[order_[i].unit.sequence].ops[order_[i].unit.op];
  }
  bool IsComm(size_t i) const { return OpOf(i).kind == OpKind::kComm; }
  // Optimizer spans behind which it does not go on. Its parts may have communications between them;
  // a step's other work is longer.
  void FindOptimizerEnds(size_t steps) {
    std::vector<size_t> spans, gaps;
    for (size_t i = 0; i < order_.size(); ++i) {
      if (OpOf(i).kind == OpKind::kSpan && optimizer_[OpOf(i).a]) spans.push_back(i);
    }
    for (size_t i = 0; i + 1 < spans.size(); ++i) gaps.push_back(spans[i + 1] - spans[i]);
    if (spans.empty()) return;
    std::vector<size_t> sorted = gaps;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const size_t typical = sorted.empty() ? 0 : sorted[std::min(steps, sorted.size() - 1) / 2];
    for (size_t i = 0; i < spans.size(); ++i) {
      if (i == gaps.size() || 2 * gaps[i] >= typical) optimizer_ends_.push_back(spans[i]);
    }
  }

  // The end of the optimizer that a step's end is at, or else the end itself.
  size_t Anchor(size_t end, size_t next) const {
    const auto away = [&](size_t i) { return i > end ? i - end : end - i; };
    const auto nearest = std::min_element(optimizer_ends_.begin(), optimizer_ends_.end(),
                                          [&](size_t x, size_t y) { return away(x) < away(y); });
    const bool near = nearest != optimizer_ends_.end() && 2 * away(*nearest) <= next - end;
    return near ? *nearest : end;
  }

  Place AfterLaunch(size_t i) const {
    const auto [unit, by] = order_[i];
    const std::vector<Op>& ops = program_.sequences[by.sequence].ops;
    uint32_t at = by.op + 1;
    if ((OpOf(i).flags & kHasLast) != 0) {
      for (uint32_t k = at; k < ops.size(); ++k) {
        if (ops[k].kind == OpKind::kEnqueueLast && ops[k].a == unit.sequence &&
            ops[k].b == unit.op) {
          at = k + 1;
          break;
        }
      }
    }
    // A loss may be averaged over the ranks before it is waited for.
    constexpr size_t kUnits = 4, kLaunches = 16;
    size_t units = 0, launches = 0;
    Place begin{by.sequence, at};
    for (uint32_t k = at; k < ops.size(); ++k) {
      if (ops[k].kind == OpKind::kWait) {
        if (of_thread_[ops[k].a]) break;  // another thread's turn
        begin.op = k + 1;
        units = kUnits;
      } else if (ops[k].kind == OpKind::kEnqueue) {
        const Op& target = program_.sequences[ops[k].a].ops[ops[k].b];
        const bool computes = target.kind == OpKind::kSpan && computes_[target.a];
        if (target.kind != OpKind::kComm && !computes) continue;
        if (computes) launches += program_.spans[target.a].kernels.size();
        if (++units > kUnits || launches > kLaunches) break;
      }
    }
    return begin;
  }

  const Program& program_;
  const std::vector<Enqueue> order_;
  std::vector<bool> optimizer_, computes_;  // of each span
  std::vector<size_t> optimizer_ends_;
  std::vector<std::vector<size_t>> position_;
  std::vector<bool> of_thread_;  // slots
};

}  // namespace

std::vector<Place> StepBeginnings(const Program& program, const std::vector<Place>& ends) {
  std::vector<Place> begins;
  if (ends.size() < 2) return begins;
  const Beginnings beginnings(program, ends.size() - 1);
  for (size_t k = 0; k + 1 < ends.size(); ++k)
    begins.push_back(beginnings.After(ends[k], ends[k + 1]));
  return begins;
}

std::vector<Token> Tokens(const Program& program, TokenDetail detail) {
  std::vector<uint64_t> kernel_hash(program.kernels.size());
  std::vector<bool> kernel_optimizer(program.kernels.size());
  for (size_t i = 0; i < program.kernels.size(); ++i) {
    kernel_hash[i] = HashText(program.kernels[i].name);
    kernel_optimizer[i] = IsOptimizerKernel(program.kernels[i].name);
  }
  std::vector<uint64_t> span_hash(program.spans.size());
  std::vector<bool> span_optimizer(program.spans.size(), false),
      span_optimizer_last(program.spans.size(), false);
  for (size_t i = 0; i < program.spans.size(); ++i) {
    uint64_t names = kFnvOffset;
    for (uint32_t k : program.spans[i].kernels) {
      names = Mix(names, kernel_hash[k]);
      if (kernel_optimizer[k]) span_optimizer[i] = true;
      span_optimizer_last[i] = kernel_optimizer[k];
    }
    span_hash[i] = detail == TokenDetail::kShapes ? program.spans[i].hash : names;
  }
  const bool single = program.calls.empty();
  std::vector<Token> tokens;
  Token next;
  for (const Place place : program.EnqueueOrder()) {
    const std::vector<Op>& ops = program.sequences[place.sequence].ops;
    const Op& op = ops[place.op];
    if (op.kind == OpKind::kSpan) {
      next.span = Mix(next.span == 0 ? kFnvOffset : next.span, span_hash[op.a]);
      next.optimizer = next.optimizer || span_optimizer[op.a];
      next.optimizer_last = span_optimizer_last[op.a];
      if (!single) continue;
    } else if (op.kind == OpKind::kComm) {
      next.comm = kFnvOffset;
      bool exchange = false;
      for (uint32_t i = place.op; i < place.op + op.detail; ++i) {
        const Call& call = program.calls[ops[i].a];
        if (detail == TokenDetail::kNames && !IsCollective(call.op)) {
          // How many messages an exchange has depends on the data: empty ones are not sent.
          if (!std::exchange(exchange, true))
            next.comm = Mix(next.comm, static_cast<uint64_t>(CommOp::kSend));
          continue;
        }
        next.comm =
            Mix(next.comm, uint64_t{call.participant} << 32 | static_cast<uint32_t>(call.op));
        // Peers are not compared: programs do not know them, and a pipeline's neighbours do not
        // change.
        if (detail == TokenDetail::kShapes) next.comm = Mix(Mix(next.comm, call.count), call.dtype);
      }
    } else {
      continue;
    }
    next.place = place;
    tokens.push_back(next);
    next = Token();
  }
  return tokens;
}

std::optional<Repetition> FindRepetition(std::span<const Token> tokens) {
  // A span found once per period comes back after exactly one period: the distances between equal
  // neighbours are all the candidates there are.
  std::set<size_t> candidates;
  {
    absl::flat_hash_map<std::pair<uint64_t, uint64_t>, size_t> last;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto [it, inserted] = last.try_emplace({tokens[i].comm, tokens[i].span}, i);
      if (!inserted) candidates.insert(i - it->second);
      it->second = i;
    }
  }
  // Where the optimizer is known, a step contains it, and steps make up most of what lies between
  // its runs.
  size_t first_optimizer = tokens.size(), last_optimizer = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].optimizer) continue;
    first_optimizer = std::min(first_optimizer, i);
    last_optimizer = i;
  }
  const bool optimizer_known = first_optimizer < tokens.size();
  std::optional<Repetition> best;
  size_t best_blocks = 0;
  for (size_t period : candidates) {
    const Stretches stretches = FindStretches(tokens, period);
    const Repetition& longest = stretches.longest;
    if (longest.length == 0) continue;
    const std::span<const Token> word =
        tokens.subspan(longest.first + longest.length - period, period);
    if (!HasUniqueToken(word)) continue;
    const size_t blocks = OptimizerBlocks(word);
    if (optimizer_known &&
        (blocks == 0 || 2 * stretches.covered < last_optimizer - first_optimizer))
      continue;
    // The fewest runs of the optimizer, then the longest stretch, then the shortest period.
    if (!best.has_value() || blocks < best_blocks ||
        (blocks == best_blocks && longest.length > best->length)) {
      best = longest;
      best_blocks = blocks;
    }
  }
  return best;
}

absl::StatusOr<Steps> DetectSteps(Graph* graph, const StepOptions& options) {
  absl::StatusOr<Steps> steps = absl::NotFoundError("");
  bool has_step_marks = false;
  for (const Program& program : graph->programs) {
    for (const Sequence& s : program.sequences) {
      has_step_marks =
          has_step_marks || std::any_of(s.ops.begin(), s.ops.end(), [](const Op& op) {
            return op.kind == OpKind::kMark && op.detail == static_cast<uint16_t>(MarkKind::kStep);
          });
    }
  }
  if (!options.mark.empty()) {
    steps = StepsByMark(graph, options);
  } else if (options.comm.has_value()) {
    steps = StepsByCalls(graph, options);
  } else {
    if (has_step_marks) steps = StepsByMark(graph, options);
    if (!steps.ok()) steps = StepsByPeriod(graph, TokenDetail::kShapes);
    if (!steps.ok()) {
      if (absl::StatusOr<Steps> by_names = StepsByPeriod(graph, TokenDetail::kNames);
          by_names.ok()) {
        by_names->notes.push_back(
            "shapes differ from step to step: steps were told by the names of kernels and calls");
        steps = std::move(by_names);
      }
    }
    if (!steps.ok()) {
      if (absl::StatusOr<Steps> by_optimizer = StepsByOptimizer(graph); by_optimizer.ok()) {
        steps = std::move(by_optimizer);
      }
    }
  }
  if (!steps.ok()) return steps;
  for (size_t p = 0; p < steps->ends.size(); ++p) {
    for (const Place place : steps->ends[p]) {
      if (place.sequence != kNone) graph->programs[p].AddSlot(place);
    }
  }
  return steps;
}

}  // namespace prism::graph
