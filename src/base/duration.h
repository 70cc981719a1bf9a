// Durations as people write them: "5ms", "1.5 s", "250us", "800ns".
//
// Stateless; thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(int64_t ns, ParseDuration("5ms"));  // 5'000'000
#ifndef PRISM_BASE_DURATION_H_
#define PRISM_BASE_DURATION_H_

#include <cstdint>
#include <string_view>

#include "src/base/status.h"

namespace prism {

/// Nanoseconds of a number with a unit (ns, us, ms, s). InvalidArgument: no number, no unit,
/// negative, or more than 292 years.
absl::StatusOr<int64_t> ParseDuration(std::string_view text);

}  // namespace prism

#endif  // PRISM_BASE_DURATION_H_
