// Stream capture and graphs.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hostcuda/driver/copy.h"
#include "hostcuda/driver/entry.h"
#include "hostcuda/driver/graph.h"
#include "hostcuda/driver/launch.h"

using hostcuda::Checked;
using hostcuda::EventRef;
using hostcuda::FunctionWork;
using hostcuda::Graph;
using hostcuda::GraphExec;
using hostcuda::GraphNode;
using hostcuda::Label;
using hostcuda::PollState;
using hostcuda::UserObject;

namespace {

/// The engine's mutex guards graphs, too.
std::unique_lock<std::mutex> Lock() {
  return std::unique_lock<std::mutex>(hostcuda::Driver::Get()->engine().mutex());
}

bool Nodes(const CUgraphNode* handles, size_t count, std::vector<GraphNode*>* nodes) {
  for (size_t i = 0; i < count; ++i) {
    GraphNode* node = handles == nullptr ? nullptr : Checked<GraphNode>(handles[i]);
    if (node == nullptr) return false;
    nodes->push_back(node);
  }
  return true;
}

/// Answers as CUDA's list queries do: *count is the room, then the number; with no list only the
/// number.
template <class Handle, class Objects>
CUresult AnswerList(const Objects& objects, Handle* list, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (list != nullptr) {
    for (size_t i = 0; i < *count; ++i)
      list[i] = i < objects.size() ? reinterpret_cast<Handle>(objects[i]) : nullptr;
    *count = std::min(*count, objects.size());
  } else {
    *count = objects.size();
  }
  return CUDA_SUCCESS;
}

CUresult AddNode(CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* dependencies,
                 size_t count, const Label& label, std::shared_ptr<hostcuda::Work> work,
                 EventRef event = nullptr, Graph* child = nullptr) {
  HC_DRIVER();
  Graph* graph = Checked<Graph>(graph_handle);
  std::vector<GraphNode*> nodes;
  if (out == nullptr || graph == nullptr || !Nodes(dependencies, count, &nodes))
    return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  GraphNode* node = graph->Add(label, std::move(work), nodes);
  node->event = std::move(event);
  node->child = child;
  *out = reinterpret_cast<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

template <class Function>
std::shared_ptr<hostcuda::Work> MakeWork(Function function) {
  return std::make_shared<FunctionWork<Function>>(std::move(function));
}

Label TypeLabel(CUgraphNodeType type) {
  Label label;
  label.type = type;
  return label;
}

}  // namespace

// ---- capture

HC_ENTRY CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  HC_STREAM(stream, hStream);
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  return hostcuda::BeginCapture(*stream, nullptr, {}, mode);
}
HC_ENTRY CUresult cuStreamBeginCapture(CUstream hStream) {
  return cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
HC_ENTRY CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                              const CUgraphNode* dependencies,
                                              const CUgraphEdgeData* dependencyData,
                                              size_t numDependencies, CUstreamCaptureMode mode) {
  HC_STREAM(stream, hStream);
  (void)dependencyData;
  Graph* graph = Checked<Graph>(hGraph);
  std::vector<GraphNode*> nodes;
  if (graph == nullptr || mode > CU_STREAM_CAPTURE_MODE_RELAXED ||
      !Nodes(dependencies, numDependencies, &nodes))
    return CUDA_ERROR_INVALID_VALUE;
  return hostcuda::BeginCapture(*stream, graph, nodes, mode);
}
HC_ENTRY CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  HC_STREAM(stream, hStream);
  if (phGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Graph* graph = nullptr;
  const CUresult result = hostcuda::EndCapture(*stream, &graph);
  *phGraph = reinterpret_cast<CUgraph>(graph);
  return result;
}
HC_ENTRY CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  HC_STREAM(stream, hStream);
  if (captureStatus == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  if (stream->legacy && stream->context->capturing_blocking != 0)
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *captureStatus = stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                   : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamGetCaptureInfo_v3(CUstream hStream,
                                            CUstreamCaptureStatus* captureStatus_out,
                                            cuuint64_t* id_out, CUgraph* graph_out,
                                            const CUgraphNode** dependencies_out,
                                            const CUgraphEdgeData** edgeData_out,
                                            size_t* numDependencies_out) {
  HC_STREAM(stream, hStream);
  if (captureStatus_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static thread_local std::vector<CUgraphEdgeData> edges;  // all plain: zeros
  const auto lock = Lock();
  if (stream->legacy && stream->context->capturing_blocking != 0)
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture == nullptr) {
    *captureStatus_out = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  *captureStatus_out = stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id_out != nullptr) *id_out = stream->capture->id;
  if (graph_out != nullptr) *graph_out = reinterpret_cast<CUgraph>(stream->capture->graph);
  if (dependencies_out != nullptr) *dependencies_out = stream->capture_nodes.data();
  if (numDependencies_out != nullptr) *numDependencies_out = stream->capture_nodes.size();
  if (edgeData_out != nullptr) {
    edges.assign(stream->capture_nodes.size() + 1, CUgraphEdgeData{});
    *edgeData_out = edges.data();
  }
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamGetCaptureInfo_v2(CUstream hStream,
                                            CUstreamCaptureStatus* captureStatus_out,
                                            cuuint64_t* id_out, CUgraph* graph_out,
                                            const CUgraphNode** dependencies_out,
                                            size_t* numDependencies_out) {
  return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, graph_out, dependencies_out,
                                   nullptr, numDependencies_out);
}
HC_ENTRY CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                         cuuint64_t* id_out) {
  return cuStreamGetCaptureInfo_v3(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr,
                                   nullptr);
}
HC_ENTRY CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                                       const CUgraphEdgeData* dependencyData,
                                                       size_t numDependencies, unsigned int flags) {
  HC_STREAM(stream, hStream);
  (void)dependencyData;
  std::vector<GraphNode*> nodes;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || !Nodes(dependencies, numDependencies, &nodes))
    return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->capture_nodes.clear();
  for (size_t i = 0; i < numDependencies; ++i) stream->capture_nodes.push_back(dependencies[i]);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies,
                                                    size_t numDependencies, unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies,
                                              flags);
}
HC_ENTRY CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  *mode = hostcuda::ExchangeCaptureMode(*mode);
  return CUDA_SUCCESS;
}

