#include "hostcuda/values/values.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "hostcuda/values/operation.h"
#include "hostcuda/values/report.h"
#include "hostcuda/values/stream_order.h"

namespace {

using hostcuda::values::Settings;

constexpr char kExport[] = "hostcuda values: ";

// Reads a positive integer from the environment. Returns false after a line on stderr for anything
// else.
bool ReadPositive(const char* name, int64_t* value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return true;
  char* end = nullptr;
  errno = 0;
  const long long parsed = std::strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || parsed <= 0) {
    std::fprintf(stderr, "%s%s=%s is not a positive integer\n", kExport, name, text);
    return false;
  }
  *value = parsed;
  return true;
}

// The version of the PyTorch in the process, from its own description of its build ("...,
// TORCH_VERSION=2.11.0, ...").
std::string LoadedTorchVersion() {
  const std::string config = at::show_config();
  const size_t at = config.find("TORCH_VERSION=");
  if (at == std::string::npos) return "unknown";
  const size_t begin = at + 14;
  return config.substr(begin, config.find_first_of(", \n", begin) - begin);
}

bool Install() {
  const std::string loaded = LoadedTorchVersion();
  if (loaded != TORCH_VERSION) {
    std::fprintf(stderr,
                 "%sthis library was built against PyTorch %s, but the process has %s; install "
                 "that version, rebuild "
                 "hostcuda against yours, or set HOSTCUDA_VALUES=none\n",
                 kExport, TORCH_VERSION, loaded.c_str());
    return false;
  }
  if (!hostcuda::values::ConnectDriver()) {
#ifndef HOSTCUDA_VALUES_WITHOUT_DRIVER
    std::fprintf(stderr,
                 "%slibcuda.so.1 of this process does not know hostcuda's table (version %d); it "
                 "is another driver or "
                 "another version of hostcuda\n",
                 kExport, HOSTCUDA_TABLE_VERSION);
    return false;
#endif
  }
  const HostcudaValues mode = hostcuda::values::ModeOfDriver();
  if (mode == HOSTCUDA_VALUES_NONE) return true;
  Settings settings;
  settings.control = mode == HOSTCUDA_VALUES_CONTROL;
  int64_t threads = settings.threads;
  if (!ReadPositive("HOSTCUDA_CONTROL_BYTES", &settings.control_bytes) ||
      !ReadPositive("HOSTCUDA_THREADS", &threads)) {
    return false;
  }
  settings.threads = static_cast<int>(threads);
  at::set_num_threads(settings.threads);
  hostcuda::values::OverrideOperations(settings);
  const char* report = std::getenv("HOSTCUDA_VALUES_REPORT");
  if (report != nullptr && *report != '\0') hostcuda::values::ScheduleReport(report);
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int hostcuda_values_install(void) {
  static std::once_flag once;
  static bool installed = false;
  std::call_once(once, [] {
    try {
      installed = Install();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%sinstallation failed: %s\n", kExport, error.what());
    }
  });
  return installed ? 0 : 1;
}

extern "C" __attribute__((visibility("default"))) int hostcuda_values_in_operation(void) {
  return hostcuda::values::OperationDepth() > 0 ? 1 : 0;
}

extern "C" __attribute__((visibility("default"))) int hostcuda_values_operations(void) {
  return static_cast<int>(hostcuda::values::Operations().size());
}
