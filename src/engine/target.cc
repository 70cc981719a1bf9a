#include "src/engine/target.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "src/base/status.h"
#include "src/base/suggest.h"
#include "src/engine/built_in_targets.h"

namespace prism::engine {
namespace {

using nlohmann::json;

constexpr const char* kSources[] = {"assumed", "modelled", "interpolated", "measured"};

ProtocolTable Protocols(const json& j) {
  return {j.at(0).get<double>(), j.at(1).get<double>(), j.at(2).get<double>()};
}

absl::Status BadTarget(std::string_view text, std::string_view why) {
  return WithHint(
      absl::InvalidArgumentError(
          absl::StrCat("target \"", std::string(text), "\": ", std::string(why))),
      absl::StrCat("a target is GPU[xGPUS_A_NODE][:NODES], such as h200x8:2; GPUs: ",
                   absl::StrJoin(KnownGpus(), ", "), ", or the path of a table like theirs"));
}

}  // namespace

std::vector<std::string> KnownGpus() {
  std::vector<std::string> names;
  for (const BuiltInTarget& t : kBuiltInTargets) names.emplace_back(t.name);
  return names;
}

absl::StatusOr<Gpu> ParseGpu(std::string_view text) {
  try {
    const json j = json::parse(text);
    Gpu g{};
    g.name = j.at("name").get<std::string>();
    g.memory_bytes = j.at("memory_bytes").get<uint64_t>();
    g.context_bytes = j.at("context_bytes").get<uint64_t>();
    g.memory_bandwidth = j.at("memory_bandwidth").get<double>();
    g.flops = j.at("flops").get<std::map<std::string, double>>();
    g.gemm_efficiency = j.at("gemm_efficiency").get<double>();
    g.memory_efficiency = j.at("memory_efficiency").get<double>();
    g.multiprocessors = j.at("multiprocessors").get<uint32_t>();
    g.kernel_floor_ns = j.at("kernel_floor_ns").get<int64_t>();
    g.kernel_gap_ns = j.at("kernel_gap_ns").get<int64_t>();
    g.launch_latency_ns = j.at("launch_latency_ns").get<int64_t>();
    g.host_link_bandwidth = j.at("host_link_bandwidth").get<double>();
    g.copy_floor_ns = j.at("copy_floor_ns").get<int64_t>();
    g.assumed_bytes_per_thread = j.at("assumed_bytes_per_thread").get<double>();
    g.link_bandwidth = j.at("link_bandwidth").get<double>();
    g.network_bandwidth = j.at("network_bandwidth").get<double>();
    g.network_efficiency = j.at("network_efficiency").get<double>();
    g.ll_bandwidth_ratio = j.at("ll_bandwidth_ratio").get<double>();
    g.ll128_bandwidth_ratio = j.at("ll128_bandwidth_ratio").get<double>();
    g.ring_base_us = Protocols(j.at("ring_base_us"));
    g.tree_base_us = Protocols(j.at("tree_base_us"));
    g.ring_link_us = Protocols(j.at("ring_link_us"));
    g.tree_link_us = Protocols(j.at("tree_link_us"));
    g.ring_network_us = Protocols(j.at("ring_network_us"));
    g.tree_network_us = Protocols(j.at("tree_network_us"));
    g.p2p_base_us = j.at("p2p_base_us").get<double>();
    g.p2p_network_base_us = j.at("p2p_network_base_us").get<double>();
    g.p2p_bandwidth = j.at("p2p_bandwidth").get<double>();
    const json& host = j.at("host_ns");
    g.host_ns = {host.at("launch").get<int64_t>(), host.at("communication").get<int64_t>(),
                 host.at("event").get<int64_t>(), host.at("synchronize").get<int64_t>()};
    for (size_t i = 0; i < 4; ++i) {
      g.range[i][0] = j.at("range").at(kSources[i]).at(0).get<double>();
      g.range[i][1] = j.at("range").at(kSources[i]).at(1).get<double>();
    }
    for (double positive :
         {g.memory_bandwidth, g.gemm_efficiency, g.memory_efficiency, g.host_link_bandwidth,
          g.link_bandwidth, g.network_bandwidth, g.network_efficiency, g.ll_bandwidth_ratio,
          g.ll128_bandwidth_ratio, g.p2p_bandwidth, static_cast<double>(g.multiprocessors)}) {
      if (!(positive > 0))
        return absl::InvalidArgumentError("GPU table: bandwidths and efficiencies are positive");
    }
    if (g.flops.count("f32") == 0)
      return absl::InvalidArgumentError("GPU table: flops has no \"f32\"");
    return g;
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("GPU table: ", e.what()));
  }
}

absl::StatusOr<Target> ParseTarget(std::string_view given) {
  // Names of GPUs may be written in capitals, as NVIDIA does; paths of tables are as they are.
  std::string lower(given);
  absl::AsciiStrToLower(&lower);
  const bool is_path = given.find_first_of("/.") != std::string_view::npos;
  const std::string_view text = is_path ? given : std::string_view(lower);
  Target target;
  target.text = std::string(text);
  std::string name(text);
  const auto number = [](std::string_view digits, uint32_t* value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *value);
    return error == std::errc() && end == digits.data() + digits.size() && *value > 0 &&
           *value <= 1'000'000;
  };
  if (const size_t colon = name.rfind(':'); colon != std::string::npos) {
    if (!number(std::string_view(name).substr(colon + 1), &target.nodes)) {
      return BadTarget(text, "the number of nodes after ':' is not a positive integer");
    }
    name.resize(colon);
  }
  if (const size_t x = name.rfind('x'); x != std::string::npos && x > 0) {
    // "x" may also be part of a path; only digits after it make it a count.
    uint32_t count = 0;
    if (number(std::string_view(name).substr(x + 1), &count)) {
      target.gpus_per_node = count;
      name.resize(x);
    }
  }
  for (const BuiltInTarget& t : kBuiltInTargets) {
    if (name != t.name) continue;
    PRISM_ASSIGN_OR_RETURN(target.gpu, ParseGpu(t.json));
    return target;
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(name, error)) {
    std::ifstream in(name, std::ios::binary);
    const std::string json_text((std::istreambuf_iterator<char>(in)), {});
    absl::StatusOr<Gpu> gpu = ParseGpu(json_text);
    if (!gpu.ok())
      return BadTarget(text, absl::StrCat(name, ": ", std::string(gpu.status().message())));
    target.gpu = *std::move(gpu);
    return target;
  }
  const std::string nearest = Nearest(name, KnownGpus());
  return BadTarget(text, nearest.empty() ? absl::StrCat("unknown GPU \"", name, "\"")
                                         : absl::StrCat("unknown GPU \"", name,
                                                        "\"; did you mean \"", nearest, "\"?"));
}

}  // namespace prism::engine
