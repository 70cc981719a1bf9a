// Events that several processes use: cuIpcGetEventHandle and cuIpcOpenEventHandle.
//
// The words live in the file of the process that made the event. A record takes the next number;
// when the stream gets there it stores the number and wakes whoever sleeps on it, in any process.
// Thread-safe.
#ifndef HOSTCUDA_DRIVER_SHARED_EVENT_H_
#define HOSTCUDA_DRIVER_SHARED_EVENT_H_

#include <cuda.h>

#include "hostcuda/driver/engine.h"

namespace hostcuda {

CUresult RecordShared(SharedEvent* event, Stream& stream);
/// `stream` waits for the latest record at the time of the call.
CUresult WaitShared(SharedEvent* event, Stream& stream);
CUresult QueryShared(const SharedEvent* event);
CUresult SynchronizeShared(SharedEvent* event);

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_SHARED_EVENT_H_
