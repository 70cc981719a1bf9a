// Measured durations, made fit to be evaluated.
//
// AlignCommunications: what a rank measures of a communication runs from when it was ready to the
// end, and so contains waiting for the others, which the engine finds again by itself. The transfer
// is what the last one to come measured: the minimum over all that meet (collectives: the members,
// by sequence; sends and receives: both ends). The calls of an ncclGroup have one interval, the
// first one's; it is aligned with everything that meets any of its calls.
//
// Resample: one measurement is one step's. The median over some steps of what the same operation
// took says what a step takes, and may be held against the steps that it was not taken from.
//
// StepSamples: steps differ by chance. What an operation took in the other steps tells how much,
// and an evaluation may take one of those in its place.
//
// TakeTurns: copies of one measurement (`calibrate` runs a rank of several that do the same) would
// all be slow in the same step, and who waits for the slowest of them would wait for all alike.
//
// Stateless; thread-safe for distinct graphs.
//
//   AlignCommunications(&graph);                       // BuildGraph() does it
//   Resample(&graph, *DetectSteps(&graph), Samples::kOdd);
//   StepSamples::Of(graph, steps)->Ratio(rank, sequence, op, seed);
#ifndef PRISM_GRAPH_MEASURED_H_
#define PRISM_GRAPH_MEASURED_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/graph/graph.h"
#include "src/graph/step.h"

namespace prism::graph {

/// Of each node of each sequence the median of its samples, in ns; -1: none. Most have one: what
/// was recorded is in a row of chunks. Empty: the trace has no times.
std::vector<std::vector<int64_t>> MeasuredNs(const trace::Reader& trace);

/// Replaces measured durations of communications by those of the transfers. To be done once.
void AlignCommunications(Graph* graph);

/// Training steps that medians are taken over, counted from 0; the first two are warm-up.
/// kOwn: every step keeps its own. kOddSteps, kEvenSteps: no medians; every step is the nearest
/// odd (even) one.
enum class Samples { kOwn, kOdd, kEven, kAll, kOddSteps, kEvenSteps };
std::string_view SamplesName(Samples samples);
std::optional<Samples> SamplesOf(std::string_view name);

struct Resampled {
  size_t steps = 0;       // that samples were taken from
  uint64_t replaced = 0;  // durations of operations in training steps
  /// Of those, in steps that do not match the sampled ones in their sequence: they keep their own.
  uint64_t kept = 0;
};

/// Replaces, in every training step, the measured duration of every stream operation and the time
/// of every host segment by the median over the sampled steps, or by what the nearest of them has.
/// Operations correspond by their place in the step and sequence; where a step has other operations
/// in a sequence, that sequence keeps its own there. The medians of a sequence (of spans, of
/// communications) are scaled so that they add up to the median of what a step took in all: parts
/// are skewed, so the sum of their medians is less. FailedPrecondition: nothing is measured, or
/// there are too few training steps.
absl::StatusOr<Resampled> Resample(Graph* graph, const Steps& steps, Samples samples);

/// Ranks that agree in all that was measured, to the nanosecond, are copies of one measurement. The
/// k-th copy's spans take in each training step after the first two what they took k such steps on,
/// of those in which all its spans are the same: ranks' means stay what they are, and ranks have no
/// share in each other's chance. Returns the number of copies.
size_t TakeTurns(Graph* graph, const Steps& steps);

/// Measured steps to draw from: the training steps without the first two. Keeps a reference to the
/// graph, which must not change. Immutable.
class StepSamples {
 public:
  /// FailedPrecondition: nothing is measured, or there are fewer than two such steps.
  static absl::StatusOr<StepSamples> Of(const Graph& graph, const Steps& steps);

  /// How many there are.
  size_t count() const { return count_; }
  /// What the operation takes if its step is replaced by a drawn one, over what it takes: of a
  /// span, a communication, or host time (of all between two visible operations alike). `key` draws
  /// the step, one for everything that a rank does in a step; a communication's is the same on all
  /// ranks. 1 where nothing corresponds, or nothing is measured.
  double Ratio(uint32_t rank, uint32_t sequence, uint32_t op, uint64_t key) const;

 private:
  /// A sequence of a program, cut into steps.
  struct Cut {
    // Of each training step
    std::vector<uint32_t> begins, ends;
    std::vector<uint32_t> alike;                // index in `groups`
    std::vector<std::vector<uint32_t>> groups;  // sampled steps of one shape
    // Threads: of each operation its place in its step, and of each step what its places took.
    std::vector<uint32_t> places;
    std::vector<std::vector<int64_t>> host_ns;
  };

  explicit StepSamples(const Graph& graph) : graph_(&graph) {}

  const Graph* graph_;
  size_t count_ = 0;
  std::vector<std::vector<Cut>> cuts_;  // [program][sequence]
};

}  // namespace prism::graph

#endif  // PRISM_GRAPH_MEASURED_H_
