// The flows of Communicator: what collectives and messages take on the virtual clock.
#include <algorithm>
#include <tuple>

#include "hostcuda/clock/draw.h"
#include "hostcuda/nccl/communicator.h"

namespace hostnccl {
namespace {

// What jitter is drawn for: the collectives, or 1 + a pair of ranks.
constexpr uint64_t kOfCollectives = 0;

}  // namespace

bool Communicator::Departed(int rank) {
  return segment_->member(rank).departure.load(std::memory_order_acquire) != 0;
}

/// A process at its exit, to which all times have come.
bool Communicator::OffTheClock() const { return now_ns_ >= INT64_MAX; }

/// Begins a flow that this rank ends; 0: none is needed, or the communicator has failed.
uint64_t Communicator::BeginFlow(const Plan& plan, double jitter, int peer, OwnFlow* out) {
  *out = {0, 0, peer};
  if (OffTheClock()) return 0;
  if (free_events_.empty()) free_events_.push_back(platform_.event_new(platform_.doorbell_self()));
  const uint32_t event = free_events_.back();
  const uint64_t flow =
      event == UINT32_MAX ? 0 : flows_->Begin(now_ns_, plan.ns * jitter, plan.shares, event);
  if (flow == 0) {
    Fail(Error(Code::kSystemError,
               "%s: there are more communications under way in this session than the virtual clock "
               "has room for",
               segment_->NameOf(rank_).c_str()));
    return 0;
  }
  free_events_.pop_back();
  *out = {flow, event, peer};
  return flow;
}

void Communicator::EndFlow(OwnFlow* own) {
  if (own->flow == 0) return;
  if (!OffTheClock()) flows_->End(now_ns_, own->flow);
  free_events_.push_back(own->event);
  own->flow = 0;
}

void Communicator::DropFlows() {
  if (!platform_.takes_time()) return;
  now_ns_ = platform_.now_ns();
  EndFlow(&own_);
  for (OwnFlow& own : outgoing_) EndFlow(&own);
  outgoing_.clear();
}

// Everybody sees the same time when everything has come, so any member may begin the flow.
bool Communicator::AdvanceFlow() {
  Collective& run = collective_;
  SegmentHeader& header = segment_->header();
  const uint64_t ordinal = run.index + 1;
  uint64_t claim = header.flow_claim.load(std::memory_order_acquire);
  if (claim >> 16 < ordinal && header.flow_claim.compare_exchange_strong(
                                   claim, ordinal << 16 | static_cast<uint64_t>(rank_))) {
    const Signature signature = Signature::Of(*run.op);
    auto& patterns = patterns_[{signature.kind, signature.root}];
    if (patterns.empty())
      patterns = CollectivePatterns(*topology_, places_, signature.kind, signature.root);
    const double jitter = hostcuda::LogNormalFactor(topology_->sigma, topology_->seed,
                                                    {number_, kOfCollectives, run.index});
    header.flow.store(
        BeginFlow(PlanOf(*topology_, patterns, run.op->count * run.element), jitter, -1, &own_));
    return true;
  }
  uint64_t ended = header.flows_ended.load(std::memory_order_acquire);
  if (ended < ordinal && !OffTheClock()) {
    const bool own = static_cast<int>(claim & 0xffff) == rank_;
    if (!own && !Departed(static_cast<int>(claim & 0xffff))) return false;  // it rings at the end
    const uint64_t flow = header.flow.load();
    if (const uint64_t ends_ns = flows_->EndOf(flow); ends_ns > now_ns_) {
      if (!own) flow_wake_ns_ = std::min(flow_wake_ns_, ends_ns);
      return false;
    }
    if (own) {
      EndFlow(&own_);
    } else {
      flows_->End(now_ns_, flow);
    }
    if (header.flows_ended.compare_exchange_strong(ended, ordinal)) RingAll(true);
  }
  run.op = nullptr;
  return true;
}

uint64_t Communicator::BeginMessageFlow(int to, uint64_t bytes) {
  Peer& peer = peers_[to];
  if (!peer.has_pattern) {
    peer.pattern = MessagePattern(*topology_, places_[rank_], places_[to]);
    peer.has_pattern = true;
  }
  const uint64_t pair =
      static_cast<uint64_t>(rank_) * static_cast<uint64_t>(ranks_) + static_cast<uint64_t>(to);
  const double jitter = hostcuda::LogNormalFactor(
      topology_->sigma, topology_->seed, {number_, kOfCollectives + 1 + pair, peer.sent++});
  OwnFlow own;
  BeginFlow(PlanOf(*topology_, {peer.pattern}, bytes), jitter, to, &own);
  outgoing_.push_back(own);
  return own.flow;
}

// A message that has come before its receive was called is there at once, but for the call.
void Communicator::Arrives(int from, uint64_t flow) {
  arrivals_.push_back({flow, from, begun_ns_ + static_cast<uint64_t>(topology_->base_ns)});
}

bool Communicator::AdvanceMessageFlows() {
  const size_t before = outgoing_.size() + arrivals_.size();
  std::erase_if(outgoing_, [&](OwnFlow& own) {
    if (flows_->EndOf(own.flow) > now_ns_) return false;
    // Its links are free, whenever there is a slot for what it carries.
    if (!OffTheClock()) flows_->End(now_ns_, own.flow);
    const std::deque<OutgoingMessage>& unwritten = peers_[own.peer].sends;
    if (std::any_of(unwritten.begin(), unwritten.end(),
                    [&](const OutgoingMessage& message) { return message.flow == own.flow; })) {
      return false;
    }
    const uint64_t flow = own.flow;
    EndFlow(&own);
    if (segment_->member(own.peer).awaits_flow.load() == flow) Ring(own.peer);
    return true;
  });
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    const uint64_t ends_ns = std::max(flows_->EndOf(arrival.flow), arrival.not_before_ns);
    if (ends_ns <= now_ns_) {
      if (!OffTheClock()) flows_->End(now_ns_, arrival.flow);
      return true;
    }
    if (ends_ns == arrival.not_before_ns || Departed(arrival.from))
      flow_wake_ns_ = std::min(flow_wake_ns_, ends_ns);
    return false;
  });
  const size_t ended = before - outgoing_.size() - arrivals_.size();
  messages_left_ -= ended;
  return AwaitLastArrival() || ended != 0;
}

// A rank is rung for the end of one message at a time, the one that ends last as things are: it has
// nothing to do before. Returns whether that has ended meanwhile.
bool Communicator::AwaitLastArrival() {
  uint64_t last = 0, ends_ns = now_ns_;
  for (const Arrival& arrival : arrivals_) {
    const uint64_t arrives_ns = flows_->EndOf(arrival.flow);
    if (arrives_ns > ends_ns) std::tie(last, ends_ns) = std::pair(arrival.flow, arrives_ns);
  }
  // Stored before it is looked at again, as its sender ends it before it looks here: one of the two
  // sees the other.
  segment_->self().awaits_flow.store(last);
  return last != 0 && flows_->EndOf(last) <= now_ns_;
}

}  // namespace hostnccl
