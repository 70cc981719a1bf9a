// The program on hostcuda and hostnccl, as processes of its own, against the reference: bitwise
// after five steps.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/cpp/moe_trainer/checkpoint.h"
#include "examples/cpp/moe_trainer/durations.h"
#include "examples/cpp/moe_trainer/layout.h"
#include "examples/cpp/moe_trainer/reference.h"

namespace moe_trainer {
namespace {

constexpr int kSteps = 5;

struct Outcome {
  int code = -1;
  std::string text;
};

Outcome Shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.text.append(buffer, n);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/moe-trainer-test-XXXXXX";
    folder_ = mkdtemp(name);
    setenv("HOSTCUDA_SESSION", std::filesystem::path(folder_).filename().c_str(), 1);
    setenv("LD_LIBRARY_PATH", HOSTCUDA_LIB_DIR, 1);
    setenv("HOSTCUDA_VALUES", "cpu", 1);
  }
  void TearDown() override {
    unsetenv("HOSTCUDA_CLOCK");
    std::filesystem::remove_all(folder_);
  }

  Outcome Run(const std::string& arguments) {
    return Shell("timeout 120 " MOE_TRAINER " " + arguments);
  }
  nlohmann::json Json() const {
    std::ifstream file(folder_ + "/result.json");
    return nlohmann::json::parse(file, nullptr, false);
  }

  std::string folder_;
};

Model SmallModel() {
  Model model;
  model.layers = 4;
  model.hidden = 16;
  model.heads = 4;
  model.expert_hidden = 20;
  model.experts = 8;
  model.top_k = 2;
  model.sequence = 12;
  model.vocabulary = 23;
  model.micro_batches = 4;
  model.imbalance = 0.5;
  model.seed = 7;
  return model;
}

std::string Flags(const Model& model, const Parallelism& sizes) {
  std::string flags = "--real";
  const auto add = [&](const char* name, auto value) {
    flags += std::string(" --") + name + " " + std::to_string(value);
  };
  add("launch", sizes.world());
  add("dp", sizes.data);
  add("tp", sizes.tensor);
  add("pp", sizes.pipeline);
  add("ep", sizes.expert);
  add("interleave", sizes.interleave);
  add("layers", model.layers);
  add("hidden", model.hidden);
  add("heads", model.heads);
  add("expert-hidden", model.expert_hidden);
  add("experts", model.experts);
  add("top-k", model.top_k);
  add("sequence", model.sequence);
  add("vocabulary", model.vocabulary);
  add("micro-batches", model.micro_batches);
  add("imbalance", model.imbalance);
  add("seed", model.seed);
  add("steps", kSteps);
  return flags;
}

struct Case {
  const char* name;
  Parallelism sizes;
  const char* more = "";
  const char* clock = "free";
};

class OracleTest : public TrainerTest, public ::testing::WithParamInterface<Case> {};

TEST_P(OracleTest, ParametersAndLossesAreTheReferencesToTheBit) {
  const Parallelism& sizes = GetParam().sizes;
  const Model model = SmallModel();
  setenv("HOSTCUDA_CLOCK", GetParam().clock, 1);
  const Outcome outcome = Run(Flags(model, sizes) + " --save " + folder_ + " --json " + folder_ +
                              "/result.json " + GetParam().more);
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  Reference<float> reference(model,
                             {.data = sizes.data, .tensor = sizes.tensor, .expert = sizes.expert});
  const nlohmann::json json = Json();
  for (int step = 0; step < kSteps; ++step) {
    const float loss = reference.Step(step);
    EXPECT_EQ(json["steps"][static_cast<size_t>(step)]["loss"].get<float>(), loss) << step;
  }
  size_t differing = 0, compared = 0;
  for (int rank = 0; rank < sizes.world(); ++rank) {
    for (const SavedShard& shard : ReadCheckpoint(folder_, rank)) {
      const auto& expected = reference.parameters().at(shard.name);
      size_t at = 0;
      for (int i = 0; i < shard.rows; ++i) {
        for (int j = 0; j < shard.columns; ++j, ++at, ++compared) {
          const float value =
              expected[static_cast<size_t>(shard.row + i)][static_cast<size_t>(shard.column + j)];
          if (memcmp(&value, &shard.values[at], sizeof value) == 0) continue;
          if (++differing <= 10)
            ADD_FAILURE() << "rank " << rank << ", " << shard.name << "[" << shard.row + i << ", "
                          << shard.column + j << "]: " << shard.values[at] << ", not " << value;
        }
      }
    }
  }
  EXPECT_EQ(differing, 0u) << "of " << compared;
  EXPECT_GE(compared, 4u * (16 * 48 + 16 * 16 + 16 * 8 + 8 * 2 * 16 * 20) + 2 * 16 * 23);
}