// ---- graphs

HC_ENTRY CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  HC_DRIVER();
  if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *phGraph = reinterpret_cast<CUgraph>(new Graph);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphDestroy(CUgraph hGraph) {
  HC_DRIVER();
  Graph* graph = Checked<Graph>(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  hostcuda::DestroyGraph(graph);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  HC_DRIVER();
  Graph* graph = Checked<Graph>(originalGraph);
  if (phGraphClone == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  *phGraphClone = reinterpret_cast<CUgraph>(hostcuda::CloneGraph(*graph));
  return CUDA_SUCCESS;
}

namespace {

CUresult Instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags) {
  HC_CONTEXT();
  Graph* graph = Checked<Graph>(handle);
  if (out == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
    return hostcuda::NotEmulated("cuGraphInstantiate", "launching a graph from a kernel");
  auto exec = std::make_unique<GraphExec>();
  exec->flags = flags;
  exec->last = std::make_shared<hostcuda::Event>();
  exec->last->flags = CU_EVENT_DISABLE_TIMING;
  exec->last->context = context;
  CUresult error = CUDA_SUCCESS;
  {
    const auto lock = Lock();
    exec->program = hostcuda::Compile(*graph, &error);
  }
  if (exec->program == nullptr) return error;
  exec->last->handle = exec->last;
  *out = reinterpret_cast<CUgraphExec>(exec.release());
  return CUDA_SUCCESS;
}

}  // namespace

HC_ENTRY CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                              unsigned long long flags) {
  return Instantiate(phGraphExec, hGraph, flags);
}
HC_ENTRY CUresult cuGraphInstantiate_v2(CUgraphExec* phGraphExec, CUgraph hGraph,
                                        CUgraphNode* phErrorNode, char* logBuffer,
                                        size_t bufferSize) {
  if (phErrorNode != nullptr) *phErrorNode = nullptr;
  if (logBuffer != nullptr && bufferSize > 0) *logBuffer = '\0';
  return Instantiate(phGraphExec, hGraph, 0);
}
HC_ENTRY CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                               CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  if (instantiateParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Instantiate(phGraphExec, hGraph, instantiateParams->flags);
  instantiateParams->hErrNode_out = nullptr;
  instantiateParams->result_out =
      result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}
HC_ENTRY CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  HC_DRIVER();
  GraphExec* exec = Checked<GraphExec>(hGraphExec);
  if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  exec->magic = 0;
  exec->last->handle.reset();
  delete exec;  // launches that still run hold the program themselves
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  HC_DRIVER();
  GraphExec* exec = Checked<GraphExec>(hGraphExec);
  if (exec == nullptr || flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                                       CUgraphExecUpdateResultInfo* resultInfo) {
  (void)hGraphExec, (void)hGraph;
  // The documented way out is to instantiate again.
  if (resultInfo != nullptr)
    *resultInfo = {CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, nullptr, nullptr};
  hostcuda::NotEmulated("cuGraphExecUpdate", "updating an instantiated graph");
  return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
HC_ENTRY CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  HC_STREAM(stream, hStream);
  GraphExec* exec = Checked<GraphExec>(hGraphExec);
  return exec == nullptr ? CUDA_ERROR_INVALID_VALUE : hostcuda::LaunchGraph(*exec, stream);
}
HC_ENTRY CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  HC_STREAM(stream, hStream);
  return Checked<GraphExec>(hGraphExec) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// ---- queries

HC_ENTRY CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  HC_DRIVER();
  Graph* graph = Checked<Graph>(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  std::vector<GraphNode*> all;
  for (const auto& node : graph->nodes) all.push_back(node.get());
  return AnswerList(all, nodes, numNodes);
}
HC_ENTRY CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes,
                                      size_t* numRootNodes) {
  HC_DRIVER();
  Graph* graph = Checked<Graph>(hGraph);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  std::vector<GraphNode*> roots;
  for (const auto& node : graph->nodes) {
    if (node->dependencies.empty()) roots.push_back(node.get());
  }
  return AnswerList(roots, rootNodes, numRootNodes);
}
HC_ENTRY CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                                     CUgraphEdgeData* edgeData, size_t* numEdges) {
  HC_DRIVER();
  Graph* graph = Checked<Graph>(hGraph);
  if (graph == nullptr || numEdges == nullptr || (from == nullptr) != (to == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  size_t count = 0;
  for (const auto& node : graph->nodes) {
    for (GraphNode* dependent : node->dependents) {
      if (from != nullptr && count < *numEdges) {
        from[count] = reinterpret_cast<CUgraphNode>(node.get());
        to[count] = reinterpret_cast<CUgraphNode>(dependent);
        if (edgeData != nullptr) edgeData[count] = {};
      }
      ++count;
    }
  }
  *numEdges = from != nullptr ? std::min(*numEdges, count) : count;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                                  size_t* numEdges) {
  return cuGraphGetEdges_v2(hGraph, from, to, nullptr, numEdges);
}
namespace {

CUresult Neighbours(CUgraphNode handle, std::vector<GraphNode*> GraphNode::*which,
                    CUgraphNode* list, CUgraphEdgeData* edges, size_t* count) {
  HC_DRIVER();
  GraphNode* node = Checked<GraphNode>(handle);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  if (edges != nullptr && count != nullptr) memset(edges, 0, *count * sizeof *edges);
  return AnswerList(node->*which, list, count);
}

}  // namespace

HC_ENTRY CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                                CUgraphEdgeData* edgeData,
                                                size_t* numDependencies) {
  return Neighbours(hNode, &GraphNode::dependencies, dependencies, edgeData, numDependencies);
}
HC_ENTRY CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                             size_t* numDependencies) {
  return cuGraphNodeGetDependencies_v2(hNode, dependencies, nullptr, numDependencies);
}
HC_ENTRY CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                                  CUgraphEdgeData* edgeData,
                                                  size_t* numDependentNodes) {
  return Neighbours(hNode, &GraphNode::dependents, dependentNodes, edgeData, numDependentNodes);
}
HC_ENTRY CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                               size_t* numDependentNodes) {
  return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}
