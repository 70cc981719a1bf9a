#include "src/engine/flows.h"

#include <algorithm>
#include <cmath>

namespace prism::engine {
namespace {

// Ends are the first whole nanosecond; what sums of fractions are off by is far less than this.
constexpr double kRounding = 1e-3;

}  // namespace

uint32_t Flows::Add(int64_t start_ns, int64_t alone_ns, const std::vector<LinkShare>& shares) {
  uint32_t number = static_cast<uint32_t>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[number];
  flow.since_ns = start_ns;
  flow.left_ns = static_cast<double>(alone_ns);
  flow.stretch = 1;
  flow.uses.clear();
  for (const LinkShare& s : shares) {
    if (s.share != 0) flow.uses.push_back({s.link, s.share, 0});
  }
  begins_.push({start_ns, number, 0});
  return number;
}

void Flows::Schedule(uint32_t number, Flow& flow) {
  flow.ends_ns =
      flow.since_ns + static_cast<int64_t>(std::ceil(flow.left_ns * flow.stretch - kRounding));
  ends_.push({flow.ends_ns, number, ++flow.changes});
}

void Flows::Touch(uint32_t link) {
  if (links_[link].dirty) return;
  links_[link].dirty = true;
  dirty_.push_back(link);
}

void Flows::Begin(uint32_t number) {
  Flow& flow = flows_[number];
  Schedule(number, flow);
  for (uint32_t i = 0; i < flow.uses.size(); ++i) {
    Use& use = flow.uses[i];
    Link& link = links_[use.link];
    link.load += use.share;
    use.position = static_cast<uint32_t>(link.flows.size());
    link.flows.emplace_back(number, i);
    Touch(use.link);
  }
}

void Flows::Remove(uint32_t number) {
  Flow& flow = flows_[number];
  for (const Use& use : flow.uses) {
    Link& link = links_[use.link];
    link.load -= use.share;
    const auto [moved, its_use] = link.flows.back();
    link.flows[use.position] = {moved, its_use};
    flows_[moved].uses[its_use].position = use.position;
    link.flows.pop_back();
    Touch(use.link);
  }
  ++flow.changes;
  free_.push_back(number);
}

void Flows::Settle() {
  ++round_;
  for (const uint32_t number : dirty_) {
    Link& link = links_[number];
    link.dirty = false;
    const bool matters = std::max(link.load, link.settled_load) > kWholeLink;
    link.settled_load = link.load;
    if (!matters) continue;
    for (const auto& [other, its_use] : link.flows) {
      Flow& flow = flows_[other];
      if (flow.round == round_ || flow.ends_ns <= now_ns_) continue;
      flow.round = round_;
      uint64_t most = kWholeLink;
      for (const Use& use : flow.uses) most = std::max(most, links_[use.link].load);
      const double stretch = static_cast<double>(most) / kWholeLink;
      if (stretch == flow.stretch) continue;
      flow.left_ns -= static_cast<double>(now_ns_ - flow.since_ns) / flow.stretch;
      flow.since_ns = now_ns_;
      flow.stretch = stretch;
      Schedule(other, flow);
    }
  }
  dirty_.clear();
}

void Flows::DropStale() {
  while (!ends_.empty() && flows_[ends_.top().flow].changes != ends_.top().changes) ends_.pop();
}

int64_t Flows::NextNs() {
  // Nothing more begins at this time only when all that has been added has begun.
  if (!begins_.empty() && begins_.top().ns <= now_ns_) return begins_.top().ns;
  if (!dirty_.empty()) Settle();
  DropStale();
  return std::min(begins_.empty() ? kNever : begins_.top().ns,
                  ends_.empty() ? kNever : ends_.top().ns);
}

const std::vector<Flows::End>& Flows::Step() {
  ended_.clear();
  const int64_t next_ns = NextNs();
  if (next_ns == kNever) return ended_;
  now_ns_ = std::max(now_ns_, next_ns);
  while (!begins_.empty() && begins_.top().ns <= now_ns_) {
    const uint32_t flow = begins_.top().flow;
    begins_.pop();
    Begin(flow);
  }
  for (DropStale(); !ends_.empty() && ends_.top().ns <= now_ns_; DropStale()) {
    const uint32_t flow = ends_.top().flow;
    ended_.push_back({flow, ends_.top().ns});
    ends_.pop();
    Remove(flow);
  }
  return ended_;
}

}  // namespace prism::engine
