// Flows: communications under way, and the links that they share.
//
// A flow has a time that it takes alone, and a share of each of its links meanwhile. Where the
// shares on a link come to more than a whole, all flows on it take that much longer; a flow on
// several such links the most of these (docs/design/0014-contention.md). Only time moves on here:
// whoever adds flows steps from event to event, and adds what follows from an event before the next
// step.
//
// Deterministic: shares are integers, so their sums have no order, and a flow's speed is that of
// the flows that are there when the time goes on. Single-threaded.
//
//   Flows flows(links);
//   const uint32_t flow = flows.Add(start_ns, alone_ns, shares);
//   while (flows.NextNs() != Flows::kNever)
//     for (const Flows::End& end : flows.Step()) ...
#ifndef PRISM_ENGINE_FLOWS_H_
#define PRISM_ENGINE_FLOWS_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "src/engine/indexed_heap.h"

namespace prism::engine {

/// Of a link, while a communication goes on: in units of 1 / kWholeLink.
struct LinkShare {
  uint32_t link;
  uint32_t share;
};
inline constexpr uint32_t kWholeLink = 1u << 30;

class Flows {
 public:
  static constexpr int64_t kNever = INT64_MAX;
  struct End {
    uint32_t flow;
    int64_t ns;
  };

  explicit Flows(uint32_t links) : links_(links + 1), link_places_(links + 1) {}

  /// Adds a flow that begins at `start_ns` and would take `alone_ns`; returns a number that is its
  /// own until it has ended. What begins before the last step's time has met nobody until then.
  uint32_t Add(int64_t start_ns, int64_t alone_ns, const std::vector<LinkShare>& shares);
  /// When the next flow begins or ends as things are; kNever: there are none.
  int64_t NextNs();
  /// Goes to NextNs(). Returns the flows that have ended by then, valid until the next call.
  const std::vector<End>& Step();

 private:
  struct Use {
    uint32_t link, share;
    uint32_t position;  // in the link's list
  };
  struct Flow {
    int64_t start_ns = 0, alone_ns = 0;
    uint32_t paced_by = 0;  // the link
    bool is_new = false;    // since the last speeds were given
    bool moving = false;    // in moving_
    std::vector<Use> uses;
  };
  /// A link paces the flows of which it is the most crowded, and has a clock on which they take the
  /// time that they take alone: what each has left follows from when it began there, and nothing is
  /// done to those that go on when the speed changes.
  struct Link {
    uint64_t load = 0, settled_load = 0;
    bool dirty = false;
    std::vector<std::pair<uint32_t, uint32_t>> flows;  // all, with the number of the use
    IndexedHeap<double> paced;                         // by when they end on the link's clock
    int64_t since_ns = 0;
    double clock_ns = 0, stretch = 1;  // at since_ns, and how much slower it goes from then on
    bool listed = false;               // in next_
  };
  struct Start {
    int64_t ns;
    uint32_t flow;
    bool operator>(const Start& other) const { return ns > other.ns; }
  };

  void Begin(uint32_t flow);
  void Remove(uint32_t flow);
  void Touch(uint32_t link);
  /// Gives links whose load has changed their speeds, and flows those that pace them now.
  void Settle();
  static double ClockAt(const Link& link, int64_t ns) {
    return link.clock_ns + static_cast<double>(ns - link.since_ns) / link.stretch;
  }
  uint32_t MostCrowded(const Flow& flow) const;
  /// The link's next end has changed.
  void Reschedule(uint32_t link);

  int64_t now_ns_ = INT64_MIN;
  std::vector<Link> links_;  // the last one paces flows that meet nobody
  std::vector<uint32_t> dirty_, new_, moving_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_;
  std::priority_queue<Start, std::vector<Start>, std::greater<>> begins_;
  IndexedHeap<int64_t> next_;  // links by the end of what ends first there
  std::vector<uint32_t> flow_places_, link_places_;
  std::vector<End> ended_;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_FLOWS_H_
