// Where tokens go under --timed, in which nothing has a value: how many of a rank's rows each
// expert gets, drawn with the seed. Pure.
//
// An expert's popularity is exp(imbalance * z), z normal, drawn once for a layer: some experts are
// popular throughout, as in a trained router. Around the shares that follow, every micro-batch of a
// rank varies as a draw of its rows would.
#ifndef MOE_TRAINER_ROUTING_H_
#define MOE_TRAINER_ROUTING_H_

#include <cstdint>
#include <vector>

namespace moe_trainer {

struct RoutingKey {
  uint64_t seed = 0;
  int step = 0, layer = 0, micro_batch = 0, token_rank = 0;
};

struct RoutingShape {
  int rows = 0, experts = 0, top_k = 0;
  double imbalance = 0;
};

/// Rows for each expert: at most `rows` each, rows * top_k together.
std::vector<int> DrawCounts(const RoutingKey& key, const RoutingShape& shape);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_ROUTING_H_
