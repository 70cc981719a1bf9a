#include "src/base/duration.h"

#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace prism {

absl::StatusOr<int64_t> ParseDuration(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        "\"", std::string(text), "\" is no duration: ", std::string(why))),
                    "a number and ns, us, ms or s: 5ms");
  };
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return bad("it does not begin with a number");
  if (value < 0) return bad("it is negative");
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  for (const auto& [name, ns] : kUnits) {
    if (unit != name) continue;
    if (value * ns >= 0x1p63) return bad("it is too long");
    return std::llround(value * ns);
  }
  return bad(unit.empty() ? "it has no unit" : "its unit is unknown");
}

}  // namespace prism
