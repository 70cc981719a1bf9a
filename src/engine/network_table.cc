#include "src/engine/network_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>

#include "src/base/straight_line.h"

namespace prism::engine {
namespace {

using trace::CommOp;

// Up to this multiple of what the smallest message takes, a message is a quick protocol's; from
// this multiple on, a dense one's.
constexpr double kQuickFactor = 1.25, kDenseFactor = 16;
// So many bytes that latencies do not matter.
constexpr double kFull = 1e15;
// A link that a byte crosses is shared, however little of it that takes.
constexpr double kLeastShare = 1.0 / kWholeLink;

bool SameGroup(const Placement& x, const Placement& y) {
  return x.ranks == y.ranks && x.nodes == y.nodes &&
         (x.rails == y.rails || x.rails == 0 || y.rails == 0) &&
         (x.leaves == y.leaves || x.leaves == 0 || y.leaves == 0);
}

// What a further line costs, in squares of standard errors: a line has a place, a slope and an end,
// and by chance one fits better.
constexpr double kLineCost = 10;
// Errors that are not chance: clocks tell whole nanoseconds.
constexpr double kClockNs = 0.5;

// The value below which a share `p` of a normal distribution lies.
double NormalQuantile(double p) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < p ? low : high) = middle;
  }
  return low;
}

// Of calls, as standard deviation of the logarithm, by the tenth and ninetieth percentile of so
// many samples (which are nearer to the median the fewer there are: Blom's approximation).
double SpreadOf(const NetworkEntry& e) {
  if (e.samples < 3 || e.p10_ns <= 0 || e.p90_ns <= e.p10_ns) return 0;
  const auto n = static_cast<double>(e.samples);
  return std::log(e.p90_ns / e.p10_ns) / 2 /
         NormalQuantile((0.9 * (n - 1) + 1 - 0.375) / (n + 0.25));
}

// How far apart two numbers are, by ratio.
double Off(uint32_t x, uint32_t y) {
  return x == 0 || y == 0 ? 0 : std::abs(std::log(static_cast<double>(x) / y));
}

}  // namespace

NetworkTable::NetworkTable(NetworkProfile profile) : profile_(std::move(profile)) {
  // Ordered by curve, isolated ones first, then by size.
  std::vector<const NetworkEntry*> entries;
  for (const NetworkEntry& e : profile_.entries) entries.push_back(&e);
  const auto curve_of = [](const NetworkEntry& e) {
    return std::tuple(e.op, e.type.value_or(0), e.ranks, e.nodes, e.rails, e.leaves);
  };
  std::sort(entries.begin(), entries.end(), [&](const NetworkEntry* x, const NetworkEntry* y) {
    return std::tuple(curve_of(*x), !x->isolated, x->bytes) <
           std::tuple(curve_of(*y), !y->isolated, y->bytes);
  });
  const NetworkEntry* first = nullptr;
  for (const NetworkEntry* e : entries) {
    std::vector<Curve>& curves = curves_[{e->op, e->type.value_or(0)}];
    if (first == nullptr || curve_of(*first) != curve_of(*e)) {
      first = e;
      curves.push_back(
          {{e->ranks, e->nodes, (e->ranks + e->nodes - 1) / e->nodes, e->rails, e->leaves}, {}});
    }
    isolated_ = isolated_ || e->isolated;
    if (e->isolated != first->isolated) continue;
    Point& point = curves.back().points.emplace_back();
    point.bytes = static_cast<double>(e->bytes);
    point.ns = e->median_ns;
    point.spread = SpreadOf(*e);
    // Of a median.
    point.error = point.spread * std::sqrt(std::numbers::pi / 2 / static_cast<double>(e->samples));
  }
  for (auto& [key, curves] : curves_) {
    for (Curve& curve : curves) {
      Straighten(&curve.points);
      FindDoubtBetween(&curve.points);
      DoubtSingles(&curve.points);
    }
  }
  links_ = MeasuredLinks();
}

