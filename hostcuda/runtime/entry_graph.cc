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
HC_ENTRY cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                           cudaStreamCaptureStatus* pCaptureStatus) {
  HC_CONTEXT();
  return Note(driver.cuStreamIsCapturing(Handle(stream),
                                         reinterpret_cast<CUstreamCaptureStatus*>(pCaptureStatus)));
}
HC_ENTRY cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                              cudaStreamCaptureStatus* captureStatus_out,
                                              unsigned long long* id_out, cudaGraph_t* graph_out,
                                              const cudaGraphNode_t** dependencies_out,
                                              const cudaGraphEdgeData** edgeData_out,
                                              size_t* numDependencies_out) {
  HC_CONTEXT();
  static_assert(sizeof(cuuint64_t) == sizeof(unsigned long long));
  return Note(driver.cuStreamGetCaptureInfo(
      Handle(stream), reinterpret_cast<CUstreamCaptureStatus*>(captureStatus_out),
      reinterpret_cast<cuuint64_t*>(id_out), graph_out, dependencies_out,
      reinterpret_cast<const CUgraphEdgeData**>(edgeData_out), numDependencies_out));
}
HC_ENTRY cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                         cudaGraphNode_t* dependencies,
                                                         const cudaGraphEdgeData* dependencyData,
                                                         size_t numDependencies,
                                                         unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuStreamUpdateCaptureDependencies(
      Handle(stream), dependencies, reinterpret_cast<const CUgraphEdgeData*>(dependencyData),
      numDependencies, flags));
}
HC_ENTRY cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  HC_DRIVER();
  return Note(
      driver.cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
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
HC_ENTRY cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                                   unsigned long long flags) {
  HC_CONTEXT();
  return Note(driver.cuGraphInstantiateWithFlags(pGraphExec, graph, flags));
}
HC_ENTRY cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(pGraphExec, graph, flags);
}
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
HC_ENTRY cudaError_t cudaGraphExecUpdate(cudaGraphExec_t hGraphExec, cudaGraph_t hGraph,
                                         cudaGraphExecUpdateResultInfo* resultInfo) {
  HC_CONTEXT();
  return Note(driver.cuGraphExecUpdate(hGraphExec, hGraph,
                                       reinterpret_cast<CUgraphExecUpdateResultInfo*>(resultInfo)));
}
HC_ENTRY cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                       size_t* numNodes) {
  HC_DRIVER();
  return Note(driver.cuGraphGetNodes(graph, nodes, numNodes));
}
HC_ENTRY cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* pRootNodes,
                                           size_t* pNumRootNodes) {
  HC_DRIVER();
  return Note(driver.cuGraphGetRootNodes(graph, pRootNodes, pNumRootNodes));
}
HC_ENTRY cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from,
                                       cudaGraphNode_t* to, cudaGraphEdgeData* edgeData,
                                       size_t* numEdges) {
  HC_DRIVER();
  return Note(driver.cuGraphGetEdges(graph, from, to, reinterpret_cast<CUgraphEdgeData*>(edgeData),
                                     numEdges));
}
HC_ENTRY cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* pType) {
  HC_DRIVER();
  return Note(driver.cuGraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(pType)));
}
HC_ENTRY cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                  cudaGraphNode_t* pDependencies,
                                                  cudaGraphEdgeData* edgeData,
                                                  size_t* pNumDependencies) {
  HC_DRIVER();
  return Note(driver.cuGraphNodeGetDependencies(
      node, pDependencies, reinterpret_cast<CUgraphEdgeData*>(edgeData), pNumDependencies));
}
HC_ENTRY cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
                                                    cudaGraphNode_t* pDependentNodes,
                                                    cudaGraphEdgeData* edgeData,
                                                    size_t* pNumDependentNodes) {
  HC_DRIVER();
  return Note(driver.cuGraphNodeGetDependentNodes(
      node, pDependentNodes, reinterpret_cast<CUgraphEdgeData*>(edgeData), pNumDependentNodes));
}
HC_ENTRY cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                              const cudaGraphNode_t* to,
                                              const cudaGraphEdgeData* edgeData,
                                              size_t numDependencies) {
  HC_DRIVER();
  return Note(driver.cuGraphAddDependencies(
      graph, from, to, reinterpret_cast<const CUgraphEdgeData*>(edgeData), numDependencies));
}
HC_ENTRY cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                 const cudaGraphNode_t* to,
                                                 const cudaGraphEdgeData* edgeData,
                                                 size_t numDependencies) {
  HC_DRIVER();
  return Note(driver.cuGraphRemoveDependencies(
      graph, from, to, reinterpret_cast<const CUgraphEdgeData*>(edgeData), numDependencies));
}
HC_ENTRY cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  HC_DRIVER();
  return Note(driver.cuGraphDestroyNode(node));
}
HC_ENTRY cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                   const cudaGraphNode_t* dependencies,
                                                   const cudaGraphEdgeData* dependencyData,
                                                   size_t numDependencies,
                                                   cudaStreamCaptureMode mode) {
  HC_CONTEXT();
  return Note(driver.cuStreamBeginCaptureToGraph(
      Handle(stream), graph, dependencies, reinterpret_cast<const CUgraphEdgeData*>(dependencyData),
      numDependencies, static_cast<CUstreamCaptureMode>(mode)));
}

