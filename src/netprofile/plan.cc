#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "src/netprofile/profile_rank.h"

namespace prism::netprofile {
namespace {

constexpr size_t kMaxSizes = 1000;
constexpr char kSizesHint[] = "--sizes 1KiB:1GiB:2 is every power of two from 1 KiB to 1 GiB";
constexpr char kGroupsHint[] =
    "--groups 2,4,2x1,2x4/2: two ranks, four, one on each of two nodes, every second one of eight";

bool ParseNumber(std::string_view text, uint64_t* value, std::string_view* rest) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return error == std::errc();
}

bool ParseBytes(std::string_view text, uint64_t* bytes) {
  std::string_view unit;
  if (!ParseNumber(text, bytes, &unit)) return false;
  const std::pair<std::string_view, int> units[] = {
      {"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  for (const auto& [name, shift] : units) {
    if (unit != name || *bytes == 0 || *bytes > (uint64_t{1} << 44 >> shift)) continue;
    *bytes <<= shift;
    return true;
  }
  return false;
}

}  // namespace

std::vector<uint64_t> Plan::Sizes() const {
  std::vector<uint64_t> sizes;
  for (double size = static_cast<double>(least_bytes); sizes.size() < kMaxSizes; size *= factor) {
    const auto bytes = static_cast<uint64_t>(std::llround(size));
    if (bytes > most_bytes) break;
    if (sizes.empty() || sizes.back() < bytes) sizes.push_back(bytes);
  }
  return sizes;
}

absl::Status ParseSizes(const std::string& text, Plan* plan) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const auto bad = [&](std::string_view why) {
    return WithHint(absl::InvalidArgumentError(fmt::format("--sizes '{}': {}", text, why)),
                    kSizesHint);
  };
  if (parts.size() != 3) return bad("not MIN:MAX:FACTOR");
  if (!ParseBytes(parts[0], &plan->least_bytes)) return bad(parts[0] + " is not a size");
  if (!ParseBytes(parts[1], &plan->most_bytes)) return bad(parts[1] + " is not a size");
  const auto [end, error] =
      std::from_chars(parts[2].data(), parts[2].data() + parts[2].size(), plan->factor);
  if (error != std::errc() || end != parts[2].data() + parts[2].size() ||
      !(plan->factor >= 1.1 && plan->factor <= 1e6)) {
    return bad(parts[2] + " is not a factor from 1.1 up");
  }
  if (plan->most_bytes < plan->least_bytes) return bad("the largest size is below the smallest");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<GroupShape>> ParseGroups(const std::string& text) {
  std::vector<GroupShape> groups;
  if (text.empty()) return groups;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    uint64_t first = 0, second = 0;
    std::string_view rest;
    bool good = ParseNumber(part, &first, &rest) && first >= 1 && first <= 1 << 20;
    GroupShape shape{0, static_cast<uint32_t>(first)};
    if (good && !rest.empty()) {
      uint64_t stride = 1;
      good = rest[0] == 'x' && ParseNumber(rest.substr(1), &second, &rest) && second >= 1 &&
             second <= 1 << 20;
      if (good && !rest.empty()) {
        good = rest[0] == '/' && ParseNumber(rest.substr(1), &stride, &rest) && rest.empty() &&
               stride >= 1 && stride <= 1 << 20;
      }
      shape = {static_cast<uint32_t>(first), static_cast<uint32_t>(second),
               static_cast<uint32_t>(stride)};
    }
    const uint64_t ranks = uint64_t{std::max(shape.nodes, 1u)} * shape.ranks_per_node;
    if (!good || ranks < 2) {
      return WithHint(absl::InvalidArgumentError(fmt::format(
                          "--groups '{}': '{}' is no group of two ranks or more", text, part)),
                      kGroupsHint);
    }
    groups.push_back(shape);
  }
  return groups;
}

}  // namespace prism::netprofile
