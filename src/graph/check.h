// Structure checks of a graph: communications that nobody answers, that contradict each other, that
// wait in a circle, or that ranks launch in different orders. Also the graph spelt out as an
// explicit list of edges, for tools and small graphs.
//
// Stateless; thread-safe.
//
//   for (const Finding& f : CheckStructure(graph)) std::cout << f.text << "\n";
#ifndef PRISM_GRAPH_CHECK_H_
#define PRISM_GRAPH_CHECK_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/graph/graph.h"

namespace prism::graph {

enum class FindingKind {
  kUnmatched,     // a collective that not all members call, a send without its receive
  kMismatch,      // operation, type, count, reduction or root differ
  kCycle,         // operations that wait for each other
  kOrder,         // collectives of two communicators, launched in different orders
  kDisagreement,  // the coordinator counted something else (matching_table.h)
};

struct Finding {
  FindingKind kind;
  std::string text;             // ranks, communicator, sequence, what each expected, call sites
  std::vector<uint32_t> ranks;  // world ranks
};

/// Returns at most `limit` findings, most basic first: cycles and orders are looked for only when
/// everything matches. Orders matter although nothing waited: without a dependency between the two,
/// kernels of NCCL that hold what the other needs hang on a GPU.
std::vector<Finding> CheckStructure(const Graph& graph, size_t limit = 20);

/// One operation of one rank.
struct NodeId {
  uint32_t rank;  // index in Graph::ranks
  uint32_t sequence;
  uint32_t op;
};

/// The graph as vertices and edges. Every operation has a vertex for its completion. A
/// communication that begins a group on its stream (alone or with others) and a kCommInit also have
/// one for being ready, and every set of matching calls has one for their meeting: ready of all ->
/// meeting -> completion of all, but of sends that end early: those complete after they are ready.
struct ExplicitGraph {
  enum class Role : uint8_t { kDone, kReady, kMeeting };
  struct Vertex {
    NodeId node;  // kMeeting: one of those that meet
    Role role;
  };
  std::vector<Vertex> vertices;
  std::vector<std::pair<uint32_t, uint32_t>> edges;  // from, to
};
ExplicitGraph ExpandEdges(const Graph& graph);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_CHECK_H_
