// A libcuda.so.1 for tests of the libraries: it knows the few calls they make and remembers the
// kernels they launch.
//
// The test opens it before any library, so it is what their dlopen("libcuda.so.1") finds. Not
// thread-safe beyond a mutex around the list.
#ifndef HOSTCUDA_LIBRARIES_TESTING_FAKE_DRIVER_H_
#define HOSTCUDA_LIBRARIES_TESTING_FAKE_DRIVER_H_

#include <string>
#include <vector>

#include "hostcuda/internal_table.h"

struct FakeLaunch {
  CUstream stream;
  std::string name;
  uint32_t grid[3], block[3];
};

// Symbols of the fake, for dlsym.
extern "C" {
std::vector<FakeLaunch>* fake_launches(void);
HostcudaActivityObserver fake_observer(void);
void fake_set_now_ns(uint64_t now_ns);
}

#endif  // HOSTCUDA_LIBRARIES_TESTING_FAKE_DRIVER_H_
