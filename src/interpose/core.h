// FindCore: how prism's other shims reach the driver shim of their process.
//
// Null when the process is not under prism, or when another libcuda.so.1 came before prism's:
// callers then forward everything untouched. The answer is kept; whether the process is a rank is
// asked anew at each call, as a zygote's child becomes one late.
#ifndef PRISM_INTERPOSE_CORE_H_
#define PRISM_INTERPOSE_CORE_H_

#include <dlfcn.h>

#include "src/interpose/core_table.h"

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

/// The welcome of a rank with virtual devices, else null.
inline const wire::Welcome* VirtualDevices() {
  const CoreTable* core = FindCore();
  const wire::Welcome* welcome = core == nullptr ? nullptr : core->welcome();
  return welcome != nullptr && welcome->devices > 0 ? welcome : nullptr;
}

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_CORE_H_
