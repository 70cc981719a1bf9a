// Numbers: small integers for the handles that a trace names: streams, events, kernels.
//
// Handles are reused by the driver; a number is not. Thread-safe; look-ups of what was seen before
// take a shared lock, and launches seen before by the same thread none.
#ifndef PRISM_INTERPOSE_DRIVER_NUMBERS_H_
#define PRISM_INTERPOSE_DRIVER_NUMBERS_H_

#include <cuda.h>

#include <cstdint>

#include "src/trace/writer.h"

namespace prism::interpose::driver {

/// The writer's number of a stream, registered at first sight. `per_thread`: what a null handle
/// means.
uint32_t StreamNumber(trace::Writer* writer, CUstream stream, bool per_thread);
void StreamCreated(trace::Writer* writer, CUstream stream, int priority);
void StreamDestroyed(CUstream stream);

struct EventVersion {
  uint32_t event;
  uint64_t version;  // 0: never recorded
};
/// Counts a record of the event.
EventVersion EventRecorded(CUevent event);
EventVersion EventNow(CUevent event);
void EventDestroyed(CUevent event);

/// True while the stream is being captured into a graph. Free when nothing is.
bool IsCapturing(CUstream stream, bool per_thread);
/// True while any stream may be: a query of another one could then invalidate its capture.
bool AnyCapture();
void CaptureBegun();
void CaptureEnded();

struct LaunchKind {
  uint32_t number;  // the writer's
  bool updates;     // the kernel is an optimizer's
};
/// What a launch is; `parameters` as of kernel_parameters.h.
LaunchKind LaunchKindOf(trace::Writer* writer, CUfunction function, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, uint32_t parameters);
/// Kernel handles may be reused from here on.
void KernelsUnloaded();

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_NUMBERS_H_
