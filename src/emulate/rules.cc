#include "src/emulate/rules.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "src/base/float_formats.h"
#include "src/base/parse_json.h"
#include "src/base/split_mix.h"
#include "src/base/status.h"
#include "src/base/suggest.h"
#include "src/coordinator/arithmetic.h"
#include "src/coordinator/exchange.h"

namespace prism::emulate {
namespace {

using nlohmann::json;
using wire::Op;

constexpr int kVersion = 1;
constexpr uint64_t kMostFileBytes = uint64_t{16} << 20;

absl::Status Bad(const std::string& where, const std::string& what, const std::string& remedy) {
  return WithHint(absl::InvalidArgumentError(where + " " + what), remedy);
}

std::string Shown(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80);
}

absl::Status NotOneOf(const std::string& where, const std::string& value,
                      const std::vector<std::string>& known) {
  const std::string nearest = Nearest(value, known);
  return Bad(where, fmt::format("'{}' is not one of {}", value, fmt::join(known, ", ")),
             nearest.empty() ? "use one of them" : fmt::format("did you mean '{}'?", nearest));
}

absl::Status KnownKeys(const json& object, const std::string& where,
                       const std::vector<std::string>& known) {
  if (!object.is_object()) return Bad(where, "is no object: " + Shown(object), "{\"...\": ...}");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return NotOneOf(where, key, known);
  }
  return absl::OkStatus();
}

absl::StatusOr<json> ReadJson(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) {
    return WithHint(absl::NotFoundError(fmt::format("cannot read {}: {}", path, error.message())),
                    "give the path of a file of rules");
  }
  if (size > kMostFileBytes)
    return Bad(path, fmt::format("has {} bytes, {} is the most", size, kMostFileBytes),
               "is it the right file?");
  std::ifstream file(path, std::ios::binary);
  json read = ParseJson<json>(file);
  if (read.is_discarded())
    return Bad(path, fmt::format("is not JSON, or nested deeper than {}", kDeepestJson),
               "docs/reference/rules.md shows one");
  return read;
}

// "x" or ["x", "y"], of `known`: their numbers.
absl::StatusOr<std::set<uint32_t>> Names(const json& value, const std::string& where,
                                         const std::vector<std::string>& known) {
  std::set<uint32_t> numbers;
  for (const json& name : value.is_array() ? value : json::array({value})) {
    if (!name.is_string()) return Bad(where, Shown(name) + " is no name", known.front());
    const auto found = std::find(known.begin(), known.end(), name.get<std::string>());
    if (found == known.end()) return NotOneOf(where, name.get<std::string>(), known);
    numbers.insert(static_cast<uint32_t>(found - known.begin()));
  }
  if (numbers.empty()) return Bad(where, "names nothing", "leave it out to match all");
  return numbers;
}

absl::StatusOr<std::pair<uint64_t, uint64_t>> Range(const json& value, const std::string& where) {
  const bool pair = value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
                    (value[1].is_number_unsigned() || value[1].is_null());
  if (!pair) return Bad(where, "is no range: " + Shown(value), "[first, last], or [first, null]");
  const std::pair<uint64_t, uint64_t> range{
      value[0].get<uint64_t>(), value[1].is_null() ? UINT64_MAX : value[1].get<uint64_t>()};
  if (range.first > range.second)
    return Bad(where, Shown(value) + " holds nothing", "[first, last]");
  return range;
}

