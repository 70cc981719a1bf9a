#include "src/report/report.h"

#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "perfetto_subset.pb.h"
#include "src/base/status.h"
#include "src/graph/testing/synthetic.h"

namespace prism::report {
namespace {

using graph::testing::JobKind;
using graph::testing::SyntheticJob;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/report_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const SyntheticJob& job) { ASSERT_EQ(graph::testing::WriteJob(directory_, job), 0); }
  void WriteMemory(uint32_t rank, const std::string& text) {
    char name[64];
    snprintf(name, sizeof(name), "/ranks/%05u", rank);
    std::filesystem::create_directories(directory_ + name);
    std::ofstream(directory_ + name + "/memory.json") << text;
  }
  static testing::Trace Decode(const std::string& path) {
    std::string bytes;
    gzFile file = gzopen(path.c_str(), "rb");
    char buffer[65536];
    for (int n; (n = gzread(file, buffer, sizeof(buffer))) > 0;)
      bytes.append(buffer, static_cast<size_t>(n));
    gzclose(file);
    testing::Trace trace;
    EXPECT_TRUE(trace.ParseFromString(bytes));
    return trace;
  }

  std::string directory_;
};

TEST(UnionNsTest, OverlapsCountOnce) {
  std::vector<std::pair<int64_t, int64_t>> intervals{{5, 9}, {0, 3}, {2, 4}, {6, 7}, {9, 10}};
  EXPECT_EQ(UnionNs(&intervals), 9);
}

TEST(GroupNameTest, SaysSizeAndStride) {
  EXPECT_EQ(GroupName({0, 1, 2, 3}, 4), "world of 4");
  EXPECT_EQ(GroupName({1, 3, 5, 7}, 8), "4 ranks, stride 2");
  EXPECT_EQ(GroupName({0, 1, 3}, 8), "3 ranks, irregular");
}

TEST_F(ReportTest, SimulationHasStepRangeSharesAndFiles) {
  Write({.kind = JobKind::kFullyShardedDP, .world = 16, .steps = 4});
  const auto report = Simulate(
      directory_, {.target = "h200x8:2", .timeline_path = directory_ + "/timeline.pftrace.gz"});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_TRUE(report->prediction.has_value());
  const Prediction& p = *report->prediction;
  EXPECT_EQ(p.steps.size(), 4u);
  EXPECT_GT(p.step_ns, 0);
  EXPECT_LT(p.low_ns, p.step_ns);
  EXPECT_GT(p.high_ns, p.step_ns);
  double total = 0;
  for (double share : p.by_source) total += share;
  EXPECT_GT(total, 0.5);
  EXPECT_LT(total, 1.05);
  EXPECT_NEAR(p.compute_share + p.communication_share + p.host_share, total, 0.05);
  ASSERT_THAT(p.communications, SizeIs(2));
  for (const CommunicationRow& c : p.communications) {
    EXPECT_EQ(c.group, "world of 16");
    // 4 layers: gathered forward and backward, scattered backward.
    EXPECT_NEAR(c.calls, c.operation == "AllGather" ? 8 : 4, 0.01) << c.operation;
  }
  std::ifstream in(directory_ + "/simulate.json");
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["schema"], "prism.simulate");
  EXPECT_EQ(json["step_ns"], p.step_ns);
  EXPECT_THAT(report->Text(), HasSubstr("step time"));
  EXPECT_EQ(report->fidelity_gaps.at("cuMulticastCreate"), 16u);
  EXPECT_THAT(report->Text(), HasSubstr("AllGather"));
}

TEST_F(ReportTest, SameInputsGiveTheSamePrediction) {
  Write({.kind = JobKind::kPipeline, .world = 4});
  const ReportOptions options{.target = "h200x8", .seed = 3, .jitter = 0.05, .draws = 20};
  EXPECT_EQ(Simulate(directory_, options)->Json().dump(),
            Simulate(directory_, options)->Json().dump());
  ReportOptions other = options;
  other.seed = 4;
  EXPECT_NE(Simulate(directory_, options)->prediction->percentiles,
            Simulate(directory_, other)->prediction->percentiles);
}

