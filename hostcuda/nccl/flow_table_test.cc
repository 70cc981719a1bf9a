// Flows that share links: closed forms, and a simulation that steps from event to event and knows
// nothing of the table.
#include "hostcuda/nccl/flow_table.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace hostnccl {
namespace {

// The clock's events, played.
std::map<uint32_t, uint64_t> events;
int moves = 0;
bool dies = false;
void SetEvent(uint32_t event, uint64_t at_ns) {
  if (dies) raise(SIGKILL);
  events[event] = at_ns;
  ++moves;
}

class FlowTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    events.clear();
    moves = 0;
    table_ = FlowTable::ForTesting(SetEvent);
  }
  std::unique_ptr<FlowTable> table_;
};

constexpr uint32_t kHalf = kWholeLink / 2, kQuarter = kWholeLink / 4;

TEST_F(FlowTableTest, FlowAlone_EndsInItsTimeAndIsScheduledOnce) {
  const uint64_t flow = table_->Begin(1000, 500, {{1, kWholeLink}, {2, kHalf}}, 7);
  EXPECT_EQ(events[7], 1500u);
  EXPECT_EQ(table_->EndOf(flow), 1500u);
  table_->End(1500, flow);
  EXPECT_EQ(table_->EndOf(flow), 0u);
  EXPECT_EQ(moves, 1);
}

TEST_F(FlowTableTest, FlowsThatTogetherNeedNoMoreThanTheirLinks_DoNotMeet) {
  table_->Begin(0, 1000, {{1, kHalf}, {2, kWholeLink}}, 1);
  table_->Begin(100, 1000, {{1, kHalf}, {3, kWholeLink}}, 2);
  EXPECT_EQ(events[1], 1000u);
  EXPECT_EQ(events[2], 1100u);
  EXPECT_EQ(moves, 2);
}

TEST_F(FlowTableTest, TwoFlowsOnOneLink_ShareIt) {
  const uint64_t a = table_->Begin(0, 1000, {{1, kWholeLink}}, 1);
  const uint64_t b = table_->Begin(500, 1000, {{1, kWholeLink}}, 2);
  // Half of the first is left, at half the speed.
  EXPECT_EQ(events[1], 1500u);
  EXPECT_EQ(events[2], 2500u);
  table_->End(1500, a);
  // The second has done 500 of 1000.
  EXPECT_EQ(events[2], 2000u);
  table_->End(2000, b);
  // What comes afterwards is alone.
  table_->Begin(2000, 1000, {{1, kWholeLink}}, 3);
  EXPECT_EQ(events[3], 3000u);
}

TEST_F(FlowTableTest, FlowOnSeveralLinks_GoesAsTheMostCrowdedOne) {
  table_->Begin(0, 1200, {{1, kWholeLink}, {2, kHalf}}, 1);
  table_->Begin(0, 1200, {{2, kWholeLink}, {3, kQuarter}}, 2);
  table_->Begin(0, 1200, {{1, kWholeLink}}, 3);
  EXPECT_EQ(events[1], 2400u);
  EXPECT_EQ(events[2], 1800u);
  EXPECT_EQ(events[3], 2400u);
}

TEST_F(FlowTableTest, FlowsThatAreOver_NoLongerSlowOthers) {
  table_->Begin(0, 1000, {{1, kWholeLink}}, 1);  // whose process does not end it
  const uint64_t b = table_->Begin(1000, 1000, {{1, kWholeLink}}, 2);
  EXPECT_EQ(events[2], 2000u);
  EXPECT_EQ(table_->EndOf(b), 2000u);
}

// ---- against a simulation

struct Job {
  uint64_t begins_ns;
  double alone_ns;
  std::vector<LinkShare> shares;
};

/// Steps from event to event; speeds are found anew at each from all that goes on.
std::vector<uint64_t> Simulate(const std::vector<Job>& jobs) {
  std::vector<long double> left(jobs.size());
  std::vector<uint64_t> ends(jobs.size(), 0);
  for (size_t i = 0; i < jobs.size(); ++i) left[i] = jobs[i].alone_ns;
  long double now = 0;
  for (;;) {
    std::map<uint32_t, long double> load;
    const auto runs = [&](size_t i) { return jobs[i].begins_ns <= now && ends[i] == 0; };
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!runs(i)) continue;
      for (const LinkShare& use : jobs[i].shares)
        load[use.link] += static_cast<long double>(use.share) / kWholeLink;
    }
    const auto stretch = [&](size_t i) {
      long double most = 1;
      for (const LinkShare& use : jobs[i].shares) most = std::max(most, load[use.link]);
      return most;
    };
    long double next = INFINITY;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (jobs[i].begins_ns > now) next = std::min<long double>(next, jobs[i].begins_ns);
      // Ends are whole nanoseconds; the 1e-4 is far above what is lost in 2^-16 ns.
      if (runs(i)) next = std::min(next, std::ceil(now + left[i] * stretch(i) - 1e-4L));
    }
    if (std::isinf(next)) return ends;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (runs(i)) left[i] -= (next - now) / stretch(i);
    }
    now = next;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (runs(i) && jobs[i].begins_ns < now && left[i] < 1e-4L)
        ends[i] = static_cast<uint64_t>(now);
    }
  }
}

