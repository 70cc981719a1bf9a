#include "src/netprofile/leaves.h"

#include <algorithm>
#include <cmath>

namespace prism::netprofile {
namespace {

// Between leaves a message takes that much longer, at least, and differs by so many standard
// deviations of what leaves do not explain.
constexpr double kFarRatio = 1.01, kFarDeviations = 4;

struct Split {
  double near = 0, far = 0;  // means
  double unexplained = 0;    // sum of squares
  bool both = false;         // there are near and far nodes
};

Split SplitBy(uint32_t nodes_per_leaf, const std::vector<NodeDistance>& distances) {
  double sum[2] = {}, count[2] = {};
  const auto is_far = [&](const NodeDistance& d) {
    return d.from / nodes_per_leaf != d.to / nodes_per_leaf;
  };
  for (const NodeDistance& d : distances) {
    sum[is_far(d)] += d.time;
    ++count[is_far(d)];
  }
  Split split;
  split.both = count[0] > 0 && count[1] > 0;
  if (!split.both) return split;
  split.near = sum[0] / count[0];
  split.far = sum[1] / count[1];
  for (const NodeDistance& d : distances) {
    const double off = d.time - (is_far(d) ? split.far : split.near);
    split.unexplained += off * off;
  }
  return split;
}

}  // namespace

uint32_t NodesPerLeaf(const std::vector<NodeDistance>& distances) {
  uint32_t last = 0;
  for (const NodeDistance& d : distances) last = std::max({last, d.from, d.to});
  uint32_t found = 0;
  Split best;
  for (uint32_t nodes = 2; nodes <= last; ++nodes) {
    const Split split = SplitBy(nodes, distances);
    if (!split.both || (found != 0 && split.unexplained > best.unexplained)) continue;
    found = nodes;
    best = split;
  }
  if (found == 0 || best.far < kFarRatio * best.near) return 0;
  const double deviation = std::sqrt(best.unexplained / static_cast<double>(distances.size()));
  return best.far - best.near > kFarDeviations * deviation ? found : 0;
}

}  // namespace prism::netprofile
