// Engine: when everything in a graph happens, given how long everything takes.
//
// An operation completes at
//   span           max(start + G, last enqueue + launch latency + tail), start = max(stream, first
//   enqueue + latency)
//   communication  max(ready of all that meet) + cost, longer where others use its links (flows.h);
//   calls of one group complete together
//   wait           max(stream or thread, what it waits for)
//   host segment   thread + its time; an enqueue not before the stream's earlier enqueues
// so a span is bound by the GPU or by the host, whichever is slower, and a launch gap vanishes
// where the host runs ahead. A send that has links and fits into NCCL's FIFO for its peer, beside
// those before it that are not received, begins without its receive, which ends with it, or what a
// receive takes after it has come itself.
//
// What uses no links is evaluated in no order of time: what depends on nothing unknown goes on. The
// begins and ends of communications that do happen in order of time, when nothing else can go on:
// all that is still to come depends on one of them.
//
// A communication whose duration has a spread takes a drawn one, as in a job that runs: where
// several must end, the longest counts. Spans have theirs from the trace.
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
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "src/engine/flows.h"
#include "src/engine/target.h"
#include "src/graph/graph.h"
#include "src/graph/measured.h"
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
  int64_t ns = 0;  // after all have come, with its links for itself
  TimeSource source = TimeSource::kAssumed;
  /// In Durations::shares: what this rank adds to the links' load; none: it meets no other.
  uint32_t first_share = 0, shares = 0;
  /// Of the logarithm, where the trace has not measured it: how far one is off by chance, and how
  /// far `ns` is off as what they take, with all of the same figure (Options::doubts).
  double spread = 0, doubt = 0;
  uint32_t figure = 0;
  double size_doubt = 0, group_doubt = 0, share_doubt = 0;  // NetworkTime's; not drawn
};

/// Durations of a graph. Spans are the programs', calls are the ranks' (they depend on who the
/// peers are).
struct Durations {
  std::vector<std::vector<SpanTime>> spans;  // [program][span]
  std::vector<std::vector<CallTime>> calls;  // [rank][call]
  std::vector<LinkShare> shares;
  uint32_t links = 0;             // all numbers in `shares` are below
  int64_t receive_ns = 0;         // of a message that has come before
  HostTimes host;                 // of threads whose trace has no host time (Program::host_timed)
  int64_t launch_latency_ns = 0;  // from the end of the enqueue to the start on an idle stream
  /// Factors on host time by its source (what-if, ranges, shares).
  double host_scale[4] = {1, 1, 1, 1};
  /// Factors on what the trace has measured of spans and communications.
  double measured_span_scale = 1, measured_call_scale = 1;
  /// Ranks (index in Graph::ranks; empty: none) whose spans are timed by what others took, and the
  /// factor on these: they are interpolated.
  std::vector<uint8_t> retimed;
  double retimed_span_scale = 1;
  /// What-ifs (what_if.h), by rank (index in Graph::ranks); empty: 1. On spans, measured or not, on
  /// measured calls, and on host time.
  std::vector<std::vector<double>> span_scale, call_scale;  // [rank][span], [rank][call]
  std::vector<double> host_time_scale;
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

/// Takes, for each rank and step, what was measured in a drawn one (graph::StepSamples), scaled as
/// the duration itself is. Keeps a reference to the graph.
class SampleDraw final : public DurationDraw {
 public:
  SampleDraw(const graph::Graph& graph, graph::StepSamples samples, uint64_t seed);
  int64_t Draw(uint32_t rank, uint32_t iteration, uint32_t sequence, uint32_t op, int64_t base_ns,
               TimeSource source) const override;

