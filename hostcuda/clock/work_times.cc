#include "hostcuda/clock/work_times.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "hostcuda/clock/draw.h"
#include "hostcuda/clock/json_object.h"

namespace hostcuda {
namespace {

using nlohmann::json;

// Shares of the peak figures that large kernels reach.
constexpr double kMemoryShare = 0.85, kTensorShare = 0.65;

constexpr const char* kHostCallNames[kHostCalls] = {"launch", "copy",  "event",
                                                    "sync",   "query", "communication"};

/// The values of the `key`-and-number tokens of a library kernel's name: "m4096" -> {"m", 4096}.
std::map<std::string_view, double> KeysOf(std::string_view name) {
  std::map<std::string_view, double> keys;
  while (!name.empty()) {
    const size_t end = std::min(name.find('_'), name.size());
    const std::string_view token = name.substr(0, end);
    name.remove_prefix(std::min(end + 1, name.size()));
    const size_t digits = token.find_first_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos) continue;
    int64_t value = 0;
    const auto [at, error] =
        std::from_chars(token.data() + digits, token.data() + token.size(), value);
    if (error == std::errc() && at == token.data() + token.size())
      keys[token.substr(0, digits)] = static_cast<double>(value);
  }
  return keys;
}

struct TypeFigures {
  double bytes;
  double speed;  // of the tensor cores, relative to bf16
};
std::optional<TypeFigures> FiguresOf(std::string_view type) {
  static const std::map<std::string_view, TypeFigures> figures = {
      {"bf16", {2, 1}},        {"f16", {2, 1}},        {"f32", {4, 1.0 / 16}},
      {"tf32", {4, 0.5}},      {"i8", {1, 2}},         {"e4m3", {1, 2}},
      {"e5m2", {1, 2}},        {"f64", {8, 1.0 / 16}}, {"c64", {8, 1.0 / 64}},
      {"c128", {16, 1.0 / 64}}};
  const auto found = figures.find(type.substr(0, type.find('x')));
  if (found == figures.end()) return std::nullopt;
  return found->second;
}

struct NamedWork {
  double bytes, flops, speed;
};
/// What a matrix product's or an attention's name says of its work.
std::optional<NamedWork> WorkOf(std::string_view name) {
  const bool product = name.starts_with("hostcublas_gemm_") ||
                       name.starts_with("hostcublasLt_matmul_") ||
                       name.starts_with("hostcudnn_matmul_");
  const bool forward = name.starts_with("hostcudnn_sdpafwd_");
  const bool backward = name.starts_with("hostcudnn_sdpabwd_");
  if (!product && !forward && !backward) return std::nullopt;
  std::string_view type = name;
  for (int i = 0; i < 2; ++i) type.remove_prefix(type.find('_') + 1);
  const auto figures = FiguresOf(type.substr(0, type.find('_')));
  if (!figures) return std::nullopt;
  const auto keys = KeysOf(name);
  const auto key = [&](const char* k) {
    const auto found = keys.find(k);
    return found == keys.end() ? 1.0 : found->second;
  };
  const double b = key("b");
  if (product) {
    const double m = key("m"), n = key("n"), k = key("k");
    // Sums in tf32 of f32 operands run at that speed.
    const bool tf32 = name.find("_tf32_") != std::string_view::npos;
    return NamedWork{b * (m * k + k * n + m * n) * figures->bytes, 2 * m * n * k * b,
                     tf32 ? 0.5 : figures->speed};
  }
  const double h = key("h"), sq = key("sq"), skv = key("skv"), d = key("d");
  const double passes = backward ? 2.5 : 1;
  return NamedWork{passes * b * h * (2 * sq * d + 2 * skv * d) * figures->bytes,
                   passes * 4 * b * h * sq * skv * d, figures->speed};
}

uint64_t Round(double ns) { return static_cast<uint64_t>(std::llround(std::max(ns, 0.0))); }

}  // namespace

WorkTimes::WorkTimes(const GpuFigures& gpu)
    : bytes_per_s_(gpu.memory_bytes_per_s * kMemoryShare),
      flops_per_s_(gpu.tensor_flops_per_s * kTensorShare) {}

