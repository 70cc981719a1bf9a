// The coordinator's matching table (matching.json of a job directory) against the graph of the
// traces.
//
// The two have different sources: the shims of the ranks wrote the traces, the coordinator counted
// what it matched. Where they agree on communicators, calls and bytes, no trace lacks a
// communication and none was matched that no trace has. The graph is built from the traces alone.
//
// Stateless; thread-safe.
//
//   for (const Finding& f : CompareWithMatching(graph, table)) std::cout << f.text << "\n";
#ifndef PRISM_GRAPH_MATCHING_TABLE_H_
#define PRISM_GRAPH_MATCHING_TABLE_H_

#include <vector>

#include "nlohmann/json.hpp"
#include "src/graph/check.h"
#include "src/graph/graph.h"

namespace prism::graph {

/// Returns at most `limit` findings of kind kDisagreement. Of communicators some of whose members
/// have no trace, only the members that have one are compared.
std::vector<Finding> CompareWithMatching(const Graph& graph, const nlohmann::ordered_json& table,
                                         size_t limit = 20);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_MATCHING_TABLE_H_
