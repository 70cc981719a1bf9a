// Engine: when everything in a graph happens, given how long everything takes.
//
// An operation completes at
//   span           max(start + G, last enqueue + launch latency + tail), start = max(stream, first
//   enqueue + latency) communication  max(ready of all that meet) + cost; calls of one group
//   complete together wait           max(stream or thread, what it waits for) host segment   thread
//   + its time; an enqueue not before the stream's earlier enqueues
// so a span is bound by the GPU or by the host, whichever is slower, and a launch gap vanishes
// where the host runs ahead.
//
// Deterministic: a result depends on graph, durations and options alone, not on the order of
// evaluation. No clock, no input or output inside, so the same code evaluates offline and paced.
// One call is single-threaded; calls share nothing.
//
//   Durations durations = model.DurationsOf(graph);
//   absl::StatusOr<Outcome> outcome = Evaluate(graph, durations, {.probes = {&steps.ends}});
#ifndef PRISM_ENGINE_ENGINE_H_
#define PRISM_ENGINE_ENGINE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "src/engine/target.h"
#include "src/graph/graph.h"
#include "src/graph/step.h"

namespace prism::engine {

using trace::TimeSource;

/// How long a span takes, alone on the GPU.
struct SpanTime {
  int64_t ns = 0;  // G: from the start of its first kernel to the end of its last
  int64_t tail_ns =
      0;  // of the last kernel: what remains after the last launch when the host is the slower one
  TimeSource source = TimeSource::kAssumed;
};

struct CallTime {
  int64_t ns = 0;  // after all have come
  TimeSource source = TimeSource::kAssumed;
};

/// Durations of a graph. Spans are the programs', calls are the ranks' (they depend on who the
/// peers are).
struct Durations {
  std::vector<std::vector<SpanTime>> spans;  // [program][span]
  std::vector<std::vector<CallTime>> calls;  // [rank][call]
  HostTimes host;                 // of threads whose trace has no host time (Program::host_timed)
  int64_t launch_latency_ns = 0;  // from the end of the enqueue to the start on an idle stream
  /// Factors on host time by its source (what-if, ranges, shares).
  double host_scale[4] = {1, 1, 1, 1};
};

/// Draws the duration of one operation: same arguments, same answer.
class DurationDraw {
 public:
  virtual ~DurationDraw() = default;
  /// `rank` is the world rank; `base_ns` comes from the durations.
  virtual int64_t Draw(uint32_t rank, uint32_t iteration, uint32_t sequence, uint32_t op,
                       int64_t base_ns, TimeSource source) const = 0;
};

/// Multiplies by a factor that is log-normal with median 1: exp(sigma z), z from (seed, rank,
/// iteration, sequence, op).
class LogNormalDraw final : public DurationDraw {
 public:
  LogNormalDraw(uint64_t seed, double sigma) : seed_(seed), sigma_(sigma) {}
  int64_t Draw(uint32_t rank, uint32_t iteration, uint32_t sequence, uint32_t op, int64_t base_ns,
               TimeSource source) const override;

 private:
  uint64_t seed_;
  double sigma_;
};

/// One operation in time.
struct Interval {
  uint32_t rank;  // index in Graph::ranks
  uint32_t sequence;
  uint32_t op;
  int64_t start_ns;
  int64_t met_ns;  // communications: when the last one came; else start_ns
  int64_t end_ns;
};

struct Options {
  /// Whether to list the operations of a rank that take time (index in Graph::ranks); empty: none.
  std::vector<uint8_t> timeline = {};
  /// Places of each program whose completion is wanted (they have slots); null: none.
  const std::vector<std::vector<graph::Place>>* probes = nullptr;
  const DurationDraw* draw = nullptr;  // null: every duration is as given
  uint32_t iteration = 0;
  /// Complete a communication when those that are in the graph have come (incomplete graphs).
  bool tolerate_missing = false;
};

struct RankOutcome {
  int64_t finish_ns = 0;
  int64_t span_ns = 0;          // sum over spans of end - start
  int64_t transfer_ns = 0;      // sum over communications of end - met
  int64_t wait_ns = 0;          // sum over communications of met - ready
  int64_t host_ns = 0;          // sum over host segments
  std::vector<int64_t> probes;  // -1: a place without sequence (the start)
};

struct Outcome {
  std::vector<RankOutcome> ranks;
  std::vector<Interval> timeline;  // by rank, not otherwise ordered
  int64_t finish_ns = 0;
  uint64_t operations = 0;  // evaluated
};

/// FailedPrecondition: some operations can never complete; the message names them.
absl::StatusOr<Outcome> Evaluate(const graph::Graph& graph, const Durations& durations,
                                 const Options& options = {});

}  // namespace prism::engine

#endif  // PRISM_ENGINE_ENGINE_H_