// ---- building by hand

HC_ENTRY cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                           const cudaGraphNode_t* pDependencies,
                                           size_t numDependencies) {
  HC_CONTEXT();
  return Note(driver.cuGraphAddEmptyNode(pGraphNode, graph, pDependencies, numDependencies));
}
HC_ENTRY cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                            const cudaGraphNode_t* pDependencies,
                                            size_t numDependencies,
                                            const cudaKernelNodeParams* pNodeParams) {
  HC_CONTEXT();
  if (pNodeParams == nullptr) return Note(cudaErrorInvalidValue);
  CUkernel kernel = nullptr;
  if (const cudaError_t error = hostcuda::FindKernel(pNodeParams->func, &kernel);
      error != cudaSuccess)
    return Note(error);
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.func = reinterpret_cast<CUfunction>(kernel);
  params.gridDimX = pNodeParams->gridDim.x;
  params.gridDimY = pNodeParams->gridDim.y;
  params.gridDimZ = pNodeParams->gridDim.z;
  params.blockDimX = pNodeParams->blockDim.x;
  params.blockDimY = pNodeParams->blockDim.y;
  params.blockDimZ = pNodeParams->blockDim.z;
  params.sharedMemBytes = pNodeParams->sharedMemBytes;
  params.kernelParams = pNodeParams->kernelParams;
  params.extra = pNodeParams->extra;
  return Note(
      driver.cuGraphAddKernelNode(pGraphNode, graph, pDependencies, numDependencies, &params));
}
HC_ENTRY cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                              const cudaGraphNode_t* pDependencies,
                                              size_t numDependencies, void* dst, const void* src,
                                              size_t count, cudaMemcpyKind kind) {
  HC_CONTEXT();
  if (kind > cudaMemcpyDefault) return Note(cudaErrorInvalidMemcpyDirection);
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(src);
  copy.dstDevice = reinterpret_cast<CUdeviceptr>(dst);
  copy.WidthInBytes = count;
  copy.Height = copy.Depth = 1;
  CUcontext context = nullptr;
  driver.cuCtxGetCurrent(&context);
  return Note(driver.cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &copy,
                                          context));
}
HC_ENTRY cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                            const cudaGraphNode_t* pDependencies,
                                            size_t numDependencies,
                                            const cudaMemsetParams* pMemsetParams) {
  HC_CONTEXT();
  if (pMemsetParams == nullptr) return Note(cudaErrorInvalidValue);
  CUDA_MEMSET_NODE_PARAMS params = {};
  params.dst = reinterpret_cast<CUdeviceptr>(pMemsetParams->dst);
  params.pitch = pMemsetParams->pitch;
  params.value = pMemsetParams->value;
  params.elementSize = pMemsetParams->elementSize;
  params.width = pMemsetParams->width;
  params.height = pMemsetParams->height;
  CUcontext context = nullptr;
  driver.cuCtxGetCurrent(&context);
  return Note(driver.cuGraphAddMemsetNode(pGraphNode, graph, pDependencies, numDependencies,
                                          &params, context));
}
HC_ENTRY cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                          const cudaGraphNode_t* pDependencies,
                                          size_t numDependencies,
                                          const cudaHostNodeParams* pNodeParams) {
  HC_CONTEXT();
  if (pNodeParams == nullptr) return Note(cudaErrorInvalidValue);
  const CUDA_HOST_NODE_PARAMS params = {pNodeParams->fn, pNodeParams->userData};
  return Note(
      driver.cuGraphAddHostNode(pGraphNode, graph, pDependencies, numDependencies, &params));
}
HC_ENTRY cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                                const cudaGraphNode_t* pDependencies,
                                                size_t numDependencies, cudaGraph_t childGraph) {
  HC_CONTEXT();
  return Note(driver.cuGraphAddChildGraphNode(pGraphNode, graph, pDependencies, numDependencies,
                                              childGraph));
}
HC_ENTRY cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                                 const cudaGraphNode_t* pDependencies,
                                                 size_t numDependencies, cudaEvent_t event) {
  HC_CONTEXT();
  return Note(
      driver.cuGraphAddEventRecordNode(pGraphNode, graph, pDependencies, numDependencies, event));
}
HC_ENTRY cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                               const cudaGraphNode_t* pDependencies,
                                               size_t numDependencies, cudaEvent_t event) {
  HC_CONTEXT();
  return Note(
      driver.cuGraphAddEventWaitNode(pGraphNode, graph, pDependencies, numDependencies, event));
}
HC_ENTRY cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                  cudaKernelNodeParams* pNodeParams) {
  HC_DRIVER();
  if (pNodeParams == nullptr) return Note(cudaErrorInvalidValue);
  CUDA_KERNEL_NODE_PARAMS params = {};
  const CUresult result = driver.cuGraphKernelNodeGetParams(node, &params);
  *pNodeParams = {};
  pNodeParams->func = params.func;
  pNodeParams->gridDim = {params.gridDimX, params.gridDimY, params.gridDimZ};
  pNodeParams->blockDim = {params.blockDimX, params.blockDimY, params.blockDimZ};
  pNodeParams->sharedMemBytes = params.sharedMemBytes;
  pNodeParams->kernelParams = params.kernelParams;
  return Note(result);
}
HC_ENTRY cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                                    cudaGraphInstantiateParams* instantiateParams) {
  HC_CONTEXT();
  static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS));
  return Note(driver.cuGraphInstantiateWithParams(
      pGraphExec, graph, reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(instantiateParams)));
}
HC_ENTRY cudaError_t cudaDeviceGraphMemTrim(int device) {
  HC_DRIVER();
  return Note(driver.cuDeviceGraphMemTrim(device));
}
HC_ENTRY cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attr,
                                                    void* value) {
  HC_DRIVER();
  return Note(
      driver.cuDeviceGetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(attr), value));
}
HC_ENTRY cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attr,
                                                    void* value) {
  HC_DRIVER();
  return Note(
      driver.cuDeviceSetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(attr), value));
}

// ---- user objects

HC_ENTRY cudaError_t cudaUserObjectCreate(cudaUserObject_t* object_out, void* ptr,
                                          cudaHostFn_t destroy, unsigned int initialRefcount,
                                          unsigned int flags) {
  HC_DRIVER();
  return Note(driver.cuUserObjectCreate(object_out, ptr, destroy, initialRefcount, flags));
}
HC_ENTRY cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  HC_DRIVER();
  return Note(driver.cuUserObjectRetain(object, count));
}
HC_ENTRY cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  HC_DRIVER();
  return Note(driver.cuUserObjectRelease(object, count));
}
HC_ENTRY cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                               unsigned int count, unsigned int flags) {
  HC_DRIVER();
  return Note(driver.cuGraphRetainUserObject(graph, object, count, flags));
}
HC_ENTRY cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                unsigned int count) {
  HC_DRIVER();
  return Note(driver.cuGraphReleaseUserObject(graph, object, count));
}
HC_ENTRY cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path,
                                            unsigned int flags) {
  HC_DRIVER();
  return Note(driver.cuGraphDebugDotPrint(graph, path, flags));
}
