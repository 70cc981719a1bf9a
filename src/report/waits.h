// Waits: whom the ranks of a timed job wait for, in which communications, how long, and why that
// rank comes late.
//
// A communication begins when its last participant comes; the others wait until then. Why the last
// one, L, is late, is told against who waits longest, W: both left the communication that they had
// in common before at a known time, so what L did since then and W did not is the cause. Time of a
// rank counts, in this order, as compute (a span runs), transfer, waiting (for others) or idle (its
// streams wait for the host).
//
// Only measured durations say this: of a captured job, whose ranks share a machine, nothing is
// known. Stateless; thread-safe, but AnalyzeWaits adds slots to the graph's programs.
//
//   absl::StatusOr<Waits> waits = AnalyzeWaits(&graph, {.target = target});
//   for (const Straggler& s : waits->stragglers) ...   // s.rank, s.cause, s.wait_ns
#ifndef PRISM_REPORT_WAITS_H_
#define PRISM_REPORT_WAITS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/report/prediction.h"

namespace prism::report {

enum class Cause {
  kHost,      // its streams waited longer for the host
  kCompute,   // its kernels and copies ran longer
  kPassedOn,  // it waited, or transferred, longer itself in another communication
};
inline constexpr size_t kCauses = 3;
std::string_view CauseName(Cause cause);

/// Waiting for one rank at one place of the program, in the steps that are looked at.
struct WaitRow {
  uint32_t late;                     // world rank that comes last
  std::vector<uint32_t> waiting;     // world ranks
  uint32_t comm;                     // job-wide number; a hash, of a recorded job's
  std::vector<uint32_t> comm_ranks;  // world ranks
  std::string operation;
  /// A collective, or a group of messages to and from all members: its ranks are meant to come
  /// together. Who waits for other messages depends on what is computed first, as in a pipeline.
  bool together = false;
  std::string call_site;    // of the late rank's call
  uint64_t first_call = 0;  // number, from 1, of the first such call on the communicator (or
                            // between the two ranks)
  uint64_t calls = 0;
  std::string waiting_call_site;  // of one who waits
  int64_t wait_ns = 0;            // of who waits longest, summed up
  std::array<int64_t, kCauses> by_cause_ns = {};
};

/// A rank that others of its role wait for where they are meant to come together, for reasons of
/// its own, longer than it waits for them, in nearly every step. Ranks of one role make the same
/// calls of communication at the same places: stages of a pipeline are different ones, and who of
/// them comes last follows from what is computed first.
struct Straggler {
  uint32_t rank = 0;                              // world rank
  Cause cause = Cause::kHost;                     // the larger of its own
  int64_t wait_ns = 0;                            // a step, of own causes
  std::array<int64_t, kCauses> by_cause_ns = {};  // a step
  size_t steps = 0;                               // in which it was waited for
  std::vector<uint32_t> peers;                    // the others of its role: world ranks
  double time = 1;                                // of its kernels, over the peers' median
  double work = 1;  // that they do (threads; copies: 16 bytes for one), over the peers' median
  size_t row = 0;   // where most: index in Waits::rows

  /// "its kernels take 1.30 times as long as on ranks 0-2, for 1.00 times the work (17.6 ms)"
  std::string Why() const;
};

struct Waits {
  std::string unknown_because;  // nothing else is set then
  size_t steps = 0;             // that were looked at; 0: no steps were found, the run is one
  int64_t step_ns = 0;          // the median of them
  std::vector<WaitRow> rows;    // longest first
  std::vector<Straggler> stragglers;

  nlohmann::ordered_json Json() const;
  /// Lines; of the rows at most `rows`.
  std::string Text(size_t rows = 5) const;
};

/// FailedPrecondition: the job cannot run to its end.
absl::StatusOr<Waits> AnalyzeWaits(graph::Graph* graph, const PredictOptions& options);

}  // namespace prism::report

#endif  // PRISM_REPORT_WAITS_H_
