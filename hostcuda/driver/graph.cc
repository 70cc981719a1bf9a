#include "hostcuda/driver/entry.h"
namespace hostcuda {
class Capture {};
CUresult CaptureWork(Stream&, const Label&, std::shared_ptr<Work>) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult CaptureRecord(Stream&, const EventRef&, bool) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult CaptureWait(Stream&, Event&, bool) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult CaptureForbidden(Stream&) { return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; }
CUresult CaptureUnsafe() { return CUDA_SUCCESS; }
}
