// Route: the driver shim's wrappers, and how they reach the real driver.
//
// A wrapper is `CUresult Name(Route real, <parameters of the driver call>)`; `real(...)` makes the
// call. It is listed with the exported names that it serves; shim.cc installs it. Wrappers run in
// the user's threads: they must not throw or print.
//
//   CUresult MemFree(Route real, CUdeviceptr address) { return Ownership::Get().Free(address,
//   real); } const Wrapper kMemoryWrappers[] = {PRISM_WRAP(cuMemFree_v2, MemFree)};
#ifndef PRISM_INTERPOSE_DRIVER_ROUTE_H_
#define PRISM_INTERPOSE_DRIVER_ROUTE_H_

#include <cuda.h>

#include <cstdint>
#include <span>

#include "driver_symbols.h"
#include "src/interpose/driver/host_clock.h"
#include "src/interpose/driver/rank.h"
#include "src/interpose/forward_table.h"

namespace prism::interpose::driver {

struct Route {
  uint32_t index;
  bool per_thread;  // the name's default stream is the per-thread one (_ptds, _ptsz)

  template <class... A>
  CUresult operator()(A... arguments) const {
    return reinterpret_cast<CUresult (*)(A...)>(prism_driver_real[index])(arguments...);
  }
};

/// Calls the real driver by name, past the wrappers: PRISM_REAL(cuFuncGetName)(&name, function).
#define PRISM_REAL(name) \
  (::prism::interpose::driver::Route{::prism::interpose::driver::k_##name, false})

extern uint64_t g_call_counts[kSymbolCount];

/// Counts a call, and its host time where that is measured (host_clock.h).
class CallScope {
 public:
  explicit CallScope(uint32_t index) : observe_(Observed()) {
    if (observe_ & kObserveCounts) __atomic_fetch_add(&g_call_counts[index], 1, __ATOMIC_RELAXED);
    if ((observe_ & kObserveTime) == 0) return;
    if (trace::Writer* writer = Rank::Get().writer()) HostClock::Begin(writer);
  }
  ~CallScope() {
    if ((observe_ & kObserveTrace) == 0) return;
    trace::Writer* writer = Rank::Get().writer();
    if (writer == nullptr) return;
    if (observe_ & kObserveTime) {
      HostClock::End(writer);
    } else {
      writer->HostCall(0);
    }
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  const uint32_t observe_;
};

// Names reach this through a second macro, so one that cuda.h renames (cuGetProcAddress) must be
// #undef'd where it is listed; wrappers_test.cc finds a name that is served twice.
#define PRISM_WRAP_AS(name, function, per_thread, always)                                          \
  ::prism::interpose::Wrapper {                                                                    \
    k_##name, always,                                                                              \
        reinterpret_cast<void*>(                                                                   \
            &::prism::interpose::Thunk<::prism::interpose::driver::Route,                          \
                                       ::prism::interpose::driver::CallScope, &function, k_##name, \
                                       per_thread>::Entry)                                         \
  }
#define PRISM_WRAP(name, function) PRISM_WRAP_AS(name, function, false, false)
#define PRISM_WRAP_ALWAYS(name, function) PRISM_WRAP_AS(name, function, false, true)
/// Both default-stream forms of a name.
#define PRISM_WRAP_PTSZ(name, function) \
  PRISM_WRAP_AS(name, function, false, false), PRISM_WRAP_AS(name##_ptsz, function, true, false)
#define PRISM_WRAP_PTDS(name, function) \
  PRISM_WRAP_AS(name, function, false, false), PRISM_WRAP_AS(name##_ptds, function, true, false)

std::span<const Wrapper> MemoryWrappers();
std::span<const Wrapper> StreamWrappers();
std::span<const Wrapper> LaunchWrappers();
std::span<const Wrapper> CopyWrappers();
std::span<const Wrapper> DeviceWrappers();
std::span<const Wrapper> ProcAddressWrappers();

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_ROUTE_H_
