#include "src/base/parallel.h"

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism {
namespace {

TEST(InParallel, DoesEveryPieceOnce) {
  for (const uint32_t threads : {0u, 1u, 3u, 100u}) {
    std::vector<std::atomic<int>> done(50);
    EXPECT_TRUE(InParallel(done.size(), threads, [&](size_t i) {
                  ++done[i];
                  return absl::OkStatus();
                }).ok());
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
  EXPECT_TRUE(InParallel(0, 2, [](size_t) { return absl::InternalError("called"); }).ok());
}

TEST(InParallel, RunsAsManyAtOnceAsItHasThreads) {
  // Every piece waits until three are under way.
  std::atomic<int> under_way{0};
  EXPECT_TRUE(InParallel(3, 3, [&](size_t) {
                ++under_way;
                while (under_way < 3) std::this_thread::yield();
                return absl::OkStatus();
              }).ok());
}

TEST(InParallel, TellsOfTheFirstFailureByNumber) {
  for (int i = 0; i < 100; ++i) {
    const absl::Status status = InParallel(20, 4, [](size_t piece) {
      return piece % 5 == 3 ? absl::InternalError(absl::StrCat("piece ", piece)) : absl::OkStatus();
    });
    ASSERT_EQ(status.message(), "piece 3");
  }
}

}  // namespace
}  // namespace prism
