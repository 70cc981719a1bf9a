#include "examples/cpp/moe_trainer/routing.h"

#include <algorithm>
#include <cmath>

#include "examples/cpp/moe_trainer/random.h"

namespace moe_trainer {

std::vector<int> DrawCounts(const RoutingKey& key, const RoutingShape& shape) {
  const auto experts = static_cast<size_t>(shape.experts);
  const auto layer = static_cast<uint64_t>(key.layer);
  std::vector<double> share(experts);
  double sum = 0;
  for (size_t e = 0; e < experts; ++e)
    sum += share[e] = std::exp(shape.imbalance * Normal(key.seed, Stream::kPopularity, {layer, e}));
  // A row visits an expert at most once: whoever would get more than all rows gets them all, and
  // the others share what is left in proportion.
  const int total = shape.rows * shape.top_k;
  std::vector<double> expected(experts, -1);
  double left = total;
  for (bool capped = true; capped;) {
    capped = false;
    for (size_t e = 0; e < experts; ++e) {
      if (expected[e] >= 0 || left * share[e] / sum <= shape.rows) continue;
      expected[e] = shape.rows;
      left -= shape.rows;
      sum -= share[e];
      capped = true;
    }
  }
  std::vector<int> counts(experts);
  int given = 0;
  for (size_t e = 0; e < experts; ++e) {
    if (expected[e] < 0) expected[e] = left * share[e] / sum;
    const double deviation = std::sqrt(expected[e] * (1 - expected[e] / shape.rows));
    const double drawn =
        expected[e] + deviation * Normal(key.seed, Stream::kCount,
                                         {static_cast<uint64_t>(key.step), layer,
                                          static_cast<uint64_t>(key.micro_batch),
                                          static_cast<uint64_t>(key.token_rank), e});
    counts[e] = std::clamp(static_cast<int>(std::lround(drawn)), 0, shape.rows);
    given += counts[e];
  }
  // What rounding and the draws left over goes round, from an expert that the draw decides.
  for (size_t e =
           Bits(key.seed, Stream::kCount,
                {static_cast<uint64_t>(key.step), layer, static_cast<uint64_t>(key.micro_batch)}) %
           experts;
       given != total; e = (e + 1) % experts) {
    const int change = given < total ? 1 : -1;
    if (counts[e] + change < 0 || counts[e] + change > shape.rows) continue;
    counts[e] += change;
    given += change;
  }
  return counts;
}

}  // namespace moe_trainer
