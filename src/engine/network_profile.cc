#include "src/engine/network_profile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/parse_json.h"
#include "src/base/status.h"
#include "src/graph/program.h"

namespace prism::engine {
namespace {

using nlohmann::ordered_json;
using trace::CommOp;

constexpr char kSchema[] = "prism.netprofile";
constexpr int kSchemaVersion = 1;
constexpr char kHint[] =
    "docs/reference/netprofile.md describes the file; prism netprofile writes it";
// Beyond these a file is not what it says it is.
constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
constexpr double kMaxNs = 1e15;  // eleven days
constexpr double kMaxShare = 1e3;

constexpr std::string_view kTypes[] = {"int8", "uint8", "int32", "uint32", "int64",   "uint64",
                                       "fp16", "fp32",  "fp64",  "bf16",   "fp8e4m3", "fp8e5m2"};
constexpr CommOp kOps[] = {CommOp::kAllReduce, CommOp::kReduce,        CommOp::kBroadcast,
                           CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kAllToAll,
                           CommOp::kGather,    CommOp::kScatter,       CommOp::kSend};

// Lower case without the separators that some put between words.
std::string Plain(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != '_' && c != '-') plain += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return plain;
}

absl::Status Bad(const std::string& what) {
  return WithHint(absl::InvalidArgumentError(what), kHint);
}

// Members of one entry; the first that is wrong is kept.
class Members {
 public:
  Members(const ordered_json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  uint64_t Integer(const char* name, uint64_t least, uint64_t most) {
    const ordered_json* value = Find(name);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned() || value->get<uint64_t>() < least ||
        value->get<uint64_t>() > most) {
      Fail(name, *value, absl::StrCat("an integer from ", least, " to ", most));
      return 0;
    }
    return value->get<uint64_t>();
  }
  double Time(const char* name) {
    const ordered_json* value = Find(name);
    if (value == nullptr) return 0;
    const double ns = value->is_number() ? value->get<double>() : -1;
    if (!std::isfinite(ns) || ns <= 0 || ns > kMaxNs) {
      Fail(name, *value, absl::StrCat("nanoseconds above 0 and up to ", kMaxNs));
      return 0;
    }
    return ns;
  }
  bool Boolean(const char* name) {
    const ordered_json* value = Find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) {
      Fail(name, *value, "true or false");
      return false;
    }
    return value->get<bool>();
  }
  std::string Text(const char* name) {
    const ordered_json* value = Find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      Fail(name, *value, "a text");
      return "";
    }
    return value->get<std::string>();
  }
  bool Has(const char* name) const { return object_.contains(name); }
  void Fail(const char* name, const ordered_json& value, const std::string& wanted) {
    constexpr size_t kShown = 60;
    std::string shown = value.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
    if (shown.size() > kShown) shown = shown.substr(0, kShown) + "...";
    Fail(absl::StrCat(name, " is ", shown, ", not ", wanted));
  }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = Bad(absl::StrCat(where_, ": ", what));
  }
  const absl::Status& status() const { return status_; }

 private:
  const ordered_json* Find(const char* name) {
    const auto it = object_.find(name);
    if (it != object_.end()) return &*it;
    Fail(absl::StrCat("has no ", name));
    return nullptr;
  }

  const ordered_json& object_;
  const std::string where_;
  absl::Status status_;
};

// What no two entries of a profile have in common.
auto KeyOf(const NetworkEntry& e) {
  return std::tuple(e.op, e.type, e.ranks, e.nodes, e.rails, e.leaves, e.bytes, e.isolated);
}

