// Path rows: a step's critical path (engine/critical_path.h), summed up by what is done: what would
// make the step shorter if it were faster, in the order of how much.
#ifndef PRISM_REPORT_PATH_ROWS_H_
#define PRISM_REPORT_PATH_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/engine/cost_model.h"
#include "src/engine/critical_path.h"
#include "src/graph/graph.h"

namespace prism::report {

struct PathRow {
  enum class Kind { kCompute, kCommunication, kHost, kWaiting };
  Kind kind;         // kWaiting: launch latencies, and calls that wait
  std::string what;  // the longest kernel of a span, or the operation and its group
  int64_t ns;        // of the step; a duration of these 1 % longer makes the step 1 % of it longer
  uint64_t times;    // on the path
  std::vector<uint32_t> ranks;  // world ranks, ascending
};
const char* PathKindName(PathRow::Kind kind);

/// Rows of a path, the longest first.
std::vector<PathRow> PathRows(const graph::Graph& graph, const engine::CostModel& model,
                              const std::vector<engine::PathStep>& path);

}  // namespace prism::report

#endif  // PRISM_REPORT_PATH_ROWS_H_
