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
    flow_places_.push_back(0);
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[number];
  flow.start_ns = start_ns;
  flow.alone_ns = alone_ns;
  flow.uses.clear();
  for (const LinkShare& s : shares) {
    if (s.share != 0) flow.uses.push_back({s.link, s.share, 0});
  }
  begins_.push({start_ns, number});
  return number;
}

void Flows::Touch(uint32_t link) {
  if (links_[link].dirty) return;
  links_[link].dirty = true;
  dirty_.push_back(link);
}

void Flows::Reschedule(uint32_t number) {
  Link& link = links_[number];
  if (link.paced.empty()) {
    if (link.listed) next_.Remove(number, &link_places_);
    link.listed = false;
    return;
  }
  const double left_ns = link.paced.front().key - link.clock_ns;
  const int64_t end_ns =
      link.since_ns + static_cast<int64_t>(std::ceil(left_ns * link.stretch - kRounding));
  if (link.listed) {
    next_.Change(number, end_ns, &link_places_);
  } else {
    next_.Push(number, end_ns, &link_places_);
  }
  link.listed = true;
}

void Flows::Begin(uint32_t number) {
  Flow& flow = flows_[number];
  // It meets others when these are next given their speeds.
  flow.paced_by = static_cast<uint32_t>(links_.size() - 1);
  flow.is_new = true;
  new_.push_back(number);
  Link& alone = links_[flow.paced_by];
  alone.paced.Push(number, static_cast<double>(flow.start_ns + flow.alone_ns), &flow_places_);
  Reschedule(flow.paced_by);
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
  flow.is_new = false;
  links_[flow.paced_by].paced.Remove(number, &flow_places_);
  Reschedule(flow.paced_by);
  for (const Use& use : flow.uses) {
    Link& link = links_[use.link];
    link.load -= use.share;
    const auto [moved, its_use] = link.flows.back();
    link.flows[use.position] = {moved, its_use};
    flows_[moved].uses[its_use].position = use.position;
    link.flows.pop_back();
    Touch(use.link);
  }
  free_.push_back(number);
}

uint32_t Flows::MostCrowded(const Flow& flow) const {
  auto most = static_cast<uint32_t>(links_.size() - 1);
  uint64_t load = kWholeLink;
  for (const Use& use : flow.uses) {
    if (links_[use.link].load <= load) continue;
    most = use.link;
    load = links_[use.link].load;
  }
  return most;
}

void Flows::Settle() {
  moving_.clear();
  // Once each: a communication of many ranks has many links, whose loads change together.
  const auto moves = [&](uint32_t number) {
    if (!std::exchange(flows_[number].moving, true)) moving_.push_back(number);
  };
  for (const uint32_t number : dirty_) {
    Link& link = links_[number];
    link.dirty = false;
    const uint64_t before = std::exchange(link.settled_load, link.load);
    if (link.load == before || std::max(link.load, before) <= kWholeLink) continue;
    link.clock_ns = ClockAt(link, now_ns_);
    link.since_ns = now_ns_;
    link.stretch = static_cast<double>(std::max<uint64_t>(link.load, kWholeLink)) / kWholeLink;
    // Who is paced by another may be paced by a more crowded link, who is paced by this one by a
    // less crowded one no longer.
    if (link.load > before) {
      for (const auto& [flow, its_use] : link.flows) {
        if (flows_[flow].paced_by != number) moves(flow);
      }
    } else {
      for (const auto& entry : link.paced.entries()) moves(entry.number);
    }
    Reschedule(number);
  }
  dirty_.clear();
  // Also where one has come as another went: the link's speed is the same.
  for (const uint32_t number : new_) {
    if (std::exchange(flows_[number].is_new, false)) moves(number);
  }
  new_.clear();
  for (const uint32_t number : moving_) {
    Flow& flow = flows_[number];
    flow.moving = false;
    const uint32_t to = MostCrowded(flow);
    if (to == flow.paced_by) continue;
    Link &from_link = links_[flow.paced_by], &to_link = links_[to];
    const double left_ns =
        from_link.paced.entries()[flow_places_[number]].key - ClockAt(from_link, now_ns_);
    from_link.paced.Remove(number, &flow_places_);
    Reschedule(flow.paced_by);
    flow.paced_by = to;
    to_link.paced.Push(number, ClockAt(to_link, now_ns_) + left_ns, &flow_places_);
    Reschedule(to);
  }
}

int64_t Flows::NextNs() {
  // Nothing more begins at this time only when all that has been added has begun.
  if (!begins_.empty() && begins_.top().ns <= now_ns_) return begins_.top().ns;
  if (!dirty_.empty()) Settle();
  return std::min(begins_.empty() ? kNever : begins_.top().ns,
                  next_.empty() ? kNever : next_.front().key);
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
  while (!next_.empty() && next_.front().key <= now_ns_) {
    const uint32_t flow = links_[next_.front().number].paced.front().number;
    ended_.push_back({flow, next_.front().key});
    Remove(flow);
  }
  return ended_;
}

}  // namespace prism::engine