absl::StatusOr<NetworkEntry> ParseEntry(const ordered_json& object, size_t index) {
  std::string where = absl::StrCat("entry ", index);
  if (!object.is_object()) return Bad(absl::StrCat(where, " is no object"));
  Members members(object, std::move(where));
  NetworkEntry e;
  const std::string operation = members.Text("operation");
  if (const auto op = ProfiledOpOf(operation); op.has_value()) {
    e.op = *op;
  } else {
    members.Fail("operation", operation,
                 absl::StrCat("one of ", absl::StrJoin(ProfiledOpNames(), ", ")));
  }
  if (IsReduction(e.op)) {
    const std::string type = members.Text("type");
    e.type = TypeOf(type);
    if (!e.type.has_value())
      members.Fail("type", type, absl::StrCat("one of ", absl::StrJoin(TypeNames(), ", ")));
  } else if (members.Has("type")) {
    members.Fail(absl::StrCat("has a type, on which the time of ", operation, " does not depend"));
  }
  e.ranks = static_cast<uint32_t>(members.Integer("ranks", 2, kMaxProfiledRanks));
  e.nodes = static_cast<uint32_t>(members.Integer("nodes", 1, std::max(e.ranks, 1u)));
  e.bytes = members.Integer("bytes", 1, kMaxBytes);
  e.isolated = members.Boolean("isolated");
  e.median_ns = members.Time("median_ns");
  e.p10_ns = members.Time("p10_ns");
  e.p90_ns = members.Time("p90_ns");
  e.samples = members.Integer("n", 1, kMaxBytes);
  if (members.Has("rails"))
    e.rails = static_cast<uint32_t>(members.Integer("rails", 1, std::max(e.ranks, 1u)));
  if (members.Has("leaves"))
    e.leaves = static_cast<uint32_t>(members.Integer("leaves", 1, std::max(e.nodes, 1u)));
  if (e.p10_ns > e.median_ns || e.median_ns > e.p90_ns)
    members.Fail("p10_ns, median_ns and p90_ns are not ascending");
  if (!members.status().ok()) return members.status();
  return e;
}

absl::StatusOr<NetworkLinks> ParseLinks(const ordered_json& object) {
  if (!object.is_object()) return Bad("links is no object");
  NetworkLinks links;
  if (!object.contains("receive_ns") || !object["receive_ns"].is_number() ||
      !(object["receive_ns"].get<double>() >= 0 && object["receive_ns"].get<double>() <= kMaxNs))
    return Bad("links: receive_ns is no time");
  links.receive_ns = object["receive_ns"].get<double>();
  if (!object.contains("nic_of_gpu") || !object["nic_of_gpu"].is_array())
    return Bad("links: nic_of_gpu is no array");
  for (const ordered_json& nic : object["nic_of_gpu"]) {
    if (!nic.is_number_unsigned() || nic.get<uint64_t>() > links.nic_of_gpu.size())
      return Bad("links: nic_of_gpu does not number the NICs as they come, from 0");
    links.nic_of_gpu.push_back(nic.get<uint32_t>());
  }
  if (const auto nodes = object.find("nodes"); nodes != object.end()) {
    if (!nodes->is_array()) return Bad("links: nodes is no array");
    for (const ordered_json& node : *nodes) {
      if (!node.is_number_unsigned() || node.get<uint64_t>() > kMaxProfiledRanks)
        return Bad("links: nodes are no numbers of nodes");
      links.nodes.push_back(node.get<uint32_t>());
    }
  }
  if (const auto nodes = object.find("nodes_per_leaf"); nodes != object.end()) {
    if (!nodes->is_number_unsigned() || nodes->get<uint64_t>() > kMaxProfiledRanks)
      return Bad("links: nodes_per_leaf is no number of nodes");
    links.nodes_per_leaf = nodes->get<uint32_t>();
  }
  if (const auto share = object.find("leaf_share"); share != object.end()) {
    if (!share->is_number() || !(share->get<double>() >= 0 && share->get<double>() <= kMaxShare))
      return Bad(absl::StrCat("links: leaf_share is no number from 0 to ", kMaxShare));
    links.leaf_share = share->get<double>();
  }
  return links;
}

}  // namespace

bool IsReduction(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kReduce || op == CommOp::kReduceScatter;
}

std::string_view TypeName(uint32_t nccl_type) {
  return nccl_type < std::size(kTypes) ? kTypes[nccl_type] : std::string_view();
}

