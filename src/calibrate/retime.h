// Retime: the trace of a rank that was not run, from its captured one and ranks of its kind that
// were run.
//
// Order, streams and host time are those of a measured trace of the same shape; what is launched,
// communicated and allocated is what the rank itself did when it was captured; spans take what
// LaunchTimes says. Stateless.
//
//   LaunchTimes times;
//   Learn(measured, outline, &times);
//   absl::StatusOr<Work> work = Retime({measured, outline}, captured, &times, path);
#ifndef PRISM_CALIBRATE_RETIME_H_
#define PRISM_CALIBRATE_RETIME_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "src/calibrate/launch_times.h"
#include "src/calibrate/outline.h"
#include "src/trace/reader.h"

namespace prism::calibrate {

/// A trace, and its outline.
struct Outlined {
  const trace::Reader& trace;
  const Outline& outline;
};

/// Adds every measured span of a trace.
void Learn(const Outlined& measured, LaunchTimes* times);

struct Work {
  int64_t span_ns = 0;
  uint64_t spans = 0;
  uint64_t interpolated = 0;  // of them of sizes that were not measured

  bool operator==(const Work&) const = default;
};
/// Of a measured trace.
Work WorkOf(const trace::Reader& measured);

/// Writes `path`. FailedPrecondition: the traces do not do the same, or launches are like none that
/// was measured: the rank has to run; others: the file.
absl::StatusOr<Work> Retime(const Outlined& measured, const Outlined& captured, LaunchTimes* times,
                            const std::string& path);

}  // namespace prism::calibrate

#endif  // PRISM_CALIBRATE_RETIME_H_