constexpr Parallelism kAll = {.data = 2, .tensor = 2, .pipeline = 2, .expert = 2, .interleave = 2};

INSTANTIATE_TEST_SUITE_P(
    Layouts, OracleTest,
    ::testing::Values(
        Case{"OneRank", {}}, Case{"Data", {.data = 4}}, Case{"Tensor", {.tensor = 4}},
        Case{"Pipeline", {.pipeline = 4}}, Case{"Expert", {.data = 4, .expert = 4}},
        Case{"Interleaved", {.pipeline = 2, .interleave = 2}},
        Case{"ExpertsOverTensorAndData", {.data = 2, .tensor = 2, .expert = 4}},
        Case{"SmallBuckets", {.data = 4, .expert = 2}, "--bucket-mib 0.001"},
        Case{"All", kAll, "--bucket-mib 0.004"},
        // Here work takes time, and so an order that no event says would be another one.
        Case{"AllOnTheVirtualClock", kAll, "--bucket-mib 0.004", "virtual"}),
    [](const auto& layout) { return std::string(layout.param.name); });

TEST_F(TrainerTest, ARunRepeatsToTheBitWhateverThePipeline) {
  // Stages and chunks move layers between ranks and change no order of summation.
  const Model model = SmallModel();
  std::vector<std::vector<SavedShard>> results;
  for (const Parallelism sizes :
       {Parallelism{.data = 2}, Parallelism{.data = 2}, Parallelism{.data = 2, .pipeline = 4},
        Parallelism{.data = 2, .pipeline = 2, .interleave = 2}}) {
    const Outcome outcome = Run(Flags(model, sizes) + " --save " + folder_);
    ASSERT_EQ(outcome.code, 0) << outcome.text;
    auto& shards = results.emplace_back();
    for (int rank = 0; rank < sizes.world(); rank += 2)
      for (SavedShard& shard : ReadCheckpoint(folder_, rank)) shards.push_back(std::move(shard));
    std::sort(shards.begin(), shards.end(),
              [](const SavedShard& a, const SavedShard& b) { return a.name < b.name; });
    EXPECT_EQ(Checksum(shards), Checksum(results[0]));
  }
}

TEST_F(TrainerTest, WithoutValuesIsRefusedWithTheRemedy) {
  setenv("HOSTCUDA_VALUES", "none", 1);
  const Outcome outcome = Run("--real --launch 2 --dp 2");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.text.find("HOSTCUDA_VALUES is 'none'"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("hostcuda run --values cpu"), std::string::npos) << outcome.text;
}

TEST_F(TrainerTest, WithoutHostcudasDriverBothModesAreRefusedByName) {
  for (const char* library : {"/libcudart.so.13", "/libnccl.so.2"})
    std::filesystem::create_symlink(std::string(HOSTCUDA_LIB_DIR) + library, folder_ + library);
  setenv("LD_LIBRARY_PATH", folder_.c_str(), 1);
  for (const std::string mode : {"--real", "--timed"}) {
    const Outcome outcome = Run(mode);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_NE(outcome.text.find(mode + " needs hostcuda"), std::string::npos) << outcome.text;
  }
}

TEST_F(TrainerTest, OptionsThatDoNotWorkEndWithCodeTwo) {
  EXPECT_EQ(Run("--real --launch 2").code, 2);
  EXPECT_EQ(Run("--real --dp 0").code, 2);
  EXPECT_EQ(Run("--reel").code, 2);
  EXPECT_EQ(Run("--timed --straggler 3").code, 2);
  EXPECT_EQ(Run("--help").code, 0);
}

TEST_F(TrainerTest, ARankThatFailsEndsTheOthersAndIsNamed) {
  // Rank 2 and 3 have no device.
  setenv("HOSTCUDA_DEVICES", "2", 1);
  const Outcome outcome = Run("--real --launch 4 --dp 4");
  unsetenv("HOSTCUDA_DEVICES");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.text.find("of 2 devices"), std::string::npos) << outcome.text;
}

TEST_F(TrainerTest, TimedCommunicatesWhatItDrawsAndNeedsNoValues) {
  setenv("HOSTCUDA_VALUES", "none", 1);
  const Outcome outcome =
      Run("--timed --launch 8 --dp 2 --tp 2 --pp 2 --ep 4 --interleave 2 --hidden 2048 --heads 16 "
          "--experts 16 --expert-hidden 1024 --sequence 4096 --vocabulary 32000 --imbalance 1 "
          "--steps 2 --json " +
          folder_ + "/result.json");
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  const nlohmann::json json = Json();
  EXPECT_EQ(json["steps"].size(), 2u);
  EXPECT_EQ(json["ranks"].size(), 8u);
  EXPECT_FALSE(json["ranks"][0].contains("checksum"));
  // Parameters, gradients in bf16, velocity and master in fp32 of this rank's part, at least.
  for (const auto& rank : json["ranks"])
    EXPECT_GT(rank["peak_device_bytes"].get<double>(),
              2.0 * 2 * 2 * (4 * 2 * 2048.0 * 1024 + 2048 * 2048 * 2));
}

