#include "hostcuda/driver/entry.h"
HC_ENTRY CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  HC_STREAM(stream, hStream);
  *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  (void)mode;
  return CUDA_SUCCESS;
}
HC_ENTRY CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out, CUgraph* graph_out, const CUgraphNode** dependencies_out, const CUgraphEdgeData** edgeData_out, size_t* numDependencies_out) {
  HC_STREAM(stream, hStream);
  *captureStatus_out = CU_STREAM_CAPTURE_STATUS_NONE;
  (void)id_out, (void)graph_out, (void)dependencies_out, (void)edgeData_out, (void)numDependencies_out;
  return CUDA_SUCCESS;
}