bool WorkTimes::Read(const std::string& path, WorkTimes* times, std::string* error) {
  std::ifstream file(path);
  if (!file) {
    *error = "cannot open it";
    return false;
  }
  try {
    const json document = json::parse(file);
    JsonObject top(document, "the table");
    if (const json* schema = top.Member("schema"); schema == nullptr || *schema != 1)
      throw std::runtime_error("\"schema\" is not 1");
    if (const json* rules = top.Member("kernels")) {
      if (!rules->is_array()) throw std::runtime_error("kernels is no array");
      for (const json& item : *rules) {
        Rule rule;
        JsonObject object(item, "kernels[" + std::to_string(times->rules_.size()) + "]");
        const json* name = object.Member("name");
        if (name == nullptr || !name->is_string())
          throw std::runtime_error(
              "a rule of kernels has no \"name\", a pattern such as \"*gemm*\"");
        rule.pattern = name->get<std::string>();
        object.Number("ns", &rule.ns);
        object.Number("bytes", &rule.bytes);
        object.Number("flops", &rule.flops);
        object.Number("bytes_per_thread", &rule.bytes_per_thread);
        object.Number("flops_per_thread", &rule.flops_per_thread);
        object.RefuseOthers();
        times->rules_.push_back(std::move(rule));
      }
    }
    if (const json* gpu = top.Member("gpu")) {
      JsonObject object(*gpu, "gpu");
      object.Rate("bytes_per_s", &times->bytes_per_s_);
      object.Rate("flops_per_s", &times->flops_per_s_);
      object.Number("kernel_ns", &times->kernel_ns_);
      object.Number("bytes_per_thread", &times->bytes_per_thread_);
      object.RefuseOthers();
    }
    if (const json* copies = top.Member("copies")) {
      JsonObject object(*copies, "copies");
      object.Number("latency_ns", &times->copy_latency_ns_);
      object.Rate("host_bytes_per_s", &times->host_bytes_per_s_);
      object.Rate("peer_bytes_per_s", &times->peer_bytes_per_s_);
      object.RefuseOthers();
    }
    if (const json* host = top.Member("host_ns")) {
      JsonObject object(*host, "host_ns");
      for (size_t i = 0; i < kHostCalls; ++i) {
        auto ns = static_cast<double>(times->host_ns_[i]);
        // A query that takes no time would let a program wait for ever in a loop of them.
        object.Number(kHostCallNames[i], &ns, static_cast<HostCall>(i) == HostCall::kQuery ? 1 : 0);
        times->host_ns_[i] = Round(ns);
      }
      object.RefuseOthers();
    }
    if (const json* jitter = top.Member("jitter")) {
      JsonObject object(*jitter, "jitter");
      double seed = 0;
      object.Number("sigma", &times->sigma_);
      object.Number("seed", &seed);
      object.RefuseOthers();
      times->seed_ = Round(seed);
    }
    top.RefuseOthers();
  } catch (const std::exception& exception) {
    *error = exception.what();
    return false;
  }
  return true;
}

uint64_t WorkTimes::RooflineNs(double bytes, double flops, double flops_per_s) const {
  return Round(kernel_ns_ + std::max(bytes / bytes_per_s_, flops / flops_per_s) * 1e9);
}

uint64_t WorkTimes::KernelNs(std::string_view name, const uint32_t grid[3],
                             const uint32_t block[3]) const {
  const double threads =
      static_cast<double>(grid[0]) * grid[1] * grid[2] * block[0] * block[1] * block[2];
  const std::string text(name);
  for (const Rule& rule : rules_) {
    if (fnmatch(rule.pattern.c_str(), text.c_str(), 0) != 0) continue;
    if (rule.ns >= 0) return Round(rule.ns);
    return RooflineNs(rule.bytes + rule.bytes_per_thread * threads,
                      rule.flops + rule.flops_per_thread * threads, flops_per_s_);
  }
  if (const auto work = WorkOf(name))
    return RooflineNs(work->bytes, work->flops, flops_per_s_ * work->speed);
  return RooflineNs(bytes_per_thread_ * threads, 0, flops_per_s_);
}

uint64_t WorkTimes::CopyNs(CopyWay way, uint64_t bytes) const {
  const auto size = static_cast<double>(bytes);
  switch (way) {
    case CopyWay::kHost:
      return Round(copy_latency_ns_ + size / host_bytes_per_s_ * 1e9);
    case CopyWay::kPeer:
      return Round(copy_latency_ns_ + size / peer_bytes_per_s_ * 1e9);
    case CopyWay::kDevice:
      break;
  }
  return Round(copy_latency_ns_ + 2 * size / bytes_per_s_ * 1e9);  // read and written
}

uint64_t WorkTimes::SetNs(uint64_t bytes) const {
  return Round(copy_latency_ns_ + static_cast<double>(bytes) / bytes_per_s_ * 1e9);
}

uint64_t WorkTimes::Drawn(uint64_t ns, uint64_t process, uint64_t stream, uint64_t sequence,
                          uint64_t part) const {
  if (ns == 0) return ns;
  return Round(static_cast<double>(ns) *
               LogNormalFactor(sigma_, seed_, {process, stream, sequence, part}));
}

}  // namespace hostcuda
