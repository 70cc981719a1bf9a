// Network table: durations of communications from a measured profile (network_profile.h).
//
// What it knows is a curve over sizes for each operation, type and group. A size between two
// measured ones is on the straight line between them (in bytes and time, which is exact for a
// latency and a bandwidth), or where one such regime ends there and another begins, on the line of
// either; below the smallest it takes as long as that; above the largest the last
// two give the bandwidth. A group of another size gets the time of the nearest smaller and larger
// measured ones, each times what the formulas say of the ratio, weighted by
// their distance: those of the machine's links where the profile has them (link_model.h), else of
// the GPU's (communication_cost.h). Times of isolated calls are taken where there are some. What
// was measured as it is, is `measured`, all else `interpolated`.
// docs/design/0011-network-profile.md has the reasons.
//
// What was measured several times has a spread. Sizes that a straight line tells within theirs are
// on it, so that noise of single ones, and of slopes between two, is that of all. What remains is
// told: how far calls spread by chance, and how sure the figure itself is: by the line's standard
// error (of a size that was measured once, by what the curve's sizes are off when they are told
// from the others), between sizes by what each size beside is off so, in another group by what a
// group that was measured is off when it is told from the others; shares by the errors of the sizes
// that tell the slope.
//
// How busy a communication keeps its links follows from the curve as well: bytes x slope / time is
// the share of the busiest link, and other links' are to it as in the link model
// (docs/design/0014-contention.md).
//
// Immutable; thread-safe.
//
//   const NetworkTable table(*ReadNetworkProfile("netprofile.json"));
//   std::optional<NetworkTime> t = table.TimeOf(gpu, CommOp::kAllReduce, kBf16, 1 << 20,
//   placement);
#ifndef PRISM_ENGINE_NETWORK_TABLE_H_
#define PRISM_ENGINE_NETWORK_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/engine/communication_cost.h"
#include "src/engine/engine.h"
#include "src/engine/link_model.h"
#include "src/engine/network_profile.h"

namespace prism::engine {

struct NetworkTime {
  int64_t ns;
  TimeSource source;
  /// Shares of links meanwhile, 0 to 1: of each member's port in each direction, of each NIC, of
  /// each leaf's way to the others. 0 where the profile has no links.
  double port = 0, nic = 0, leaf = 0;
  /// Standard deviations of the logarithm: of calls by chance, and of `ns` as what they take.
  double spread = 0, doubt = 0;
  /// The same of what is told from other sizes, and of what another group's curve tells: off alike
  /// for all, for what curves do between their points they do everywhere.
  double size_doubt = 0, group_doubt = 0;
  /// Of the shares, as part of them.
  double share_doubt = 0;
  uint32_t figure = 0;  // what is told from one line is off together
  /// What links of another speed than the measured make of it: `ns` over what it was. Shares are
  /// then of links at the measured speed.
  double stretch = 1;
};

class NetworkTable {
 public:
  explicit NetworkTable(NetworkProfile profile);

  const NetworkProfile& profile() const { return profile_; }
  /// Whether some curve is of isolated calls; else all are of calls in a row.
  bool isolated() const { return isolated_; }

  /// Nothing where the profile has no entry that says something of it: none of the operation, or
  /// only ones of a single node for a group of several, or the reverse. kSend and kRecv: a message
  /// between two ranks. `gpu` is for the ratio of the formulas. `speed`: of the links that are
  /// used, over what was measured; nothing is said of it where they are not known.
  std::optional<NetworkTime> TimeOf(const Gpu& gpu, trace::CommOp op, uint32_t nccl_type,
                                    uint64_t bytes, const Placement& at,
                                    const LinkModel::Speed& speed = {}) const;
  /// Of a message that only has to cross ports, or NICs, as far as they are known.
  std::optional<double> PortBytesPerS() const;
  std::optional<double> NicBytesPerS() const;

 private:
  struct Point {
    double bytes, ns;
    double spread = 0;  // of calls, and `error` of `ns`: standard deviations of the logarithm
    double error = 0;
    double between = 0;  // how far it is off where it is told from the others
    uint32_t line = 0;   // which of the table's straight lines it is on
  };
  struct Curve {
    Placement at;
    std::vector<Point> points;  // ascending
  };
  struct Value {
    double ns;
    double ns_per_byte;  // of the regime that the size is in
    bool measured;       // as it is
    double error = 0;    // standard deviation of ns_per_byte
  };
  static Value At(const std::vector<Point>& points, double bytes);
  /// Puts points on straight lines, as far as their errors allow; numbers the lines.
  void Straighten(std::vector<Point>* points);
  static void FindDoubtBetween(std::vector<Point>* points);
  /// Sizes that were measured once, or without a spread, are as far off as most of the curve's are
  /// where they are told from the others.
  static void DoubtSingles(std::vector<Point>* points);
  static void SetDoubt(const std::vector<Point>& points, double bytes, NetworkTime* time);
  /// What other groups that were measured are off where they are told from `by`; the GPU's range
  /// where there are none.
  double DoubtOfGroups(const Gpu& gpu, trace::CommOp op, uint64_t bytes, const Curve& by,
                       const std::vector<Curve>& curves) const;
  /// Puts links of another speed into what `time` is with those that were measured. `steeper`: how
  /// many times as long as on the busiest link that is known bytes take on another one.
  void ChangeSpeed(trace::CommOp op, double bytes, const Placement& at,
                   const LinkModel::Speed& speed, double steeper, NetworkTime* time) const;
  /// What the curves of messages say of ports and NICs; nothing where there are none.
  std::optional<LinkModel> MeasuredLinks() const;
  /// For a group of another kind than the curve's.
  double Scaled(const Gpu& gpu, trace::CommOp op, const Curve& curve, uint64_t bytes,
                const Placement& at) const;
  const std::vector<Curve>* CurvesOf(trace::CommOp op, uint32_t nccl_type, bool* same_type) const;

  NetworkProfile profile_;
  bool isolated_ = false;
  uint32_t lines_ = 0;
  std::optional<LinkModel> links_;
  /// By operation, and type of reductions (0 otherwise); ascending in ranks.
  std::map<std::pair<trace::CommOp, uint32_t>, std::vector<Curve>> curves_;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_NETWORK_TABLE_H_