 private:
  const graph::StepSamples samples_;
  const uint64_t seed_;
  std::vector<uint32_t> index_of_;  // by world rank, in Graph::ranks
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

/// An operation and what it waited for: its own work lasted from the completion of `cause` to
/// `end_ns`. Sequences and operations are those of one rank's program.
struct Completion {
  int64_t end_ns = 0;
  uint32_t rank = graph::kNone;  // of the cause, index in Graph::ranks; kNone: the start of the run
  graph::Place cause;
};
/// [rank][sequence][operation]
using History = std::vector<std::vector<std::vector<Completion>>>;

/// Time that a thread spends besides what its trace says: a what-if.
struct Delay {
  uint32_t rank;        // index in Graph::ranks
  graph::Place before;  // operation of a thread
  int64_t ns;
};

struct Options {
  /// Whether to list the operations of a rank that take time (index in Graph::ranks); empty: none.
  std::vector<uint8_t> timeline = {};
  /// Places of each program whose completion is wanted (they have slots); null: none.
  const std::vector<std::vector<graph::Place>>* probes = nullptr;
  const DurationDraw* draw = nullptr;  // null: every duration is as given
  uint32_t iteration = 0;
  /// Of the chance by which communications spread, alike on all that meet; the iteration has its
  /// own.
  uint64_t seed = 0;
  bool doubts = false;  // whether figures are drawn, too, as they may be off
  /// Complete a communication when those that are in the graph have come (incomplete graphs).
  bool tolerate_missing = false;
  std::vector<Delay> delays = {};
  bool history = false;  // whether to keep what everything waited for: 24 bytes an operation
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
  History history;
  int64_t finish_ns = 0;
  uint64_t operations = 0;  // evaluated
};

/// FailedPrecondition: some operations can never complete; the message names them.
absl::StatusOr<Outcome> Evaluate(const graph::Graph& graph, const Durations& durations,
                                 const Options& options = {});

/// A communication of a rank that is played from outside: its stream has reached a call.
struct Visit {
  uint32_t rank;      // index in Graph::ranks
  uint32_t call;      // of its program
  uint32_t sequence;  // of the collective on its communicator, or order in the channel
  int64_t ready_ns;
  uint64_t token;      // names it in Meeting, and no other
  uint64_t group = 0;  // whose visits are waited for together
  bool waits = true;   // false: a send that ends before its receive comes (graph::EndsEarly)
  bool early = false;  // a send that may begin before its receive comes (graph::BeginsEarly)
};

/// A visit's communication has everybody it needs.
struct Meeting {
  uint64_t token;
  int64_t met_ns;  // when the last one came
  int64_t end_ns;
};

/// Evaluates a graph of which some ranks are not evaluated: they run somewhere, and say when they
/// reach a communication. What depends on them waits until they do, everything else is evaluated as
/// Evaluate() does; so if they come when Evaluate() says, all happens when Evaluate() says.
///
/// Visits may come in any order where no links are shared. Where they are, an end depends on what
/// begins before it: Run(now) goes no further than the time that the outside ranks have reached,
/// and tells of an end when it has come; NextNs() says when that may be, or, from some waits on,
/// when all of a group will have ended if nobody visits before. Run() for a clock that cannot be
/// waited for takes it that they begin nothing else meanwhile; what they then begin in the past of
/// what was told changes nothing of that.
///
///   LiveEvaluation live(graph, durations, {}, /*outside=*/{1, 0, 0, 0});
///   live.Initialise(0, participant, 0);
///   live.Visit({.rank = 0, .call = c, .sequence = 0, .ready_ns = 1'000, .token = 7});
///   for (const Meeting& meeting : live.Run()) ...   // token 7 ends at meeting.end_ns
///
/// Keeps references to graph and durations. Not thread-safe.
class LiveEvaluation {
 public:
  /// `outside`: by index in Graph::ranks, who is not evaluated. `waits_before_look`: times that
  /// NextNs() is asked between visits before it evaluates ahead, with a copy of all there is.
  LiveEvaluation(const graph::Graph& graph, const Durations& durations, const Options& options,
                 std::vector<uint8_t> outside, uint32_t waits_before_look = 64);
  ~LiveEvaluation();

  /// An outside rank comes to the initialisation of its `participant`-th communicator.
  void Initialise(uint32_t rank, uint32_t participant, int64_t ready_ns);
  void Visit(const Visit& visit);
  /// Goes on as far as is possible, with ends of flows up to `until_ns`; returns what has met, and
  /// of flows ended, since the last call.
  std::vector<Meeting> Run(int64_t until_ns = Flows::kNever);
  /// To when Run() has to go next for what is visited and not told of; Flows::kNever: for nothing.
  int64_t NextNs();
  /// Whether all that is evaluated has come to its end.
  bool Done() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_ENGINE_H_
