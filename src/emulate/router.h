// MockRouter: how many tokens the ranks that are played send to each other's experts.
//
// Draws rows: what a source sends to each member of its communicator in one exchange. A member's
// values have the stated minimum, maximum, mean, standard deviation, median and skew, and each row
// adds up to the same total (tokens times top-k). Both at once: for each source and block of
// `samples` exchanges a sample with those moments is made of every member (the distribution of
// greatest entropy that has them, its quantiles), and the samples are put side by side so that the
// sums are as equal as may be (the rearrangement algorithm); what is left of a sum goes round by
// ones. A row is a function of the seed, communicator, its members, source, exchange and total
// alone: whoever asks gets the same. Not thread-safe.
//
//   MockRouter router(spec);
//   PRISM_ASSIGN_OR_RETURN(auto row, router.Row(comm, /*source=*/2, /*exchange=*/7, 8, total));
//   row[5]   // tokens from member 2 to member 5
#ifndef PRISM_EMULATE_ROUTER_H_
#define PRISM_EMULATE_ROUTER_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace prism::emulate {

/// Of the tokens that a member gets from one source in one exchange.
struct SplitStatistics {
  double minimum = 0, maximum = 0, mean = 0, deviation = 0, median = 0, skew = 0;
};

/// Ascending whole numbers with these statistics, as near as `samples` whole numbers come; both
/// extremes are among them. InvalidArgument: no distribution has them.
absl::StatusOr<std::vector<int64_t>> SampleWith(const SplitStatistics& statistics,
                                                uint32_t samples);

struct RouterSpec {
  uint64_t seed = 0;
  uint32_t samples = 256;
  std::vector<SplitStatistics> members;  // one: of every member
};
/// `where` names the value in errors.
absl::StatusOr<RouterSpec> ParseRouter(const nlohmann::json& json, const std::string& where);

class MockRouter {
 public:
  explicit MockRouter(RouterSpec spec) : spec_(std::move(spec)) {}

  /// `total`: what a source sends in all. Where the means do not add up to it, the statistics are
  /// scaled. InvalidArgument: they are of another number of members, or cannot be.
  absl::StatusOr<std::vector<int64_t>> Row(uint32_t comm, uint32_t source, uint64_t exchange,
                                           uint32_t members, int64_t total);

 private:
  using Block = std::vector<std::vector<int64_t>>;  // [exchange][member]
  absl::StatusOr<Block> Draw(uint64_t seed, uint32_t members, int64_t total) const;

  RouterSpec spec_;
  std::map<std::tuple<uint32_t, uint32_t, uint64_t, uint32_t, int64_t>, Block> blocks_;
};

/// Divides `tokens` among `parts` experts, as equally as may be; who gets one more follows from
/// `key`.
std::vector<int64_t> Divide(int64_t tokens, uint32_t parts, uint64_t key);

}  // namespace prism::emulate

#endif  // PRISM_EMULATE_ROUTER_H_
