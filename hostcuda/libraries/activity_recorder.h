// Turns the driver's completed activities into CUPTI's records, with the correlation that profilers
// need.
//
// An activity is reported when it completes, which may be later and on another thread than the call
// that caused it. So the stack of external correlation ids is kept for each thread with its recent
// past, and looked up by the call's time.
//
// Times are kept in the job clock's nanoseconds and converted when they are delivered, to whatever
// clock the profiler registered (PyTorch: processor ticks), by a line through two readings of both
// clocks.
//
// Threading: everything may be called from any thread; one mutex, held for a few stores.
//
//   recorder.Push(3, 17); recorder.Add(activity, enabled); recorder.Pop(3, &id);
//   for (const Record& r : recorder.Take()) ...
#ifndef HOSTCUDA_LIBRARIES_ACTIVITY_RECORDER_H_
#define HOSTCUDA_LIBRARIES_ACTIVITY_RECORDER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hostcuda/internal_table.h"

namespace hostcuda {

class ActivityRecorder {
 public:
  static constexpr int kExternalKinds = 6;            // CUPTI_EXTERNAL_CORRELATION_KIND_SIZE
  static constexpr size_t kRememberedChanges = 8192;  // of a thread's stacks

  struct Record {
    HostcudaActivity activity;
    uint64_t enabled;    // bit k: records of CUPTI_ACTIVITY_KIND k were wanted when it completed
    bool first_of_call;  // the first activity of its API call; a graph launch has many
    std::array<uint64_t, kExternalKinds> external;
    uint32_t external_kinds;  // bit k: external[k] is set
  };

  /// Pushes `id` for the calling thread `thread` at job time `now_ns`.
  void Push(uint32_t thread, int kind, uint64_t id, uint64_t now_ns);
  /// Pops; false where the stack is empty.
  bool Pop(uint32_t thread, int kind, uint64_t now_ns, uint64_t* id);
  void Add(const HostcudaActivity& activity, uint64_t enabled);
  /// Returns and forgets what was added.
  std::vector<Record> Take();

 private:
  struct Change {
    uint64_t at_ns;
    std::array<uint64_t, kExternalKinds> top;
    uint32_t kinds;
  };
  struct ThreadStacks {
    std::array<std::vector<uint64_t>, kExternalKinds> stacks;
    std::deque<Change> changes;  // tops after each push and pop, by time
  };
  void Remember(ThreadStacks& stacks, uint64_t now_ns);

  std::mutex mutex_;
  std::unordered_map<uint32_t, ThreadStacks> threads_;
  std::vector<Record> records_;
  uint32_t last_correlation_ = 0;
};

/// Two readings of the job clock and of the profiler's clock; maps times of the first to the
/// second.
class ClockMap {
 public:
  using Reading = std::pair<uint64_t, uint64_t>;  // job clock ns, profiler's clock
  void Start(Reading reading) { start_ = end_ = reading; }
  void End(Reading reading) { end_ = reading; }
  uint64_t operator()(uint64_t job_ns) const;

 private:
  Reading start_{0, 0}, end_{0, 0};
};

}  // namespace hostcuda

#endif  // HOSTCUDA_LIBRARIES_ACTIVITY_RECORDER_H_