// ---- --timed on the virtual clock

class TimedTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    setenv("HOSTCUDA_VALUES", "none", 1);
    setenv("HOSTCUDA_CLOCK", "virtual", 1);
  }
  void TearDown() override {
    unsetenv("HOSTCUDA_TIMES");
    TrainerTest::TearDown();
  }

  /// Everything but the program's kernels and communications is free.
  void OnlyKernelsTakeTime() {
    const std::string path = folder_ + "/times.json";
    std::ofstream(path) << R"({"schema": 1,
      "gpu": {"bytes_per_s": 1e18, "flops_per_s": 1e18, "kernel_ns": 0, "bytes_per_thread": 0},
      "copies": {"latency_ns": 0, "host_bytes_per_s": 1e18, "peer_bytes_per_s": 1e18},
      "host_ns": {"launch": 0, "copy": 0, "event": 0, "sync": 0, "query": 1, "communication": 0}})";
    setenv("HOSTCUDA_TIMES", path.c_str(), 1);
  }

  /// Nanoseconds of each step on rank 0. (The clock is new for every run: a session of its own.)
  std::vector<long long> StepsNs(const std::string& arguments) {
    setenv("HOSTCUDA_SESSION",
           (std::filesystem::path(folder_).filename().string() + std::to_string(++runs_)).c_str(),
           1);
    const Outcome outcome = Run("--timed " + arguments + " --json " + folder_ + "/result.json");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
    std::vector<long long> steps;
    const nlohmann::json json = Json();
    for (const auto& step : json["steps"])
      steps.push_back(std::llround(step["milliseconds"].get<double>() * 1e6));
    ranks_times_.clear();
    for (const auto& rank : json["ranks"]) ranks_times_.push_back(rank["times"]);
    return steps;
  }

  int runs_ = 0;
  std::vector<std::string>
      ranks_times_;  // of the last run: checksums of when the steps of each rank ended
};

// The closed form: a step of one rank is the sum of its kernels' times, listed here by hand for two
// layers and three micro-batches, and of the loss's all-reduce, which takes what hostnccl says.
TEST_F(TimedTest, AStepOfOneRankIsTheSumOfItsKernels) {
  OnlyKernelsTakeTime();
  const std::string links = folder_ + "/links.json";
  std::ofstream(links) << R"({"schema": 1, "base_ns": 12345})";
  setenv("HOSTNCCL_TOPOLOGY", links.c_str(), 1);
  constexpr double T = 64, H = 32, F = 48, E = 4, K = 2, V = 40, kBytes = 2;
  constexpr int kLayers = 2, kMicroBatches = 3;
  double total = 12345;
  const auto add = [&](int times, const char* kernel, double flops, double elements) {
    total += times * static_cast<double>(std::llround(TableNs(kernel, {flops, kBytes * elements})));
  };
  const auto gemm = [&](int times, double m, double n, double k, bool accumulates = false) {
    add(times, "gemm", 2 * m * n * k, m * k + k * n + (accumulates ? 2 : 1) * m * n);
  };
  const auto expert_gemm = [&](int times, double m, double n, double k) {
    add(times, "expert_gemm", 2 * m * n * k, m * k + E * k * n + m * n);
  };
  const int passes = kLayers * kMicroBatches;
  add(kMicroBatches, "embed", 0, 2 * T * H);
  gemm(passes, T, 3 * H, H);
  add(passes, "attention", 2 * T * T * H, 4 * T * H);
  gemm(passes, T, H, H);
  add(passes, "add", 0, 3 * T * H);
  gemm(passes, T, E, H);
  add(passes, "draw_counts", 0, T * E + 4 * T * K);
  add(passes, "dispatch", 0, 2 * T * K * H);
  expert_gemm(passes, T * K, F, H);
  add(passes, "silu", 0, 2 * T * K * F);
  expert_gemm(passes, T * K, H, F);
  add(passes, "combine", 0, (2 + K) * T * H);
  gemm(kMicroBatches, T, V, H);
  add(kMicroBatches, "cross_entropy", 0, 2 * T * V);
  // Backward.
  gemm(kMicroBatches, H, V, T, true);
  gemm(kMicroBatches, T, H, V);
  add(passes, "combine_gradient", 0, (2 * K + 1) * T * H);
  expert_gemm(passes, T * K, F, H);
  add(passes, "silu_gradient", 0, 3 * T * K * F);
  expert_gemm(passes, T * K, H, F);
  add(2 * passes, "expert_weight_gradient", 2 * T * K * H * F, T * K * (H + F) + 2 * E * H * F);
  add(passes, "dispatch_gradient", 0, (2 + K) * T * H);
  add(passes, "route_gradient", 0, T * E + 3 * T * K);
  gemm(passes, H, E, T, true);
  gemm(passes, T, H, E, true);
  gemm(passes, T, H, H);
  add(passes, "attention_gradient", 5 * T * T * H, 8 * T * H);
  gemm(passes, T, H, 3 * H);
  gemm(passes, H, H, T, true);
  gemm(passes, H, 3 * H, T, true);
  add(passes, "add", 0, 3 * T * H);
  add(kMicroBatches, "embed_gradient", 0, 3 * T * H);
  // bf16 gradients read, parameters written; fp32 velocity and master read and written.
  for (const double count :
       {kLayers * 4 * H * H, kLayers * 2 * E * H * F, kLayers * H * E + 2 * H * V})
    add(1, "sgd", 4 * count, 20 * count / kBytes);
  const std::vector<long long> steps = StepsNs(
      "--launch 1 --layers 2 --micro-batches 3 --sequence 64 --hidden 32 --heads 4 --experts 4 "
      "--expert-hidden 48 --top-k 2 --vocabulary 40 --steps 2 --host-scale 0");
  unsetenv("HOSTNCCL_TOPOLOGY");
  const long long expected = std::llround(total);
  EXPECT_EQ(steps, (std::vector<long long>{expected, expected}));
}