std::optional<uint32_t> TypeOf(std::string_view name) {
  const auto* const it = std::find(std::begin(kTypes), std::end(kTypes), name);
  if (it == std::end(kTypes)) return std::nullopt;
  return static_cast<uint32_t>(it - std::begin(kTypes));
}

std::vector<std::string> TypeNames() { return {std::begin(kTypes), std::end(kTypes)}; }

std::optional<CommOp> ProfiledOpOf(std::string_view name) {
  const std::string plain = Plain(name);
  for (const CommOp op : kOps) {
    if (plain == Plain(graph::CommOpName(op))) return op;
  }
  return std::nullopt;
}

std::vector<std::string> ProfiledOpNames() {
  std::vector<std::string> names;
  for (const CommOp op : kOps) names.emplace_back(graph::CommOpName(op));
  return names;
}

absl::StatusOr<NetworkProfile> ParseNetworkProfile(std::string_view text) {
  const auto j = ParseJson<ordered_json>(text);
  if (j.is_discarded()) return Bad(absl::StrCat("no JSON, or nested deeper than ", kDeepestJson));
  if (!j.is_object() || !j.contains("schema") || j["schema"] != kSchema)
    return Bad(absl::StrCat("no network profile: schema is not \"", kSchema, "\""));
  if (!j.contains("schema_version") || !j["schema_version"].is_number_integer())
    return Bad("schema_version is no number");
  if (const auto version = j["schema_version"].get<int64_t>(); version != kSchemaVersion) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat("schema_version is ", version,
                                                            ", this prism reads ", kSchemaVersion)),
                    "use the prism that wrote it, or a newer one");
  }
  NetworkProfile profile;
  for (const auto& [name, to] :
       {std::pair{"machine", &profile.machine}, std::pair{"settings", &profile.settings}}) {
    if (!j.contains(name) || !j[name].is_object()) return Bad(absl::StrCat(name, " is no object"));
    *to = j[name];
  }
  for (const char* name : {"gpu", "device"}) {
    if (profile.machine.contains(name) && !profile.machine[name].is_string())
      return Bad(absl::StrCat("machine.", name, " is no text"));
  }
  if (profile.settings.contains("merged") && !profile.settings["merged"].is_array())
    return Bad("settings.merged is no list");
  for (const char* name : {"call_ns", "sync_ns"}) {
    const auto ns = profile.settings.find(name);
    if (ns == profile.settings.end()) continue;
    if (!ns->is_number() || ns->get<double>() < 0 || ns->get<double>() > 1e9) {
      return Bad(absl::StrCat("settings.", name, " is ", ns->dump(), ", no time up to 1e9 ns"));
    }
  }
  if (j.contains("links")) {
    PRISM_ASSIGN_OR_RETURN(profile.links, ParseLinks(j["links"]));
  }
  if (!j.contains("entries") || !j["entries"].is_array()) return Bad("entries is no array");
  std::set<decltype(KeyOf(NetworkEntry()))> seen;
  for (const ordered_json& object : j["entries"]) {
    const size_t index = profile.entries.size();
    PRISM_ASSIGN_OR_RETURN(const NetworkEntry e, ParseEntry(object, index));
    if (!seen.insert(KeyOf(e)).second) {
      return Bad(absl::StrCat("entry ", index, ": another entry has the same operation, type, ",
                              "ranks, nodes, rails, leaves, bytes and isolated"));
    }
    profile.entries.push_back(e);
  }
  if (profile.entries.empty()) return Bad("there are no entries");
  return profile;
}

