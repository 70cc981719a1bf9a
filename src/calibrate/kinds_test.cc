#include "src/calibrate/kinds.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/calibrate/retime.h"
#include "src/trace/writer.h"

namespace prism::calibrate {
namespace {

using ::testing::ElementsAre;
using trace::CommOp;
using trace::KernelKind;
using trace::Reader;
using trace::Writer;

constexpr uint32_t kWorld = 6, kSteps = 5;
constexpr uint32_t kBlock[3] = {256, 1, 1};

// Rows that a rank's expert gets; of some peers nothing comes and nothing goes to them.
uint32_t Rows(uint32_t rank, uint32_t step) { return 16 + 10 * rank + (3 * step + rank) % 7; }
bool Talks(uint32_t rank, uint32_t peer, uint32_t step) { return (rank + peer + step) % 3 != 0; }

struct How {
  bool measured = false;  // with times, and every launch a span, as calibrate writes
  bool parameters = false;
  uint32_t slow_rank = UINT32_MAX;    // whose kernels state another time
  uint32_t silent_rank = UINT32_MAX;  // of whose product nothing is known
  uint32_t other_rank = UINT32_MAX;   // that does something else
  bool alike = false;                 // all have one size, and there are no messages
};

// A layer with experts: a product, an exchange of messages, a kernel as large as what was received,
// an event that another stream waits for.
void Write(const std::string& path, uint32_t rank, const How& how) {
  Writer w;
  ASSERT_EQ(w.Open(path.c_str(), rank, kWorld), 0);
  if (how.measured) w.CutEveryLaunch();
  const uint32_t compute = w.AddStream(0, 0, "compute"), exchange = w.AddStream(0, 0, "exchange");
  std::vector<uint32_t> ranks;
  for (uint32_t r = 0; r < kWorld; ++r) ranks.push_back(r);
  w.Communicator({5, kWorld, rank, 0, 0}, ranks.data());
  w.CommInit(5);
  std::vector<int64_t> ns;
  const auto rows = [&](uint32_t step) { return Rows(how.alike ? 0 : rank, step); };
  const auto talks = [&](uint32_t peer, uint32_t step) {
    return !how.alike && Talks(rank, peer, step);
  };
  const auto launch = [&](const char* name, uint32_t blocks, int64_t span_ns, uint32_t says) {
    const uint32_t grid[3] = {blocks, 1, 1};
    w.Launch(compute, w.Kernel(KernelKind::kKernel, name, grid, kBlock, 0, 0,
                               how.parameters ? says : trace::kParametersUnknown));
    if (how.measured) w.HostTime(500);
    ns.push_back(span_ns);
  };
  for (uint32_t step = 0; step < kSteps; ++step) {
    if (how.measured) w.HostTime(20'000);
    w.Memory(trace::MemoryKind::kDevice, 1000 * rows(step), 0x1000 + step);
    // What is said of a product is always the same; a seed is not.
    launch("product", 64, 9'000,
           rank == how.silent_rank ? trace::kParametersUnknown
           : rank == how.slow_rank ? 11
                                   : 10);
    launch("draw", 8, 2'000, 1000 + 10 * step + rank);
    w.Record(compute, 1, 2 * step + 1), ns.push_back(-1);
    w.Wait(exchange, 1, 2 * step + 1);
    trace::CallRecord call{};
    call.comm = 5;
    call.call_site = w.String("here");
    uint32_t messages = 0;
    for (uint32_t peer = 0; peer < kWorld; ++peer) messages += talks(peer, step) ? 2 : 0;
    for (uint32_t peer = 0; peer < kWorld; ++peer) {
      if (!talks(peer, step)) continue;
      for (const CommOp op : {CommOp::kSend, CommOp::kRecv}) {
        call.op = static_cast<uint32_t>(op);
        call.peer = static_cast<int32_t>(peer);
        call.count = call.bytes = Rows(op == CommOp::kSend ? peer : rank, step);
        call.group = messages;
        w.Comm(exchange, w.Call(call), step, trace::ValueSource::kGenerated);
      }
    }
    w.Record(exchange, 2, step + 1);
    w.Wait(compute, 2, step + 1), ns.push_back(-1);
    launch("experts", rows(step), 4'000 + 30 * rows(step), 10);
    launch("sum", rows(step), 1'000 + 5 * rows(step), 10);
    if (rank == how.other_rank) launch("more", 1, 100, 10);
    w.SyncStream(compute);
  }
  w.Flush();
  if (how.measured) w.Timing(compute, 0, ns.data(), ns.size());
  w.Meta(R"({"command": "x"})");
  ASSERT_EQ(w.Close(0), 0);
}

class KindsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/kinds_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  // Returns the folder.
  std::string WriteAll(const std::string& name, const How& how) {
    const std::string folder = directory_ + "/" + name;
    std::filesystem::create_directories(folder + "/trace");
    for (uint32_t rank = 0; rank < kWorld; ++rank)
      Write(folder + "/" + graph::TraceName(rank), rank, how);
    return folder;
  }
  static std::vector<Kind> Kinds(const std::string& folder, uint32_t most_slices) {
    const absl::StatusOr<graph::Graph> graph = graph::LoadJob(folder);
    EXPECT_TRUE(graph.ok()) << graph.status();
    const auto kinds = KindsOf(*graph, most_slices);
    EXPECT_TRUE(kinds.ok()) << kinds.status();
    return *kinds;
  }
  static std::vector<uint32_t> Run(const Kind& kind) {
    std::vector<uint32_t> ranks;
    for (const Slice& slice : kind.slices) ranks.push_back(slice.representative);
    return ranks;
  }
  static std::vector<uint32_t> Retimed(const Kind& kind) {
    std::vector<uint32_t> ranks;
    for (const Slice& slice : kind.retimed)
      ranks.insert(ranks.end(), slice.ranks.begin(), slice.ranks.end());
    return ranks;
  }
  std::string directory_;
};

TEST_F(KindsTest, OfRanksThatDifferInSizesThoseWithTheLeastAndTheMostRun) {
  const std::string captured = WriteAll("captured", {});
  const std::vector<Kind> kinds = Kinds(captured, 2);
  ASSERT_EQ(kinds.size(), 1u);
  EXPECT_THAT(Run(kinds[0]), ElementsAre(0, 5));
  EXPECT_THAT(Retimed(kinds[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Run(Kinds(captured, 3)[0]), ElementsAre(0, 2, 5));
  EXPECT_EQ(Kinds(captured, kWorld)[0].slices.size(), kWorld);
  EXPECT_EQ(Kinds(captured, 0)[0].slices.size(), kWorld);
  EXPECT_THAT(Sampled(kinds, 1), ElementsAre(3));
  EXPECT_THAT(Sampled(kinds, 2), ElementsAre(2, 4));
  EXPECT_THAT(Sampled(kinds, 100), ElementsAre(1, 2, 3, 4));
}

TEST_F(KindsTest, WhoDoesSomethingElseIsOfAnotherKind) {
  const std::vector<Kind> kinds = Kinds(WriteAll("captured", {.other_rank = 2}), 2);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_THAT(Run(kinds[0]), ElementsAre(0, 5));
  EXPECT_THAT(Retimed(kinds[0]), ElementsAre(1, 3, 4));
  EXPECT_THAT(Run(kinds[1]), ElementsAre(2));
}

TEST_F(KindsTest, StragglersAreToldByParametersThatAreAlwaysTheSame) {
  EXPECT_EQ(Kinds(WriteAll("without", {.slow_rank = 4}), 2).size(), 1u);
  const std::vector<Kind> kinds = Kinds(WriteAll("with", {.parameters = true, .slow_rank = 4}), 2);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_THAT(Run(kinds[1]), ElementsAre(4));
  EXPECT_EQ(kinds[0].slices.size() + kinds[0].retimed.size(), 5u);
}

// A program does not know its kernels' parameters: the straggler shares the others'.
TEST_F(KindsTest, StragglersOfOneProgramRunForThemselves) {
  for (const uint32_t most : {0, 2}) {
    const std::string folder = WriteAll("alike" + std::to_string(most),
                                        {.parameters = true, .slow_rank = 4, .alike = true});
    ASSERT_EQ(graph::LoadJob(folder)->programs.size(), 1u);
    const std::vector<Kind> kinds = Kinds(folder, most);
    ASSERT_EQ(kinds.size(), 2u);
    EXPECT_THAT(kinds[0].slices[0].ranks, ElementsAre(0, 1, 2, 3, 5));
    EXPECT_THAT(kinds[1].slices[0].ranks, ElementsAre(4));
    EXPECT_EQ(kinds[1].slices[0].representative, 4u);
  }
  EXPECT_EQ(Kinds(WriteAll("unknown", {.slow_rank = 4, .alike = true}), 2).size(), 1u);
}

// Of a rank of which nothing is known a straggler and the others could be of one kind with it.
TEST_F(KindsTest, TheOrderOfRanksDoesNotMatter) {
  for (const bool alike : {true, false}) {
    for (const auto& [slow, silent] : {std::pair{4u, 0u}, {0u, 4u}, {4u, 5u}, {1u, 0u}}) {
      SCOPED_TRACE(::testing::Message() << alike << " " << slow << " " << silent);
      const std::vector<Kind> kinds = Kinds(
          WriteAll(std::to_string(slow) + std::to_string(silent) + std::to_string(alike),
                   {.parameters = true, .slow_rank = slow, .silent_rank = silent, .alike = alike}),
          2);
      std::set<std::set<uint32_t>> ranks;
      for (const Kind& kind : kinds) {
        std::set<uint32_t> of_kind;
        for (const std::vector<Slice>& slices : {kind.slices, kind.retimed}) {
          for (const Slice& slice : slices) of_kind.insert(slice.ranks.begin(), slice.ranks.end());
        }
        ranks.insert(of_kind);
      }
      std::set<uint32_t> others;
      for (uint32_t rank = 0; rank < kWorld; ++rank) {
        if (rank != slow && rank != silent) others.insert(rank);
      }
      EXPECT_THAT(ranks, ::testing::UnorderedElementsAre(std::set{slow}, std::set{silent}, others));
    }
  }
}

// Against what the rank writes when it is measured itself.
TEST_F(KindsTest, ARetimedRankHasTheTraceThatItWouldHaveWritten) {
  const std::string captured = WriteAll("captured", {});
  const std::string measured = WriteAll("measured", {.measured = true});
  const std::vector<Kind> kinds = Kinds(captured, 2);
  LaunchTimes times;
  std::vector<Reader> ran;
  std::vector<Outline> outlines;
  for (const Slice& slice : kinds[0].slices) {
    auto trace = Reader::Open(measured + "/" + graph::TraceName(slice.representative));
    ASSERT_TRUE(trace.ok()) << trace.status();
    outlines.push_back(OutlineOf(*trace));
    ran.push_back(*std::move(trace));
    Learn({ran.back(), outlines.back()}, &times);
  }
  for (const uint32_t rank : Retimed(kinds[0])) {
    SCOPED_TRACE(rank);
    const auto own = Reader::Open(captured + "/" + graph::TraceName(rank));
    ASSERT_TRUE(own.ok());
    const std::string path = directory_ + "/retimed.prt";
    const auto work =
        Retime({ran[rank % 2], outlines[rank % 2]}, {*own, OutlineOf(*own)}, &times, path);
    ASSERT_TRUE(work.ok()) << work.status();
    EXPECT_GT(work->interpolated, 0u);
    const auto retimed = Reader::Open(path);
    ASSERT_TRUE(retimed.ok()) << retimed.status();
    const auto expected = Reader::Open(measured + "/" + graph::TraceName(rank));
    ASSERT_TRUE(expected.ok());
    EXPECT_EQ(retimed->rank(), rank);
    EXPECT_EQ(retimed->meta(), expected->meta());
    EXPECT_EQ(work->span_ns, WorkOf(*retimed).span_ns);
    EXPECT_NEAR(static_cast<double>(work->span_ns), static_cast<double>(WorkOf(*expected).span_ns),
                kSteps * 2);
    ASSERT_EQ(retimed->sequences().size(), expected->sequences().size());
    for (uint32_t s = 0; s < expected->sequences().size(); ++s) {
      ASSERT_EQ(retimed->nodes(s).size(), expected->nodes(s).size());
      for (uint64_t i = 0; i < expected->nodes(s).size(); ++i) {
        trace::Node got = retimed->nodes(s)[i], want = expected->nodes(s)[i];
        if (want.kind == trace::NodeKind::kSpan) {
          const trace::Span got_span = retimed->span(got.a), want_span = expected->span(want.a);
          EXPECT_EQ(got_span.hash, want_span.hash);
          got.a = want.a;
          got.provenance = want.provenance;
        } else if (want.kind == trace::NodeKind::kComm) {
          trace::CallRecord got_call = retimed->calls()[got.a];
          const trace::CallRecord& want_call = expected->calls()[want.a];
          EXPECT_EQ(retimed->string(got_call.call_site), expected->string(want_call.call_site));
          got_call.call_site = want_call.call_site;
          EXPECT_EQ(std::memcmp(&got_call, &want_call, sizeof got_call), 0);
          got.a = want.a;
          got.detail = want.detail;  // numbers of groups, which go on over all streams
        }
        EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0) << s << " " << i;
      }
    }
    ASSERT_EQ(retimed->timings().size(), expected->timings().size());
    const auto &got_ns = retimed->timings()[0].ns, &want_ns = expected->timings()[0].ns;
    ASSERT_EQ(got_ns.size(), want_ns.size());
    for (size_t i = 0; i < want_ns.size(); ++i)
      EXPECT_NEAR(static_cast<double>(got_ns[i]), static_cast<double>(want_ns[i]), 1) << i;
    ASSERT_EQ(retimed->memory().size(), 1u);
    const auto got_memory = retimed->memory()[0], want_memory = expected->memory()[0];
    ASSERT_EQ(got_memory.size(), want_memory.size());
    for (size_t i = 0; i < want_memory.size(); ++i) {
      EXPECT_EQ(got_memory[i].bytes, want_memory[i].bytes);
      EXPECT_EQ(got_memory[i].thread, want_memory[i].thread);
    }
  }
}

TEST_F(KindsTest, WhoDoesSomethingElseIsNotRetimed) {
  const std::string captured = WriteAll("captured", {.other_rank = 2});
  const std::string measured = WriteAll("measured", {.measured = true});
  const auto ran = Reader::Open(measured + "/" + graph::TraceName(0));
  const auto own = Reader::Open(captured + "/" + graph::TraceName(2));
  ASSERT_TRUE(ran.ok() && own.ok());
  LaunchTimes times;
  const Outline outline = OutlineOf(*ran);
  Learn({*ran, outline}, &times);
  EXPECT_EQ(Retime({*ran, outline}, {*own, OutlineOf(*own)}, &times, directory_ + "/none.prt")
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
  // One size is too little to know of another.
  const auto larger = Reader::Open(captured + "/" + graph::TraceName(5));
  ASSERT_TRUE(larger.ok());
  LaunchTimes nothing;
  EXPECT_EQ(
      Retime({*ran, outline}, {*larger, OutlineOf(*larger)}, &nothing, directory_ + "/none.prt")
          .status()
          .code(),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace prism::calibrate
