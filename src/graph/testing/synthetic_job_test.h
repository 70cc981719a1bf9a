// Fixture of tests that load synthetic jobs: each in a folder of its own, gone with the test.
#ifndef PRISM_GRAPH_TESTING_SYNTHETIC_JOB_TEST_H_
#define PRISM_GRAPH_TESTING_SYNTHETIC_JOB_TEST_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "src/graph/graph.h"
#include "src/graph/testing/synthetic.h"

namespace prism::graph::testing {

class SyntheticJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/synthetic_job_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Graph Load(const SyntheticJob& job) {
    const std::string directory = directory_ + "/" + std::to_string(jobs_++);
    EXPECT_EQ(WriteJob(directory, job), 0);
    absl::StatusOr<Graph> graph = LoadJob(directory);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

 private:
  std::string directory_;
  int jobs_ = 0;
};

}  // namespace prism::graph::testing

#endif  // PRISM_GRAPH_TESTING_SYNTHETIC_JOB_TEST_H_