/// Plays the jobs on a table as processes would: whatever falls on one time in an order drawn by
/// `order`.
std::vector<uint64_t> Play(const std::vector<Job>& jobs, unsigned order) {
  events.clear();
  const auto table = FlowTable::ForTesting(SetEvent);
  std::mt19937 random(order);
  std::vector<uint64_t> ends(jobs.size(), 0), numbers(jobs.size(), 0);
  for (;;) {
    uint64_t now = UINT64_MAX;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (ends[i] != 0) continue;
      now = std::min(now, numbers[i] == 0 ? jobs[i].begins_ns : events[static_cast<uint32_t>(i)]);
    }
    if (now == UINT64_MAX) return ends;
    // Until nothing is left to be done at this time: what one does may bring another's end here.
    for (bool any = true; any;) {
      any = false;
      std::vector<size_t> turn(jobs.size());
      for (size_t i = 0; i < turn.size(); ++i) turn[i] = i;
      std::shuffle(turn.begin(), turn.end(), random);
      for (const size_t i : turn) {
        const auto event = static_cast<uint32_t>(i);
        if (numbers[i] == 0 && jobs[i].begins_ns == now) {
          numbers[i] = table->Begin(now, jobs[i].alone_ns, jobs[i].shares, event);
          any = true;
        } else if (numbers[i] != 0 && ends[i] == 0 && events[event] <= now) {
          EXPECT_LE(table->EndOf(numbers[i]), now);
          table->End(now, numbers[i]);
          ends[i] = now;
          any = true;
        }
      }
    }
  }
}

std::vector<Job> RandomJobs(unsigned seed) {
  std::mt19937 random(seed);
  const auto draw = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::vector<Job> jobs(40);
  for (Job& job : jobs) {
    job.begins_ns = 1 + draw(20) * 250;  // many at one time
    job.alone_ns = 100 + draw(64) * 31.25;
    for (uint32_t link = 0; link < 8; ++link) {
      if (draw(3) == 0) job.shares.push_back({link, kWholeLink / 16 * (1 + draw(16))});
    }
  }
  return jobs;
}

TEST(FlowTableSimulationTest, RandomFlows_EndWhenASimulationSays) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const std::vector<Job> jobs = RandomJobs(seed);
    const std::vector<uint64_t> simulated = Simulate(jobs), played = Play(jobs, 0);
    // An end may fall on the other side of a whole nanosecond, and move others' by a part of one.
    for (size_t i = 0; i < jobs.size(); ++i)
      EXPECT_NEAR(static_cast<double>(played[i]), static_cast<double>(simulated[i]), 2)
          << "seed " << seed << ", flow " << i;
  }
}

TEST(FlowTableSimulationTest, OrderAtOneTime_DoesNotMatter) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const std::vector<Job> jobs = RandomJobs(seed);
    const std::vector<uint64_t> first = Play(jobs, 1);
    for (unsigned order = 2; order < 12; ++order) EXPECT_EQ(Play(jobs, order), first) << seed;
  }
}

// ---- processes

TEST_F(FlowTableTest, ProcessKilledWithinTheTable_LeavesItWhole) {
  const uint64_t own = table_->Begin(0, 1000, {{1, kWholeLink}, {2, kHalf}}, 1);
  const pid_t child = fork();
  if (child == 0) {
    dies = true;
    table_->Begin(0, 1000, {{1, kWholeLink}}, 2);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  // It got as far as its flow, not to the others' ends: they notice 500 ns later, and a third
  // comes.
  const uint64_t third = table_->Begin(500, 1000, {{1, kWholeLink}}, 3);
  EXPECT_EQ(table_->EndOf(own), 500u + 500 * 3);
  table_->End(500, third);
  EXPECT_EQ(table_->EndOf(own), 500u + 500 * 2);
  // The dead process's flow is over at 1500, too, and slows nobody after that.
  table_->End(1500, own);
  table_->Begin(1500, 100, {{1, kWholeLink}}, 4);
  EXPECT_EQ(events[4], 1600u);
}

TEST(FlowTableFileTest, ProcessesOfASession_ShareATableThatTheLastOneRemoves) {
  const std::string session = "flow-table-test-" + std::to_string(getpid());
  std::string error;
  auto first = FlowTable::Open(session, SetEvent, &error);
  ASSERT_NE(first, nullptr) << error;
  auto second = FlowTable::Open(session, SetEvent, &error);
  ASSERT_NE(second, nullptr) << error;
  const uint64_t flow = first->Begin(0, 1000, {{1, kWholeLink}}, 1);
  EXPECT_EQ(second->EndOf(flow), 1000u);
  first.reset();
  EXPECT_EQ(second->EndOf(flow), 1000u);
  second.reset();
  // A new table, without the flow.
  auto third = FlowTable::Open(session, SetEvent, &error);
  ASSERT_NE(third, nullptr) << error;
  EXPECT_EQ(third->EndOf(flow), 0u);
}

TEST_F(FlowTableTest, MoreFlowsThanThereIsRoomFor_AreRefused) {
  uint64_t last = 1;
  int flows = 0;
  while ((last = table_->Begin(0, 1000, {}, 1)) != 0) ++flows;
  EXPECT_EQ(flows, 1 << 16);
}

}  // namespace
}  // namespace hostnccl
