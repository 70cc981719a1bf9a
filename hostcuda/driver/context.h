// Contexts, and what a thread has made current.
//
// A context belongs to a device and owns its legacy default stream. Handles are pointers, checked
// by a magic number so that a stale handle is an error and not a crash in most cases. Contexts are
// never freed (a handle of a destroyed one answers CUDA_ERROR_CONTEXT_IS_DESTROYED). Thread-safe;
// the current context is a thread's own.
#ifndef HOSTCUDA_DRIVER_CONTEXT_H_
#define HOSTCUDA_DRIVER_CONTEXT_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include "hostcuda/driver/engine.h"

namespace hostcuda {

class Context {
 public:
  static constexpr uint32_t kMagic = 0x43545854;
  uint32_t magic = kMagic;
  int device = 0;
  uint32_t number = 0;  // 1, 2, ...: what profilers show
  unsigned flags = 0;
  bool primary = false;
  std::atomic<bool> alive{true};
  std::atomic<int> sticky{0};  // CUresult that every later call returns
  std::atomic<size_t> limits[CU_LIMIT_MAX];
  // Guarded by the engine's mutex.
  StreamRef legacy;
  std::vector<StreamRef> streams;  // with the legacy one
  int busy_blocking = 0;           // blocking streams, other than the legacy one, that are not idle
  int capturing_blocking = 0;      // blocking streams that capture
  std::set<Context*> peers;        // whose memory this context may access
};

/// The calling thread's current context, or null.
Context* CurrentContext();
void SetCurrentContext(Context* context);
/// As cuCtxPushCurrent / cuCtxPopCurrent.
void PushContext(Context* context);
bool PopContext(Context** context);

/// Retains the primary context of `device`, creating it where needed (which charges the context's
/// memory).
CUresult RetainPrimary(int device, Context** context);
CUresult ReleasePrimary(int device);
CUresult ResetPrimary(int device);
bool PrimaryState(int device, unsigned* flags);
CUresult SetPrimaryFlags(int device, unsigned flags);
CUresult CreateContext(int device, unsigned flags, Context** context);
CUresult DestroyContext(Context* context);
/// Every context of the process that is alive.
std::vector<Context*> LiveContexts();

/// Resolves a stream handle (0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a created one) in the
/// current context.
CUresult ResolveStream(CUstream handle, StreamRef* stream);

/// While it lives, stream 0 of this thread means the per-thread default stream: what the _ptsz and
/// _ptds entries do.
class PerThreadStreamScope {
 public:
  PerThreadStreamScope();
  ~PerThreadStreamScope();

 private:
  bool previous_;
};

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_CONTEXT_H_
