#include "src/calibrate/launch_times.h"

#include <algorithm>
#include <cmath>

namespace prism::calibrate {
namespace {

// Measurements that one of another size is drawn from: a few, for near sizes are alike in what the
// line does not know.
constexpr ptrdiff_t kNearest = 4;

double Distance(uint64_t x, uint64_t y) { return static_cast<double>(x > y ? x - y : y - x); }

}  // namespace

void LaunchTimes::Add(uint64_t site, uint64_t size, int64_t ns) {
  Site& s = sites_[site];
  s.samples.push_back({size, ns});
  s.sorted = false;
}

void LaunchTimes::Prepare(Site* site) {
  if (site->sorted) return;
  site->sorted = true;
  site->line = {};
  std::vector<Sample>& samples = site->samples;
  std::stable_sort(samples.begin(), samples.end(),
                   [](const Sample& x, const Sample& y) { return x.size < y.size; });
  for (const Sample& s : samples)
    site->line.Add(static_cast<double>(s.size), static_cast<double>(s.ns));
}

std::optional<LaunchTimes::Answer> LaunchTimes::Draw(uint64_t site, uint64_t size, uint64_t key) {
  const auto found = sites_.find(site);
  if (found == sites_.end()) return std::nullopt;
  Site& s = found->second;
  Prepare(&s);
  const auto drawn = [&](auto begin, auto end) {
    return begin[static_cast<ptrdiff_t>(key % static_cast<uint64_t>(end - begin))];
  };
  const auto [low, high] =
      std::equal_range(s.samples.begin(), s.samples.end(), Sample{size, 0},
                       [](const Sample& x, const Sample& y) { return x.size < y.size; });
  if (low != high) return Answer{drawn(low, high).ns, true};
  if (s.samples.front().size == s.samples.back().size) return std::nullopt;
  auto begin = low, end = low;
  while (end - begin < kNearest && (begin != s.samples.begin() || end != s.samples.end())) {
    const bool below =
        begin != s.samples.begin() &&
        (end == s.samples.end() || Distance(begin[-1].size, size) <= Distance(end->size, size));
    if (below) {
      --begin;
    } else {
      ++end;
    }
  }
  const Sample& near = drawn(begin, end);
  const auto line = [&](uint64_t at) { return s.line.At(static_cast<double>(at)); };
  // Where a line comes near nothing it says little: no launch takes longer for less, nor grows by
  // more than its work.
  const double to = line(size), from = line(near.size);
  const double by_work =
      static_cast<double>(size) / static_cast<double>(std::max<uint64_t>(near.size, 1));
  const double factor = to > 0 && from > 0
                            ? std::clamp(to / from, std::min(1.0, by_work), std::max(1.0, by_work))
                            : 1;
  return Answer{std::llround(static_cast<double>(near.ns) * factor), false};
}

}  // namespace prism::calibrate
