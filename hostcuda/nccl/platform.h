// What hostnccl's core needs from outside: time and doorbells. The driver provides them; tests play
// the driver.
#ifndef HOSTCUDA_NCCL_PLATFORM_H_
#define HOSTCUDA_NCCL_PLATFORM_H_

#include <cstdint>

namespace hostnccl {

/// Same signatures as in HostcudaTable, so its members are assigned directly. All are thread-safe
/// and do not block.
struct Platform {
  uint64_t (*now_ns)() = nullptr;
  uint32_t (*doorbell_self)() = nullptr;      // this process's doorbell
  void (*doorbell_ring)(uint32_t) = nullptr;  // makes that process poll its pending tasks
};

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_PLATFORM_H_
