// Streams, events, host functions.
#include "hostcuda/runtime/entry.h"

using hostcuda::Handle;
using hostcuda::Note;

HC_ENTRY cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags,
                                                  int priority) {
  HC_CONTEXT();
  return Note(driver.cuStreamCreateWithPriority(pStream, flags, priority));
}
HC_ENTRY cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  return cudaStreamCreateWithPriority(pStream, flags, 0);
}
HC_ENTRY cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
  return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}
HC_ENTRY cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuStreamDestroy(stream));
}
HC_ENTRY cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuStreamSynchronize(Handle(stream)));
}
HC_ENTRY cudaError_t cudaStreamQuery(cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuStreamQuery(Handle(stream)));
}
HC_ENTRY cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                         unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuStreamWaitEvent(Handle(stream), event, flags));
}
HC_ENTRY cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int* priority) {
  HC_CONTEXT();
  return Note(driver.cuStreamGetPriority(Handle(hStream), priority));
}
HC_ENTRY cudaError_t cudaStreamGetFlags(cudaStream_t hStream, unsigned int* flags) {
  HC_CONTEXT();
  return Note(driver.cuStreamGetFlags(Handle(hStream), flags));
}
HC_ENTRY cudaError_t cudaStreamGetId(cudaStream_t hStream, unsigned long long* streamId) {
  HC_CONTEXT();
  return Note(driver.cuStreamGetId(Handle(hStream), streamId));
}
HC_ENTRY cudaError_t cudaStreamGetDevice(cudaStream_t hStream, int* device) {
  HC_CONTEXT();
  return Note(driver.cuStreamGetDevice(Handle(hStream), device));
}
HC_ENTRY cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaStreamAttrID attr,
                                            cudaStreamAttrValue* value) {
  HC_CONTEXT();
  static_assert(sizeof(cudaLaunchAttributeValue) == sizeof(CUlaunchAttributeValue));
  return Note(driver.cuStreamGetAttribute(Handle(stream), static_cast<CUstreamAttrID>(attr),
                                          reinterpret_cast<CUstreamAttrValue*>(value)));
}
HC_ENTRY cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID attr,
                                            const cudaStreamAttrValue* param) {
  HC_CONTEXT();
  return Note(driver.cuStreamSetAttribute(Handle(stream), static_cast<CUstreamAttrID>(attr),
                                          reinterpret_cast<const CUstreamAttrValue*>(param)));
}
HC_ENTRY cudaError_t cudaStreamCopyAttributes(cudaStream_t dstStream, cudaStream_t srcStream) {
  HC_CONTEXT();
  return Note(driver.cuStreamCopyAttributes(Handle(dstStream), Handle(srcStream)));
}

HC_ENTRY cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  HC_CONTEXT();
  return Note(driver.cuLaunchHostFunc(Handle(stream), fn, userData));
}
HC_ENTRY cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                           void* userData, unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuStreamAddCallback(
      Handle(stream), reinterpret_cast<CUstreamCallback>(callback), userData, flags));
}

HC_ENTRY cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuEventCreate(event, flags));
}
HC_ENTRY cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
HC_ENTRY cudaError_t cudaEventDestroy(cudaEvent_t event) {
  HC_DRIVER();
  return Note(driver.cuEventDestroy(event));
}
HC_ENTRY cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                              unsigned int flags) {
  HC_CONTEXT();
  return Note(driver.cuEventRecordWithFlags(event, Handle(stream), flags));
}
HC_ENTRY cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  HC_CONTEXT();
  return Note(driver.cuEventRecord(event, Handle(stream)));
}
HC_ENTRY cudaError_t cudaEventQuery(cudaEvent_t event) {
  HC_DRIVER();
  return Note(driver.cuEventQuery(event));
}
HC_ENTRY cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  HC_DRIVER();
  return Note(driver.cuEventSynchronize(event));
}
HC_ENTRY cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  HC_DRIVER();
  return Note(driver.cuEventElapsedTime(ms, start, end));
}
