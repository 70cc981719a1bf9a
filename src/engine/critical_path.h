// Critical path: what a time is made of. Going back from an operation's end by what it waited for
// gives a chain of operations without gaps; making one of them shorter makes the end earlier by as
// much, until something else takes as long.
//
// Stateless; thread-safe.
//
//   Outcome outcome = *Evaluate(graph, durations, {.history = true});
//   for (const PathStep& step : CriticalPath(outcome.history, rank, place, begin_ns)) ...
#ifndef PRISM_ENGINE_CRITICAL_PATH_H_
#define PRISM_ENGINE_CRITICAL_PATH_H_

#include <cstdint>
#include <vector>

#include "src/engine/engine.h"

namespace prism::engine {

/// An operation (index in Graph::ranks, its place in that rank's program) and the part of the time
/// that is its own.
struct PathStep {
  uint32_t rank;
  graph::Place place;
  int64_t begin_ns, end_ns;
};

/// Returns the path to the end of the operation at `place`, from `since_ns` on, in the order of
/// time: each step begins where the one before ends, the first at `since_ns` (or at the start of
/// the run). Empty: it ended before. Operations that take no time are left out.
std::vector<PathStep> CriticalPath(const History& history, uint32_t rank, graph::Place place,
                                   int64_t since_ns);

}  // namespace prism::engine

#endif  // PRISM_ENGINE_CRITICAL_PATH_H_