void NetworkTable::Straighten(std::vector<Point>* points) {
  std::vector<Point>& p = *points;
  const size_t n = p.size();
  // A spread of few samples says little; those of the sizes beside say the same.
  constexpr size_t kBeside = 3;
  std::vector<Point> smooth = p;
  for (size_t i = 0; i < n; ++i) {
    std::vector<std::pair<double, double>> near;
    for (size_t k = i - std::min(i, kBeside); k < std::min(n, i + kBeside + 1); ++k)
      near.emplace_back(p[k].spread, p[k].error);
    std::sort(near.begin(), near.end());
    std::tie(smooth[i].spread, smooth[i].error) = near[near.size() / 2];
  }
  p = std::move(smooth);

  struct Line {
    StraightLine line;
    double misfit = 0;  // in squares of standard errors
  };
  const auto line = [&](size_t first, size_t last) {
    Line l;
    const auto weight = [&](size_t i) { return 1 / (p[i].ns * p[i].error * p[i].ns * p[i].error); };
    for (size_t i = first; i <= last; ++i) l.line.Add(p[i].bytes, p[i].ns, weight(i));
    for (size_t i = first; i <= last; ++i) {
      const double ns = l.line.At(p[i].bytes);
      l.misfit += weight(i) * (p[i].ns - ns) * (p[i].ns - ns);
      // No time is nothing or less; nor is it beyond what a double can tell.
      if (!(ns > 0) || !std::isfinite(l.misfit)) l.misfit = INFINITY;
    }
    return l;
  };
  const bool noisy =
      std::all_of(p.begin(), p.end(), [](const Point& point) { return point.error > 0; });
  // The cheapest way to have lines up to each point: from where its last line goes.
  std::vector<double> cost(n + 1, 0);
  std::vector<size_t> from(n + 1, 0);
  for (size_t end = 1; end <= n; ++end) {
    cost[end] = INFINITY;
    for (size_t begin = 0; begin < end; ++begin) {
      const size_t size = end - begin;
      if (size > 2 && !noisy) continue;
      const double total = cost[begin] + kLineCost + (size > 2 ? line(begin, end - 1).misfit : 0);
      if (total >= cost[end]) continue;
      cost[end] = total;
      from[end] = begin;
    }
  }
  std::vector<Point> straight = p;
  for (size_t end = n; end > 0; end = from[end]) {
    const size_t begin = from[end], size = end - begin;
    ++lines_;
    for (size_t i = begin; i < end; ++i) {
      Point& point = straight[i];
      point.line = lines_;
      if (size > 2) {
        const StraightLine l = line(begin, end - 1).line;
        point.ns = l.At(point.bytes);
        point.error = std::sqrt(l.VarianceAt(point.bytes)) / point.ns;
      }
      // A line of two points is these; each is off for itself.
      if (size == 2 && i == begin) point.line = ++lines_;
      point.error = std::hypot(point.error, kClockNs / point.ns);
    }
  }
  p = std::move(straight);
}

void NetworkTable::FindDoubtBetween(std::vector<Point>* points) {
  for (size_t i = 1; i + 1 < points->size(); ++i) {
    std::vector<Point> others = *points;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    Point& point = (*points)[i];
    point.between = std::abs(std::log(At(others, point.bytes).ns / point.ns));
  }
  // What lies beyond the ends is told by these.
  if (points->size() < 3) return;
  points->front().between = (*points)[1].between;
  points->back().between = (*points)[points->size() - 2].between;
}

void NetworkTable::DoubtSingles(std::vector<Point>* points) {
  std::vector<double> between;
  for (size_t i = 1; i + 1 < points->size(); ++i) between.push_back((*points)[i].between);
  if (between.empty()) return;
  std::sort(between.begin(), between.end());
  // Of a normal distribution the median is that part of the deviation from 0. Where few sizes are
  // in bends of the curve, it is of those that are not.
  constexpr double kMedian = 0.6745;
  const double error = between[between.size() / 2] / kMedian;
  for (Point& point : *points) {
    if (point.spread == 0) point.error = std::hypot(point.error, error);
  }
}

void NetworkTable::SetDoubt(const std::vector<Point>& points, double bytes, NetworkTime* time) {
  const auto above = std::lower_bound(points.begin(), points.end(), bytes,
                                      [](const Point& p, double b) { return p.bytes < b; });
  const Point& right = above == points.end() ? points.back() : *above;
  const Point& left = right.bytes == bytes || above == points.begin() ? right : *(above - 1);
  time->spread = std::max(left.spread, right.spread);
  time->doubt = std::max(left.error, right.error);
  if (right.bytes != bytes) time->size_doubt = std::hypot(left.between, right.between);
  time->figure = right.line;
}

