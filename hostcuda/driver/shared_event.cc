#include "hostcuda/driver/shared_event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "hostcuda/driver/driver.h"

namespace hostcuda {
namespace {

bool Reached(const SharedEvent* event, uint32_t number, uint32_t* seen) {
  *seen = event->completed.load(std::memory_order_acquire);
  return static_cast<int32_t>(*seen - number) >= 0;
}

}  // namespace

CUresult RecordShared(SharedEvent* event, Stream& stream) {
  const uint32_t number = event->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
  return Driver::Get()->engine().Submit(stream, Label{}, [event, number](PollState&) {
    // Records of several streams or processes may complete in any order: the number only grows.
    uint32_t now = event->completed.load(std::memory_order_relaxed);
    while (static_cast<int32_t>(number - now) > 0 &&
           !event->completed.compare_exchange_weak(now, number)) {
    }
    syscall(SYS_futex, &event->completed, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return kDone;
  });
}

CUresult WaitShared(SharedEvent* event, Stream& stream) {
  const uint32_t number = event->recorded.load(std::memory_order_acquire);
  uint32_t seen = 0;
  if (Reached(event, number, &seen)) return CUDA_SUCCESS;
  return Driver::Get()->engine().Submit(stream, Label{}, [event, number](PollState& state) {
    uint32_t now = 0;
    if (Reached(event, number, &now)) return kDone;
    state.WaitFor(&event->completed, now);
    return kPending;
  });
}

CUresult QueryShared(const SharedEvent* event) {
  uint32_t seen = 0;
  return Reached(event, event->recorded.load(std::memory_order_acquire), &seen)
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_READY;
}

CUresult SynchronizeShared(SharedEvent* event) {
  const uint32_t number = event->recorded.load(std::memory_order_acquire);
  uint32_t seen = 0;
  // This process's own records are completed by the progress thread.
  while (!Reached(event, number, &seen)) {
    Engine& engine = Driver::Get()->engine();
    if (engine.takes_time()) {
      engine.AwaitWord(event->completed, seen);
      continue;
    }
    syscall(SYS_futex, &event->completed, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
  return CUDA_SUCCESS;
}

}  // namespace hostcuda
