#include "src/engine/flows.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism::engine {
namespace {

using ::testing::ElementsAre;

struct Job {
  int64_t start_ns, alone_ns;
  std::vector<LinkShare> shares;
};

constexpr uint32_t kLinks = 6;
constexpr uint32_t kHalf = kWholeLink / 2, kQuarter = kWholeLink / 4;

// When each of the jobs ends.
std::vector<int64_t> Ends(const std::vector<Job>& jobs) {
  Flows flows(kLinks);
  std::map<uint32_t, size_t> job_of;
  for (size_t i = 0; i < jobs.size(); ++i)
    job_of[flows.Add(jobs[i].start_ns, jobs[i].alone_ns, jobs[i].shares)] = i;
  std::vector<int64_t> ends(jobs.size(), -1);
  while (flows.NextNs() != Flows::kNever) {
    for (const Flows::End& end : flows.Step()) ends[job_of.at(end.flow)] = end.ns;
  }
  return ends;
}

// The same, told in small steps of time: in each, everybody who has begun and has work left does
// some of it. Knows nothing of events.
std::vector<double> EndsInSteps(const std::vector<Job>& jobs, double step_ns) {
  std::vector<double> left, ends(jobs.size(), -1);
  for (const Job& job : jobs) left.push_back(static_cast<double>(job.alone_ns));
  for (double now = 0; std::count(ends.begin(), ends.end(), -1) > 0; now += step_ns) {
    double load[kLinks] = {};
    const auto at_work = [&](size_t i) {
      return static_cast<double>(jobs[i].start_ns) <= now && left[i] > 0;
    };
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!at_work(i)) continue;
      for (const LinkShare& s : jobs[i].shares) load[s.link] += double{1} * s.share / kWholeLink;
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!at_work(i)) continue;
      double longer = 1;
      for (const LinkShare& s : jobs[i].shares) longer = std::max(longer, load[s.link]);
      const double does = step_ns / longer;
      if (left[i] <= does) ends[i] = now + left[i] * longer;
      left[i] -= does;
    }
  }
  return ends;
}

void ExpectEndsAsInSteps(const std::vector<Job>& jobs, int round) {
  const std::vector<int64_t> ends = Ends(jobs);
  constexpr double kStepNs = 0.05;
  const std::vector<double> expected = EndsInSteps(jobs, kStepNs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    // A step that an end or a begin falls into is wrong by itself at most, and there are two a
    // flow; ends are whole nanoseconds.
    EXPECT_NEAR(static_cast<double>(ends[i]), expected[i],
                1 + kStepNs * 4 * static_cast<double>(jobs.size()))
        << round << " " << i;
  }
}

TEST(FlowsTest, FlowsThatLeaveRoomDoNotMeet) {
  EXPECT_THAT(Ends({{0, 1000, {{0, kHalf}}}, {100, 500, {{0, kHalf}}}, {0, 70, {}}}),
              ElementsAre(1000, 600, 70));
}

TEST(FlowsTest, TwoThatFillALinkHalveItWhileBothAreThere) {
  // 400 alone, then both at half the speed until the second has done its 300 by 1000, then 300
  // left.
  EXPECT_THAT(Ends({{0, 1000, {{0, kWholeLink}}}, {400, 300, {{0, kWholeLink}}}}),
              ElementsAre(1300, 1000));
}

// The link is as full as before: only who is on it has changed.
TEST(FlowsTest, OneThatComesAsAnotherGoesMeetsWhoIsThere) {
  EXPECT_THAT(Ends({{0, 100, {{0, kWholeLink}}},
                    {0, 200, {{0, kWholeLink}}},
                    {200, 100, {{0, kWholeLink}}}}),
              ElementsAre(200, 400, 400));
}