absl::StatusOr<NetworkProfile> ReadNetworkProfile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return WithHint(absl::NotFoundError(absl::StrCat("there is no file ", path)),
                    "prism netprofile --out FILE writes one");
  }
  if (const auto size = std::filesystem::file_size(path, error); !error && size > kMaxFileBytes) {
    return Bad(absl::StrCat(path, ": ", size, " bytes are too many for a network profile"));
  }
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in && !in.eof()) return absl::UnavailableError(absl::StrCat("cannot read ", path));
  absl::StatusOr<NetworkProfile> profile = ParseNetworkProfile(text);
  if (!profile.ok()) {
    return WithHint(absl::InvalidArgumentError(
                        absl::StrCat(path, ": ", std::string(profile.status().message()))),
                    HintOf(profile.status()));
  }
  return profile;
}

NetworkProfile MergeNetworkProfiles(std::vector<NetworkProfile> profiles) {
  std::optional<NetworkLinks> links;
  for (const NetworkProfile& p : profiles) {
    if (!p.links.has_value()) continue;
    if (!links.has_value()) links = p.links;
    if (links->nic_of_gpu.size() < p.links->nic_of_gpu.size())
      links->nic_of_gpu = p.links->nic_of_gpu;
    if (links->nodes_per_leaf == 0) links->nodes_per_leaf = p.links->nodes_per_leaf;
    if (links->leaf_share == 0) links->leaf_share = p.links->leaf_share;
  }
  NetworkProfile merged = profiles.front();
  merged.links = links;
  merged.entries.clear();
  std::set<decltype(KeyOf(NetworkEntry()))> seen;
  for (NetworkProfile& p : profiles) {
    if (&p != &profiles.front())
      merged.settings["merged"].push_back({{"machine", p.machine}, {"settings", p.settings}});
    for (NetworkEntry& e : p.entries) {
      // Where all nodes were equally far, others may tell on which leaves they are.
      if (p.links.has_value() && p.links->nodes_per_leaf == 0 && e.leaves != 0 &&
          e.nodes <= p.links->nodes.size()) {
        std::set<uint32_t> leaves;
        for (uint32_t i = 0; i < e.nodes; ++i) leaves.insert(links->LeafOf(p.links->nodes[i]));
        e.leaves = static_cast<uint32_t>(leaves.size());
      }
      if (seen.insert(KeyOf(e)).second) merged.entries.push_back(e);
    }
  }
  return merged;
}

std::string SerializeNetworkProfile(const NetworkProfile& profile) {
  const auto dump = [](const ordered_json& j) {
    return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  std::string text = absl::StrCat(
      "{\"schema\": \"", kSchema, "\", \"schema_version\": ", kSchemaVersion,
      ",\n\"machine\": ", dump(profile.machine), ",\n\"settings\": ", dump(profile.settings));
  if (profile.links.has_value()) {
    ordered_json links;
    links["receive_ns"] = profile.links->receive_ns;
    links["nic_of_gpu"] = profile.links->nic_of_gpu;
    links["nodes"] = profile.links->nodes;
    links["nodes_per_leaf"] = profile.links->nodes_per_leaf;
    links["leaf_share"] = profile.links->leaf_share;
    absl::StrAppend(&text, ",\n\"links\": ", dump(links));
  }
  absl::StrAppend(&text, ",\n\"entries\": [");
  const char* separator = "\n";
  for (const NetworkEntry& e : profile.entries) {
    ordered_json j;
    j["operation"] = std::string(graph::CommOpName(e.op));
    if (e.type.has_value()) j["type"] = std::string(TypeName(*e.type));
    j["ranks"] = e.ranks;
    j["nodes"] = e.nodes;
    if (e.rails != 0) j["rails"] = e.rails;
    if (e.leaves != 0) j["leaves"] = e.leaves;
    j["bytes"] = e.bytes;
    j["isolated"] = e.isolated;
    // Tenths of a nanosecond are below what any clock tells.
    const auto time = [](double ns) { return std::round(ns * 10) / 10; };
    j["median_ns"] = time(e.median_ns);
    j["p10_ns"] = time(e.p10_ns);
    j["p90_ns"] = time(e.p90_ns);
    j["n"] = e.samples;
    absl::StrAppend(&text, separator, dump(j));
    separator = ",\n";
  }
  return text + "\n]}\n";
}

}  // namespace prism::engine
