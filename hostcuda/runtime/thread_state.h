// What the runtime keeps for a thread: its device, its last error, and whether its context is
// current.
//
// As with the real runtime, a thread starts on device 0, the first call that needs a context makes
// the device's primary context current, and a context that the program made current by the driver
// API is used as it is.
#ifndef HOSTCUDA_RUNTIME_THREAD_STATE_H_
#define HOSTCUDA_RUNTIME_THREAD_STATE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace hostcuda {

/// Loads the driver and calls cuInit.
cudaError_t UseDriver();
/// UseDriver, and a context that is current in this thread.
cudaError_t UseContext();
/// Makes `device` the thread's device and its primary context current.
cudaError_t SelectDevice(int device);
cudaError_t CurrentDevice(int* device);
cudaError_t ResetDevice();

/// Notes a failed call's error as the thread's last one, and returns it.
cudaError_t Note(cudaError_t error);
inline cudaError_t Note(CUresult error) { return Note(static_cast<cudaError_t>(error)); }
/// cudaGetLastError and cudaPeekAtLastError.
cudaError_t TakeLastError();
cudaError_t PeekLastError();

/// While it lives, stream 0 of this thread means the per-thread default stream: what the _ptsz and
/// _ptds entries do.
class PerThreadStreamScope {
 public:
  PerThreadStreamScope();
  ~PerThreadStreamScope();

 private:
  bool previous_;
};
/// The driver's handle of a stream, with the scope applied.
CUstream Handle(cudaStream_t stream);
bool PerThreadDefault();

/// Says once per call name, on stderr, that it is not implemented. Returns cudaErrorNotSupported.
cudaError_t NotImplemented(const char* function);

}  // namespace hostcuda

#endif  // HOSTCUDA_RUNTIME_THREAD_STATE_H_
