#include "src/interpose/driver/driver_clock.h"

#include <dlfcn.h>

#include <type_traits>

namespace prism::interpose::driver {

DriverClock::Functions DriverClock::functions_{};

void DriverClock::Find(void* library) {
  Functions found{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  int (*is_virtual)() = nullptr;
  if (!find(is_virtual, "hostcudaClockIsVirtual") || is_virtual() == 0) return;
  if (find(found.host_time, "hostcudaHostTime") && find(found.busy_time, "hostcudaBusyTime") &&
      find(found.uncharged, "hostcudaUncharged") && find(found.hold, "hostcudaHold") &&
      find(found.number, "hostcudaNumber") && find(found.ring, "hostcudaRing") &&
      find(found.now, "hostcudaNow")) {
    functions_ = found;
  }
}

uint32_t DriverClock::Number() { return functions_.now == nullptr ? 0 : functions_.number() + 1; }

}  // namespace prism::interpose::driver
