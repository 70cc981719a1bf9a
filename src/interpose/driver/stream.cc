// Streams, events and synchronization: the edges of the trace.
#include <cuda.h>

#include "src/interpose/driver/numbers.h"
#include "src/interpose/driver/route.h"
#include "src/interpose/driver/span_timer.h"

namespace prism::interpose::driver {
namespace {

trace::Writer* Writer() { return Rank::Get().writer(); }

/// A call that waits for the device.
template <class... A>
CUresult Blocking(Route real, A... arguments) {
  SpanTimer::Get().BeforeBlocking();
  const CUresult result = real(arguments...);
  if (Writer() != nullptr) HostClock::Waited();
  return result;
}

CUresult StreamCreate(Route real, CUstream* stream, unsigned flags) {
  const CUresult result = real(stream, flags);
  if (trace::Writer* writer = Writer(); writer != nullptr && result == CUDA_SUCCESS) {
    StreamCreated(writer, *stream, 0);
  }
  return result;
}

CUresult StreamCreateWithPriority(Route real, CUstream* stream, unsigned flags, int priority) {
  const CUresult result = real(stream, flags, priority);
  if (trace::Writer* writer = Writer(); writer != nullptr && result == CUDA_SUCCESS) {
    StreamCreated(writer, *stream, priority);
  }
  return result;
}

CUresult StreamDestroy(Route real, CUstream stream) {
  if (trace::Writer* writer = Writer()) {
    SpanTimer::Get().StreamDestroyed(StreamNumber(writer, stream, false));
  }
  StreamDestroyed(stream);
  return real(stream);
}

CUresult StreamBeginCapture(Route real, CUstream stream, CUstreamCaptureMode mode) {
  const CUresult result = real(stream, mode);
  if (result == CUDA_SUCCESS) CaptureBegun();
  return result;
}

CUresult StreamBeginCaptureToGraph(Route real, CUstream stream, CUgraph graph,
                                   const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                   size_t count, CUstreamCaptureMode mode) {
  const CUresult result = real(stream, graph, dependencies, edges, count, mode);
  if (result == CUDA_SUCCESS) CaptureBegun();
  return result;
}

CUresult StreamEndCapture(Route real, CUstream stream, CUgraph* graph) {
  // An invalidated capture ends too, with an error; a stream that was not capturing does not.
  const bool capturing = IsCapturing(stream, real.per_thread);
  const CUresult result = real(stream, graph);
  if (capturing || (result != CUDA_SUCCESS && result != CUDA_ERROR_ILLEGAL_STATE)) CaptureEnded();
  return result;
}

CUresult StreamWaitEvent(Route real, CUstream stream, CUevent event, unsigned flags) {
  trace::Writer* writer = Writer();
  if (writer == nullptr) return real(stream, event, flags);
  // An event recorded inside a capture joins this stream to it, so ask afterwards.
  const EventVersion version = EventNow(event);
  SpanTimer::Get().BeforeNode(stream, real.per_thread);
  const CUresult result = real(stream, event, flags);
  if (result == CUDA_SUCCESS && !IsCapturing(stream, real.per_thread)) {
    HostClock::CountSoFar(writer);
    writer->Wait(StreamNumber(writer, stream, real.per_thread), version.event, version.version);
  }
  return result;
}

void Recorded(trace::Writer* writer, CUevent event, CUstream stream, bool per_thread) {
  if (IsCapturing(stream, per_thread)) return;
  HostClock::Enqueued(writer);
  const EventVersion version = EventRecorded(event);
  writer->Record(StreamNumber(writer, stream, per_thread), version.event, version.version);
}

CUresult EventRecord(Route real, CUevent event, CUstream stream) {
  if (Writer() != nullptr) SpanTimer::Get().BeforeRecord(stream, real.per_thread);
  const CUresult result = real(event, stream);
  if (trace::Writer* writer = Writer(); writer != nullptr && result == CUDA_SUCCESS) {
    Recorded(writer, event, stream, real.per_thread);
  }
  return result;
}

CUresult EventRecordWithFlags(Route real, CUevent event, CUstream stream, unsigned flags) {
  if (Writer() != nullptr) SpanTimer::Get().BeforeRecord(stream, real.per_thread);
  const CUresult result = real(event, stream, flags);
  if (trace::Writer* writer = Writer(); writer != nullptr && result == CUDA_SUCCESS) {
    Recorded(writer, event, stream, real.per_thread);
  }
  return result;
}

CUresult EventDestroy(Route real, CUevent event) {
  EventDestroyed(event);
  return real(event);
}

CUresult EventQuery(Route real, CUevent event) {
  trace::Writer* writer = Writer();
  const EventVersion version = writer == nullptr ? EventVersion{} : EventNow(event);
  const CUresult result = real(event);
  if (writer != nullptr && result == CUDA_SUCCESS) {
    writer->SyncEvent(version.event, version.version, true);
  }
  return result;
}

CUresult EventSynchronize(Route real, CUevent event) {
  trace::Writer* writer = Writer();
  if (writer != nullptr) {
    const EventVersion version = EventNow(event);
    writer->SyncEvent(version.event, version.version, false);
  }
  return Blocking(real, event);
}

CUresult StreamSynchronize(Route real, CUstream stream) {
  if (trace::Writer* writer = Writer()) {
    writer->SyncStream(StreamNumber(writer, stream, real.per_thread));
  }
  return Blocking(real, stream);
}

CUresult StreamQuery(Route real, CUstream stream) {
  const CUresult result = real(stream);
  if (trace::Writer* writer = Writer(); writer != nullptr && result == CUDA_SUCCESS) {
    writer->SyncStream(StreamNumber(writer, stream, real.per_thread));
  }
  return result;
}

CUresult CtxSynchronize(Route real) {
  if (trace::Writer* writer = Writer()) writer->SyncDevice();
  return Blocking(real);
}

CUresult StreamWaitValue32(Route real, CUstream stream, CUdeviceptr address, cuuint32_t value,
                           unsigned flags) {
  if (Writer() != nullptr) SpanTimer::Get().BeforeNode(stream, real.per_thread);
  const CUresult result = real(stream, address, value, flags);
  if (trace::Writer* writer = Writer();
      writer != nullptr && result == CUDA_SUCCESS && !IsCapturing(stream, real.per_thread)) {
    HostClock::CountSoFar(writer);
    writer->StreamNode(StreamNumber(writer, stream, real.per_thread), trace::NodeKind::kValueWait);
  }
  return result;
}

CUresult StreamWriteValue32(Route real, CUstream stream, CUdeviceptr address, cuuint32_t value,
                            unsigned flags) {
  if (Writer() != nullptr) SpanTimer::Get().BeforeNode(stream, real.per_thread);
  const CUresult result = real(stream, address, value, flags);
  if (trace::Writer* writer = Writer();
      writer != nullptr && result == CUDA_SUCCESS && !IsCapturing(stream, real.per_thread)) {
    HostClock::CountSoFar(writer);
    writer->StreamNode(StreamNumber(writer, stream, real.per_thread), trace::NodeKind::kValueWrite);
  }
  return result;
}

const Wrapper kWrappers[] = {
    PRISM_WRAP(cuStreamCreate, StreamCreate),
    PRISM_WRAP(cuStreamCreateWithPriority, StreamCreateWithPriority),
    PRISM_WRAP(cuStreamDestroy_v2, StreamDestroy),
    PRISM_WRAP_PTSZ(cuStreamBeginCapture_v2, StreamBeginCapture),
    PRISM_WRAP_PTSZ(cuStreamBeginCaptureToGraph, StreamBeginCaptureToGraph),
    PRISM_WRAP_PTSZ(cuStreamEndCapture, StreamEndCapture),
    PRISM_WRAP_PTSZ(cuStreamWaitEvent, StreamWaitEvent),
    PRISM_WRAP_PTSZ(cuEventRecord, EventRecord),
    PRISM_WRAP_PTSZ(cuEventRecordWithFlags, EventRecordWithFlags),
    PRISM_WRAP(cuEventDestroy_v2, EventDestroy),
    PRISM_WRAP(cuEventQuery, EventQuery),
    PRISM_WRAP(cuEventSynchronize, EventSynchronize),
    PRISM_WRAP_PTSZ(cuStreamSynchronize, StreamSynchronize),
    PRISM_WRAP_PTSZ(cuStreamQuery, StreamQuery),
    PRISM_WRAP(cuCtxSynchronize, CtxSynchronize),
    PRISM_WRAP_PTSZ(cuStreamWaitValue32_v2, StreamWaitValue32),
    PRISM_WRAP_PTSZ(cuStreamWriteValue32_v2, StreamWriteValue32),
};

}  // namespace

std::span<const Wrapper> StreamWrappers() { return kWrappers; }

}  // namespace prism::interpose::driver
