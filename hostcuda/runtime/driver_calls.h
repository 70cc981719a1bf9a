// How the runtime reaches the driver: every call by cuGetProcAddress of whatever libcuda.so.1 the
// process has, never by linking, so that a shim preloaded under that name sees all of them.
//
// Resolved once, at the first runtime call that needs the driver. Thread-safe.
//
//   if (const DriverCalls* driver = Calls()) driver->cuMemGetInfo(&free, &total);
#ifndef HOSTCUDA_RUNTIME_DRIVER_CALLS_H_
#define HOSTCUDA_RUNTIME_DRIVER_CALLS_H_

#include <cuda.h>
#include <cudaProfiler.h>

namespace hostcuda {

// clang-format off
#define HC_DRIVER_CALLS(X) \
  X(cuInit) X(cuDriverGetVersion) X(cuGetExportTable) \
  X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetUuid) X(cuDeviceTotalMem) X(cuDeviceGetAttribute) \
  X(cuDeviceGetPCIBusId) X(cuDeviceGetByPCIBusId) X(cuDeviceCanAccessPeer) X(cuDeviceGetP2PAttribute) \
  X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool) X(cuDeviceSetMemPool) \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxSetFlags) \
  X(cuDevicePrimaryCtxGetState) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent) X(cuCtxPopCurrent) \
  X(cuCtxGetDevice) X(cuCtxSynchronize) \
  X(cuCtxGetLimit) X(cuCtxSetLimit) X(cuCtxGetCacheConfig) X(cuCtxSetCacheConfig) X(cuCtxGetStreamPriorityRange) \
  X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuCtxResetPersistingL2Cache) \
  X(cuMemGetInfo) X(cuMemAlloc) X(cuMemAllocManaged) X(cuMemAllocPitch) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) \
  X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuMemHostGetFlags) \
  X(cuPointerGetAttributes) X(cuPointerGetAttribute) X(cuMemAdvise) X(cuMemPrefetchAsync) X(cuStreamAttachMemAsync) \
  X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) X(cuMemPoolCreate) X(cuMemPoolDestroy) \
  X(cuMemPoolTrimTo) X(cuMemPoolSetAttribute) X(cuMemPoolGetAttribute) X(cuMemPoolSetAccess) X(cuMemPoolGetAccess) \
  X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle) \
  X(cuMemcpy) X(cuMemcpyAsync) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoH) X(cuMemcpyDtoHAsync) \
  X(cuMemcpyDtoD) X(cuMemcpyDtoDAsync) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemcpy2D) X(cuMemcpy2DAsync) \
  X(cuMemcpy3D) X(cuMemcpy3DAsync) X(cuMemcpy3DPeer) X(cuMemcpy3DPeerAsync) X(cuMemcpyBatchAsync) \
  X(cuMemsetD8) X(cuMemsetD8Async) X(cuMemsetD2D8) X(cuMemsetD2D8Async) \
  X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) \
  X(cuStreamWaitEvent) X(cuStreamGetPriority) X(cuStreamGetFlags) X(cuStreamGetId) X(cuStreamGetDevice) \
  X(cuStreamGetAttribute) X(cuStreamSetAttribute) X(cuStreamCopyAttributes) X(cuLaunchHostFunc) X(cuStreamAddCallback) \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuEventQuery) X(cuEventSynchronize) \
  X(cuEventElapsedTime) \
  X(cuLibraryLoadData) X(cuLibraryLoadFromFile) X(cuLibraryUnload) X(cuLibraryGetKernel) X(cuLibraryGetGlobal) \
  X(cuLibraryGetManaged) X(cuLibraryGetKernelCount) X(cuLibraryEnumerateKernels) \
  X(cuKernelGetFunction) X(cuKernelGetName) X(cuKernelGetAttribute) X(cuKernelSetAttribute) X(cuKernelSetCacheConfig) \
  X(cuKernelGetParamInfo) X(cuLaunchKernelEx) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) X(cuOccupancyAvailableDynamicSMemPerBlock) \
  X(cuOccupancyMaxPotentialClusterSize) X(cuOccupancyMaxActiveClusters) \
  X(cuStreamBeginCapture) X(cuStreamBeginCaptureToGraph) X(cuStreamEndCapture) X(cuStreamIsCapturing) \
  X(cuStreamGetCaptureInfo) X(cuStreamUpdateCaptureDependencies) X(cuThreadExchangeStreamCaptureMode) \
  X(cuGraphCreate) X(cuGraphDestroy) X(cuGraphClone) X(cuGraphInstantiateWithFlags) X(cuGraphInstantiateWithParams) \
  X(cuGraphLaunch) X(cuGraphUpload) X(cuGraphExecDestroy) X(cuGraphExecUpdate) X(cuGraphExecGetFlags) X(cuGraphGetNodes) \
  X(cuGraphGetRootNodes) X(cuGraphGetEdges) X(cuGraphNodeGetType) X(cuGraphNodeGetDependencies) \
  X(cuGraphNodeGetDependentNodes) X(cuGraphAddDependencies) X(cuGraphAddEmptyNode) X(cuGraphAddKernelNode) \
  X(cuGraphAddMemcpyNode) X(cuGraphAddMemsetNode) X(cuGraphAddHostNode) X(cuGraphAddChildGraphNode) \
  X(cuGraphAddEventRecordNode) X(cuGraphAddEventWaitNode) X(cuGraphDestroyNode) X(cuGraphDebugDotPrint) \
  X(cuGraphKernelNodeGetParams) X(cuGraphRemoveDependencies) X(cuDeviceGraphMemTrim) X(cuDeviceGetGraphMemAttribute) \
  X(cuDeviceSetGraphMemAttribute) X(cuGraphRetainUserObject) X(cuGraphReleaseUserObject) X(cuUserObjectCreate) \
  X(cuUserObjectRetain) X(cuUserObjectRelease) X(cuProfilerStart) X(cuProfilerStop)
// clang-format on

struct DriverCalls {
#define HC_FIELD(name) decltype(&::name) name = nullptr;
  HC_DRIVER_CALLS(HC_FIELD)
#undef HC_FIELD
  decltype(&::cuGetProcAddress) get_proc_address = nullptr;
};

/// The driver's calls; null where there is no libcuda.so.1 that has them all (said once on stderr).
const DriverCalls* Calls();

}  // namespace hostcuda

#endif  // HOSTCUDA_RUNTIME_DRIVER_CALLS_H_
