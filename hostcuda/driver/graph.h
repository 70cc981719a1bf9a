// Stream capture and graphs.
//
// A captured operation is a node: the label that profilers see and the work that a replay runs. An
// instantiated graph is an immutable copy; every launch is one operation of its stream that polls
// the nodes whose dependencies are done, so a node that waits (a collective, a wait value) holds
// only what depends on it. Launches of one executable graph run one after another, as on a GPU.
//
// Threading: graphs and captures are guarded by the engine's mutex; running a graph needs no lock.
#ifndef HOSTCUDA_DRIVER_GRAPH_H_
#define HOSTCUDA_DRIVER_GRAPH_H_

#include <cuda.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "hostcuda/driver/engine.h"

namespace hostcuda {

struct Graph;

struct GraphNode {
  static constexpr uint32_t kMagic = 0x474e4f44;
  uint32_t magic = kMagic;
  Graph* graph = nullptr;
  uint32_t number = 0;
  Label label;
  std::shared_ptr<Work> work;  // null: nothing to do
  EventRef event;              // of record and wait nodes
  Graph* child = nullptr;      // of child-graph nodes; owned by the node
  std::vector<GraphNode*> dependencies, dependents;
};

/// Reference-counted by CUDA's rules: cuUserObjectCreate and its relatives.
struct UserObject {
  static constexpr uint32_t kMagic = 0x554f424a;
  uint32_t magic = kMagic;
  void* object = nullptr;
  CUhostFn destroy = nullptr;
  unsigned references = 0;
};

struct Graph {
  static constexpr uint32_t kMagic = 0x47524150;
  uint32_t magic = kMagic;
  uint32_t next_number = 0;
  std::vector<std::unique_ptr<GraphNode>> nodes;
  std::vector<std::pair<UserObject*, unsigned>> objects;

  GraphNode* Add(const Label& label, std::shared_ptr<Work> work,
                 const std::vector<GraphNode*>& dependencies);
};

/// What an instantiated graph runs.
struct Program {
  struct Step {
    Label label;
    std::shared_ptr<Work> work;
    uint32_t waits = 0;  // number of dependencies
    std::vector<uint32_t> successors;
  };
  std::vector<Step> steps;
};

struct GraphExec {
  static constexpr uint32_t kMagic = 0x47455845;
  uint32_t magic = kMagic;
  std::shared_ptr<const Program> program;
  unsigned long long flags = 0;
  EventRef last;  // recorded after every launch
};

class Capture {
 public:
  uint64_t id = 0;
  Graph* graph = nullptr;
  bool owns_graph = true;  // false: cuStreamBeginCaptureToGraph
  Stream* origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  pid_t thread = 0;
  bool active = true;
  bool invalid = false;
  std::vector<StreamRef> streams;
};

CUresult BeginCapture(Stream& stream, Graph* into, const std::vector<GraphNode*>& dependencies,
                      CUstreamCaptureMode mode);
CUresult EndCapture(Stream& stream, Graph** graph);
/// Exchanges the calling thread's mode (cuThreadExchangeStreamCaptureMode).
CUstreamCaptureMode ExchangeCaptureMode(CUstreamCaptureMode mode);

/// An executable copy; null where the graph has a cycle or a node that cannot be replayed.
std::shared_ptr<const Program> Compile(const Graph& graph, CUresult* error);
/// One run of a program, as an operation of `stream`.
std::shared_ptr<Work> MakeRun(std::shared_ptr<const Program> program, StreamRef stream,
                              const Label& launch);
CUresult LaunchGraph(GraphExec& exec, const StreamRef& stream);

/// A deep copy; `map` tells each node's copy.
Graph* CloneGraph(const Graph& graph);
void DestroyGraph(Graph* graph);
void ReleaseObject(UserObject* object, unsigned count);

/// Works of event nodes.
std::shared_ptr<Work> MakeEventRecord(const EventRef& event);
std::shared_ptr<Work> MakeEventWait(const EventRef& event);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_GRAPH_H_
