#include "src/report/report.h"

#include <stdlib.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "perfetto_subset.pb.h"
#include "src/base/status.h"
#include "src/graph/testing/synthetic.h"
#include "src/trace/writer.h"

namespace prism::report {
namespace {

using graph::testing::JobKind;
using graph::testing::RecordedJob;
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
  EXPECT_EQ(GroupName({2, 2}, 8), "2 devices of a rank");
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
  for (const uint32_t threads : {1u, 7u}) {
    other.threads = threads;
    EXPECT_EQ(Simulate(directory_, options)->Json().dump(),
              Simulate(directory_, other)->Json().dump());
  }
  other.seed = 4;
  EXPECT_NE(Simulate(directory_, options)->prediction->percentiles,
            Simulate(directory_, other)->prediction->percentiles);
}

// The ranks meet in every step, so a step takes as long as the slower one, whose time is drawn
// apart.
TEST_F(ReportTest, DrawnStepsAreTheMaximumOverIndependentRanks) {
  constexpr uint32_t kSteps = 12;
  const auto span = [](uint32_t r, uint32_t s) {
    return int64_t{1'000'000} + 100'000 * ((7 * s + 3 * r * s) % 8);
  };
  ASSERT_FALSE(graph::testing::WriteRecordedJob(directory_,
                                                {.steps = kSteps,
                                                 .host_ns = [](uint32_t, uint32_t) { return 2000; },
                                                 .span_ns = span,
                                                 .transfer_ns = [](uint32_t) { return 5000; }})
                   .empty());
  const auto report = Simulate(directory_, {.target = "h200x8", .draws = 400});
  ASSERT_TRUE(report.ok()) << report.status();
  const Prediction& p = *report->prediction;
  // Training step k holds iteration k + 1, and takes the same beside its spans in all steps.
  const auto slower = [&](uint32_t x, uint32_t y) { return std::max(span(0, x), span(1, y)); };
  const int64_t rest = p.steps[0].ns - slower(1, 1);
  for (uint32_t k = 0; k < p.steps.size(); ++k)
    ASSERT_EQ(p.steps[k].ns - rest, slower(k + 1, k + 1)) << k;
  double expected = 0;
  std::vector<int64_t> pairs;
  for (uint32_t x = 3; x < kSteps; ++x) {
    for (uint32_t y = 3; y < kSteps; ++y) pairs.push_back(slower(x, y) + rest);
  }
  for (const int64_t ns : pairs)
    expected += static_cast<double>(ns) / static_cast<double>(pairs.size());
  ASSERT_TRUE(p.mean_interval.has_value());
  const auto [low, mean, high, sources] = *p.mean_interval;
  // 400 draws of 9 steps, each with a standard deviation of less than 15 % of the mean.
  EXPECT_NEAR(static_cast<double>(mean), expected, 0.015 * expected);
  EXPECT_LT(low, mean);
  EXPECT_GT(high, mean);
  // The mean of nine steps is off by chance, and so is that of the nine that were measured, of
  // which the spread is known by Student's distribution. Drawn steps of the two ranks come
  // together in another way than measured ones.
  constexpr double kMeasured = kSteps - 3;
  double of_pairs = 0, of_steps = 0, mean_step = 0;
  for (const int64_t ns : pairs)
    of_pairs += std::pow(static_cast<double>(ns) - expected, 2) / static_cast<double>(pairs.size());
  for (size_t k = 2; k < p.steps.size(); ++k)
    mean_step += static_cast<double>(p.steps[k].ns) / kMeasured;
  for (size_t k = 2; k < p.steps.size(); ++k)
    of_steps += std::pow(static_cast<double>(p.steps[k].ns) - mean_step, 2) / (kMeasured - 1);
  const double chance = std::sqrt(of_pairs / kMeasured);
  constexpr double kStudent8 = 1.8595;
  const double measured = kStudent8 * std::sqrt(of_steps / kMeasured);
  ASSERT_EQ(sources.size(), 3u);
  EXPECT_NEAR(sources[0].high * mean_step, 1.645 * chance, 0.15 * 1.645 * chance);
  EXPECT_NEAR(sources[1].low - sources[1].high, 1 - static_cast<double>(mean) / mean_step, 1e-6);
  EXPECT_NEAR(sources[2].low * mean_step, measured, 0.001 * measured);
  EXPECT_EQ(sources[2].low, sources[2].high);
  // The chance is about either mean.
  EXPECT_TRUE(sources[1].other_mean);
  const double below = sources[1].low + std::hypot(sources[0].low, sources[2].low);
  const double above = sources[1].high + std::hypot(sources[0].high, sources[2].high);
  EXPECT_NEAR(static_cast<double>(low), mean_step * (1 - below), 2);
  EXPECT_NEAR(static_cast<double>(high), mean_step * (1 + above), 2);
  std::sort(pairs.begin(), pairs.end());
  EXPECT_NEAR(static_cast<double>((*p.percentiles)[1]),
              static_cast<double>(pairs[pairs.size() / 2]), chance);
}

TEST(PredictionTest, StudentsQuantilesAreThoseOfItsTables) {
  for (const auto& [freedom, quantile] :
       {std::pair{1, 6.3138}, {2, 2.9200}, {3, 2.3534}, {5, 2.0150}, {9, 1.8331}, {29, 1.6991}})
    EXPECT_NEAR(StudentQuantile95(freedom), quantile, 0.005 * quantile) << freedom;
}

TEST_F(ReportTest, DrawsOfTooFewStepsAreRefused) {
  const auto constant = [](uint32_t, uint32_t) { return 2000; };
  ASSERT_FALSE(
      graph::testing::WriteRecordedJob(directory_, {.steps = 4,  // three training steps
                                                    .host_ns = constant,
                                                    .span_ns = constant,
                                                    .transfer_ns = [](uint32_t) { return 5000; }})
          .empty());
  const auto status = Simulate(directory_, {.target = "h200x8", .draws = 4}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the job has 3 training steps"));
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

TEST_F(ReportTest, JobWithoutWorkHasNothingToPredict) {
  std::filesystem::create_directory(directory_ + "/trace");
  trace::Writer writer;
  ASSERT_EQ(writer.Open((directory_ + "/" + graph::TraceName(0)).c_str(), 0, 1), 0);
  ASSERT_EQ(writer.Close(0), 0);
  std::ofstream(directory_ + "/job.json") << R"({"schema": "prism.job", "schema_version": 1})";
  const auto report = BuildReport(directory_, {.target = "h200x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->prediction.has_value());
  EXPECT_TRUE(report->nothing_to_predict);
  EXPECT_THAT(report->Text(), HasSubstr("no rank did anything on a GPU"));
  EXPECT_EQ(Simulate(directory_, {.target = "h200x8"}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ReportTest, MemoryThatIsNotKnownIsSaidAndTakenFromTheTrace) {
  std::filesystem::create_directory(directory_ + "/trace");
  for (uint32_t rank : {0, 1}) {
    trace::Writer writer;
    ASSERT_EQ(writer.Open((directory_ + "/" + graph::TraceName(rank)).c_str(), rank, 2), 0);
    writer.Memory(trace::MemoryKind::kDevice, 3 << 20, 0x1000);
    writer.Memory(trace::MemoryKind::kDevice, 4 << 20, 0x2000);
    writer.Memory(trace::MemoryKind::kDevice, -(3 << 20), 0x1000);
    writer.Memory(trace::MemoryKind::kModelled, 64 << 20, 0);
    ASSERT_EQ(writer.Close(0), 0);
  }
  std::filesystem::create_directory(directory_ + "/ranks");
  std::ofstream(directory_ + "/job.json") << R"({"schema": "prism.job", "schema_version": 1})";
  const auto nobody = BuildReport(directory_, {.target = "h200x8"});
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  EXPECT_THAT(nobody->Text(),
              HasSubstr("not known of ranks 0-1: prism observes the ranks that it"));
  EXPECT_EQ(nobody->memory[1].peak_reserved_bytes, 7u << 20);
  EXPECT_THAT(nobody->Text(), HasSubstr("7.0 MiB"));
  WriteMemory(0, R"({"schema": "prism.rank-memory", "devices": []})");
  WriteMemory(1, R"({"schema": "prism.rank-memory"})");
  const auto damaged = BuildReport(directory_, {.target = "h200x8"});
  EXPECT_TRUE(damaged->memory[0].known);
  EXPECT_TRUE(damaged->memory[1].damaged);
  EXPECT_THAT(damaged->Text(), HasSubstr("rank 1: ranks/00001/memory.json is damaged"));
  EXPECT_EQ(damaged->Json()["memory"][0]["unknown_because"], "ranks/00001/memory.json is damaged");
}

TEST_F(ReportTest, ReadsOfWhatWasNotComputedAreGaps) {
  std::filesystem::create_directory(directory_ + "/trace");
  trace::Writer writer;
  ASSERT_EQ(writer.Open((directory_ + "/" + graph::TraceName(0)).c_str(), 0, 1), 0);
  const uint32_t stream = writer.AddStream(0, 0, "default stream");
  const auto copy = [&](const char* name) {
    const uint32_t one[3] = {1, 1, 1};
    return writer.Kernel(trace::KernelKind::kCopy, name, one, one, 0, 4);
  };
  const uint32_t to_host = copy("DtoH"), to_device = copy("HtoD");
  for (const uint32_t kernel : {to_device, to_host, to_host}) writer.Launch(stream, kernel);
  writer.SyncStream(stream);
  writer.Launch(stream, to_host);  // by way of an event
  writer.Record(stream, 1, 1);
  writer.SyncEvent(1, 1, /*query=*/false);
  writer.SyncStream(stream);
  writer.Launch(stream, to_host);  // that nobody waits for
  ASSERT_EQ(writer.Close(0), 0);
  const auto text = [&](const char* values) {
    std::ofstream(directory_ + "/job.json")
        << R"({"schema": "prism.job", "schema_version": 1, "device": "host", "values": ")" << values
        << "\"}";
    return BuildReport(directory_, {.target = "h200x8"})->Text();
  };
  EXPECT_THAT(text("none"), HasSubstr("not computed (.item(), .cpu(), print): 3 reads a rank"));
  EXPECT_THAT(text("none"), HasSubstr("losses) mean nothing"));
  EXPECT_THAT(text("control"), HasSubstr("losses) mean nothing"));
  EXPECT_THAT(text("control"), Not(HasSubstr("reads a rank")));
  EXPECT_THAT(text("cpu"), Not(HasSubstr("losses")));
}

TEST_F(ReportTest, MemoryThatDoesNotFitTheTargetIsAFinding) {
  Write({.world = 2});
  // 74 GiB allocated and 77 reserved: H100s (79.2 GiB) take it, with 0.5 GiB of context; 78.9 GiB
  // allocated do not fit; 78 reserved with 70 allocated only when the cache is given back.
  const auto memory = [](double allocated, double reserved) {
    return fmt::format(R"({{"schema": "prism.rank-memory", "devices": [{{"device": 0, )"
                       R"("max_allocated_bytes": {:.0f}, "max_reserved_bytes": {:.0f}}}]}})",
                       allocated * (1 << 30), reserved * (1 << 30));
  };
  WriteMemory(0, memory(74, 77));
  WriteMemory(1, memory(78.9, 78.9));
  const auto report = BuildReport(directory_, {.target = "h100x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->does_not_fit, ElementsAre(1));
  EXPECT_THAT(report->Text(), HasSubstr("does not fit: out of memory on rank 1"));
  EXPECT_EQ(report->Json()["does_not_fit"], nlohmann::ordered_json({1}));
  const auto larger = BuildReport(directory_, {.target = "h200x8"});
  EXPECT_THAT(larger->does_not_fit, IsEmpty());
  EXPECT_THAT(larger->Text(), Not(HasSubstr("fit")));
  WriteMemory(1, memory(70, 79));
  const auto cached = BuildReport(directory_, {.target = "h100x8"});
  EXPECT_THAT(cached->does_not_fit, IsEmpty());
  EXPECT_THAT(cached->Text(), HasSubstr("rank 1 would fit only if the allocator gives back"));
}

TEST_F(ReportTest, FigureOfSeveralDevicesSaysSo) {
  Write({.world = 2});
  WriteMemory(0, R"({"devices": [{"device": 0, "max_reserved_bytes": 90000000000},
                                 {"device": 1, "max_reserved_bytes": 90000000000}]})");
  WriteMemory(1, R"({"devices": [{"device": 0, "max_reserved_bytes": 4194304}]})");
  const auto report = BuildReport(directory_, {.target = "h200x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->Text(), HasSubstr("0 (2 GPUs)"));
  EXPECT_THAT(report->Text(), HasSubstr("rank 0 uses several GPUs"));
  EXPECT_THAT(report->Text(), Not(HasSubstr("fit")));  // 84 GiB on each of the two
  EXPECT_EQ(report->memory[0].context_bytes, 2 * report->memory[1].context_bytes);
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

TEST_F(ReportTest, EarlierTimelineIsShownOnlyWithItsOwnPrediction) {
  Write({.kind = JobKind::kDataParallel, .world = 4, .steps = 3});
  const std::string path = directory_ + "/" + std::string(kTimelineName);
  ASSERT_TRUE(Simulate(directory_, {.target = "h200x8", .timeline_path = path}).ok());
  EXPECT_EQ(BuildReport(directory_, {.target = "h200x8"})->timeline_path, path);
  EXPECT_EQ(BuildReport(directory_, {.target = "a100x8"})->timeline_path, "");
  const std::string moved = directory_ + "_moved";
  std::filesystem::rename(directory_, moved);
  EXPECT_EQ(BuildReport(moved, {.target = "h200x8"})->timeline_path,
            moved + "/" + std::string(kTimelineName));
  std::filesystem::rename(moved, directory_);
  // A simulation that writes none leaves the file, which is not its own.
  ASSERT_TRUE(Simulate(directory_, {.target = "b200x8"}).ok());
  EXPECT_EQ(BuildReport(directory_, {.target = "b200x8"})->timeline_path, "");
  EXPECT_EQ(BuildReport(directory_, {.target = "h200x8"})->timeline_path, "");
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

// Two ranks, the second of which is the last to come by 2 ms.
RecordedJob TwoRanks() {
  return {.steps = 12,
          .host_ns = [](uint32_t, uint32_t) { return 100'000; },
          .span_ns =
              [](uint32_t r, uint32_t s) {
                return int64_t{8'000'000} + 2'000'000 * r + (s % 2 == 0 ? 0 : 100'000);
              },
          .transfer_ns = [](uint32_t) { return 500'000; }};
}

TEST_F(ReportTest, RecordedJobsAreMeasured) {
  ASSERT_FALSE(WriteRecordedJob(directory_, TwoRanks()).empty());
  const auto report = Simulate(directory_, {.target = "h200x8"});
  ASSERT_TRUE(report.ok()) << report.status();
  const Prediction& p = *report->prediction;
  EXPECT_GT(p.by_source[3], 0.99);
  EXPECT_LT(p.by_source[0] + p.by_source[1] + p.by_source[2], 0.01);
  EXPECT_NEAR(p.compute_share, 10.06 / 10.66, 0.02);
  EXPECT_NEAR(p.communication_share, 0.5 / 10.66, 0.01);
  EXPECT_NEAR(p.host_share, 0.1 / 10.66, 0.01);
  // The range is that of measurements.
  EXPECT_NEAR(static_cast<double>(p.low_ns), 0.98 * static_cast<double>(p.step_ns), 5e3);
  EXPECT_NEAR(static_cast<double>(p.high_ns), 1.02 * static_cast<double>(p.step_ns), 5e3);
}

TEST_F(ReportTest, SamplesOfSomeStepsStandForAll) {
  ASSERT_FALSE(WriteRecordedJob(directory_, TwoRanks()).empty());
  std::map<graph::Samples, int64_t> step_ns;
  for (graph::Samples samples : {graph::Samples::kOdd, graph::Samples::kEven}) {
    const auto report = Simulate(directory_, {.target = "h200x8", .samples = samples});
    ASSERT_TRUE(report.ok()) << report.status();
    const Prediction& p = *report->prediction;
    step_ns[samples] = p.step_ns;
    // All steps take the same; the first ones have no step before them that is like the others.
    for (size_t k = 2; k < p.steps.size(); ++k) EXPECT_EQ(p.steps[k].ns, p.step_ns) << k;
    EXPECT_THAT(p.notes, ::testing::Contains(HasSubstr("training steps (" +
                                                       std::string(SamplesName(samples)) + ")")));
  }
  // Step n holds the span of iteration n + 1: even ones take 0.1 ms more.
  EXPECT_EQ(step_ns[graph::Samples::kEven] - step_ns[graph::Samples::kOdd], 100'000);
}

TEST_F(ReportTest, DelaysMoveTheStepByWhatIsExposed) {
  ASSERT_FALSE(WriteRecordedJob(directory_, TwoRanks()).empty());
  const auto step = [&](std::vector<StepDelay> delays) {
    const auto report = Simulate(
        directory_,
        {.target = "h200x8", .samples = graph::Samples::kAll, .delays = std::move(delays)});
    EXPECT_TRUE(report.ok()) << report.status();
    return report->prediction->step_ns;
  };
  const int64_t own = step({});
  EXPECT_EQ(step({{1, 5'000'000}}), own + 5'000'000);
  EXPECT_EQ(step({{0, 2'000'000}}), own);
  EXPECT_EQ(step({{0, 5'000'000}}), own + 3'000'000);
  EXPECT_EQ(step({{0, 5'000'000}, {1, 5'000'000}}), own + 5'000'000);

  const auto report = Simulate(directory_, {.target = "h200x8", .delays = {{1, 5'000'000}}});
  EXPECT_THAT(report->Text(), HasSubstr("what if rank 1 had 5 ms more host time"));
  EXPECT_THAT(report->prediction->Json()["notes"].dump(), HasSubstr("what if rank 1"));
  const auto none = Simulate(directory_, {.target = "h200x8", .delays = {{7, 1}}}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(none.ToString(), HasSubstr("no rank 7"));
  EXPECT_EQ(HintOf(none), "the job has ranks 0-1");
}

// All communications of the job take the same time, so the step differs by that of the calls which
// nothing hides.
TEST_F(ReportTest, NetworkProfileIsUsedAndSaid) {
  Write({.kind = JobKind::kFullyShardedDP, .world = 4, .steps = 5});
  engine::NetworkProfile profile;
  profile.machine["gpu"] = "NVIDIA B200";
  const auto predicted = [&](double ns) {
    profile.entries.clear();
    for (const uint64_t bytes : {uint64_t{1} << 10, uint64_t{1} << 30}) {
      profile.entries.push_back(
          {trace::CommOp::kAllGather, std::nullopt, 4, 1, bytes, true, ns, ns, ns, 1});
    }
    return BuildReport(
        directory_,
        {.target = "h200x4", .network = std::make_shared<const engine::NetworkTable>(profile)});
  };
  const auto fast = predicted(5e6), slow = predicted(50e6);
  ASSERT_TRUE(fast.ok() && slow.ok());
  const Prediction& p = *slow->prediction;
  ASSERT_TRUE(p.network.has_value());
  EXPECT_EQ(p.network->measured, 0u);
  EXPECT_GT(p.network->interpolated, 0u);
  EXPECT_GT(p.network->modelled, 0u);
  EXPECT_THAT(p.network->modelled_operations, ElementsAre("ReduceScatter"));
  EXPECT_GT(p.by_source[static_cast<size_t>(engine::TimeSource::kInterpolated)], 0.9);
  double gathers = 0;
  for (const CommunicationRow& row : p.communications) {
    if (row.operation != "AllGather") continue;
    gathers += row.calls;
    EXPECT_NEAR(row.transfer_ns, row.calls * 50e6, 1);
  }
  // At these durations the step is its gathers, one after the other.
  EXPECT_NEAR(static_cast<double>(p.step_ns - fast->prediction->step_ns), gathers * 45e6,
              0.01 * gathers * 45e6);
  EXPECT_THAT(slow->Text(), HasSubstr("profile of NVIDIA B200 (isolated calls); of "));
  EXPECT_THAT(slow->Text(), HasSubstr("modelled (ReduceScatter)"));
  EXPECT_THAT(slow->warnings, ::testing::Contains(HasSubstr("the target's GPU is NVIDIA H200")));
  EXPECT_EQ(slow->Json()["prediction"]["network"]["calls"]["interpolated"],
            p.network->interpolated);
  EXPECT_FALSE(BuildReport(directory_, {.target = "h200x4"})->prediction->network.has_value());
}

// The step is its gathers, whose size lies between two of a curve that is told badly from the
// others: all of them are off together, and the step by as much.
TEST_F(ReportTest, SizesThatWereNotMeasuredAreASourceOfTheInterval) {
  Write({.kind = JobKind::kFullyShardedDP, .world = 4, .steps = 6});
  engine::NetworkProfile profile;
  profile.machine["gpu"] = "NVIDIA H200";
  for (const auto& [bytes, ns] : {std::pair{uint64_t{1} << 8, 50e6},
                                  {uint64_t{1} << 10, 56e6},
                                  {uint64_t{1} << 29, 50e6},
                                  {uint64_t{1} << 30, 56e6}}) {
    for (const auto op : {trace::CommOp::kAllGather, trace::CommOp::kReduceScatter}) {
      profile.entries.push_back({op, std::nullopt, 4, 1, bytes, true, ns, ns, ns, 1});
      if (op == trace::CommOp::kReduceScatter) profile.entries.back().type = 9;  // bf16
    }
  }
  const auto table = std::make_shared<const engine::NetworkTable>(profile);
  const double doubt = table
                           ->TimeOf(engine::ParseTarget("h200x4")->gpu, trace::CommOp::kAllGather,
                                    9, 1 << 20, {4, 1, 4})
                           ->size_doubt;
  ASSERT_GT(doubt, 0.01);
  const auto report =
      BuildReport(directory_, {.target = "h200x4", .network = table, .jitter = 1e-6, .draws = 4});
  ASSERT_TRUE(report.ok()) << report.status();
  const std::vector<WidthSource>& sources = report->prediction->mean_interval->sources;
  const auto sizes = std::find_if(sources.begin(), sources.end(), [](const WidthSource& source) {
    return source.name == "sizes that were not measured";
  });
  ASSERT_NE(sizes, sources.end());
  EXPECT_NEAR(sizes->high, std::exp(1.645 * doubt) - 1, 0.02 * doubt);
  EXPECT_NEAR(sizes->low, 1 - std::exp(-1.645 * doubt), 0.02 * doubt);
  EXPECT_FALSE(sizes->other_mean);
}

}  // namespace
}  // namespace prism::report
