// What hostnccl's core needs from outside: time and doorbells. The driver provides them; tests play
// the driver.
#ifndef HOSTCUDA_NCCL_PLATFORM_H_
#define HOSTCUDA_NCCL_PLATFORM_H_

#include <time.h>

#include <cstdint>

namespace hostnccl {

/// Functions as in HostcudaTable; thread-safe, and do not block.
struct Platform {
  uint32_t (*doorbell_self)() = nullptr;      // this process's doorbell
  void (*doorbell_ring)(uint32_t) = nullptr;  // makes that process poll its pending tasks
  // Where the job's clock is virtual, and communication takes time on it; else null.
  uint64_t (*now_ns)() = nullptr;
  uint32_t (*event_new)(uint32_t doorbell) = nullptr;
  void (*event_free)(uint32_t event) = nullptr;

  bool takes_time() const { return now_ns != nullptr; }
};

/// Wall time, for liveness and reports: what happens then must not depend on the job's clock.
inline uint64_t WallNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_PLATFORM_H_
