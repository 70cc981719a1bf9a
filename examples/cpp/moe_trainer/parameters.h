// Which parameters a rank holds, and where: flat storage by domain, cut into buckets. Pure.
//
// A domain is the set of parameters that the same group of ranks replicates, so that their
// gradients are reduced there: attention weights over kData (each tensor rank has its shard),
// experts over kExpertData, everything else over kStage. Within a domain parameters lie in the
// order in which the backward pass finishes their gradients; consecutive ones form a bucket, padded
// to a multiple of the group's size, of which each rank of the group updates one part.
#ifndef MOE_TRAINER_PARAMETERS_H_
#define MOE_TRAINER_PARAMETERS_H_

#include <cstddef>
#include <vector>

#include "examples/cpp/moe_trainer/layout.h"
#include "examples/cpp/moe_trainer/model.h"

namespace moe_trainer {

enum class Domain { kDense, kExperts, kReplicated };
inline constexpr int kDomains = 3;
Group GroupOf(Domain domain);

/// This rank's part of a matrix: rows x columns from (row, column) on, row-major at `offset`
/// elements in its domain.
struct Shard {
  Matrix matrix;
  int row = 0, column = 0, rows = 0, columns = 0;
  size_t offset = 0;
  size_t elements() const { return static_cast<size_t>(rows) * static_cast<size_t>(columns); }
};

/// A step of the forward pass: the embedding, a layer, or the head.
struct Unit {
  enum class Kind { kEmbedding, kLayer, kHead } kind = Kind::kLayer;
  int layer = 0;
  std::vector<Shard> shards[kDomains];
};

struct Bucket {
  Domain domain = Domain::kDense;
  size_t begin = 0, elements = 0;  // elements: padded
  int chunk = 0;
  int first_unit = 0, last_unit = 0;  // complete when the backward pass of first_unit is
};

struct ParameterLayout {
  std::vector<std::vector<Unit>> chunks;  // chunk -> units in forward order
  std::vector<Bucket> buckets;            // in the order in which they complete
  size_t elements[kDomains] = {0, 0, 0};  // of the flat storages, padding included
};

/// Parameters of the rank at `place`. Buckets are closed at `bucket_elements` and at the end of a
/// chunk.
ParameterLayout LayOutParameters(const Model& model, const Parallelism& sizes, const Place& place,
                                 size_t bucket_elements);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_PARAMETERS_H_
