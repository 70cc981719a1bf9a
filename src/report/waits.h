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
  kSlower,    // its kernels, which others run too, took longer
  kWork,      // it had more work, or other work
  kPassedOn,  // it waited, or transferred, longer itself in another communication
};
inline constexpr size_t kCauses = 4;
std::string_view CauseName(Cause cause);

/// Waiting for one rank at one place of the program, in the steps that are looked at.
struct WaitRow {
  uint32_t late;                     // world rank that comes last
  std::vector<uint32_t> waiting;     // world ranks
  uint32_t comm;                     // job-wide number; a hash, of a recorded job's
  std::vector<uint32_t> comm_ranks;  // world ranks
  std::string operation;
  std::string call_site;    // of the late rank's call
  uint64_t first_call = 0;  // number, from 1, of the first such call on the communicator (or
                            // between the two ranks)
  uint64_t calls = 0;
  std::string waiting_call_site;  // of one who waits
  int64_t wait_ns = 0;            // of who waits longest, summed up
  std::array<int64_t, kCauses> by_cause_ns = {};
};

/// A rank that others wait for in most steps, for reasons of its own.
struct Straggler {
  uint32_t rank;
  Cause cause;                               // the largest of its own
  int64_t wait_ns;                           // a step, of own causes
  std::array<int64_t, kCauses> by_cause_ns;  // a step
  size_t steps;                              // in which it was waited for
  double slower;                             // factor of its kernels' time over that of
  std::vector<uint32_t> peers;               // these ranks, which run the same
  size_t row;                                // where most: index in Waits::rows
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