double NetworkTable::DoubtOfGroups(const Gpu& gpu, CommOp op, uint64_t bytes, const Curve& by,
                                   const std::vector<Curve>& curves) const {
  double squares = 0, count = 0;
  for (const Curve& other : curves) {
    if (&other == &by || (other.at.nodes > 1) != (by.at.nodes > 1)) continue;
    const double off = std::log(Scaled(gpu, op, by, bytes, other.at) /
                                At(other.points, static_cast<double>(bytes)).ns);
    squares += off * off;
    ++count;
  }
  return count > 0 ? std::sqrt(squares / count)
                   : std::log(gpu.range[static_cast<size_t>(TimeSource::kInterpolated)][1]);
}

std::optional<LinkModel> NetworkTable::MeasuredLinks() const {
  const auto messages = curves_.find({CommOp::kSend, 0});
  if (!profile_.links.has_value() || messages == curves_.end()) return std::nullopt;
  LinkModel model{profile_.links->receive_ns, std::vector<LinkModel::Protocol>(2),
                  profile_.links->leaf_share};
  for (const Curve& curve : messages->second) {
    if (curve.at.rails > 1) continue;
    // A quick protocol for small messages, where the bytes begin to count, and a dense one for
    // large messages, where the latency still does.
    const std::vector<Point>& points = curve.points;
    if (points.size() < 2) return std::nullopt;
    const double least_ns = points[0].ns;
    const auto from = [&](double factor) {
      const auto it = std::find_if(points.begin(), points.end(),
                                   [&](const Point& p) { return p.ns > factor * least_ns; });
      return static_cast<size_t>(it - points.begin());
    };
    const size_t quick = std::max<size_t>(from(kQuickFactor), 2) - 1;
    const size_t dense = std::min(from(kDenseFactor), points.size() - 2);
    for (const auto& [protocol, low, high] :
         {std::tuple{0, size_t{0}, quick}, std::tuple{1, dense, dense + 1}}) {
      const double slope = std::max(
          0.0, (points[high].ns - points[low].ns) / (points[high].bytes - points[low].bytes));
      const double step_ns =
          std::max(0.0, points[low].ns - slope * points[low].bytes - model.base_ns);
      LinkModel::Protocol& p = model.protocols[protocol];
      if (curve.at.leaves > 1) {
        p.leaf_step_ns = step_ns;
        continue;
      }
      (curve.at.nodes > 1 ? p.nic_step_ns : p.port_step_ns) = step_ns;
      (curve.at.nodes > 1 ? p.nic_ns_per_byte : p.port_ns_per_byte) = slope;
    }
    (curve.at.leaves > 1 ? model.leaves : curve.at.nodes > 1 ? model.nics : model.ports) = true;
  }
  return model;
}

std::optional<double> NetworkTable::PortBytesPerS() const {
  if (!links_.has_value() || !links_->ports) return std::nullopt;
  const double ns = links_->protocols.back().port_ns_per_byte;
  return ns > 0 ? std::optional(1e9 / ns) : std::nullopt;
}

std::optional<double> NetworkTable::NicBytesPerS() const {
  if (!links_.has_value() || !links_->nics) return std::nullopt;
  const double ns = links_->protocols.back().nic_ns_per_byte;
  return ns > 0 ? std::optional(1e9 / ns) : std::nullopt;
}

void NetworkTable::ChangeSpeed(CommOp op, double bytes, const Placement& at,
                               const LinkModel::Speed& speed, double steeper,
                               NetworkTime* time) const {
  if (speed.port == 1 && speed.nic == 1) return;
  // Behind another link that is narrower one is not noticed to be slower until it is as narrow.
  const auto seen = [&](double factor) {
    return steeper > 1 ? std::min(1.0, factor * steeper) : factor;
  };
  const LinkModel::Speed noticed{seen(speed.port), seen(speed.nic)};
  const LinkModel::Estimate was = links_->Of(op, bytes, at),
                            now = links_->Of(op, bytes, at, noticed);
  time->stretch = now.ns / was.ns;
  time->ns = std::llround(static_cast<double>(time->ns) * time->stretch);
  const auto change = [&](double was_ns, double now_ns, double* share) {
    if (was_ns > 0) *share *= now_ns / was_ns / time->stretch;
  };
  change(was.port_ns, now.port_ns * noticed.port, &time->port);
  change(was.nic_ns, now.nic_ns * noticed.nic, &time->nic);
  change(was.leaf_ns, now.leaf_ns, &time->leaf);
}