HC_ENTRY CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  HC_DRIVER();
  GraphNode* node = Checked<GraphNode>(hNode);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->label.type;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                                CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  HC_DRIVER();
  GraphNode* node = Checked<GraphNode>(hNode);
  if (node == nullptr || nodeParams == nullptr || node->label.type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  *nodeParams = {};  // parameters are not kept as the caller gave them: kernelParams stays null
  nodeParams->func = reinterpret_cast<CUfunction>(node->label.handle);
  nodeParams->gridDimX = node->label.grid[0];
  nodeParams->gridDimY = node->label.grid[1];
  nodeParams->gridDimZ = node->label.grid[2];
  nodeParams->blockDimX = node->label.block[0];
  nodeParams->blockDimY = node->label.block[1];
  nodeParams->blockDimZ = node->label.block[2];
  nodeParams->sharedMemBytes = node->label.shared_bytes;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int flags) {
  HC_DRIVER();
  (void)flags;
  Graph* graph = Checked<Graph>(hGraph);
  if (graph == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  const auto lock = Lock();
  fprintf(file, "digraph graph_ {\n");
  for (const auto& node : graph->nodes) {
    const Label& label = node->label;
    fprintf(file, "  n%u [shape=box, label=\"%u: %s", node->number, node->number,
            label.type == CU_GRAPH_NODE_TYPE_KERNEL   ? "kernel "
            : label.type == CU_GRAPH_NODE_TYPE_MEMCPY ? "memcpy "
            : label.type == CU_GRAPH_NODE_TYPE_MEMSET ? "memset "
            : label.type == CU_GRAPH_NODE_TYPE_HOST   ? "host"
                                                      : "node");
    fprintf(file, "%s", label.name);
    if (label.type == CU_GRAPH_NODE_TYPE_KERNEL)
      fprintf(file, " <<<%u,%u,%u; %u,%u,%u>>>", label.grid[0], label.grid[1], label.grid[2],
              label.block[0], label.block[1], label.block[2]);
    if (label.bytes != 0) fprintf(file, " %llu B", static_cast<unsigned long long>(label.bytes));
    fprintf(file, "\"];\n");
    for (const GraphNode* dependent : node->dependents)
      fprintf(file, "  n%u -> n%u;\n", node->number, dependent->number);
  }
  fprintf(file, "}\n");
  return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// ---- building by hand

HC_ENTRY CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                      const CUgraphNode* dependencies, size_t numDependencies) {
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies,
                 TypeLabel(CU_GRAPH_NODE_TYPE_EMPTY), nullptr);
}
HC_ENTRY CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  HC_DRIVER();
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto* kernel = Checked<hostcuda::Kernel>(nodeParams->func != nullptr
                                               ? reinterpret_cast<void*>(nodeParams->func)
                                               : reinterpret_cast<void*>(nodeParams->kern));
  if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const hostcuda::LaunchShape shape{
      {nodeParams->gridDimX, nodeParams->gridDimY, nodeParams->gridDimZ},
      {nodeParams->blockDimX, nodeParams->blockDimY, nodeParams->blockDimZ},
      nodeParams->sharedMemBytes};
  Label label;
  std::shared_ptr<hostcuda::Work> work;
  const CUresult prepared = hostcuda::PrepareKernel(*kernel, shape, nodeParams->kernelParams,
                                                    nodeParams->extra, &label, &work);
  if (prepared != CUDA_SUCCESS) return prepared;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, label, std::move(work));
}
HC_ENTRY CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                       const CUgraphNode* dependencies, size_t numDependencies,
                                       const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  HC_DRIVER();
  (void)ctx;
  if (copyParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  hostcuda::CopyShape shape;
  if (!hostcuda::ShapeOf(*copyParams, &shape))
    return hostcuda::NotEmulated("cuGraphAddMemcpyNode", "a copy from or to an array");
  Label label = TypeLabel(CU_GRAPH_NODE_TYPE_MEMCPY);
  label.activity = HOSTCUDA_ACTIVITY_MEMCPY;
  label.name = "DtoD";
  label.copy_kind = hostcuda::kCopyDeviceToDevice;
  label.bytes = shape.width * shape.height * shape.depth;
  hostcuda::Price(&label);
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, label,
                 MakeWork([shape](PollState&) { return hostcuda::RunCopy(shape); }));
}
HC_ENTRY CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                       const CUgraphNode* dependencies, size_t numDependencies,
                                       const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
  HC_DRIVER();
  (void)ctx;
  if (memsetParams == nullptr || (memsetParams->elementSize != 1 &&
                                  memsetParams->elementSize != 2 && memsetParams->elementSize != 4))
    return CUDA_ERROR_INVALID_VALUE;
  hostcuda::SetShape shape;
  shape.destination = memsetParams->dst;
  shape.pitch = memsetParams->pitch;
  shape.value = memsetParams->value;
  shape.element = memsetParams->elementSize;
  shape.width = memsetParams->width;
  shape.height = memsetParams->height;
  Label label = TypeLabel(CU_GRAPH_NODE_TYPE_MEMSET);
  label.activity = HOSTCUDA_ACTIVITY_MEMSET;
  label.name = "memset";
  label.bytes = shape.width * shape.element * shape.height;
  hostcuda::Price(&label);
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, label,
                 MakeWork([shape](PollState&) { return hostcuda::RunSet(shape); }));
}
HC_ENTRY CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                     const CUgraphNode* dependencies, size_t numDependencies,
                                     const CUDA_HOST_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr || nodeParams->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_HOST_NODE_PARAMS params = *nodeParams;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies,
                 TypeLabel(CU_GRAPH_NODE_TYPE_HOST), MakeWork([params](PollState&) {
                   params.fn(params.userData);
                   return hostcuda::kDone;
                 }));
}
HC_ENTRY CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                           const CUgraphNode* dependencies, size_t numDependencies,
                                           CUgraph childGraph) {
  HC_DRIVER();
  Graph* child = Checked<Graph>(childGraph);
  if (child == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Graph* copy = nullptr;
  {
    const auto lock = Lock();
    copy = hostcuda::CloneGraph(*child);
  }
  const CUresult added = AddNode(phGraphNode, hGraph, dependencies, numDependencies,
                                 TypeLabel(CU_GRAPH_NODE_TYPE_GRAPH), nullptr, nullptr, copy);
  if (added != CUDA_SUCCESS) hostcuda::DestroyGraph(copy);
  return added;
}
HC_ENTRY CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                            const CUgraphNode* dependencies, size_t numDependencies,
                                            CUevent event) {
  auto* own = Checked<hostcuda::Event>(event);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies,
                 TypeLabel(CU_GRAPH_NODE_TYPE_EVENT_RECORD), hostcuda::MakeEventRecord(own->handle),
                 own->handle);
}
HC_ENTRY CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                          const CUgraphNode* dependencies, size_t numDependencies,
                                          CUevent event) {
  auto* own = Checked<hostcuda::Event>(event);
  if (own == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies,
                 TypeLabel(CU_GRAPH_NODE_TYPE_WAIT_EVENT), hostcuda::MakeEventWait(own->handle),
                 own->handle);
}
namespace {

/// The two ends of each edge, checked; false where one is no node or `graph` no graph.
bool Edges(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count,
           std::vector<GraphNode*>* sources, std::vector<GraphNode*>* targets) {
  return Checked<Graph>(graph) != nullptr && Nodes(from, count, sources) &&
         Nodes(to, count, targets);
}

}  // namespace

