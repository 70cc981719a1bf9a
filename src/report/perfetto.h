// Perfetto: an evaluated job as a trace for ui.perfetto.dev: a process for each rank with a track
// for each stream and host thread, a slice for each span, communication and host segment, flows
// between the calls that meet, counters of device memory, and the steps. Written in Perfetto's
// protobuf format (TrackEvent), compressed with gzip, which the viewer reads.
//
// Stateless; thread-safe.
//
//   PRISM_RETURN_IF_ERROR(WritePerfetto("job/timeline.pftrace.gz", graph, evaluated, {}));
#ifndef PRISM_REPORT_PERFETTO_H_
#define PRISM_REPORT_PERFETTO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "src/report/prediction.h"

namespace prism::report {

/// Device memory of a rank over time.
struct MemoryCurve {
  uint32_t rank;                                   // index in Graph::ranks
  std::vector<std::pair<int64_t, int64_t>> bytes;  // (ns, in use from then on), ascending
};

/// Returns the uncompressed trace.
std::string PerfettoTrace(const graph::Graph& graph, const Evaluated& evaluated,
                          const std::vector<MemoryCurve>& memory);

/// Writes the trace, compressed, atomically.
absl::Status WritePerfetto(const std::string& path, const graph::Graph& graph,
                           const Evaluated& evaluated, const std::vector<MemoryCurve>& memory);

}  // namespace prism::report

#endif  // PRISM_REPORT_PERFETTO_H_
