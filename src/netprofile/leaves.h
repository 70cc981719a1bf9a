// Leaves: which nodes are nearer to each other than to the rest, as those on one leaf switch are.
// Stateless; thread-safe.
//
//   uint32_t nodes = NodesPerLeaf({{0, 1, 8.5}, {0, 2, 10}, {1, 2, 10}});  // 2
#ifndef PRISM_NETPROFILE_LEAVES_H_
#define PRISM_NETPROFILE_LEAVES_H_

#include <cstdint>
#include <vector>

namespace prism::netprofile {

/// What a small message takes between two nodes, which have the numbers of their launcher.
struct NodeDistance {
  uint32_t from, to;
  double time;  // in one unit for all
};

/// Consecutive nodes of a leaf, where leaves of equally many nodes explain the distances; the
/// largest number that explains them best. 0: all nodes are equally far, or leaves do not tell
/// which are not.
uint32_t NodesPerLeaf(const std::vector<NodeDistance>& distances);

}  // namespace prism::netprofile

#endif  // PRISM_NETPROFILE_LEAVES_H_
