#include "hostcuda/runtime/driver_calls.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <type_traits>

namespace hostcuda {

const DriverCalls* Calls() {
  static const DriverCalls* const calls = []() -> const DriverCalls* {
    // Found by name: the one a shim put into the process, else the one beside this library (RUNPATH
    // $ORIGIN).
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
      fprintf(stderr, "hostcuda: libcudart.so.13 finds no driver: %s\n", dlerror());
      return nullptr;
    }
    auto* found = new DriverCalls;
    found->get_proc_address =
        reinterpret_cast<decltype(found->get_proc_address)>(dlsym(library, "cuGetProcAddress_v2"));
    if (found->get_proc_address == nullptr) {
      fprintf(stderr, "hostcuda: libcuda.so.1 has no cuGetProcAddress_v2\n");
      return nullptr;
    }
    const auto resolve = [&](auto& function, const char* name) {
      void* address = nullptr;
      // Of these two, version 13.0 added forms with other parameters that cuda.h does not give
      // their plain names to.
      const bool older =
          strcmp(name, "cuCtxGetDevice") == 0 || strcmp(name, "cuCtxSynchronize") == 0;
      const int version = older ? 12080 : CUDA_VERSION;
      if (found->get_proc_address(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                  nullptr) != CUDA_SUCCESS ||
          address == nullptr) {
        fprintf(stderr, "hostcuda: libcuda.so.1 does not know %s of CUDA %d\n", name, CUDA_VERSION);
        return false;
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
      return true;
    };
    bool complete = true;
#define HC_RESOLVE(name) complete &= resolve(found->name, #name);
    HC_DRIVER_CALLS(HC_RESOLVE)
#undef HC_RESOLVE
    return complete ? found : nullptr;
  }();
  return calls;
}

}  // namespace hostcuda