TEST_F(ReportTest, ExposedCommunicationIsWhatNothingHides) {
  // One layer: its all-reduce comes after all computation, so nothing hides it.
  Write({.kind = JobKind::kDataParallel, .world = 8, .steps = 3, .layers = 1, .bytes = 64 << 20});
  const auto report = Simulate(directory_, {.target = "h200x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  for (const RankTime& r : report->prediction->ranks) {
    EXPECT_NEAR(static_cast<double>(r.exposed_ns),
                report->prediction->communications[0].transfer_ns, 1000);
    EXPECT_EQ(r.step_ns, r.compute_ns + r.exposed_ns + r.idle_ns);
  }
}

TEST_F(ReportTest, FasterTargetIsFaster) {
  Write({.kind = JobKind::kFullyShardedDP, .world = 8, .steps = 3, .bytes = 64 << 20});
  EXPECT_GT(Simulate(directory_, {.target = "a100x8"})->prediction->step_ns,
            Simulate(directory_, {.target = "b200x8"})->prediction->step_ns);
}

TEST_F(ReportTest, TargetTooSmallIsRefused) {
  Write({.world = 16});
  const auto status = Simulate(directory_, {.target = "h200x8"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(HintOf(status), HasSubstr("2 nodes of 8"));
}

TEST_F(ReportTest, RunWithoutStepsIsPredictedAsAWhole) {
  Write({.kind = JobKind::kSingle, .world = 1, .steps = 1});
  const auto report = Simulate(directory_, {.target = "h200x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->prediction->whole_run_because, HasSubstr("no steps found"));
  EXPECT_THAT(report->Text(), HasSubstr("run time"));
  EXPECT_THAT(report->Text(), HasSubstr("--step-mark"));
  EXPECT_EQ(Simulate(directory_, {.target = "h200x8", .step = {.mark = "nothing"}}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ReportTest, MemoryByOwnerComesFromTheObserver) {
  Write({.world = 2});
  WriteMemory(
      0, R"({"devices": [{"device": 0, "max_allocated_bytes": 1000, "max_reserved_bytes": 2000}],
                    "owners": {"parameters": 400, "gradients": 300, "optimizer_state": 200, "activations_and_other": 100},
                    "out_of_memory": [{"text": "CUDA out of memory. Tried to allocate 2.00 GiB"}]})");
  WriteMemory(1, "not json");
  const auto report = BuildReport(directory_, {.target = "h200x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_THAT(report->memory, SizeIs(2));
  const RankMemory& m = report->memory[0];
  EXPECT_TRUE(m.known);
  EXPECT_EQ(m.peak_allocated_bytes, 1000u);
  EXPECT_EQ(m.nccl_bytes, 64u << 20);
  EXPECT_EQ(m.total_bytes(), 2000 + m.context_bytes + m.nccl_bytes);
  EXPECT_EQ(m.owners[2], (std::pair<std::string, uint64_t>("optimizer_state", 200)));
  EXPECT_FALSE(report->memory[1].known);
  EXPECT_THAT(report->Text(), HasSubstr("optimizer state"));
  EXPECT_THAT(report->Text(), HasSubstr("Tried to allocate 2.00 GiB"));
}

TEST_F(ReportTest, BadDirectoriesAreExplained) {
  EXPECT_EQ(BuildReport(directory_ + "/none", {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(BuildReport(directory_, {}).status().code(), absl::StatusCode::kFailedPrecondition);
  Write({.world = 2, .seal = false});
  EXPECT_EQ(Simulate(directory_, {}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Simulate(directory_, {.allow_incomplete = true}).ok());
  std::ofstream(directory_ + "/job.json") << "{";
  EXPECT_FALSE(BuildReport(directory_, {}).ok());
}

TEST_F(ReportTest, TimelineDecodesWithTracksSlicesFlowsAndCounters) {
  Write({.kind = JobKind::kFullyShardedDP, .world = 4, .steps = 3});
  const std::string path = directory_ + "/t.pftrace.gz";
  ASSERT_TRUE(
      Simulate(directory_, {.target = "h200x8", .timeline_ranks = 2, .timeline_path = path}).ok());
  const testing::Trace trace = Decode(path);
  std::map<uint64_t, std::string> tracks;
  std::set<std::string> processes;
  std::map<uint64_t, std::string> names;
  std::map<uint64_t, std::vector<uint64_t>> open;  // track -> end times are checked by depth
  std::map<uint64_t, int> depth;
  std::map<uint64_t, std::set<uint64_t>> flow_tracks;
  std::map<uint64_t, uint64_t> last_end;
  size_t slices = 0;
  bool first = true;
  for (const testing::TracePacket& packet : trace.packet()) {
    EXPECT_EQ(packet.trusted_packet_sequence_id(), 1u);
    EXPECT_EQ(packet.sequence_flags() & 1,
              first ? 1u : 0u);  // incremental state is cleared once, at the beginning
    EXPECT_EQ(packet.sequence_flags() & 2, 2u);
    first = false;
    for (const auto& name : packet.interned_data().event_names()) {
      EXPECT_TRUE(names.emplace(name.iid(), name.name()).second);
    }
    if (packet.has_track_descriptor()) {
      const auto& t = packet.track_descriptor();
      EXPECT_TRUE(
          tracks.emplace(t.uuid(), t.has_thread() ? t.thread().thread_name() : t.name()).second);
      if (t.has_process()) processes.insert(t.process().process_name());
    }
    if (!packet.has_track_event()) continue;
    const auto& e = packet.track_event();
    ASSERT_EQ(tracks.count(e.track_uuid()), 1u);
    switch (e.type()) {
      case testing::TrackEvent::TYPE_SLICE_BEGIN:
        ASSERT_EQ(names.count(e.name_iid()), 1u);
        ++depth[e.track_uuid()];
        ++slices;
        for (uint64_t flow : e.flow_ids()) flow_tracks[flow].insert(e.track_uuid());
        break;
      case testing::TrackEvent::TYPE_SLICE_END:
        --depth[e.track_uuid()];
        break;
      default:
        break;
    }
  }
  for (const auto& [track, d] : depth) EXPECT_EQ(d, 0) << tracks[track];
  EXPECT_THAT(processes, ElementsAre("job", "rank 0", "rank 2"));
  std::set<std::string> track_names;
  for (const auto& [uuid, name] : tracks) track_names.insert(name);
  EXPECT_THAT(track_names, ::testing::IsSupersetOf({"steps", "stream 0 default", "stream 1 nccl"}));
  std::set<std::string> slice_names;
  for (const auto& [iid, name] : names) slice_names.insert(name);
  EXPECT_THAT(slice_names,
              ::testing::IsSupersetOf({"AllGather", "ReduceScatter", "step 0", "step 2"}));
  // 3 steps x (8 gathers + 4 scatters), each between the two ranks.
  EXPECT_THAT(flow_tracks, SizeIs(36));
  for (const auto& [flow, on] : flow_tracks) EXPECT_THAT(on, SizeIs(2));
  EXPECT_GT(slices, 100u);
}

TEST_F(ReportTest, TimelineOfManyRanksStaysSmall) {
  Write({.kind = JobKind::kFullyShardedDP, .world = 64, .steps = 3});
  const std::string path = directory_ + "/t.pftrace.gz";
  ASSERT_TRUE(Simulate(directory_, {.target = "h200x8:8", .timeline_path = path}).ok());
  EXPECT_LT(std::filesystem::file_size(path), 1u << 20);
}

}  // namespace
}  // namespace prism::report
