#include "examples/cpp/moe_trainer/hostcuda_link.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace moe_trainer {
namespace {

struct Api {
  decltype(&hostcudaRegisterKernel) register_kernel = nullptr;
  decltype(&hostcudaRegisterKernelTime) register_time = nullptr;
  decltype(&hostcudaHostTime) host_time = nullptr;
  decltype(&hostcudaNow) now = nullptr;
  bool complete() const {
    return register_kernel != nullptr && register_time != nullptr && host_time != nullptr &&
           now != nullptr;
  }
};

// The driver may have been opened by somebody who keeps its symbols to himself (a library between
// the program and it), so every libcuda.so.1 of the process is asked.
Api Find() {
  Api api;
  const auto ask = [](dl_phdr_info* info, size_t, void* data) {
    if (strstr(info->dlpi_name, "libcuda.so") == nullptr) return 0;
    void* library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return 0;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    auto& found = *static_cast<Api*>(data);
    find(found.register_kernel, "hostcudaRegisterKernel");
    find(found.register_time, "hostcudaRegisterKernelTime");
    find(found.host_time, "hostcudaHostTime");
    find(found.now, "hostcudaNow");
    return found.complete() ? 1 : 0;
  };
  dl_iterate_phdr(ask, &api);
  return api;
}

const Api& Hostcuda() {
  static const Api api = Find();
  return api;
}

void Check(int error, const char* call, const char* subject) {
  if (error != 0)
    throw std::runtime_error(std::string(call) + "(" + subject + ") returned " +
                             std::to_string(error));
}

}  // namespace

bool OnHostcuda() { return Hostcuda().complete(); }

void RegisterWithHostcuda(const char* kernel, KernelBody body, KernelTime time) {
  if (!OnHostcuda()) throw std::runtime_error("the CUDA driver is not hostcuda");
  if (body != nullptr)
    Check(Hostcuda().register_kernel(kernel, body), "hostcudaRegisterKernel", kernel);
  Check(Hostcuda().register_time(kernel, 0, time), "hostcudaRegisterKernelTime", kernel);
}

void HostWork(uint64_t duration_ns) {
  Check(Hostcuda().host_time(duration_ns), "hostcudaHostTime", std::to_string(duration_ns).c_str());
}

uint64_t HostNow() { return Hostcuda().now(); }

}  // namespace moe_trainer
