#include "hostcuda/nccl/link_topology.h"

#include <bit>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "hostcuda/clock/draw.h"
#include "hostcuda/clock/json_object.h"

namespace hostnccl {
namespace {

using hostcuda::JsonObject;
using nlohmann::json;

void ReadTier(const json& member, const char* name, LinkTopology::Tier* tier) {
  JsonObject object(member, name);
  object.Number("latency_ns", &tier->latency_ns);
  object.Rate("bytes_per_s", &tier->bytes_per_s);
  object.RefuseOthers();
}

LinkTopology::Slow ReadSlow(const LinkTopology& topology, const json& item, size_t number) {
  const std::string where = "slow[" + std::to_string(number) + "]";
  JsonObject object(item, where);
  constexpr uint32_t kNone = UINT32_MAX;
  uint32_t node = kNone, gpu = kNone, rail = kNone;
  double factor = 0;
  object.Whole("node", &node, 0, kMaxPlaces / topology.gpus_per_node - 1);
  object.Whole("gpu", &gpu, 0, topology.gpus_per_node - 1);
  object.Whole("rail", &rail, 0, topology.rails - 1);
  object.Number("factor", &factor, 0.001);
  object.RefuseOthers();
  if (node == kNone || (gpu == kNone) == (rail == kNone) || factor == 0)
    throw std::runtime_error(where +
                             " needs a node, a gpu (its port) or a rail (its NIC), and a factor");
  if (gpu != kNone)
    return {LinkKind::kPortOut, LinkKind::kPortIn, node * topology.gpus_per_node + gpu, factor};
  return {LinkKind::kRailOut, LinkKind::kRailIn, node * topology.rails + rail, factor};
}

std::optional<uint32_t> NumberOf(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    const char* text = std::getenv(variable);
    char* end = nullptr;
    if (text == nullptr || *text == 0) continue;
    const unsigned long value = std::strtoul(text, &end, 10);
    if (*end == 0) return static_cast<uint32_t>(value);
  }
  return std::nullopt;
}

}  // namespace

bool LinkTopology::Read(const std::string& path, LinkTopology* topology, std::string* error) {
  std::ifstream file(path);
  if (!file) {
    *error = "cannot open it";
    return false;
  }
  LinkTopology& t = *topology;
  try {
    const json document = json::parse(file);
    JsonObject top(document, "the table");
    if (const json* schema = top.Member("schema"); schema == nullptr || *schema != 1)
      throw std::runtime_error("\"schema\" is not 1");
    top.Whole("gpus_per_node", &t.gpus_per_node, 1, 64);
    t.rails = t.gpus_per_node;
    top.Number("base_ns", &t.base_ns);
    if (const json* port = top.Member("port")) ReadTier(*port, "port", &t.port);
    if (const json* rail = top.Member("rail")) {
      JsonObject object(*rail, "rail");
      object.Whole("nics_per_node", &t.rails, 1, t.gpus_per_node);
      object.Number("latency_ns", &t.rail.latency_ns);
      object.Rate("bytes_per_s", &t.rail.bytes_per_s);
      object.RefuseOthers();
    }
    if (const json* spine = top.Member("spine")) {
      JsonObject object(*spine, "spine");
      object.Whole("nodes_per_leaf", &t.nodes_per_leaf, 1, kMaxPlaces);
      object.Number("latency_ns", &t.spine_latency_ns);
      object.Number("oversubscription", &t.oversubscription, 0.001);
      object.RefuseOthers();
    }
    if (const json* protocols = top.Member("protocols")) {
      if (!protocols->is_array() || protocols->empty())
        throw std::runtime_error("protocols is no array of at least one");
      t.protocols.clear();
      for (const json& item : *protocols) {
        Protocol protocol;
        JsonObject object(item, "protocols[" + std::to_string(t.protocols.size()) + "]");
        object.Number("latency_factor", &protocol.latency_factor);
        object.Number("bytes_factor", &protocol.bytes_factor, 0.001);
        object.RefuseOthers();
        t.protocols.push_back(protocol);
      }
    }
    if (const json* jitter = top.Member("jitter")) {
      JsonObject object(*jitter, "jitter");
      object.Number("sigma", &t.sigma);
      object.Whole("seed", &t.seed, 0, UINT64_MAX);
      object.RefuseOthers();
    }
    if (const json* slow = top.Member("slow")) {
      if (!slow->is_array()) throw std::runtime_error("slow is no array");
      for (const json& item : *slow) t.slow.push_back(ReadSlow(t, item, t.slow.size()));
    }
    top.RefuseOthers();
  } catch (const std::exception& exception) {
    *error = exception.what();
    return false;
  }
  return true;
}

double LinkTopology::BytesPerS(uint32_t link) const {
  const auto kind = static_cast<LinkKind>(link / kMaxPlaces);
  const uint32_t index = link % kMaxPlaces;
  if (kind == LinkKind::kLeafUp || kind == LinkKind::kLeafDown)
    return rail.bytes_per_s * nodes_per_leaf / oversubscription;
  double rate =
      kind == LinkKind::kPortOut || kind == LinkKind::kPortIn ? port.bytes_per_s : rail.bytes_per_s;
  for (const Slow& link_slowed : slow) {
    if ((link_slowed.out == kind || link_slowed.in == kind) && link_slowed.index == index)
      rate *= link_slowed.factor;
  }
  return rate;
}

uint64_t LinkTopology::Digest() const {
  uint64_t digest = 0;
  const auto add = [&](auto value) {
    digest = hostcuda::Mix(digest ^ std::bit_cast<uint64_t>(static_cast<double>(value)));
  };
  for (const double value : {double(gpus_per_node), base_ns, port.latency_ns, port.bytes_per_s,
                             double(rails), rail.latency_ns, rail.bytes_per_s, spine_latency_ns,
                             double(nodes_per_leaf), oversubscription, sigma, double(seed)})
    add(value);
  for (const Protocol& protocol : protocols) {
    add(protocol.latency_factor);
    add(protocol.bytes_factor);
  }
  for (const Slow& link : slow) {
    add(LinkNumber(link.out, link.index));
    add(link.factor);
  }
  return digest;
}

Place PlaceOfProcess(const LinkTopology& topology, uint32_t device) {
  const uint32_t gpus = topology.gpus_per_node;
  const auto node = NumberOf({"GROUP_RANK", "SLURM_NODEID"});
  const auto local_ranks = NumberOf({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  const auto rank =
      NumberOf({"HOSTCUDA_PROCESS", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"});
  const uint32_t locals = local_ranks.value_or(0);
  if (node || (rank && locals > 0)) {
    const uint32_t nodes_of_machine = std::max((locals + gpus - 1) / gpus, 1u);
    return {node.value_or(locals > 0 ? *rank / locals : 0) * nodes_of_machine + device / gpus,
            device % gpus};
  }
  // A rank's number says its node, but where one process has many devices.
  if (rank && *rank / gpus > device / gpus) return {*rank / gpus, device % gpus};
  return {device / gpus, device % gpus};
}

}  // namespace hostnccl
