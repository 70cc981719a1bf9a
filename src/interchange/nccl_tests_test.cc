#include "src/interchange/nccl_tests.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism::interchange {
namespace {

using engine::NetworkEntry;
using engine::NetworkProfile;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using trace::CommOp;

constexpr uint32_t kFp32 = 7, kBf16 = 9;

// As nccl-tests 2.18 prints: device list, headings, results, summary.
std::string Output(const std::string& name, int ranks, int hosts, const std::string& results) {
  std::string text =
      "# nccl-tests version 2.18.3 nccl-headers=22809 nccl-library=22809\n"
      "# Collective test starting: " +
      name +
      "\n# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: "
      "20 "
      "agg iters: 1 validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n";
  for (int r = 0; r < ranks; ++r) {
    text += "#  Rank " + std::to_string(r) + " Group  0 Pid  " + std::to_string(1000 + r) +
            " on  node" + std::to_string(r * hosts / ranks) + " device  " + std::to_string(r) +
            " [0000:0f:00] NVIDIA H200\n";
  }
  return text +
         "#\n#                                                              out-of-place           "
         " "
         "           in-place          \n"
         "#       size         count      type   redop    root     time   algbw   busbw  #wrong    "
         " "
         "time   algbw   busbw  #wrong \n"
         "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
         " "
         "(us)  (GB/s)  (GB/s)         \n" +
         results + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3456 \n#\n" +
         "# Collective test concluded: " + name + "\n#\n";
}

NetworkProfile Imported(const std::string& text, NcclTestsOptions options = {},
                        const std::string& name = "output.txt") {
  NcclTests tests(options);
  const absl::Status status = tests.Add(name, text);
  EXPECT_TRUE(status.ok()) << status;
  const auto profile = tests.Profile();
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : NetworkProfile();
}

absl::Status Refused(const std::string& text, NcclTestsOptions options = {},
                     const std::string& name = "output.txt") {
  NcclTests tests(options);
  const absl::Status added = tests.Add(name, text);
  return added.ok() ? tests.Profile().status() : added;
}

void ExpectEntry(const NetworkEntry& e, CommOp op, std::optional<uint32_t> type, uint32_t ranks,
                 uint32_t nodes, uint64_t bytes, double ns) {
  EXPECT_EQ(e.op, op);
  EXPECT_EQ(e.type, type);
  EXPECT_EQ(e.ranks, ranks);
  EXPECT_EQ(e.nodes, nodes);
  EXPECT_EQ(e.bytes, bytes);
  EXPECT_DOUBLE_EQ(e.median_ns, ns);
  EXPECT_FALSE(e.isolated);
}

TEST(NcclTestsTest, ResultsAreReadWithRanksNodesAndVersions) {
  const NetworkProfile p = Imported(
      Output("all_reduce_perf", 4, 2,
             "           8             2     float     sum      -1    12.34    0.00    0.00  "
             "     0    12.10    0.00    0.00       0\n"
             "     1048576        262144     float     sum      -1    45.67   22.96   34.44  "
             "     0    44.50   23.56   35.35       0\n"
             "   268435456     134217728  bfloat16     sum      -1  1.2e+03  223.70  335.54  "
             "     0   1201.0  223.51  335.27     N/A\n"));
  ASSERT_THAT(p.entries, SizeIs(3));
  ExpectEntry(p.entries[0], CommOp::kAllReduce, kFp32, 4, 2, 8, 12'340);
  ExpectEntry(p.entries[1], CommOp::kAllReduce, kFp32, 4, 2, 1 << 20, 45'670);
  ExpectEntry(p.entries[2], CommOp::kAllReduce, kBf16, 4, 2, 268435456, 1'200'000);
  EXPECT_EQ(p.gpu(), "NVIDIA H200");
  EXPECT_EQ(p.machine["nccl"], "2.28.9");
  EXPECT_EQ(p.settings["source"], "nccl-tests");
  // What is imported is a valid profile.
  EXPECT_TRUE(engine::ParseNetworkProfile(engine::SerializeNetworkProfile(p)).ok());
}

TEST(NcclTestsTest, BytesAreWhatIsPassedToNccl) {
  // A size is of all ranks together, except of what goes to or comes from one.
  const NetworkProfile gather = Imported(
      Output("all_gather_perf", 8, 1,
             "     1048576         32768     float    none      -1    50.00   20.97   18.35  "
             "     0    49.00   21.40   18.72       0\n"));
  ExpectEntry(gather.entries.at(0), CommOp::kAllGather, std::nullopt, 8, 1, 131072, 50'000);
  const NetworkProfile scatter = Imported(
      Output("reduce_scatter_perf", 8, 1,
             "     1048576         32768     float     sum      -1    50.00   20.97   18.35  "
             "     0    49.00   21.40   18.72       0\n"));
  ExpectEntry(scatter.entries.at(0), CommOp::kReduceScatter, kFp32, 8, 1, 131072, 50'000);
  const NetworkProfile all = Imported(
      Output("alltoall_perf", 2, 1,
             "     1048576        131072     float    none      -1    50.00   20.97   18.35  "
             "     0    49.00   21.40   18.72     N/A\n"));
  ExpectEntry(all.entries.at(0), CommOp::kAllToAll, std::nullopt, 2, 1, 524288, 50'000);
  const NetworkProfile broadcast = Imported(
      Output("broadcast_perf", 2, 1,
             "     1048576        262144     float    none       0    50.00   20.97   20.97  "
             "     0    49.00   21.40   21.40       0\n"));
  ExpectEntry(broadcast.entries.at(0), CommOp::kBroadcast, std::nullopt, 2, 1, 1 << 20, 50'000);
  // sendrecv passes on around a ring: a message between two ranks, across nodes if there are
  // several.
  const NetworkProfile ring = Imported(
      Output("sendrecv_perf", 8, 4,
             "     1048576        262144     float    none      -1    50.00   20.97   20.97  "
             "     0    49.00   21.40   21.40     N/A\n"));
  ExpectEntry(ring.entries.at(0), CommOp::kSend, std::nullopt, 2, 2, 1 << 20, 50'000);
}

TEST(NcclTestsTest, SeveralRunsInOneFileWithTagsAndLogsBetween) {
  std::string tagged;
  const std::string two = Output("all_reduce_perf", 2, 1,
                                 "        1024           256     float     sum      -1    10.00    "
                                 "0.10    0.10       0    10.00    0.10    0.10       0\n") +
                          "node0:149:149 [0] NCCL INFO Bootstrap : Using eno1:172.17.120.207<0>\n" +
                          Output("all_gather_perf", 4, 1,
                                 "        1024            64     float    none      -1    20.00    "
                                 "0.05    0.04       0    20.00    0.05    0.04       0\n") +
                          Output("all_reduce_perf", 2, 1,
                                 "        1024           256     float     sum      -1    14.00    "
                                 "0.07    0.07       0    14.00    0.07    0.07       0\n");
  for (size_t at = 0; at < two.size();) {
    const size_t end = two.find('\n', at);
    tagged += "[1,0]<stdout>:" + two.substr(at, end - at) + "\r\n";
    at = end + 1;
  }
  for (const std::string& text : {two, tagged}) {
    const NetworkProfile p = Imported(text);
    ASSERT_THAT(p.entries, SizeIs(2));
    ExpectEntry(p.entries[0], CommOp::kAllReduce, kFp32, 2, 1, 1024, 12'000);
    EXPECT_EQ(p.entries[0].samples, 2u);
    EXPECT_DOUBLE_EQ(p.entries[0].p90_ns, 13'600);
    ExpectEntry(p.entries[1], CommOp::kAllGather, std::nullopt, 4, 1, 256, 20'000);
  }
}

// nccl-tests before 2.17 did not say which test it is; before 2.10 there were fewer columns.
TEST(NcclTestsTest, OlderTextsTellLess) {
  const std::string old_gather =
      "# nThread 1 nGpus 2 minBytes 65536 maxBytes 65536 step: 2(factor) warmup iters: 5 iters: 20 "
      "validation: 1\n"
      "# Using devices\n"
      "#   Rank  0 Pid  46789 on       box device  0 [0x1b] Tesla V100-SXM2-32GB\n"
      "#   Rank  1 Pid  46789 on       box device  1 [0x1c] Tesla V100-SXM2-32GB\n"
      "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw "
      " error\n"
      "#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  "
      "(GB/s)\n"
      "       65536          8192   float    52.01    1.26    1.10  0e+00    50.09    1.31    1.14 "
      " 0e+00\n";
  EXPECT_THAT(Refused(old_gather).ToString(),
              HasSubstr("output.txt, line 7: it is not said which"));
  EXPECT_THAT(HintOf(Refused(old_gather)), HasSubstr("--operation"));
  for (const NetworkProfile& p : {Imported(old_gather, {.operation = CommOp::kAllGather}),
                                  Imported(old_gather, {}, "/results/2024/all_gather_perf.log"),
                                  Imported(old_gather, {}, "run-all_gather_perf-3.txt")}) {
    ExpectEntry(p.entries.at(0), CommOp::kAllGather, std::nullopt, 2, 1, 32768, 52'010);
    EXPECT_EQ(p.gpu(), "Tesla V100-SXM2-32GB");
  }
  const std::string no_devices = old_gather.substr(old_gather.find("#       size"));
  EXPECT_THAT(HintOf(Refused(no_devices, {.operation = CommOp::kAllGather})), HasSubstr("--ranks"));
  ExpectEntry(
      Imported(no_devices, {.operation = CommOp::kAllGather, .ranks = 2, .nodes = 2}).entries.at(0),
      CommOp::kAllGather, std::nullopt, 2, 2, 32768, 52'010);
  EXPECT_THAT(
      Refused("#  bytes             N    type      op     time  algbw  busbw      res\n"
              "    10000000      10000000    char     sum    0.064  157.38   0.00    0e+00\n")
          .ToString(),
      HasSubstr("nccl-tests 1"));
}

TEST(NcclTestsTest, WhatCannotBeReadIsNamedByLine) {
  const auto with = [](const std::string& result) {
    return Output("all_reduce_perf", 2, 1, result + "\n");
  };
  const struct {
    std::string text, message;
  } cases[] = {
      {"", "no results of nccl-tests in output.txt"},
      {"hello\n1 2\x01\n", "no results"},
      {with(""), "no results"},
      {with("1024 256 float"), "line 12: a result without type or time"},
      {with("1024 256 float sum -1 nan 0 0 0 1 0 0 0"), "'nan' is no time"},
      {with("1024 256 float sum -1 -3 0 0 0 1 0 0 0"), "'-3' is no time"},
      {with("1024 256 float sum -1 0 0 0 0 1 0 0 0"), "'0' is no time"},
      {with("1024 256 float sum -1 1e99 0 0 0 1 0 0 0"), "'1e99' is no time"},
      {with("1024 256 quad sum -1 3 0 0 0 1 0 0 0"), "unknown type 'quad'"},
      {with("1024 999 float sum -1 3 0 0 0 1 0 0 0"), "999 elements of float are not 1024 bytes"},
      {with("1024 4611686018427387904 float sum -1 3 0 0 0 1 0 0 0"), "are not 1024 bytes"},
      {with("1024 99999999999999999999999 float sum -1 3 0 0 0 1 0 0 0"), "too large"},
      {Output("hypercube_perf", 2, 1, "1024 256 float sum -1 3 0 0 0 1 0 0 0\n"),
       "line 2: 'hypercube_perf' is no operation"},
      {Output("all_reduce_perf", 1, 1, "1024 256 float sum -1 3 0 0 0 1 0 0 0\n"), "a single rank"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Refused(c.text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(status.ToString(), HasSubstr(c.message));
    EXPECT_FALSE(HintOf(status).empty()) << c.message;
  }
  // A buffer of nothing communicates nothing.
  EXPECT_THAT(
      Imported(with("0 0 float sum -1 3 0 0 0 1 0 0 0\n8 2 float sum -1 3 0 0 0 1 0 0 0")).entries,
      SizeIs(1));
}

TEST(NcclTestsTest, WrongResultsAreNoMeasurement) {
  std::string text = Output("all_reduce_perf", 2, 1, "1024 256 float sum -1 3 0 0 7 1 0 0 0\n");
  text.replace(text.find("0 OK"), 4, "7 FAILED");
  EXPECT_EQ(Refused(text).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace prism::interchange
