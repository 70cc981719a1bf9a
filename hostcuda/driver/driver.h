// The driver of a process: what cuInit makes and every entry finds.
//
// Owns the session, the engine and the device memory; made once by Initialize, never destroyed.
// After a fork the child is refused (CUDA_ERROR_NOT_INITIALIZED), as by the real driver.
// Thread-safe.
#ifndef HOSTCUDA_DRIVER_DRIVER_H_
#define HOSTCUDA_DRIVER_DRIVER_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "hostcuda/driver/device_memory.h"
#include "hostcuda/driver/engine.h"
#include "hostcuda/driver/session.h"

namespace hostcuda {

class Driver {
 public:
  /// cuInit: idempotent.
  static CUresult Initialize();
  /// Null before Initialize and in a child forked after it.
  static Driver* Get() { return instance_.load(std::memory_order_acquire); }

  Session& session() { return *session_; }
  Engine& engine() { return *engine_; }
  DeviceMemory& memory() { return *memory_; }

  /// Accounts device memory of this process; false where the device is full.
  bool Charge(int device, uint64_t bytes);
  void Discharge(int device, uint64_t bytes);
  void MemoryInfo(int device, size_t* free_bytes, size_t* total_bytes);

 private:
  static std::atomic<Driver*> instance_;
  Session* session_ = nullptr;
  Engine* engine_ = nullptr;
  DeviceMemory* memory_ = nullptr;
};

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_DRIVER_H_
