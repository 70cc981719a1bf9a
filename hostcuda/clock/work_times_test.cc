#include "hostcuda/clock/work_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>

namespace hostcuda {
namespace {

using ::testing::HasSubstr;

class WorkTimesTest : public ::testing::Test {
 protected:
  bool Read(const std::string& text) {
    char path[] = "/tmp/hostcuda-times-XXXXXX";
    close(mkstemp(path));
    std::ofstream(path) << text;
    const bool read = WorkTimes::Read(path, &times_, &error_);
    unlink(path);
    return read;
  }
  uint64_t Kernel(const char* name, uint32_t blocks = 1, uint32_t threads = 1) const {
    const uint32_t grid[3] = {blocks, 1, 1}, block[3] = {threads, 1, 1};
    return times_.KernelNs(name, grid, block);
  }

  WorkTimes times_{{.memory_bytes_per_s = 2e12, .tensor_flops_per_s = 1e15}};
  std::string error_;
};

TEST_F(WorkTimesTest, FirstRuleThatMatches_Decides) {
  ASSERT_TRUE(
      Read(R"({"schema": 1, "gpu": {"kernel_ns": 10, "bytes_per_s": 1e9, "flops_per_s": 1e12},
    "kernels": [{"name": "a*", "ns": 5}, {"name": "*", "bytes": 3000, "flops": 1e6, "flops_per_thread": 1e6}]})"))
      << error_;
  EXPECT_EQ(Kernel("abc", 100), 5u);
  EXPECT_EQ(Kernel("b", 1, 1), 10u + 3000);       // bytes: 3 us, operations: 2 us
  EXPECT_EQ(Kernel("b", 2, 8), 10u + 17 * 1000);  // 17e6 operations
}

TEST_F(WorkTimesTest, LibraryKernels_HaveTheRooflineOfTheirNames) {
  ASSERT_TRUE(
      Read(R"({"schema": 1, "gpu": {"kernel_ns": 0, "bytes_per_s": 1e12, "flops_per_s": 1e14}})"));
  // 2 * 4096 * 1024 * 512 * 2 operations; tf32 at half the speed of bf16.
  EXPECT_EQ(Kernel("hostcublas_gemm_bf16_bf16_f32_tn_m4096_n1024_k512_b2"), 85899u);
  EXPECT_EQ(Kernel("hostcublasLt_matmul_f32_f32_tf32_tn_m4096_n1024_k512_b2"), 171799u);
  // A product of a row: its bytes, (4096 * 4096 + 2 * 4096) * 2.
  EXPECT_EQ(Kernel("hostcublas_gemm_f16_f16_f32_tn_m1_n4096_k4096_b1"), 33571u);
  // 4 * 2 * 16 * 1024^2 * 64 operations.
  EXPECT_EQ(Kernel("hostcudnn_sdpafwd_bf16_b2_h16_hkv16_sq1024_skv1024_d64_dv64"), 85899u);
}

TEST_F(WorkTimesTest, WrongTable_IsToldWithKeyAndValue) {
  const auto error = [&](const char* text) {
    EXPECT_FALSE(Read(text)) << text;
    return error_;
  };
  EXPECT_THAT(error("{}"), HasSubstr("schema"));
  EXPECT_THAT(error("{"), HasSubstr("parse error"));
  EXPECT_THAT(error(R"({"schema": 1, "kernel": []})"),
              HasSubstr(R"(unknown key "kernel"; known are)"));
  EXPECT_THAT(error(R"({"schema": 1, "kernels": [{"ns": 5}]})"), HasSubstr("\"name\""));
  EXPECT_THAT(error(R"({"schema": 1, "gpu": {"bytes_per_s": 0}})"),
              HasSubstr("gpu.bytes_per_s is 0"));
  EXPECT_THAT(error(R"({"schema": 1, "host_ns": {"query": 0}})"), HasSubstr("host_ns.query is 0"));
  EXPECT_THAT(error(R"({"schema": 1, "host_ns": {"sync": -1}})"), HasSubstr("host_ns.sync is -1"));
  EXPECT_FALSE(WorkTimes::Read("/nowhere/times.json", &times_, &error_));
}

TEST_F(WorkTimesTest, Jitter_HasMeanOneAndItsSigma) {
  constexpr double kSigma = 0.3, kNs = 1e9;
  ASSERT_TRUE(Read(R"({"schema": 1, "jitter": {"sigma": 0.3, "seed": 5}})"));
  double sum = 0, log_sum = 0, log_squares = 0;
  constexpr int kDraws = 40'000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double factor =
        static_cast<double>(times_.Drawn(static_cast<uint64_t>(kNs), i % 7, i % 3, i, 0)) / kNs;
    sum += factor;
    log_sum += std::log(factor);
    log_squares += std::log(factor) * std::log(factor);
  }
  const double mean = log_sum / kDraws, deviation = std::sqrt(log_squares / kDraws - mean * mean);
  // Five standard errors of each.
  EXPECT_NEAR(sum / kDraws, 1, 5 * std::sqrt(std::exp(kSigma * kSigma) - 1) / std::sqrt(kDraws));
  EXPECT_NEAR(mean, -kSigma * kSigma / 2, 5 * kSigma / std::sqrt(kDraws));
  EXPECT_NEAR(deviation, kSigma, 5 * kSigma / std::sqrt(2 * kDraws));
}

TEST_F(WorkTimesTest, Jitter_IsAFunctionOfSeedProcessStreamAndNumber) {
  EXPECT_EQ(times_.Drawn(1000, 1, 2, 3, 4), 1000u);  // no sigma
  ASSERT_TRUE(Read(R"({"schema": 1, "jitter": {"sigma": 0.3, "seed": 5}})"));
  const uint64_t drawn = times_.Drawn(1'000'000'000, 1, 2, 3, 4);
  EXPECT_EQ(times_.Drawn(1'000'000'000, 1, 2, 3, 4), drawn);
  EXPECT_NE(times_.Drawn(1'000'000'000, 2, 2, 3, 4), drawn);
  EXPECT_NE(times_.Drawn(1'000'000'000, 1, 3, 3, 4), drawn);
  EXPECT_NE(times_.Drawn(1'000'000'000, 1, 2, 4, 4), drawn);
  EXPECT_NE(times_.Drawn(1'000'000'000, 1, 2, 3, 5), drawn);
  ASSERT_TRUE(Read(R"({"schema": 1, "jitter": {"sigma": 0.3, "seed": 6}})"));
  EXPECT_NE(times_.Drawn(1'000'000'000, 1, 2, 3, 4), drawn);
}

}  // namespace
}  // namespace hostcuda
