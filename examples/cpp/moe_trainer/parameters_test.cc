#include "examples/cpp/moe_trainer/parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace moe_trainer {
namespace {

Model SmallModel() {
  Model model;
  model.layers = 8;
  model.hidden = 12;
  model.heads = 4;
  model.expert_hidden = 10;
  model.experts = 4;
  model.vocabulary = 7;
  return model;
}

// For every layout: each element of each matrix is held by exactly the ranks of one group.
TEST(ParametersTest, EveryElementIsHeldByOneGroup) {
  const Model model = SmallModel();
  for (const Parallelism sizes :
       {Parallelism{1, 1, 1, 1, 1}, Parallelism{4, 1, 2, 4, 2}, Parallelism{2, 2, 2, 2, 1},
        Parallelism{1, 4, 1, 4, 1}, Parallelism{2, 2, 4, 4, 2}}) {
    std::map<std::string, std::map<std::pair<int, int>, std::set<int>>> holders;
    for (int rank = 0; rank < sizes.world(); ++rank) {
      const ParameterLayout layout = LayOutParameters(model, sizes, PlaceOf(sizes, rank), 300);
      for (const auto& units : layout.chunks)
        for (const Unit& unit : units)
          for (const auto& shards : unit.shards)
            for (const Shard& shard : shards)
              for (int i = 0; i < shard.rows; ++i)
                for (int j = 0; j < shard.columns; ++j) {
                  const std::pair element(shard.row + i, shard.column + j);
                  EXPECT_TRUE(holders[NameOf(shard.matrix)][element].insert(rank).second);
                }
    }
    EXPECT_EQ(holders.size(), 2u + 8 * (3 + 2 * 4));
    for (const auto& [name, elements] : holders) {
      const bool expert = name.find("expert") != std::string::npos;
      const bool attention =
          name.find("qkv") != std::string::npos || name.find("projection") != std::string::npos;
      const Group group = expert ? Group::kExpertData : attention ? Group::kData : Group::kStage;
      for (const auto& [at, ranks] : elements) {
        const std::vector<int> members = Members(sizes, group, *ranks.begin());
        EXPECT_EQ(std::vector<int>(ranks.begin(), ranks.end()), members) << name;
      }
    }
    EXPECT_EQ(holders["layers.0.qkv"].size(), 12u * 36);
    EXPECT_EQ(holders["layers.7.experts.3.down"].size(), 10u * 12);
    EXPECT_EQ(holders["head"].size(), 12u * 7);
  }
}

TEST(ParametersTest, BucketsCoverEveryShardOnceAndDivideAmongTheGroup) {
  const Model model = SmallModel();
  const Parallelism sizes = {3, 2, 2, 2, 2};
  for (const size_t bucket_elements : {size_t{1}, size_t{500}, size_t{1} << 30}) {
    for (int rank = 0; rank < sizes.world(); ++rank) {
      const ParameterLayout layout =
          LayOutParameters(model, sizes, PlaceOf(sizes, rank), bucket_elements);
      size_t ends[kDomains] = {0, 0, 0};
      for (const Bucket& bucket : layout.buckets) {
        EXPECT_EQ(bucket.begin, ends[static_cast<int>(bucket.domain)]);
        ends[static_cast<int>(bucket.domain)] += bucket.elements;
        EXPECT_EQ(bucket.elements % static_cast<size_t>(SizeOf(sizes, GroupOf(bucket.domain))), 0u);
      }
      for (int domain = 0; domain < kDomains; ++domain)
        EXPECT_EQ(ends[domain], layout.elements[domain]);
      for (size_t chunk = 0; chunk < layout.chunks.size(); ++chunk) {
        for (size_t u = 0; u < layout.chunks[chunk].size(); ++u) {
          const int unit = static_cast<int>(u);
          for (int domain = 0; domain < kDomains; ++domain) {
            for (const Shard& shard : layout.chunks[chunk][u].shards[domain]) {
              int found = 0;
              for (const Bucket& bucket : layout.buckets)
                found += static_cast<int>(bucket.domain) == domain &&
                         bucket.chunk == static_cast<int>(chunk) && bucket.first_unit <= unit &&
                         unit <= bucket.last_unit && bucket.begin <= shard.offset &&
                         shard.offset + shard.elements() <= bucket.begin + bucket.elements;
              EXPECT_EQ(found, 1) << NameOf(shard.matrix);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moe_trainer
