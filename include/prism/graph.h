/// The graph of a job: every rank's program, who communicates with whom, its steps, and what is
/// wrong with it.
///
///   auto graph = prism::LoadJob("job");
///   for (const auto& finding : prism::graph::CheckStructure(*graph)) puts(finding.text.c_str());
///   auto steps = prism::graph::DetectSteps(&*graph);
///
/// Contracts are in src/graph/{graph,program,step,check}.h. Equivalent ranks share a program, so a
/// large job costs what its distinct roles cost.
#ifndef PRISM_INCLUDE_GRAPH_H_
#define PRISM_INCLUDE_GRAPH_H_

#include <string>

#include "src/graph/check.h"
#include "src/graph/graph.h"
#include "src/graph/step.h"

namespace prism {

using graph::Graph;

/// Loads the traces of a job directory. NotFound, FailedPrecondition (no traces, or not every
/// rank's), DataLoss.
inline absl::StatusOr<Graph> LoadJob(const std::string& directory,
                                     const graph::LoadOptions& options = {}) {
  return graph::LoadJob(directory, options);
}

}  // namespace prism

#endif  // PRISM_INCLUDE_GRAPH_H_