double NetworkTable::Scaled(const Gpu& gpu, CommOp op, const Curve& curve, uint64_t bytes,
                            const Placement& at) const {
  const double size = static_cast<double>(bytes), ns = At(curve.points, size).ns;
  if (links_.has_value() && links_->Knows(at) && links_->Knows(curve.at))
    return ns * links_->Of(op, size, at).ns / links_->Of(op, size, curve.at).ns;
  return ns * static_cast<double>(CollectiveNs(gpu, op, bytes, at)) /
         static_cast<double>(CollectiveNs(gpu, op, bytes, curve.at));
}

NetworkTable::Value NetworkTable::At(const std::vector<Point>& points, double bytes) {
  const size_t last = points.size() - 1;
  // Of the segment from point i to the next.
  const auto slope = [&](size_t i) {
    return (points[i + 1].ns - points[i].ns) / (points[i + 1].bytes - points[i].bytes);
  };
  const auto error = [&](size_t i) {
    return std::hypot(points[i].ns * points[i].error, points[i + 1].ns * points[i + 1].error) /
           (points[i + 1].bytes - points[i].bytes);
  };
  const auto above =
      static_cast<size_t>(std::lower_bound(points.begin(), points.end(), bytes,
                                           [](const Point& p, double b) { return p.bytes < b; }) -
                          points.begin());
  if (above > last) {
    double ns_per_byte = points[last].ns / points[last].bytes;
    if (last > 0 && slope(last - 1) > 0) ns_per_byte = slope(last - 1);  // noise may make it fall
    return {points[last].ns + (bytes - points[last].bytes) * ns_per_byte, ns_per_byte, false,
            last > 0 ? error(last - 1) : 0};
  }
  const bool measured = points[above].bytes == bytes;
  if (last == 0) return {points[0].ns, points[0].ns / points[0].bytes, measured};
  if (above == 0) return {points[0].ns, std::max(0.0, slope(0)), measured, error(0)};
  const size_t here = above - 1;  // the segment that ends at `above`
  if (measured) {
    // It is in the regime of the segments on that side of it that are alike.
    const auto differ = [&](size_t i) {
      return std::abs(slope(i) - slope(i + 1)) / std::max({slope(i), slope(i + 1), 1e-300});
    };
    const bool before =
        above == last || here == 0 || above + 1 == last || differ(here - 1) <= differ(above);
    const size_t of = before ? here : above;
    return {points[above].ns, std::max(0.0, slope(of)), true, error(of)};
  }
  const double line = points[here].ns + (bytes - points[here].bytes) * slope(here);
  // Where a regime ends and another, with a smaller slope, begins, the time is what is less by
  // either, which is more than on the straight line.
  if (here > 0 && above < last && slope(here - 1) > slope(here) && slope(here) > slope(above)) {
    const double left = points[here].ns + (bytes - points[here].bytes) * slope(here - 1);
    const double right = points[above].ns - (points[above].bytes - bytes) * slope(above);
    return left < right ? Value{left, slope(here - 1), false, error(here - 1)}
                        : Value{right, std::max(0.0, slope(above)), false, error(above)};
  }
  return {line, std::max(0.0, slope(here)), false, error(here)};
}

const std::vector<NetworkTable::Curve>* NetworkTable::CurvesOf(CommOp op, uint32_t nccl_type,
                                                               bool* same_type) const {
  *same_type = true;
  const auto found = curves_.find({op, IsReduction(op) ? nccl_type : 0});
  if (found != curves_.end()) return &found->second;
  *same_type = false;
  const std::vector<Curve>* other = nullptr;
  for (auto it = curves_.lower_bound({op, 0}); it != curves_.end() && it->first.first == op; ++it) {
    if (other == nullptr || ElementBytes(it->first.second) == ElementBytes(nccl_type))
      other = &it->second;
  }
  return other;
}

