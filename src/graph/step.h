// Steps: where one training step ends and the next begins, found in the graph after the run.
//
// A rank's work is read as a sequence of tokens: each communication with the hash of the spans
// before it; without communications, each span. The step is the shortest period p with which that
// sequence repeats, after a warm-up and before whatever ends the run, such that p contains a span
// found once per period (communications alone do not do: plain tensor parallelism has period 1).
// Micro-batches repeat within a step: they are told apart by the optimizer, whose kernels are known
// by name, else by repeating for a shorter stretch. What does not fit the period between steps
// (evaluation, checkpoints) is a class of its own. All ranks must agree on the number of steps.
//
// Stateless; thread-safe, but DetectSteps adds slots to the graph's programs.
//
//   absl::StatusOr<Steps> steps = DetectSteps(&graph, {});
//   steps->ends[graph.ranks[0].program][k]  // the operation whose completion ends step k of rank 0
#ifndef PRISM_GRAPH_STEP_H_
#define PRISM_GRAPH_STEP_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/graph/graph.h"

namespace prism::graph {

/// One element of a rank's work.
struct Token {
  uint64_t comm = 0;            // hash of the communication; 0: none, the token is a span
  uint64_t span = 0;            // hash of the spans since the token before; 0: none
  bool optimizer = false;       // one of those spans contains optimizer kernels
  bool optimizer_last = false;  // they end with one
  Place place;                  // the communication, or the span

  friend bool operator==(const Token& x, const Token& y) {
    return x.comm == y.comm && x.span == y.span;
  }
};

/// How closely repetitions must agree: `kShapes` compares grids, counts and sizes, `kNames` only
/// what is called (for programs whose shapes vary from step to step).
enum class TokenDetail { kShapes, kNames };
std::vector<Token> Tokens(const Program& program, TokenDetail detail);

/// tokens[i] == tokens[i + period] within [first, first + length), which holds at least two
/// periods.
struct Repetition {
  size_t first = 0;
  size_t length = 0;
  size_t period = 0;
};
/// Returns the repetition that the step is taken from, as described above; none: nothing repeats.
std::optional<Repetition> FindRepetition(std::span<const Token> tokens);

struct StepOptions {
  std::string mark = {};  // steps begin at NVTX ranges or marks of this text
  std::optional<uint32_t> comm =
      {};  // steps end at every `every`-th collective of this communicator
  uint32_t every = 1;
};

struct Steps {
  enum class Method { kPeriod, kNames, kOptimizer, kMark, kCalls };
  Method method = Method::kPeriod;
  /// Of each program: the operation that ends step k. ends[p][0] is the beginning of the first
  /// step: the steps are 0 .. count()-1, step k from ends[p][k] to ends[p][k + 1]. A place without
  /// sequence is the start of the run. Empty for programs that take no part (listed in `notes`).
  std::vector<std::vector<Place>> ends;
  /// Of each step: 0 is the training step, others are classes of their own in order of appearance;
  /// kWarmUp.
  std::vector<uint32_t> classes;
  std::vector<std::string> class_names;
  std::vector<std::string> notes;

  static constexpr uint32_t kTraining = 0;
  size_t count() const { return classes.size(); }
};

/// Finds the steps and gives their ends slots. NotFound says why there are none and names the
/// overrides.
absl::StatusOr<Steps> DetectSteps(Graph* graph, const StepOptions& options = {});

/// Where the host begins each step of a program: before which operation of which thread. A place
/// without sequence: not known. `ends` are the program's of `Steps`.
///
/// A step ends, for the host, where the optimizer's kernels are launched, together with what
/// follows before other kernels are: copies of results and synchronizations; also with the few
/// kernels and communications in front of a wait that comes soon (the mean of a loss, read). Steps
/// by marks begin at them. Where no optimizer is known, a step begins after the operation that
/// ended the one before.
std::vector<Place> StepBeginnings(const Program& program, const std::vector<Place>& ends);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_STEP_H_
