#include "src/graph/matching_table.h"

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/trace/writer.h"

namespace prism::graph {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trace::CommOp;

// Two ranks: three all-reduces of 16 bytes, then rank 0 sends 4 bytes to rank 1.
class MatchingTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/matching_table_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(directory_ + "/trace");
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trace::Writer w;
      ASSERT_EQ(w.Open((directory_ + "/" + TraceName(rank)).c_str(), rank, 2), 0);
      const uint32_t stream = w.AddStream(0, 0, "nccl"), world[] = {0, 1};
      w.Communicator({1, 2, rank, 0, 0}, world);
      const auto call = [&](CommOp op, int32_t peer, uint64_t bytes, uint64_t sequence) {
        const trace::CallRecord record{1, static_cast<uint32_t>(op), 7, 0, peer, 0, 4, bytes, 1, 0};
        w.Comm(stream, w.Call(record), sequence, trace::ValueSource::kExact);
      };
      for (uint64_t i = 0; i < 3; ++i) call(CommOp::kAllReduce, -1, 16, i);
      if (rank == 0) call(CommOp::kSend, 1, 4, 0);
      if (rank == 1) call(CommOp::kRecv, 0, 0, 0);
      ASSERT_EQ(w.Close(0), 0);
    }
    graph_ = *LoadJob(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static ordered_json Table() {
    return ordered_json::parse(
        R"({"schema": "prism.matching", "schema_version": 1, "communicators": [
        {"number": 1, "ranks": [0, 1],
         "operations": {"AllReduce": {"calls": 3, "bytes": 96}, "Send": {"calls": 1, "bytes": 4}}}]})");
  }
  std::vector<std::string> Texts(const ordered_json& table) const {
    std::vector<std::string> texts;
    for (const Finding& finding : CompareWithMatching(graph_, table)) {
      EXPECT_EQ(finding.kind, FindingKind::kDisagreement);
      texts.push_back(finding.text);
    }
    return texts;
  }

  std::string directory_;
  Graph graph_;
};

TEST_F(MatchingTableTest, EqualTablesAgree) { EXPECT_THAT(Texts(Table()), IsEmpty()); }

TEST_F(MatchingTableTest, CollectiveThatATraceLacksIsNamedForEachRank) {
  ordered_json table = Table();
  table["communicators"][0]["operations"]["AllReduce"] = {{"calls", 4}, {"bytes", 128}};
  EXPECT_THAT(Texts(table),
              ElementsAre(HasSubstr("rank 0 calls AllReduce 3 times in its trace; the coordinator "
                                    "matched 4"),
                          HasSubstr("rank 1 calls AllReduce 3 times"),
                          HasSubstr("AllReduce moves 96 bytes by the traces, 128")));
}

TEST_F(MatchingTableTest, CallThatTheCoordinatorNeverMatchedIsNamed) {
  ordered_json table = Table();
  table["communicators"][0]["operations"].erase("Send");
  EXPECT_THAT(Texts(table), ElementsAre(HasSubstr("the traces have 1 sends; the coordinator "
                                                  "matched 0")));
}

TEST_F(MatchingTableTest, CommunicatorsAreCompared) {
  ordered_json table = Table();
  table["communicators"][0]["ranks"] = {1, 0};
  EXPECT_THAT(Texts(table), ElementsAre(HasSubstr("communicator 1 is one of ranks 0,1")));
  table["communicators"][0]["number"] = 2;
  EXPECT_THAT(Texts(table), ElementsAre(HasSubstr("the coordinator does not know it"),
                                        HasSubstr("communicator 2 of the coordinator")));
}

TEST_F(MatchingTableTest, AnotherDocumentIsAFinding) {
  EXPECT_THAT(Texts(ordered_json::parse("[]")), ElementsAre(HasSubstr("not the table")));
  EXPECT_THAT(Texts(ordered_json::parse(R"({"schema": 1})")),
              ElementsAre(HasSubstr("not the table")));
  EXPECT_FALSE(
      Texts(ordered_json::parse(R"({"schema": "prism.matching", "communicators": [1, null]})"))
          .empty());
}

}  // namespace
}  // namespace prism::graph
