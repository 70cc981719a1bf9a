#include "src/engine/critical_path.h"

#include <algorithm>

namespace prism::engine {

std::vector<PathStep> CriticalPath(const History& history, uint32_t rank, graph::Place place,
                                   int64_t since_ns) {
  since_ns = std::max<int64_t>(since_ns, 0);
  std::vector<PathStep> path;
  // A thread is told to be at a span's last launch until it does something else, so a cause may end
  // behind what it is the cause of.
  int64_t until_ns = INT64_MAX;
  while (rank != graph::kNone) {
    const Completion& completion = history[rank][place.sequence][place.op];
    const int64_t end_ns = std::min(completion.end_ns, until_ns);
    if (end_ns <= since_ns) break;
    const bool first = completion.rank == graph::kNone;
    const int64_t begin_ns =
        first ? 0 : history[completion.rank][completion.cause.sequence][completion.cause.op].end_ns;
    if (end_ns > begin_ns) path.push_back({rank, place, std::max(begin_ns, since_ns), end_ns});
    until_ns = std::min(end_ns, begin_ns);
    rank = completion.rank;
    place = completion.cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace prism::engine
