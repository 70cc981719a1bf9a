#include "src/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace prism {

absl::Status InParallel(size_t count, uint32_t threads,
                        const std::function<absl::Status(size_t)>& work) {
  if (threads == 0) threads = std::max(std::thread::hardware_concurrency(), 1u);
  std::atomic<size_t> next{0}, failed{count};  // the least number that failed
  std::mutex mutex;
  absl::Status failure;
  const auto run = [&] {
    for (size_t i = next++; i < failed; i = next++) {
      absl::Status status = work(i);
      if (status.ok()) continue;
      std::lock_guard lock(mutex);
      if (i < failed) {
        failed = i;
        failure = std::move(status);
      }
    }
  };
  std::vector<std::jthread> others;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) others.emplace_back(run);
  run();
  others.clear();  // waits for them
  return failure;
}

}  // namespace prism
