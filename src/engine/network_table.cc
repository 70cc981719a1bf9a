#include "src/engine/network_table.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace prism::engine {
namespace {

using trace::CommOp;

bool SameGroup(const Placement& x, const Placement& y) {
  return x.ranks == y.ranks && x.nodes == y.nodes &&
         (x.rails == y.rails || x.rails == 0 || y.rails == 0);
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
    return std::tuple(e.op, e.type.value_or(0), e.ranks, e.nodes, e.rails);
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
      curves.push_back({{e->ranks, e->nodes, (e->ranks + e->nodes - 1) / e->nodes, e->rails}, {}});
    }
    isolated_ = isolated_ || e->isolated;
    if (e->isolated == first->isolated)
      curves.back().points.push_back({static_cast<double>(e->bytes), e->median_ns});
  }
  if (!profile_.links.has_value()) return;
  for (const Curve& curve : curves_[{CommOp::kSend, 0}]) {
    if (curve.at.rails > 1) continue;
    (curve.at.nodes > 1 ? nic_ns_per_byte_ : port_ns_per_byte_) = SlopeAt(curve, INFINITY);
  }
}

double NetworkTable::SlopeAt(const Curve& curve, double bytes) {
  const std::vector<Point>& points = curve.points;
  if (points.size() == 1) return points[0].ns / points[0].bytes;
  // Of the segment from point i to the next.
  const auto slope = [&](size_t i) {
    return std::max(0.0,
                    (points[i + 1].ns - points[i].ns) / (points[i + 1].bytes - points[i].bytes));
  };
  const size_t last = points.size() - 2;
  const auto above =
      static_cast<size_t>(std::lower_bound(points.begin(), points.end(), bytes,
                                           [](const Point& p, double b) { return p.bytes < b; }) -
                          points.begin());
  if (above > last) return slope(last);
  if (above == 0) return slope(0);
  if (points[above].bytes != bytes) return slope(above - 1);
  // A measured size is in the regime of the segments on that side of it that are alike.
  const auto differ = [&](size_t i, size_t j) {
    return std::abs(slope(i) - slope(j)) / std::max({slope(i), slope(j), 1e-300});
  };
  if (above < 2 || above + 1 > last) return slope(above < 2 ? above : above - 1);
  return differ(above - 2, above - 1) <= differ(above, above + 1) ? slope(above - 1) : slope(above);
}

void NetworkTable::AddShares(CommOp op, const Curve& curve, double bytes, NetworkTime* time) const {
  if (!profile_.links.has_value()) return;
  const double busy = std::min(1.0, SlopeAt(curve, bytes) * bytes / At(curve, bytes).ns);
  if (curve.at.nodes == 1) {
    time->port = busy;
    return;
  }
  // What a byte takes where links are busy all the time; the busiest link's.
  const double ns_per_byte = SlopeAt(curve, INFINITY);
  const LinkBytes carried = LinkBytesOf(op, curve.at);
  const auto share = [&](double link_bytes, double link_ns_per_byte) {
    return ns_per_byte <= 0 ? 0 : busy * std::min(1.0, link_bytes * link_ns_per_byte / ns_per_byte);
  };
  time->port = share(carried.port, port_ns_per_byte_);
  time->nic = share(carried.nic, nic_ns_per_byte_);
}

NetworkTable::Value NetworkTable::At(const Curve& curve, double bytes) {
  const std::vector<Point>& points = curve.points;
  const auto above = std::lower_bound(points.begin(), points.end(), bytes,
                                      [](const Point& p, double b) { return p.bytes < b; });
  if (above != points.end() && above->bytes == bytes) return {above->ns, true};
  if (above == points.begin()) return {above->ns, false};
  if (above != points.end()) {
    const Point& below = *(above - 1);
    const double share = (bytes - below.bytes) / (above->bytes - below.bytes);
    return {below.ns + share * (above->ns - below.ns), false};
  }
  const Point& last = points.back();
  double ns_per_byte = last.ns / last.bytes;
  if (points.size() > 1) {
    const Point& before = points[points.size() - 2];
    const double slope = (last.ns - before.ns) / (last.bytes - before.bytes);
    if (slope > 0) ns_per_byte = slope;  // noise may make it fall
  }
  return {last.ns + (bytes - last.bytes) * ns_per_byte, false};
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
                                                uint64_t bytes, const Placement& at) const {
  if (op == CommOp::kRecv) op = CommOp::kSend;
  bool same_type = true;
  const std::vector<Curve>* curves = CurvesOf(op, nccl_type, &same_type);
  if (curves == nullptr || at.ranks < 2) return std::nullopt;
  const Curve *below = nullptr, *above = nullptr;
  for (const Curve& curve : *curves) {
    if ((curve.at.nodes > 1) != (at.nodes > 1)) continue;
    if (SameGroup(curve.at, at)) {
      const Value value = At(curve, static_cast<double>(bytes));
      NetworkTime time{std::llround(value.ns), value.measured && same_type
                                                   ? TimeSource::kMeasured
                                                   : TimeSource::kInterpolated};
      AddShares(op, curve, static_cast<double>(bytes), &time);
      return time;
    }
    const auto nodes_off = [&](const Curve* c) {
      return std::pair(Off(c->at.nodes, at.nodes), Off(c->at.rails, at.rails));
    };
    // The nearest number of ranks on either side, and of these the nearest number of nodes, then
    // of NICs.
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
  const auto scaled = [&](const Curve& curve) {
    return At(curve, static_cast<double>(bytes)).ns *
           static_cast<double>(CollectiveNs(gpu, op, bytes, at)) /
           static_cast<double>(CollectiveNs(gpu, op, bytes, curve.at));
  };
  double ns = scaled(below != nullptr ? *below : *above);
  if (below != nullptr && above != nullptr && below->at.ranks < at.ranks) {
    const double weight = std::log(static_cast<double>(at.ranks) / below->at.ranks) /
                          std::log(static_cast<double>(above->at.ranks) / below->at.ranks);
    ns = std::exp((1 - weight) * std::log(ns) + weight * std::log(scaled(*above)));
  }
  NetworkTime time{std::llround(ns), TimeSource::kInterpolated};
  AddShares(op, below != nullptr ? *below : *above, static_cast<double>(bytes), &time);
  return time;
}

}  // namespace prism::engine