double Normal(uint64_t key) {
  constexpr double kUnit = 0x1p-53;
  const double u = (static_cast<double>(SplitMix(key) >> 11) + 0.5) * kUnit;
  const double v = static_cast<double>(SplitMix(~key) >> 11) * kUnit;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

template <class T>
void Put(std::string* bytes, uint64_t index, T value) {
  std::memcpy(bytes->data() + index * sizeof(T), &value, sizeof value);
}

template <class T>
void PutWhole(std::string* bytes, uint64_t index, double value) {
  // The limits of 64 bits are no doubles.
  constexpr double kMost =
      sizeof(T) == 8 ? 9e18 : static_cast<double>(std::numeric_limits<T>::max());
  constexpr double kLeast =
      std::is_signed_v<T>
          ? (sizeof(T) == 8 ? -9e18 : static_cast<double>(std::numeric_limits<T>::min()))
          : 0.0;
  Put(bytes, index, static_cast<T>(std::clamp(std::round(value), kLeast, kMost)));
}

void PutElement(uint32_t dtype, std::string* bytes, uint64_t index, double value) {
  const auto number = static_cast<float>(value);
  switch (static_cast<coordinator::DataType>(dtype)) {
    case coordinator::DataType::kInt8:
      return PutWhole<int8_t>(bytes, index, value);
    case coordinator::DataType::kUint8:
      return PutWhole<uint8_t>(bytes, index, value);
    case coordinator::DataType::kInt32:
      return PutWhole<int32_t>(bytes, index, value);
    case coordinator::DataType::kUint32:
      return PutWhole<uint32_t>(bytes, index, value);
    case coordinator::DataType::kInt64:
      return PutWhole<int64_t>(bytes, index, value);
    case coordinator::DataType::kUint64:
      return PutWhole<uint64_t>(bytes, index, value);
    case coordinator::DataType::kFloat16:
      return Put(bytes, index, static_cast<uint16_t>(Encode(kHalf, number)));
    case coordinator::DataType::kFloat32:
      return Put(bytes, index, number);
    case coordinator::DataType::kFloat64:
      return Put(bytes, index, value);
    case coordinator::DataType::kBfloat16:
      return Put(bytes, index, Bfloat16FromFloat(number));
    case coordinator::DataType::kFloat8E4M3:
      return Put(bytes, index, static_cast<uint8_t>(Encode(kE4M3, number)));
    case coordinator::DataType::kFloat8E5M2:
      return Put(bytes, index, static_cast<uint8_t>(Encode(kE5M2, number)));
  }
}

int64_t CountAt(uint32_t dtype, std::string_view bytes, uint64_t index) {
  if (coordinator::ElementBytes(dtype) == 4) {
    int32_t value;
    std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
    return value;
  }
  int64_t value;
  std::memcpy(&value, bytes.data() + 8 * index, sizeof value);
  return value;
}

bool IsCount(uint32_t dtype) {
  switch (static_cast<coordinator::DataType>(dtype)) {
    case coordinator::DataType::kInt32:
    case coordinator::DataType::kUint32:
    case coordinator::DataType::kInt64:
    case coordinator::DataType::kUint64:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<Rules> Rules::Load(const std::string& path, uint32_t rank) {
  PRISM_ASSIGN_OR_RETURN(const json read, ReadJson(path));
  return Parse(read, path, std::filesystem::path(path).parent_path().string(), rank);
}

absl::StatusOr<Rules> Rules::Parse(const json& read, const std::string& name,
                                   const std::string& folder, uint32_t rank) {
  PRISM_RETURN_IF_ERROR(KnownKeys(read, name + ":", {"schema", "schema_version", "rules"}));
  const json schema = read.value("schema", json());
  if (schema != "prism.rules")
    return Bad(name + ":", "schema is " + Shown(schema), "\"schema\": \"prism.rules\"");
  const json version = read.value("schema_version", json());
  if (version != kVersion)
    return Bad(name + ":", "schema_version is " + Shown(version),
               fmt::format("this prism reads {}", kVersion));
  const json list = read.value("rules", json());
  if (!list.is_array()) return Bad(name + ":", "rules is " + Shown(list), "a list of rules");
  Rules rules;
  rules.rank_ = rank;
  for (size_t i = 0; i < list.size(); ++i) {
    PRISM_ASSIGN_OR_RETURN(Rule rule,
                           ParseRule(list[i], fmt::format("{}: rules[{}]", name, i), folder, rank));
    rules.rules_.push_back(std::move(rule));
  }
  return rules;
}

absl::StatusOr<Rules::Rule> Rules::ParseRule(const json& read, const std::string& where,
                                             const std::string& folder, uint32_t rank) {
  PRISM_RETURN_IF_ERROR(KnownKeys(read, where, {"match", "give"}));
  if (!read.contains("give")) return Bad(where, "gives nothing", "\"give\": \"own\"");
  Rule rule;
  const json match = read.value("match", json::object());
  PRISM_RETURN_IF_ERROR(KnownKeys(match, where + ".match",
                                  {"operation", "type", "communicator", "size", "bytes", "calls"}));
  std::vector<std::string> operations, types;
  for (uint32_t op = 0; op < wire::kOpCount; ++op)
    operations.push_back(coordinator::OpName(static_cast<Op>(op)));
  for (uint32_t type = 0; type < coordinator::kDataTypeCount; ++type)
    types.push_back(coordinator::DataTypeName(type));
  for (const auto& [key, value] : match.items()) {
    const std::string at = where + ".match." + key;
    if (key == "operation") {
      PRISM_ASSIGN_OR_RETURN(const auto names, Names(value, at, operations));
      for (const uint32_t op : names) rule.operations.insert(static_cast<Op>(op));
    } else if (key == "type") {
      PRISM_ASSIGN_OR_RETURN(rule.types, Names(value, at, types));
    } else if (key == "bytes") {
      PRISM_ASSIGN_OR_RETURN(rule.bytes, Range(value, at));
    } else if (key == "calls") {
      PRISM_ASSIGN_OR_RETURN(rule.calls, Range(value, at));
    } else {
      if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
          value.get<uint64_t>() > UINT32_MAX)
        return Bad(at, "is " + Shown(value), "a number from 1");
      (key == "size" ? rule.size : rule.comm) = value.get<uint32_t>();
    }
  }
  PRISM_RETURN_IF_ERROR(ParseGive(read["give"], where + ".give", folder, rank, &rule));
  return rule;
}

absl::Status Rules::ParseGive(const json& give, const std::string& where, const std::string& folder,
                              uint32_t rank, Rule* rule) {
  const std::vector<std::string> known{"own", "zeros", "noise", "recorded", "router"};
  std::string kind;
  json value;
  if (give.is_string()) {
    kind = give.get<std::string>();
  } else if (give.is_object() && give.size() == 1) {
    kind = give.begin().key();
    value = give.begin().value();
  } else {
    return Bad(where, "is " + Shown(give), "\"own\", \"zeros\" or {\"noise\": {...}}");
  }
  const auto path_of = [&](const std::string& path) {
    return (std::filesystem::path(folder) / path).string();
  };
  if (std::find(known.begin(), known.end(), kind) == known.end())
    return NotOneOf(where, kind, known);
  if (kind == "own" || kind == "zeros") {
    if (!value.is_null()) return Bad(where, kind + " takes nothing", '"' + kind + '"');
    rule->what = kind == "own" ? Rule::What::kOwn : Rule::What::kZeros;
    return absl::OkStatus();
  }
  const std::string at = where + "." + kind;
  if (kind == "noise") {
    rule->what = Rule::What::kNoise;
    PRISM_RETURN_IF_ERROR(KnownKeys(value, at, {"seed", "mean", "deviation"}));
    for (const auto& [key, number] : value.items()) {
      const bool good = key == "seed" ? number.is_number_unsigned() : number.is_number();
      if (!good || (key == "deviation" && number.get<double>() < 0))
        return Bad(at + "." + key, "is " + Shown(number),
                   "a number, not negative for the seed and the deviation");
    }
    rule->noise = {value.value("seed", uint64_t{0}), value.value("mean", 0.0),
                   value.value("deviation", 1.0)};
    return absl::OkStatus();
  }
  if (kind == "recorded") {
    rule->what = Rule::What::kRecorded;
    if (!value.is_string())
      return Bad(at, "is " + Shown(value), "the path of a captured job or its received.bin");
    std::filesystem::path path = path_of(value.get<std::string>());
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) path /= coordinator::kReceivedFile;
    auto recorded = coordinator::ReceivedPayloads::Load(path.string(), {rank});
    if (!recorded.ok())
      return Bad(at + ":", std::string(recorded.status().message()),
                 "the path of a captured job or its received.bin");
    rule->recorded = std::make_shared<const coordinator::ReceivedPayloads>(*std::move(recorded));
    return absl::OkStatus();
  }
  rule->what = Rule::What::kRouter;
  std::string of = at;
  if (value.is_string()) {
    of = path_of(value.get<std::string>());
    PRISM_ASSIGN_OR_RETURN(value, ReadJson(of));
    if (!value.is_object() || value.value("schema", json()) != "prism.router" ||
        value.value("schema_version", json()) != kVersion) {
      return Bad(of + ":", "is no router",
                 fmt::format("\"schema\": \"prism.router\", \"schema_version\": {}", kVersion));
    }
  }
  PRISM_ASSIGN_OR_RETURN(RouterSpec spec, ParseRouter(value, of));
  rule->router = std::make_shared<MockRouter>(std::move(spec));
  return absl::OkStatus();
}

uint64_t Rules::largest_bytes() const {
  uint64_t largest = 0;
  for (const Rule& rule : rules_) {
    if (rule.what != Rule::What::kOwn) largest = std::max(largest, rule.bytes.second);
  }
  return largest;
}

bool Rules::Matches(const Rule& rule, const Call& call) {
  const auto in = [](const std::pair<uint64_t, uint64_t>& range, uint64_t value) {
    return range.first <= value && value <= range.second;
  };
  return (rule.operations.empty() || rule.operations.count(call.record.op) != 0) &&
         (rule.types.empty() || rule.types.count(call.record.dtype) != 0) &&
         (!rule.comm.has_value() || *rule.comm == call.comm) &&
         (!rule.size.has_value() || *rule.size == call.size) &&
         in(rule.bytes, call.record.out_bytes) && in(rule.calls, call.order);
}

std::optional<std::string_view> Rules::Give(const Call& call) {
  const auto rule = std::find_if(rules_.begin(), rules_.end(),
                                 [&](const Rule& candidate) { return Matches(candidate, call); });
  if (rule == rules_.end()) return std::nullopt;
  bytes_.assign(call.record.out_bytes, '\0');
  switch (rule->what) {
    case Rule::What::kOwn:
      bytes_.clear();
      break;
    case Rule::What::kZeros:
      break;
    case Rule::What::kNoise:
      if (!FillNoise(*rule, call)) return std::nullopt;
      break;
    case Rule::What::kRecorded:
      if (!FillRecorded(*rule, call)) return std::nullopt;
      break;
    case Rule::What::kRouter: {
      const absl::StatusOr<bool> routed = FillRouted(*rule, call);
      if (!routed.ok()) status_.Update(routed.status());
      if (!routed.ok() || !*routed) return std::nullopt;
      break;
    }
  }
  ++given_;
  return bytes_;
}

bool Rules::FillNoise(const Rule& rule, const Call& call) {
  const uint64_t element = coordinator::ElementBytes(call.record.dtype);
  if (element == 0) return false;
  const auto peer = static_cast<uint32_t>(call.record.peer);
  uint64_t key = rule.noise.seed;
  for (const uint64_t part : {uint64_t{rank_}, uint64_t{call.comm}, uint64_t{peer}, call.order,
                              static_cast<uint64_t>(call.record.op)})
    key = SplitMix(key ^ part);
  for (uint64_t i = 0; i < bytes_.size() / element; ++i) {
    PutElement(call.record.dtype, &bytes_, i,
               rule.noise.mean + rule.noise.deviation * Normal(key + i));
  }
  return true;
}

bool Rules::FillRecorded(const Rule& rule, const Call& call) {
  const bool receive = call.record.op == Op::kRecv;
  const std::string_view found = rule.recorded->FindAny(
      {rank_, call.comm, call.record.op, receive ? call.record.peer : -1, call.order});
  if (found.size() != bytes_.size()) return false;
  bytes_.assign(found);
  if (call.record.op == Op::kAllToAll && call.sent.size() == bytes_.size()) {
    const uint64_t part = bytes_.size() / call.size;
    std::memcpy(bytes_.data() + call.member * part, call.sent.data() + call.member * part, part);
  }
  return true;
}

absl::StatusOr<bool> Rules::FillRouted(const Rule& rule, const Call& call) {
  const bool shuffles = call.record.op == Op::kAllToAll;
  if ((!shuffles && call.record.op != Op::kRecv) || !IsCount(call.record.dtype)) return false;
  const uint64_t element = coordinator::ElementBytes(call.record.dtype);
  const uint64_t parts = call.record.count;  // experts of a member
  if (parts == 0 || call.sent.size() != parts * element * call.size) return false;
  int64_t total = 0;
  for (uint64_t i = 0; i < parts * call.size; ++i) {
    const int64_t count = CountAt(call.record.dtype, call.sent, i);
    // What is no count of tokens is nothing to be routed.
    if (count < 0 || count > INT32_MAX) return false;
    total += count;
  }
  const auto fill = [&](uint32_t source, uint64_t at) -> absl::Status {
    const uint64_t exchange = exchanges_[{call.comm, source}]++;
    PRISM_ASSIGN_OR_RETURN(const std::vector<int64_t> row,
                           rule.router->Row(call.comm, source, exchange, call.size, total));
    const std::vector<int64_t> counts =
        Divide(row[call.member], static_cast<uint32_t>(parts), exchange ^ uint64_t{source} << 32);
    for (uint64_t i = 0; i < parts; ++i)
      PutElement(call.record.dtype, &bytes_, at + i, static_cast<double>(counts[i]));
    return absl::OkStatus();
  };
  if (!shuffles) {
    PRISM_RETURN_IF_ERROR(fill(static_cast<uint32_t>(call.record.peer), 0));
    return true;
  }
  for (uint32_t source = 0; source < call.size; ++source) {
    if (source != call.member) {
      PRISM_RETURN_IF_ERROR(fill(source, source * parts));
      continue;
    }
    const uint64_t part = parts * element;
    std::memcpy(bytes_.data() + source * part, call.sent.data() + source * part, part);
  }
  return true;
}

}  // namespace prism::emulate