HC_ENTRY CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                            const CUgraphNode* to, const CUgraphEdgeData* edgeData,
                                            size_t numDependencies) {
  HC_DRIVER();
  (void)edgeData;
  std::vector<GraphNode*> sources, targets;
  if (!Edges(hGraph, from, to, numDependencies, &sources, &targets))
    return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  for (size_t i = 0; i < numDependencies; ++i) {
    std::vector<GraphNode*>& known = targets[i]->dependencies;
    if (std::find(known.begin(), known.end(), sources[i]) != known.end())
      return CUDA_ERROR_INVALID_VALUE;
    known.push_back(sources[i]);
    sources[i]->dependents.push_back(targets[i]);
  }
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from,
                                         const CUgraphNode* to, size_t numDependencies) {
  return cuGraphAddDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}
HC_ENTRY CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                               const CUgraphNode* to,
                                               const CUgraphEdgeData* edgeData,
                                               size_t numDependencies) {
  HC_DRIVER();
  (void)edgeData;
  std::vector<GraphNode*> sources, targets;
  if (!Edges(hGraph, from, to, numDependencies, &sources, &targets))
    return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  for (size_t i = 0; i < numDependencies; ++i) {
    if (std::erase(targets[i]->dependencies, sources[i]) == 0) return CUDA_ERROR_INVALID_VALUE;
    std::erase(sources[i]->dependents, targets[i]);
  }
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from,
                                            const CUgraphNode* to, size_t numDependencies) {
  return cuGraphRemoveDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}
