#include "hostcuda/libraries/activity_recorder.h"

#include <algorithm>

namespace hostcuda {

void ActivityRecorder::Remember(ThreadStacks& stacks, uint64_t now_ns) {
  Change change{now_ns, {}, 0};
  for (size_t kind = 0; kind < kExternalKinds; ++kind) {
    if (stacks.stacks[kind].empty()) continue;
    change.top[kind] = stacks.stacks[kind].back();
    change.kinds |= 1u << kind;
  }
  stacks.changes.push_back(change);
  if (stacks.changes.size() > kRememberedChanges) stacks.changes.pop_front();
}

void ActivityRecorder::Push(uint32_t thread, int kind, uint64_t id, uint64_t now_ns) {
  if (kind < 0 || kind >= kExternalKinds) return;
  std::lock_guard<std::mutex> lock(mutex_);
  ThreadStacks& stacks = threads_[thread];
  stacks.stacks[static_cast<size_t>(kind)].push_back(id);
  Remember(stacks, now_ns);
}

bool ActivityRecorder::Pop(uint32_t thread, int kind, uint64_t now_ns, uint64_t* id) {
  if (kind < 0 || kind >= kExternalKinds) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  ThreadStacks& stacks = threads_[thread];
  std::vector<uint64_t>& stack = stacks.stacks[static_cast<size_t>(kind)];
  if (stack.empty()) return false;
  if (id) *id = stack.back();
  stack.pop_back();
  Remember(stacks, now_ns);
  return true;
}

void ActivityRecorder::Add(const HostcudaActivity& activity, uint64_t enabled) {
  std::lock_guard<std::mutex> lock(mutex_);
  Record record{activity, enabled, activity.correlation != last_correlation_, {}, 0};
  last_correlation_ = activity.correlation;
  if (auto found = threads_.find(activity.thread);
      found != threads_.end() && !found->second.changes.empty()) {
    // The last change at or before the call. A clock that stands still gives equal times: then the
    // latest one counts.
    const std::deque<Change>& changes = found->second.changes;
    auto after = std::upper_bound(changes.begin(), changes.end(), activity.enqueue_start_ns,
                                  [](uint64_t at, const Change& c) { return at < c.at_ns; });
    if (after != changes.begin()) {
      const Change& change = *std::prev(after);
      record.external = change.top;
      record.external_kinds = change.kinds;
    }
  }
  records_.push_back(record);
}

std::vector<ActivityRecorder::Record> ActivityRecorder::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(records_, {});
}

uint64_t ClockMap::operator()(uint64_t job_ns) const {
  const auto [job0, other0] = start_;
  const auto [job1, other1] = end_;
  const double slope =
      job1 > job0 ? static_cast<double>(other1 - other0) / static_cast<double>(job1 - job0) : 1.0;
  return static_cast<uint64_t>(static_cast<double>(other1) -
                               slope * (static_cast<double>(job1) - static_cast<double>(job_ns)));
}

}  // namespace hostcuda
