#include "src/netprofile/leaves.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace prism::netprofile {
namespace {

std::vector<NodeDistance> Distances(const std::vector<uint32_t>& nodes, uint32_t per_leaf,
                                    double far, double sigma = 0) {
  std::mt19937 chance(7);
  std::normal_distribution<double> noise(0, sigma);
  std::vector<NodeDistance> distances;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double time = nodes[i] / per_leaf == nodes[j] / per_leaf ? 1 : far;
      distances.push_back({nodes[j], nodes[i], time * std::exp(noise(chance))});
    }
  }
  return distances;
}

TEST(LeavesTest, NodesOfALeafAreNearer) {
  const std::vector<uint32_t> four = {0, 1, 2, 3}, spread = {0, 1, 2, 3, 4, 8, 16, 24, 32, 48};
  EXPECT_EQ(NodesPerLeaf(Distances(four, 2, 1.1)), 2u);
  for (uint32_t per_leaf : {2u, 4u, 8u, 16u, 32u})
    EXPECT_EQ(NodesPerLeaf(Distances(spread, per_leaf, 1.04)), per_leaf);
  EXPECT_EQ(NodesPerLeaf(Distances(spread, 8, 1.04, 0.003)), 8u);
}

TEST(LeavesTest, EquallyFarNodesHaveNone) {
  const std::vector<uint32_t> nodes = {0, 1, 2, 3, 4, 8, 16};
  EXPECT_EQ(NodesPerLeaf(Distances(nodes, 1, 1.1)), 0u);
  EXPECT_EQ(NodesPerLeaf(Distances(nodes, 32, 1.1)), 0u);
  EXPECT_EQ(NodesPerLeaf(Distances(nodes, 32, 1.1, 0.02)), 0u);
  EXPECT_EQ(NodesPerLeaf(Distances(nodes, 2, 1.005)), 0u) << "too little to matter";
  EXPECT_EQ(NodesPerLeaf({}), 0u);
}

TEST(LeavesTest, WhatLeavesDoNotExplainIsNoLeaf) {
  // Nodes 1 and 2 are near to each other, and to nobody else.
  std::vector<NodeDistance> distances = Distances({0, 1, 2, 3, 4, 5}, 1, 1.1);
  for (NodeDistance& d : distances) {
    if (d.from == 1 && d.to == 2) d.time = 1;
  }
  EXPECT_EQ(NodesPerLeaf(distances), 0u);
}

}  // namespace
}  // namespace prism::netprofile