HC_ENTRY CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                    const CUgraphNode* dependencies,
                                    const CUgraphEdgeData* dependencyData, size_t numDependencies,
                                    CUgraphNodeParams* nodeParams) {
  (void)dependencyData;
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (nodeParams->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3& p = nodeParams->kernel;
      const CUDA_KERNEL_NODE_PARAMS params = {
          p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    p.kern,      p.ctx};
      return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &params);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(phGraphNode, hGraph, dependencies, numDependencies,
                                  &nodeParams->memcpy.copyParams, nodeParams->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& p = nodeParams->memset;
      const CUDA_MEMSET_NODE_PARAMS params = {p.dst,         p.pitch, p.value,
                                              p.elementSize, p.width, p.height};
      return cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies, numDependencies, &params,
                                  p.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS params = {nodeParams->host.fn, nodeParams->host.userData};
      return cuGraphAddHostNode(phGraphNode, hGraph, dependencies, numDependencies, &params);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphAddChildGraphNode(phGraphNode, hGraph, dependencies, numDependencies,
                                      nodeParams->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(phGraphNode, hGraph, dependencies, numDependencies);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(phGraphNode, hGraph, dependencies, numDependencies,
                                       nodeParams->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(phGraphNode, hGraph, dependencies, numDependencies,
                                     nodeParams->eventWait.event);
    default:
      return hostcuda::NotEmulated("cuGraphAddNode",
                                   "this type of node (memory, conditional, semaphore)");
  }
}
HC_ENTRY CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 CUgraphNodeParams* nodeParams) {
  return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}
// Memory nodes do not exist, so graphs hold no memory of their own.
HC_ENTRY CUresult cuDeviceGraphMemTrim(CUdevice device) {
  HC_DRIVER();
  return hostcuda::ValidDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
HC_ENTRY CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                               void* value) {
  HC_DRIVER();
  if (!hostcuda::ValidDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr || attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    return CUDA_ERROR_INVALID_VALUE;
  *static_cast<cuuint64_t*>(value) = 0;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                               void* value) {
  HC_DRIVER();
  if (!hostcuda::ValidDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return value == nullptr || (attr != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
                              attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  HC_DRIVER();
  GraphNode* node = Checked<GraphNode>(hNode);
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  for (GraphNode* dependency : node->dependencies) std::erase(dependency->dependents, node);
  for (GraphNode* dependent : node->dependents) std::erase(dependent->dependencies, node);
  node->magic = 0;
  std::erase_if(node->graph->nodes, [&](const auto& own) { return own.get() == node; });
  return CUDA_SUCCESS;
}

// ---- user objects

HC_ENTRY CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                                     unsigned int initialRefcount, unsigned int flags) {
  HC_DRIVER();
  if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  auto* object = new UserObject;
  object->object = ptr;
  object->destroy = destroy;
  object->references = initialRefcount;
  *object_out = reinterpret_cast<CUuserObject>(object);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  HC_DRIVER();
  UserObject* own = Checked<UserObject>(object);
  if (own == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  own->references += count;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  HC_DRIVER();
  UserObject* own = Checked<UserObject>(object);
  if (own == nullptr || count == 0 || count > own->references) return CUDA_ERROR_INVALID_VALUE;
  hostcuda::ReleaseObject(own, count);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                          unsigned int flags) {
  HC_DRIVER();
  Graph* own = Checked<Graph>(graph);
  UserObject* kept = Checked<UserObject>(object);
  if (own == nullptr || kept == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto lock = Lock();
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) kept->references += count;
  own->objects.emplace_back(kept, count);
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  HC_DRIVER();
  Graph* own = Checked<Graph>(graph);
  UserObject* kept = Checked<UserObject>(object);
  if (own == nullptr || kept == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [held, held_count] : own->objects) {
    if (held != kept || held_count < count) continue;
    held_count -= count;
    hostcuda::ReleaseObject(kept, count);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
