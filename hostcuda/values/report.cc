#include "hostcuda/values/report.h"

#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "hostcuda/values/operation.h"

namespace hostcuda::values {
namespace {

std::string* g_path = nullptr;

std::string Counters(uint64_t computed, uint64_t queued, uint64_t noise, uint64_t kept) {
  return "\"computed\":" + std::to_string(computed) + ",\"queued\":" + std::to_string(queued) +
         ",\"noise\":" + std::to_string(noise) + ",\"kept\":" + std::to_string(kept);
}

void WriteReport() {
  std::string path = *g_path;
  const size_t at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "hostcuda values: cannot write HOSTCUDA_VALUES_REPORT=%s: %m\n",
                 path.c_str());
    return;
  }
  const std::string text = ReportJson();
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
}

}  // namespace

void ScheduleReport(const std::string& path) {
  g_path = new std::string(path);
  std::atexit(WriteReport);
}

std::string ReportJson() {
  uint64_t computed = 0, queued = 0, noise = 0, kept = 0;
  std::string operations;
  for (const OperationRecord* record : Operations()) {
    if (record->computed + record->noise + record->kept == 0) continue;
    computed += record->computed;
    queued += record->queued;
    noise += record->noise;
    kept += record->kept;
    operations += (operations.empty() ? "\n    {\"name\":\"" : ",\n    {\"name\":\"") +
                  record->display + "\"," +
                  Counters(record->computed, record->queued, record->noise, record->kept) + "}";
  }
  const Settings& settings = CurrentSettings();
  return std::string("{\n  \"schema\":1,\n  \"torch\":\"") + TORCH_VERSION + "\",\n  \"mode\":\"" +
         (settings.control ? "control" : "cpu") + "\",\n  \"control_bytes\":" +
         std::to_string(settings.control ? settings.control_bytes : 0) +
         ",\n  \"threads\":" + std::to_string(settings.threads) +
         ",\n  \"overridden\":" + std::to_string(Operations().size()) + ",\n  \"totals\":{" +
         Counters(computed, queued, noise, kept) + "},\n  \"operations\":[" + operations +
         "\n  ]\n}\n";
}

}  // namespace hostcuda::values
