#include "src/engine/critical_path.h"

#include <algorithm>

namespace prism::engine {

std::vector<PathStep> CriticalPath(const History& history, uint32_t rank, graph::Place place,
                                   int64_t since_ns) {
  since_ns = std::max<int64_t>(since_ns, 0);
  std::vector<PathStep> path;
  while (rank != graph::kNone) {
    const Completion& completion = history[rank][place.sequence][place.op];
    if (completion.end_ns <= since_ns) break;
    const bool first = completion.rank == graph::kNone;
    const int64_t begin_ns =
        first ? 0 : history[completion.rank][completion.cause.sequence][completion.cause.op].end_ns;
    if (completion.end_ns > begin_ns)
      path.push_back({rank, place, std::max(begin_ns, since_ns), completion.end_ns});
    rank = completion.rank;
    place = completion.cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace prism::engine
