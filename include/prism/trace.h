/// PrismTrace: reading what one rank of a job did.
///
///   auto trace = prism::OpenTrace("job/trace/rank-00000.prt");
///   if (!trace.ok()) return Fail(trace.status());
///   for (const prism::trace::Node& node : trace->nodes(0)) ...
///
/// Types and their contracts are in src/trace/format.h (what a file holds;
/// docs/reference/prismtrace.md explains it) and src/trace/reader.h. A Reader is immutable: any
/// number of threads may read.
#ifndef PRISM_INCLUDE_TRACE_H_
#define PRISM_INCLUDE_TRACE_H_

#include <string>

#include "src/trace/reader.h"

namespace prism {

using TraceReader = trace::Reader;

/// Opens a whole trace. NotFound, InvalidArgument (not a PrismTrace), FailedPrecondition (another
/// version), DataLoss (incomplete or damaged, with how much is readable).
inline absl::StatusOr<TraceReader> OpenTrace(const std::string& path) {
  return trace::Reader::Open(path);
}

/// Opens whatever is readable of a trace; TraceReader::completeness() and problem() say what is
/// missing.
inline absl::StatusOr<TraceReader> OpenIncompleteTrace(const std::string& path) {
  return trace::Reader::Open(path, {.allow_incomplete = true});
}

}  // namespace prism

#endif  // PRISM_INCLUDE_TRACE_H_
