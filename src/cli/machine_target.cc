#include "src/cli/machine_target.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "fmt/format.h"

namespace prism::cli {
namespace {

constexpr char kHint[] = "say what the GPUs are: --target h200x8";
constexpr unsigned kNameBytes = 96;  // NVML_DEVICE_NAME_V2_BUFFER_SIZE

// Names of the machine's GPUs; empty where NVML does not answer.
std::vector<std::string> GpuNames(const std::string& nvml) {
  std::vector<std::string> names;
  void* library = dlopen(nvml.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return names;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  const auto count = reinterpret_cast<int (*)(unsigned*)>(dlsym(library, "nvmlDeviceGetCount_v2"));
  const auto handle =
      reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
  const auto name =
      reinterpret_cast<int (*)(void*, char*, unsigned)>(dlsym(library, "nvmlDeviceGetName"));
  if (init != nullptr && shutdown != nullptr && count != nullptr && handle != nullptr &&
      name != nullptr && init() == 0) {
    unsigned devices = 0;
    if (count(&devices) != 0) devices = 0;
    for (unsigned i = 0; i < devices; ++i) {
      void* device = nullptr;
      char text[kNameBytes] = {};
      if (handle(i, &device) == 0 && name(device, text, sizeof text) == 0) names.emplace_back(text);
    }
    shutdown();
  }
  dlclose(library);
  return names;
}

}  // namespace

absl::StatusOr<Target> TargetOfMachine(const std::string& nvml) {
  const std::vector<std::string> names = nvml.empty() ? std::vector<std::string>() : GpuNames(nvml);
  if (names.empty()) {
    return WithHint(absl::NotFoundError("NVML tells of no GPU of this machine"), kHint);
  }
  const std::set<std::string> kinds(names.begin(), names.end());
  if (kinds.size() > 1) {
    return WithHint(
        absl::FailedPreconditionError(fmt::format("this machine has GPUs of {} kinds: {}",
                                                  kinds.size(), fmt::join(kinds, ", "))),
        kHint);
  }
  size_t count = names.size();
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string text = visible;
    const size_t listed =
        text.empty() ? 0 : static_cast<size_t>(std::count(text.begin(), text.end(), ',')) + 1;
    count = std::min(count, listed);
    if (count == 0) {
      return WithHint(absl::FailedPreconditionError("CUDA_VISIBLE_DEVICES leaves no GPU"),
                      "unset it, or record with --device host");
    }
  }
  for (const GpuModel& gpu : KnownGpus()) {
    if (names[0] == gpu.name) return ParseTarget(fmt::format("{}x{}", gpu.key, count));
  }
  return WithHint(absl::FailedPreconditionError(
                      fmt::format("this machine's GPU, {}, is not one that prism knows", names[0])),
                  kHint);
}

}  // namespace prism::cli
