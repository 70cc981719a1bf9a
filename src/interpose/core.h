// FindCore: how prism's other shims reach the driver shim of their process.
//
// Null when the process is not under prism, or when another libcuda.so.1 came before prism's:
// callers then forward everything untouched. The answer is kept; whether the process is a rank is
// asked anew at each call, as a zygote's child becomes one late.
#ifndef PRISM_INTERPOSE_CORE_H_
#define PRISM_INTERPOSE_CORE_H_

#include <dlfcn.h>

#include <cstdlib>

#include "src/interpose/core_table.h"
#include "src/interpose/report.h"

namespace prism::interpose {

inline const CoreTable* FindCore() {
  static const CoreTable* const core = []() -> const CoreTable* {
    using GetExportTable = CUresult (*)(const void**, const CUuuid*);
    void* found = dlsym(RTLD_DEFAULT, "cuGetExportTable");
    if (found == nullptr) {
      if (void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
        found = dlsym(library, "cuGetExportTable");
      }
    }
    const void* table = nullptr;
    if (found == nullptr ||
        reinterpret_cast<GetExportTable>(found)(&table, &kPrismCoreUuid) != CUDA_SUCCESS) {
      return nullptr;
    }
    const auto* core_table = static_cast<const CoreTable*>(table);
    return core_table != nullptr && core_table->size >= sizeof(CoreTable) &&
                   core_table->version == kCoreTableVersion
               ? core_table
               : nullptr;
  }();
  return core;
}

/// True, with a line on stderr the first time, when the environment asks for a rank and another
/// libcuda.so.1 came before prism's: such a process would run uncaptured, so the shims refuse its
/// first calls.
inline bool IsBypassed() {
  static const bool bypassed = [] {
    const char* socket = getenv(wire::kEnvSocket);
    if (socket == nullptr || socket[0] == 0 || FindCore() != nullptr) return false;
    Dl_info info{};
    void* found = dlsym(RTLD_DEFAULT, "cuInit");
    if (found != nullptr) dladdr(found, &info);
    Report(
        "libcuda.so.1 of this process is %s, not prism's driver shim: prism must come first in "
        "LD_PRELOAD",
        info.dli_fname == nullptr ? "not preloaded" : info.dli_fname);
    return true;
  }();
  return bypassed;
}

/// The devices of a rank that has virtual ones, else null.
inline const VisibleDevices* VirtualDevices() {
  const CoreTable* core = FindCore();
  return core == nullptr ? nullptr : core->visible_devices();
}

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_CORE_H_