std::optional<NetworkTime> NetworkTable::TimeOf(const Gpu& gpu, CommOp op, uint32_t nccl_type,
                                                uint64_t bytes, const Placement& at,
                                                const LinkModel::Speed& speed) const {
  if (op == CommOp::kRecv) op = CommOp::kSend;
  bool same_type = true;
  const std::vector<Curve>* curves = CurvesOf(op, nccl_type, &same_type);
  if (curves == nullptr || at.ranks < 2) return std::nullopt;
  const Curve *below = nullptr, *above = nullptr;
  for (const Curve& curve : *curves) {
    if ((curve.at.nodes > 1) != (at.nodes > 1)) continue;
    if (SameGroup(curve.at, at)) {
      const Value value = At(curve.points, static_cast<double>(bytes));
      NetworkTime time{std::llround(value.ns), value.measured && same_type
                                                   ? TimeSource::kMeasured
                                                   : TimeSource::kInterpolated};
      SetDoubt(curve.points, static_cast<double>(bytes), &time);
      if (links_.has_value() && links_->Knows(at)) {
        const double size = static_cast<double>(bytes);
        const LinkModel::Estimate e = links_->Of(op, size, at), full = links_->Of(op, kFull, at);
        // Where the curve is steeper than the model something else is busier, such as a spine.
        const double steeper = At(curve.points, INFINITY).ns_per_byte * kFull / full.busiest_ns();
        const double busy = std::min(1.0, value.ns_per_byte * size / value.ns);
        const auto share = [&](double ns) {
          return ns > 0 ? std::max(kLeastShare, busy * ns / e.busiest_ns() / std::max(1.0, steeper))
                        : 0;
        };
        time.port = share(e.port_ns);
        time.nic = share(e.nic_ns);
        time.leaf = share(e.leaf_ns);
        // Of slope and time, which one size may be the cause of.
        if (value.ns_per_byte > 0) time.share_doubt = value.error / value.ns_per_byte + time.doubt;
        ChangeSpeed(op, size, at, speed, steeper, &time);
      }
      return time;
    }
    const auto nodes_off = [&](const Curve* c) {
      return std::tuple(Off(c->at.nodes, at.nodes), Off(c->at.rails, at.rails),
                        Off(c->at.leaves, at.leaves));
    };
    // The nearest number of ranks on either side, and of these the nearest number of nodes, then
    // of NICs and leaves.
    if (curve.at.ranks <= at.ranks) {
      if (below == nullptr || curve.at.ranks > below->at.ranks ||
          nodes_off(&curve) < nodes_off(below)) {
        below = &curve;
      }
    } else if (above == nullptr ||
               (curve.at.ranks == above->at.ranks && nodes_off(&curve) < nodes_off(above))) {
      above = &curve;
    }
  }
  if (below == nullptr && above == nullptr) return std::nullopt;
  const auto scaled = [&](const Curve& curve) { return Scaled(gpu, op, curve, bytes, at); };
  double ns = scaled(below != nullptr ? *below : *above);
  if (below != nullptr && above != nullptr && below->at.ranks < at.ranks) {
    const double weight = std::log(static_cast<double>(at.ranks) / below->at.ranks) /
                          std::log(static_cast<double>(above->at.ranks) / below->at.ranks);
    ns = std::exp((1 - weight) * std::log(ns) + weight * std::log(scaled(*above)));
  }
  NetworkTime time{std::llround(ns), TimeSource::kInterpolated};
  const Curve& by = below != nullptr ? *below : *above;
  SetDoubt(by.points, static_cast<double>(bytes), &time);
  time.group_doubt = DoubtOfGroups(gpu, op, bytes, by, *curves);
  if (links_.has_value() && links_->Knows(at)) {
    const LinkModel::Estimate e = links_->Of(op, static_cast<double>(bytes), at);
    time.port = e.port_ns > 0 ? std::max(kLeastShare, e.port_ns / e.ns) : 0;
    time.nic = e.nic_ns > 0 ? std::max(kLeastShare, e.nic_ns / e.ns) : 0;
    time.leaf = e.leaf_ns > 0 ? std::max(kLeastShare, e.leaf_ns / e.ns) : 0;
    ChangeSpeed(op, static_cast<double>(bytes), at, speed, /*steeper=*/1, &time);
  }
  return time;
}

}  // namespace prism::engine