const std::string kEightRanks =
    "--launch 8 --dp 2 --tp 2 --pp 2 --ep 4 --interleave 2 --imbalance 0.5 --hidden 1024 "
    "--sequence 1024 --heads 8 --expert-hidden 512 ";

TEST_F(TimedTest, StepsRepeatToTheNanosecondAndVaryWithTheSeed) {
  const auto first = StepsNs(kEightRanks + "--jitter 0.05");
  const std::vector<std::string> times = ranks_times_;
  EXPECT_EQ(times.size(), 8u);
  EXPECT_EQ(StepsNs(kEightRanks + "--jitter 0.05"), first);
  EXPECT_EQ(ranks_times_, times);
  EXPECT_NE(StepsNs(kEightRanks + "--jitter 0.05 --seed 2"), first);
  EXPECT_NE(ranks_times_, times);
  EXPECT_GT(*std::min_element(first.begin(), first.end()), 0);
}

TEST_F(TimedTest, TimesAreTheSameWhetherPayloadsMove) {
  const auto counts_alone = StepsNs(kEightRanks);
  const std::vector<std::string> times = ranks_times_;
  setenv("HOSTNCCL_EXACT_BYTES", "1G", 1);
  EXPECT_EQ(StepsNs(kEightRanks), counts_alone);
  EXPECT_EQ(ranks_times_, times);
  unsetenv("HOSTNCCL_EXACT_BYTES");
}

// On this machine's own clock everything takes at least as long.
TEST_F(TimedTest, TheWallClockIsNotAheadOfTheVirtualOne) {
  const std::string rank = "--launch 1 --kernel-scale 20 --steps 2";
  const auto stated = StepsNs(rank);
  setenv("HOSTCUDA_CLOCK", "wall", 1);
  const auto measured = StepsNs(rank);
  ASSERT_EQ(measured.size(), stated.size());
  for (size_t i = 0; i < stated.size(); ++i) EXPECT_GE(measured[i], stated[i]);
  EXPECT_EQ(StepsNs(kEightRanks + "--steps 2").size(), 2u);
}

TEST_F(TimedTest, AStragglerDelaysEverybodyByAtMostItsFactor) {
  const std::string ranks = "--launch 4 --dp 4 --ep 4 --hidden 1024 --sequence 1024 --heads 8 ";
  const auto even = StepsNs(ranks), late = StepsNs(ranks + "--straggler 2:2");
  ASSERT_EQ(even.size(), late.size());
  for (size_t i = 0; i < even.size(); ++i) {
    EXPECT_GT(late[i], even[i]);
    EXPECT_LE(late[i], 2 * even[i]);
  }
}

TEST_F(TimedTest, UnevenRoutingTakesLonger) {
  const std::string ranks =
      "--launch 4 --dp 4 --ep 4 --hidden 2048 --sequence 2048 --heads 8 --expert-hidden 8192 ";
  const auto even = StepsNs(ranks), uneven = StepsNs(ranks + "--imbalance 2");
  for (size_t i = 0; i < even.size(); ++i) EXPECT_GT(uneven[i], even[i]);
}

}  // namespace
}  // namespace moe_trainer