TEST(FlowsTest, TheMostCrowdedOfItsLinksSlowsAFlow) {
  const uint32_t three = kQuarter * 3;
  // Link 0 carries 1.5 and link 1 carries 1.75 until the first flow has ended, 1.75 times as late;
  // by then the second has done two thirds of that, the third four sevenths.
  EXPECT_THAT(Ends({{0, 720, {{0, three}, {1, three}}},
                    {0, 1000, {{0, three}}},
                    {0, 1000, {{1, kWholeLink}}}}),
              ElementsAre(1260, 1260 + (1000 - 840), 1260 + (1000 - 720)));
}

TEST(FlowsTest, WhatBeginsInThePastHasMetNobodyUntilNow) {
  Flows flows(1);
  flows.Add(0, 1000, {{0, kWholeLink}});
  EXPECT_EQ(flows.NextNs(), 0);
  EXPECT_TRUE(flows.Step().empty());
  const uint32_t other = flows.Add(600, 10, {});
  EXPECT_EQ(flows.NextNs(), 600);
  flows.Step();  // now it is 600
  ASSERT_EQ(flows.NextNs(), 610);
  ASSERT_EQ(flows.Step()[0].flow, other);
  const uint32_t over = flows.Add(100, 500, {{0, kWholeLink}});
  const uint32_t late = flows.Add(210, 500, {{0, kWholeLink}});
  std::map<uint32_t, int64_t> ends;
  while (flows.NextNs() != Flows::kNever) {
    for (const Flows::End& end : flows.Step()) ends[end.flow] = end.ns;
  }
  EXPECT_EQ(ends[over], 600);
  EXPECT_EQ(ends[late], 810);  // 100 left at 610, at half the speed
  EXPECT_EQ(ends[0], 1100);
}

std::vector<Job> Random(std::mt19937* random, size_t count) {
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>((*random)() % n); };
  std::vector<Job> jobs;
  for (size_t i = 0; i < count; ++i) {
    // Some begin together, so that several change at one time.
    Job job{500 * below(8), 200 + below(4000), {}};
    for (uint32_t link = 0; link < kLinks; ++link) {
      if (below(3) == 0) job.shares.push_back({link, 1 + below(kWholeLink)});
    }
    jobs.push_back(job);
  }
  return jobs;
}

TEST(FlowsTest, RandomFlowsEndAsInASimulationInSmallSteps) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const std::vector<Job> jobs = Random(&random, 2 + round % 9);
    ExpectEndsAsInSteps(jobs, round);
  }
}

// An all-to-all: each flow uses its sender's port and its receiver's, so the most crowded of its
// links changes as others end.
TEST(FlowsTest, MessagesOfAnAllToAllEndAsInASimulationInSmallSteps) {
  constexpr uint32_t kRanks = kLinks / 2;
  std::mt19937 random(11);
  for (int round = 0; round < 10; ++round) {
    std::vector<Job> jobs;
    for (uint32_t from = 0; from < kRanks; ++from) {
      const int64_t start_ns = random() % 500;
      for (int message = 0; message < 4; ++message) {
        const auto to = static_cast<uint32_t>(kRanks + random() % kRanks);
        const auto share = static_cast<uint32_t>(kHalf + random() % kHalf);
        jobs.push_back(
            {start_ns, 100 + static_cast<int64_t>(random() % 900), {{from, share}, {to, share}}});
      }
    }
    ExpectEndsAsInSteps(jobs, round);
  }
}

TEST(FlowsTest, OrderOfFlowsDoesNotMatter) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const std::vector<Job> jobs = Random(&random, 12);
    const std::vector<int64_t> ends = Ends(jobs);
    std::vector<size_t> order(jobs.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Job> other;
    for (const size_t i : order) {
      other.push_back(jobs[i]);
      std::shuffle(other.back().shares.begin(), other.back().shares.end(), random);
    }
    const std::vector<int64_t> of_other = Ends(other);
    for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(of_other[i], ends[order[i]]);
  }
}

}  // namespace
}  // namespace prism::engine
