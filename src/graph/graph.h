// Graph: the whole job. Every rank's program, who communicates with whom, and what is wrong with
// it.
//
// Nodes are the operations of the programs; edges are implied: order within a sequence; kEnqueue to
// its stream operation; kWait to its slot; a communication to the calls it matches in other ranks:
// collectives by (communicator, sequence), sends and receives by (communicator, source,
// destination, order). ExpandEdges() in check.h spells them out.
//
// Equivalent ranks share a program: 8,192 ranks cost what their distinct roles cost, plus a binding
// each. Immutable after loading but for Program::AddSlot; any number of threads may read.
//
//   absl::StatusOr<Graph> graph = LoadJob("job");
//   graph->ranks[3].program ...
#ifndef PRISM_GRAPH_GRAPH_H_
#define PRISM_GRAPH_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/graph/program.h"

namespace prism::graph {

/// Who is at one position of a communicator.
struct Member {
  uint32_t rank = kNone;  // index in Graph::ranks; kNone: no trace of it
  uint32_t participant = kNone;
};

struct Communicator {
  uint32_t number;  // job-wide
  /// By position; kNone: no trace names that member (only with LoadOptions::allow_incomplete).
  std::vector<uint32_t> world_ranks;
  std::vector<Member> members;  // by position
  uint32_t expected_init = 0;   // members whose programs contain the initialisation

  uint32_t size() const { return static_cast<uint32_t>(members.size()); }
};

/// Messages from one member of a communicator to another.
struct Channel {
  uint32_t comm;      // index in Graph::communicators
  uint32_t from, to;  // positions
};

struct Rank {
  uint32_t rank;                  // world rank
  std::string path;               // of its trace
  uint32_t program;               // index in Graph::programs
  std::vector<uint32_t> devices;  // RankBinding::devices
  std::vector<uint32_t> comm;     // of each participant: index in Graph::communicators
  std::vector<uint32_t> comm_rank;
  std::vector<int32_t> peer;      // of each call: root or peer; -1
  std::vector<uint32_t> channel;  // of each call: index in Graph::channels; kNone for collectives
  uint64_t channel_bytes = 0;     // modelled memory of its communicators when they are made
  uint32_t meta = kNone;          // index in Graph::metas
  trace::Completeness completeness = trace::Completeness::kSealed;
  /// Measured durations of each sequence's nodes where the trace has them (medians over
  /// iterations), -1 where not. Of communications: of the transfer, without waiting (measured.h).
  std::vector<std::vector<int64_t>> measured_ns;
};

struct Graph {
  uint32_t world = 0;
  std::vector<Rank> ranks;  // ascending
  std::vector<Program> programs;
  std::vector<Communicator> communicators;
  std::vector<Channel> channels;
  std::vector<std::string> metas;     // distinct JSON objects of the traces
  std::vector<std::string> warnings;  // what was tolerated
  uint64_t ops = 0;                   // over all ranks
  uint64_t trace_bytes = 0;
  /// Which of the programs that the job's command ran, one after the other, counted from 1.
  uint32_t launch = 1, launches = 1;
  uint64_t start_unix_ns = 0;  // of its first rank

  const Program& program_of(const Rank& rank) const { return programs[rank.program]; }
};

struct LoadOptions {
  /// Accept missing ranks, members that no trace names and incomplete traces, with a warning for
  /// each kind; else FailedPrecondition, DataLoss.
  bool allow_incomplete = false;
  /// Which of the programs that a script ran as the same ranks, counted from 1; 0: the last.
  uint32_t launch = 0;
  /// Take from measured communications what a rank waited for others in them (measured.h). Without,
  /// it waits twice.
  bool align_communications = true;
};

/// Name of a rank's trace in its job directory: "trace/rank-00003.prt".
std::string TraceName(uint32_t rank);

/// Index in Graph::ranks of a world rank. InvalidArgument: "there is no rank 9" and `purpose`; the
/// hint lists those that there are.
absl::StatusOr<uint32_t> RankIndex(const Graph& graph, uint32_t world_rank,
                                   const std::string& purpose = "");

/// "0-6, 9, 12-15" of ascending ranks, so that a thousand of them fit a line; "..." after `most`
/// parts.
std::string RankList(const std::vector<uint32_t>& ranks, size_t most = 12,
                     const char* separator = ", ");

/// Loads all traces of a job directory (of one program, if its command ran several). NotFound: no
/// such directory; FailedPrecondition: it holds no traces, or not all ranks'; InvalidArgument: it
/// holds no such launch; DataLoss and others as Reader::Open.
absl::StatusOr<Graph> LoadJob(const std::string& directory, const LoadOptions& options = {});

/// Builds the graph of the given traces, which are no longer needed afterwards.
absl::StatusOr<Graph> BuildGraph(std::vector<trace::Reader> traces,
                                 const LoadOptions& options = {});

}  // namespace prism::graph

#endif  // PRISM_GRAPH_GRAPH_H_
