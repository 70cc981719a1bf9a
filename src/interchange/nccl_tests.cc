#include "src/interchange/nccl_tests.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "src/engine/communication_cost.h"

namespace prism::interchange {
namespace {

using trace::CommOp;

constexpr char kHint[] =
    "the text that all_reduce_perf and its siblings print is expected, as it is";
// The columns of today; older versions lack redop or root, and their heading says so.
const std::vector<std::string>& UsualColumns() {
  static const auto* const kColumns =
      new std::vector<std::string>{"size", "count", "type", "redop", "root", "time"};
  return *kColumns;
}
constexpr double kMaxUs = 1e12;

// nccl-tests' names of types, by ncclDataType_t.
std::optional<uint32_t> TypeOf(const std::string& name) {
  static const auto* const kTypes = new std::map<std::string, uint32_t>{
      {"int8", 0},    {"char", 0},      {"uint8", 1},   {"int32", 2},
      {"int", 2},     {"uint32", 3},    {"int64", 4},   {"uint64", 5},
      {"half", 6},    {"float", 7},     {"double", 8},  {"bfloat16", 9},
      {"f8e4m3", 10}, {"fp8_e4m3", 10}, {"f8e5m2", 11}, {"fp8_e5m2", 11}};
  const auto it = kTypes->find(name);
  if (it == kTypes->end()) return std::nullopt;
  return it->second;
}

// The operation of "all_reduce_perf", or of a path with such a name in it.
std::optional<CommOp> OperationOf(const std::string& text) {
  const size_t end = text.find("_perf");
  if (end == std::string::npos) return std::nullopt;
  size_t begin = end;
  while (begin > 0 && (absl::ascii_isalnum(static_cast<unsigned char>(text[begin - 1])) ||
                       text[begin - 1] == '_')) {
    --begin;
  }
  const std::string name = text.substr(begin, end - begin);
  if (name == "sendrecv") return CommOp::kSend;
  return engine::ProfiledOpOf(name);
}

bool IsCount(const std::string& token) {
  return !token.empty() && std::all_of(token.begin(), token.end(),
                                       [](unsigned char c) { return absl::ascii_isdigit(c); });
}

// The line without what mpirun --tag-output puts in front of it: "[1,0]<stdout>:".
std::string Untagged(const std::string& line) {
  const size_t end = line.find(">:");
  return !line.empty() && line[0] == '[' && end != std::string::npos ? line.substr(end + 2) : line;
}

double Quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

}  // namespace

absl::Status NcclTests::Add(const std::string& name, std::string_view text) {
  files_.push_back(name);
  // Of the run that the lines belong to.
  std::optional<CommOp> operation = options_.operation;
  if (!operation.has_value()) operation = OperationOf(name.substr(name.find_last_of('/') + 1));
  std::vector<std::string> columns = UsualColumns();
  std::set<std::string> ranks, hosts;
  bool in_results = false;

  size_t number = 0;
  const auto bad = [&](const std::string& what, const char* hint = kHint) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(name, ", line ", number, ": ", what)),
                    hint);
  };
  const std::vector<std::string> lines =
      absl::StrSplit(absl::string_view(text.data(), text.size()), '\n');
  for (const std::string& raw : lines) {
    ++number;
    std::string line = Untagged(raw);
    const bool comment = absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "#");
    if (comment) line = line.substr(line.find('#') + 1);
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (comment) {
      if (const size_t at = line.find("Collective test starting:"); at != std::string::npos) {
        operation = OperationOf(line.substr(at));
        if (!operation.has_value())
          return bad(absl::StrCat("'", words.back(), "' is no operation that a profile has"));
        columns = UsualColumns();
        ranks.clear();
        hosts.clear();
      } else if (words[0] == "Rank" && words.size() > 2) {
        // Of older versions a run begins with the list of its ranks.
        if (in_results) {
          ranks.clear();
          hosts.clear();
          in_results = false;
        }
        ranks.insert(words[1]);
        const auto on = std::find(words.begin(), words.end(), "on");
        if (words.end() - on > 1) hosts.insert(*(on + 1));
        if (const size_t bracket = line.rfind("] "); bracket != std::string::npos)
          gpu_ = std::string(absl::StripAsciiWhitespace(line.substr(bracket + 2)));
      } else if (words[0] == "bytes" && words.size() > 3) {
        return bad("a heading of nccl-tests 1, whose times are in other units", "run nccl-tests 2");
      } else if (words[0] == "size" && words.size() > 3) {
        columns = words;
      } else if (const size_t library = line.find("nccl-library="); library != std::string::npos) {
        uint32_t version = 0;
        const char* digits = line.c_str() + library + std::string_view("nccl-library=").size();
        std::from_chars(digits, line.c_str() + line.size(), version);
        if (version > 0)
          nccl_ = absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
      } else if (line.find("FAILED") != std::string::npos) {
        return WithHint(absl::DataLossError(absl::StrCat(name, ", line ", number,
                                                         ": the test found wrong results: ", line)),
                        "a machine that computes wrong values has no times worth keeping");
      }
      continue;
    }

    if (words.size() < 2 || !IsCount(words[0]) || !IsCount(words[1])) continue;  // somebody's log
    const auto column = [&](const char* wanted) {
      return static_cast<size_t>(std::find(columns.begin(), columns.end(), wanted) -
                                 columns.begin());
    };
    const size_t type_at = column("type"), time_at = column("time");
    if (std::max(type_at, time_at) >= std::min(columns.size(), words.size()))
      return bad(absl::StrCat("a result without type or time: ", line));
    in_results = true;
    const std::optional<uint32_t> type = TypeOf(words[type_at]);
    if (!type.has_value()) return bad(absl::StrCat("unknown type '", words[type_at], "'"));
    uint64_t size = 0, count = 0;
    double us = 0;
    if (!absl::SimpleAtoi(words[0], &size) || !absl::SimpleAtoi(words[1], &count))
      return bad(absl::StrCat("a size or count that is too large: ", line));
    if (count == 0) continue;
    if (!absl::SimpleAtod(words[time_at], &us) || !(us > 0) || us > kMaxUs)
      return bad(absl::StrCat("'", words[time_at], "' is no time"));
    if (!operation.has_value()) {
      return bad("it is not said which operation this is",
                 "--operation AllReduce (or another one) says it");
    }
    if (ranks.empty() && !options_.ranks.has_value()) {
      return bad("it is not said how many ranks took part",
                 "--ranks N says it, of several nodes --nodes M, too");
    }
    const auto world = ranks.empty() ? *options_.ranks : static_cast<uint32_t>(ranks.size());
    const auto nodes = hosts.empty() ? options_.nodes : static_cast<uint32_t>(hosts.size());
    const uint64_t element = engine::ElementBytes(*type);
    if (world < 2) return bad("a single rank communicates with nobody");
    if (nodes > world) return bad(absl::StrCat(world, " ranks on ", nodes, " nodes"));
    // The size is one rank's part, or that of all together.
    if (count > size / element || (size - count * element) / world > count * element + 64)
      return bad(absl::StrCat(count, " elements of ", words[type_at], " are not ", size, " bytes"));
    most_ranks_ = std::max(most_ranks_, world);
    const bool pair = *operation == CommOp::kSend;
    samples_ns_[{*operation, engine::IsReduction(*operation) ? type : std::optional<uint32_t>(),
                 pair ? 2 : world, pair ? std::min(nodes, 2u) : nodes, count * element}]
        .push_back(us * 1e3);
  }
  return absl::OkStatus();
}

absl::StatusOr<engine::NetworkProfile> NcclTests::Profile() const {
  if (samples_ns_.empty()) {
    return WithHint(absl::InvalidArgumentError(
                        absl::StrCat("no results of nccl-tests in ", absl::StrJoin(files_, ", "))),
                    kHint);
  }
  engine::NetworkProfile profile;
  if (!gpu_.empty()) profile.machine["gpu"] = gpu_;
  profile.machine["device"] = "cuda";
  if (!nccl_.empty()) profile.machine["nccl"] = nccl_;
  profile.machine["ranks"] = most_ranks_;
  profile.settings["source"] = "nccl-tests";
  profile.settings["files"] = files_;
  for (auto [key, samples] : samples_ns_) {
    std::sort(samples.begin(), samples.end());
    const auto& [op, type, ranks, nodes, bytes] = key;
    profile.entries.push_back({op, type, ranks, nodes, bytes, /*isolated=*/false,
                               Quantile(samples, 0.5), Quantile(samples, 0.1),
                               Quantile(samples, 0.9), samples.size()});
  }
  return profile;
}

}  // namespace prism::interchange
