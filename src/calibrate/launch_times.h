// LaunchTimes: how long launches took on ranks of a kind, to say how long they take on others of
// it.
//
// A launch is found by its site and size. Where that size was measured, the answer is one of those
// measurements, drawn, so that ranks have no part in each other's chance. Between and beyond sizes
// it is one of the nearest ones, scaled by the straight line through all measurements of the site.
//
//   LaunchTimes times;
//   times.Add(site, 128, 7'000);
//   std::optional<LaunchTimes::Answer> answer = times.Draw(site, 128, /*key=*/rank);
#ifndef PRISM_CALIBRATE_LAUNCH_TIMES_H_
#define PRISM_CALIBRATE_LAUNCH_TIMES_H_

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "src/base/straight_line.h"

namespace prism::calibrate {

class LaunchTimes {
 public:
  struct Answer {
    int64_t ns;
    bool measured;  // this size was
  };

  void Add(uint64_t site, uint64_t size, int64_t ns);
  /// Same key, same answer. Nothing where the site was not measured, or at one other size only.
  std::optional<Answer> Draw(uint64_t site, uint64_t size, uint64_t key);

 private:
  struct Sample {
    uint64_t size;
    int64_t ns;
  };
  struct Site {
    std::vector<Sample> samples;  // by size once `sorted`
    bool sorted = false;
    StraightLine line;
  };
  static void Prepare(Site* site);

  std::unordered_map<uint64_t, Site> sites_;
};

}  // namespace prism::calibrate

#endif  // PRISM_CALIBRATE_LAUNCH_TIMES_H_
