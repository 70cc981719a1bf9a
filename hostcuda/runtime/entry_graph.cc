// Stream capture and graphs: the driver's, under the runtime's names.
#include "hostcuda/runtime/entry.h"

using hostcuda::Handle;
using hostcuda::Note;

HC_ENTRY cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  HC_CONTEXT();
  return Note(driver.cuStreamBeginCapture(Handle(stream), static_cast<CUstreamCaptureMode>(mode)));
}
HC_ENTRY cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
  HC_CONTEXT();
  return Note(driver.cuStreamEndCapture(Handle(stream), pGraph));
}
HC_ENTRY cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* pCaptureStatus) {
  HC_CONTEXT();
  return Note(driver.cuStreamIsCapturing(Handle(stream), reinterpret_cast<CUstreamCaptureStatus*>(pCaptureStatus)));
}
HC_ENTRY cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* captureStatus_out, unsigned long long* id_out, cudaGraph_t* graph_out, const cudaGraphNode_t** dependencies_out, const cudaGraphEdgeData** edgeData_out, size_t* numDependencies_out) {
  HC_CONTEXT();
  static_assert(sizeof(cuuint64_t) == sizeof(unsigned long long));
  return Note(driver.cuStreamGetCaptureInfo(Handle(stream), reinterpret_cast<CUstreamCaptureStatus*>(captureStatus_out), reinterpret_cast<cuuint64_t*>(id_out), graph_out, dependencies_out, reinterpret_cast<const CUgraphEdgeData**>(edgeData_out), numDependencies_out));
}
HC_ENTRY cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies, const cudaGraphEdgeData* dependencyData, size_t numDependencies, unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuStreamUpdateCaptureDependencies(Handle(stream), dependencies, reinterpret_cast<const CUgraphEdgeData*>(dependencyData), numDependencies, flags));
}
HC_ENTRY cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  HC_DRIVER();
  return Note(driver.cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
HC_ENTRY cudaError_t cudaGraphCreate(cudaGraph_t* pGraph, unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuGraphCreate(pGraph, flags));
}
HC_ENTRY cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  HC_DRIVER();
  return Note(driver.cuGraphDestroy(graph));
}
HC_ENTRY cudaError_t cudaGraphClone(cudaGraph_t* pGraphClone, cudaGraph_t originalGraph) {
  HC_CONTEXT();
  return Note(driver.cuGraphClone(pGraphClone, originalGraph));
}
HC_ENTRY cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long flags) {
  HC_CONTEXT();
  return Note(driver.cuGraphInstantiateWithFlags(pGraphExec, graph, flags));
}
HC_ENTRY cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph, unsigned long long flags) { return cudaGraphInstantiateWithFlags(pGraphExec, graph, flags); }
HC_ENTRY cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuGraphLaunch(graphExec, Handle(stream)));
}
HC_ENTRY cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuGraphUpload(graphExec, Handle(stream)));
}
HC_ENTRY cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  HC_DRIVER();
  return Note(driver.cuGraphExecDestroy(graphExec));
}
HC_ENTRY cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t graphExec, unsigned long long* flags) {
  HC_DRIVER();
  return Note(driver.cuGraphExecGetFlags(graphExec, reinterpret_cast<cuuint64_t*>(flags)));
}
HC_ENTRY cudaError_t cudaGraphExecUpdate(cudaGraphExec_t hGraphExec, cudaGraph_t hGraph, cudaGraphExecUpdateResultInfo* resultInfo) {
  HC_CONTEXT();
  return Note(driver.cuGraphExecUpdate(hGraphExec, hGraph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(resultInfo)));
}
HC_ENTRY cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* numNodes) {
  HC_DRIVER();
  return Note(driver.cuGraphGetNodes(graph, nodes, numNodes));
}
HC_ENTRY cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* pRootNodes, size_t* pNumRootNodes) {
  HC_DRIVER();
  return Note(driver.cuGraphGetRootNodes(graph, pRootNodes, pNumRootNodes));
}
HC_ENTRY cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* edgeData, size_t* numEdges) {
  HC_DRIVER();
  return Note(driver.cuGraphGetEdges(graph, from, to, reinterpret_cast<CUgraphEdgeData*>(edgeData), numEdges));
}
HC_ENTRY cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* pType) {
  HC_DRIVER();
  return Note(driver.cuGraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(pType)));
}
HC_ENTRY cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* pDependencies, cudaGraphEdgeData* edgeData, size_t* pNumDependencies) {
  HC_DRIVER();
  return Note(driver.cuGraphNodeGetDependencies(node, pDependencies, reinterpret_cast<CUgraphEdgeData*>(edgeData), pNumDependencies));
}
HC_ENTRY cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* pDependentNodes, cudaGraphEdgeData* edgeData, size_t* pNumDependentNodes) {
  HC_DRIVER();
  return Note(driver.cuGraphNodeGetDependentNodes(node, pDependentNodes, reinterpret_cast<CUgraphEdgeData*>(edgeData), pNumDependentNodes));
}
HC_ENTRY cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, const cudaGraphEdgeData* edgeData, size_t numDependencies) {
  HC_DRIVER();
  return Note(driver.cuGraphAddDependencies(graph, from, to, reinterpret_cast<const CUgraphEdgeData*>(edgeData), numDependencies));
}
HC_ENTRY cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned int flags) {
  HC_DRIVER();
  return Note(driver.cuGraphDebugDotPrint(graph, path, flags));
}
