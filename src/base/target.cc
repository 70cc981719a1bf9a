#include "src/base/target.h"

#include <charconv>

#include "absl/strings/ascii.h"
#include "fmt/format.h"
#include "src/base/suggest.h"

namespace prism {
namespace {

constexpr char kGrammar[] =
    "a target is GPUxCOUNT[:NODES], for example h200x8:2 for 2 nodes of 8 H200s";
constexpr uint32_t kMaxGpusPerNode = 64;
constexpr uint32_t kMaxNodes = 8192;

bool ParseNumber(std::string_view text, uint32_t most, uint32_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= 1 &&
         *number <= most;
}

}  // namespace

const std::vector<GpuModel>& KnownGpus() {
  // Memory: nvidia-smi's total of each part in MiB. Contexts: measured on H200, driver 580, and
  // taken over for the others.
  static const auto* const kGpus = new std::vector<GpuModel>{
      {"h200", "NVIDIA H200", 150109880320, 576716800},
      {"h100", "NVIDIA H100 80GB HBM3", 85029158912, 576716800},
      {"a100", "NVIDIA A100-SXM4-80GB", 85095874560, 576716800},
      {"b200", "NVIDIA B200", 191503400960, 576716800},
  };
  return *kGpus;
}

absl::StatusOr<Target> ParseTarget(std::string_view given) {
  std::string text(given);
  absl::AsciiStrToLower(&text);
  const auto bad = [&](const std::string& what, const std::string& hint = kGrammar) {
    return WithHint(
        absl::InvalidArgumentError(fmt::format("--target '{}': {}", std::string(given), what)),
        hint);
  };
  Target target;
  target.text = text;
  const size_t colon = text.find(':');
  const std::string_view node = std::string_view(text).substr(0, colon);
  const size_t times = node.rfind('x');
  if (times == std::string_view::npos || times == 0) return bad("there is no count of GPUs");
  const std::string key(node.substr(0, times));
  std::vector<std::string> keys;
  bool known = false;
  for (const GpuModel& gpu : KnownGpus()) {
    keys.emplace_back(gpu.key);
    if (key != gpu.key) continue;
    target.gpu = gpu;
    known = true;
  }
  if (!known) {
    const std::string nearest = Nearest(key, keys);
    return bad(fmt::format("GPU '{}' is not known", key),
               nearest.empty() ? fmt::format("known are {}", fmt::join(keys, ", "))
                               : fmt::format("did you mean '{}'? Known are {}", nearest,
                                             fmt::join(keys, ", ")));
  }
  if (!ParseNumber(node.substr(times + 1), kMaxGpusPerNode, &target.gpus_per_node)) {
    return bad(fmt::format("'{}' GPUs a node; 1 to {} are possible", node.substr(times + 1),
                           kMaxGpusPerNode));
  }
  if (colon != std::string_view::npos &&
      !ParseNumber(std::string_view(text).substr(colon + 1), kMaxNodes, &target.nodes)) {
    return bad(fmt::format("'{}' nodes; 1 to {} are possible", text.substr(colon + 1), kMaxNodes));
  }
  return target;
}

absl::Status CheckWorld(const Target& target, uint32_t world, uint32_t per_node) {
  const auto suggestion = [&] {
    const uint32_t nodes = (world + target.gpus_per_node - 1) / target.gpus_per_node;
    return fmt::format("{}x{}{}", target.gpu.key, std::min(world, target.gpus_per_node),
                       nodes > 1 ? fmt::format(":{}", nodes) : std::string());
  };
  if (per_node > target.gpus_per_node) {
    return WithHint(absl::InvalidArgumentError(fmt::format(
                        "{} ranks a node do not fit a node of target {}, which has {} GPUs",
                        per_node, target.text, target.gpus_per_node)),
                    fmt::format("--nproc-per-node {}, or --target {}x{}", target.gpus_per_node,
                                target.gpu.key, per_node));
  }
  if (world > target.gpus()) {
    return WithHint(
        absl::InvalidArgumentError(fmt::format("{} ranks need more than the {} GPUs of target {}",
                                               world, target.gpus(), target.text)),
        "--target " + suggestion());
  }
  if (world > target.gpus_per_node && world % target.gpus_per_node != 0) {
    return WithHint(absl::InvalidArgumentError(
                        fmt::format("{} ranks do not divide into nodes of {} GPUs (target {})",
                                    world, target.gpus_per_node, target.text)),
                    fmt::format("use a multiple of {} ranks, or a target whose nodes fit",
                                target.gpus_per_node));
  }
  return absl::OkStatus();
}

}  // namespace prism
