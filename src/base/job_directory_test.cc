#include "src/base/job_directory.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class JobDirectoryTest : public testing::Test {
 protected:
  JobDirectoryTest() {
    char name[] = "/tmp/prism-job-test-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~JobDirectoryTest() override { fs::remove_all(root_); }
  std::string root_;
};

TEST_F(JobDirectoryTest, StateSurvivesAndSaysWhy) {
  auto job = JobDirectory::Create(root_ + "/j/", false, 1, 1);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->path(), root_ + "/j");
  EXPECT_TRUE(fs::is_directory(job->trace_directory()));
  EXPECT_EQ(JobDirectory::Open(job->path())->state(), JobDirectory::State::kRunning);
  ASSERT_TRUE(job->Seal(JobDirectory::State::kFailed, "rank 3 raised").ok());
  const auto again = JobDirectory::Open(job->path());
  EXPECT_EQ(again->state(), JobDirectory::State::kFailed);
  EXPECT_EQ(again->reason(), "rank 3 raised");
}

TEST_F(JobDirectoryTest, RunningWithoutItsProcessIsInterrupted) {
  auto job = JobDirectory::Create(root_ + "/j", false, 1, 1);
  job->info()["controller_pid"] = 0x3fffffff;
  ASSERT_TRUE(job->Save().ok());
  const auto again = JobDirectory::Open(root_ + "/j");
  EXPECT_EQ(again->state(), JobDirectory::State::kInterrupted);
  EXPECT_THAT(again->reason(), HasSubstr("ended before the job did"));
  // A later process of the same number is not its.
  job->info()["controller_pid"] = getpid();
  job->info()["controller_start"] = 1;
  ASSERT_TRUE(job->Save().ok());
  EXPECT_EQ(JobDirectory::Open(root_ + "/j")->state(), JobDirectory::State::kInterrupted);
  EXPECT_TRUE(JobDirectory::Create(root_ + "/j", true, 1, 1).ok());
}

TEST_F(JobDirectoryTest, AnEarlierJobIsReplacedOnlyByForce) {
  auto job = JobDirectory::Create(root_ + "/j", false, 1, 1);
  ASSERT_TRUE(job.ok());
  const std::vector<std::string> files{"/j/trace/rank-00000.prt", "/j/simulate.json",
                                       "/j/timeline.pftrace.gz"};
  for (const std::string& file : files) std::ofstream(root_ + file) << "x";
  const auto refused = JobDirectory::Create(root_ + "/j", false, 1, 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(HintOf(refused.status()), HasSubstr("--force"));
  // Not while it runs.
  const auto busy = JobDirectory::Create(root_ + "/j", true, 1, 1);
  EXPECT_EQ(busy.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(busy.status().message()),
              HasSubstr(fmt::format("still running (process {})", getpid())));
  EXPECT_TRUE(fs::exists(root_ + "/j/trace/rank-00000.prt"));
  ASSERT_TRUE(job->Seal(JobDirectory::State::kFailed, "").ok());
  ASSERT_TRUE(JobDirectory::Create(root_ + "/j", true, 1, 1).ok());
  for (const std::string& file : files) EXPECT_FALSE(fs::exists(root_ + file)) << file;
}

TEST_F(JobDirectoryTest, OtherPeoplesFilesAreNeverTouched) {
  fs::create_directory(root_ + "/home");
  std::ofstream(root_ + "/home/thesis.tex") << "x";
  const auto refused = JobDirectory::Create(root_ + "/home", true, 1, 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs::exists(root_ + "/home/thesis.tex"));
  EXPECT_FALSE(JobDirectory::Create(root_ + "/home/thesis.tex", true, 1, 1).ok());
}

TEST_F(JobDirectoryTest, MissingDamagedAndOtherVersionsAreToldApart) {
  EXPECT_EQ(JobDirectory::Open(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(JobDirectory::Open(root_).status().message()), HasSubstr("holds no job"));
  auto job = JobDirectory::Create(root_ + "/j", false, 1, 1);
  job->info()["schema_version"] = 7;
  ASSERT_TRUE(job->Save().ok());
  EXPECT_THAT(std::string(JobDirectory::Open(root_ + "/j").status().message()),
              HasSubstr("job of version 7"));
  std::ofstream(root_ + "/j/job.json") << "{\"schema\":";
  EXPECT_EQ(JobDirectory::Open(root_ + "/j").status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace prism
