#include "src/cli/capture_options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "fmt/format.h"
#include "src/base/suggest.h"

namespace prism::cli {
namespace {

absl::StatusOr<uint64_t> ParseBytes(const char* flag, const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::pair<const char*, int> units[] = {
      {"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  for (const auto& [name, shift] : units) {
    if (error == std::errc() && unit == name && number <= (UINT64_MAX >> shift))
      return number << shift;
  }
  return WithHint(absl::InvalidArgumentError(fmt::format("{} '{}' is not a size", flag, text)),
                  fmt::format("{} 4MiB", flag));
}

}  // namespace

absl::Status OneOf(const char* flag, const std::string& value,
                   const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  const std::string nearest = Nearest(value, known);
  return WithHint(absl::InvalidArgumentError(
                      fmt::format("{} '{}' is not one of {}", flag, value, fmt::join(known, ", "))),
                  nearest.empty() ? fmt::format("{} {}", flag, known.front())
                                  : fmt::format("did you mean '{}'?", nearest));
}

void CaptureFlags::AddTo(CLI::App& app) {
  // Who sets it for hostcuda, or runs prism by `hostcuda run --values`, means the same here.
  if (const char* values = std::getenv("HOSTCUDA_VALUES"); values != nullptr && *values != '\0')
    values_ = values;
  app.add_option("--job", job_, "Directory for everything that is kept")
      ->capture_default_str()
      ->type_name("DIR");
  app.add_flag("--force", force_, "Replace an earlier job in that directory");
  target_option_ = app.add_option("--target", target_, "Machine to emulate: GPUxCOUNT[:NODES]")
                       ->capture_default_str()
                       ->type_name("TARGET");
  app.add_option(
         "--gpu-memory", gpu_memory_,
         "Memory of each of its GPUs where it is not what such a GPU has, for example 80GiB")
      ->type_name("SIZE");
  app.add_option("--device", device_,
                 "What runs the kernels: host (no GPU), cuda, or none (a job without CUDA)")
      ->capture_default_str()
      ->type_name("WHAT");
  app.add_option(
         "--values", values_,
         "What is computed on host: none, control (what control flow needs), cpu (everything); "
         "HOSTCUDA_VALUES, if set, by default")
      ->capture_default_str()
      ->type_name("WHAT");
  app.add_option(
         "--exchange", exchange_,
         "Which payloads move between ranks: exact (all), control (large ones until they "
         "recur after an update of the weights; of values that are not computed, never), or "
         "auto (exact with cpu or a GPU, else control)")
      ->capture_default_str()
      ->type_name("POLICY");
  app.add_option("--exact-payload", exact_payload_,
                 "With control: the largest payload that always moves [1MiB]")
      ->type_name("SIZE");
  app.add_option("--tee", tee_, "Whose output is shown as well as kept: none, rank0, all")
      ->capture_default_str()
      ->type_name("WHOSE");
  app.add_option("--launch", launch_,
                 "How ranks of torchrun start: fork (from one interpreter), spawn, or auto")
      ->capture_default_str()
      ->type_name("HOW");
  app.add_option("--patience", patience_s_,
                 "Seconds for which a rank may be blocked outside of any communication while no "
                 "other rank works; 0: for ever")
      ->capture_default_str()
      ->type_name("SECONDS");
}

absl::StatusOr<CaptureOptions> CaptureFlags::Options() const {
  CaptureOptions options;
  PRISM_RETURN_IF_ERROR(OneOf("--device", device_, {"host", "cuda", "none"}));
  PRISM_RETURN_IF_ERROR(OneOf("--values", values_, {"none", "control", "cpu"}));
  PRISM_RETURN_IF_ERROR(OneOf("--exchange", exchange_, {"auto", "exact", "control"}));
  PRISM_RETURN_IF_ERROR(OneOf("--tee", tee_, {"none", "rank0", "all"}));
  PRISM_RETURN_IF_ERROR(OneOf("--launch", launch_, {"auto", "fork", "spawn"}));
  PRISM_ASSIGN_OR_RETURN(options.target, ParseTarget(target_));
  PRISM_RETURN_IF_ERROR(SetMemory(&options.target));
  if (patience_s_ < 0) {
    return WithHint(
        absl::InvalidArgumentError(fmt::format("--patience {} is negative", patience_s_)),
        "--patience 0 waits for ever");
  }
  if (device_ == "none") {
    options.device.reset();
  } else {
    options.device = device_ == "cuda" ? Device::kCuda : Device::kHost;
  }
  options.values = values_;
  options.job = job_;
  options.force = force_;
  options.tee = tee_;
  options.launch = launch_;
  options.patience_s = patience_s_;
  // Of large tensors that are not computed only what programs read on the host has a meaning:
  // sizes, splits, pickled objects.
  const bool computes = device_ != "host" || values_ == "cpu";
  options.exchange = exchange_ != "auto"                  ? exchange_
                     : computes && exact_payload_.empty() ? "exact"
                                                          : "control";
  if (options.exchange == "exact") {
    if (!exact_payload_.empty()) {
      return WithHint(
          absl::InvalidArgumentError(fmt::format(
              "--exact-payload {} with --exchange exact: all payloads move", exact_payload_)),
          "--exchange control");
    }
  } else {
    options.exact_payload_bytes = 1 << 20;
  }
  if (!exact_payload_.empty()) {
    PRISM_ASSIGN_OR_RETURN(options.exact_payload_bytes,
                           ParseBytes("--exact-payload", exact_payload_));
  }
  return options;
}

absl::Status CaptureFlags::SetMemory(Target* target) const {
  if (gpu_memory_.empty()) return absl::OkStatus();
  PRISM_ASSIGN_OR_RETURN(target->gpu.memory_bytes, ParseBytes("--gpu-memory", gpu_memory_));
  if (target->gpu.memory_bytes > target->gpu.context_bytes) return absl::OkStatus();
  return WithHint(absl::InvalidArgumentError(fmt::format(
                      "--gpu-memory {}: the context of a process takes {} bytes of it already",
                      gpu_memory_, target->gpu.context_bytes)),
                  "--gpu-memory 80GiB");
}

absl::Status CaptureFlags::TakeTarget(const Target& captured, CaptureOptions* options) const {
  if (target_option_->count() != 0) return absl::OkStatus();
  options->target = captured;
  return SetMemory(&options->target);
}

}  // namespace prism::cli
