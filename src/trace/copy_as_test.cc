#include "src/trace/copy_as.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/trace/writer.h"

namespace prism::trace {
namespace {

class CopyAsTest : public ::testing::Test {
 protected:
  // Rank 0 of 4: a communicator of {0, 1} with messages to 1, and an all-reduce; times.
  void SetUp() override {
    Writer w;
    ASSERT_EQ(w.Open(source_.c_str(), 0, 4), 0);
    const uint32_t s = w.AddStream(5, 0, "s"), one[3] = {1, 1, 1}, pair[] = {0, 1};
    w.Communicator({7, 2, 0, 5, 99}, pair);
    w.CommInit(7);
    w.Memory(MemoryKind::kModelled, 99, 7);
    w.Launch(s, w.Kernel(KernelKind::kKernel, "k", one, one, 0, 0));
    CallRecord call{};
    call.comm = 7;
    call.peer = -1;
    call.group = 1;
    w.Comm(s, w.Call(call), 0, ValueSource::kExact);
    call.op = static_cast<uint32_t>(CommOp::kSend);
    call.peer = 1;
    w.Comm(s, w.Call(call), 0, ValueSource::kExact);
    const int64_t ns[] = {50, 60, 70};
    w.Flush();
    w.Timing(s, 0, ns, 3);
    ASSERT_EQ(w.Close(0), 0);
  }
  void TearDown() override {
    std::filesystem::remove(source_);
    std::filesystem::remove(copy_);
  }
  const std::string source_ = ::testing::TempDir() + "/copy_as_source.prt";
  const std::string copy_ = ::testing::TempDir() + "/copy_as_copy.prt";
};

TEST_F(CopyAsTest, OtherRankHasItsOwnCommunicatorsAndPeersAndTheSameRest) {
  const auto source = Reader::Open(source_);
  ASSERT_TRUE(source.ok()) << source.status();
  const RankIdentity identity{.rank = 3,
                              .comms = {{7, {9, 1, {2, 3}}}},
                              .peers = {{{7, 1}, 0}},
                              .devices = {{5, 6}, {0, 7}}};
  ASSERT_TRUE(CopyAs(*source, identity, copy_).ok());
  const auto copy = Reader::Open(copy_);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->rank(), 3u);
  EXPECT_EQ(copy->world(), 4u);
  ASSERT_EQ(copy->communicators().size(), 1u);
  EXPECT_EQ(copy->communicators()[0].record.comm, 9u);
  EXPECT_EQ(copy->communicators()[0].record.rank, 1u);
  EXPECT_EQ(copy->communicators()[0].record.device, 6u);
  EXPECT_EQ(copy->communicators()[0].record.channel_bytes, 99u);
  EXPECT_THAT(copy->communicators()[0].world_ranks, ::testing::ElementsAre(2, 3));
  ASSERT_EQ(copy->calls().size(), 2u);
  EXPECT_EQ(copy->calls()[0].peer, -1);
  EXPECT_EQ(copy->calls()[1].peer, 0);
  for (const CallRecord& call : copy->calls()) EXPECT_EQ(call.comm, 9u);
  bool modelled = false;
  for (const auto& records : copy->memory()) {
    for (const MemoryRecord& m : records) {
      modelled = true;
      EXPECT_EQ(m.address, 9u);
    }
  }
  EXPECT_TRUE(modelled);
  ASSERT_EQ(copy->sequences().size(), source->sequences().size());
  size_t inits = 0;
  for (uint32_t s = 0; s < copy->sequences().size(); ++s) {
    ASSERT_EQ(copy->nodes(s).size(), source->nodes(s).size());
    for (uint64_t i = 0; i < copy->nodes(s).size(); ++i) {
      Node expected = source->nodes(s)[i];
      if (expected.kind == NodeKind::kCommInit) expected.a = 9, ++inits;
      EXPECT_EQ(std::memcmp(&copy->nodes(s)[i], &expected, sizeof expected), 0);
    }
  }
  EXPECT_EQ(inits, 1u);
  ASSERT_EQ(copy->timings().size(), 1u);
  EXPECT_THAT(copy->timings()[0].ns, ::testing::ElementsAre(50, 60, 70));
}

TEST_F(CopyAsTest, IdentityThatLacksSomethingIsRefused) {
  const auto source = Reader::Open(source_);
  ASSERT_TRUE(source.ok());
  for (const RankIdentity& identity :
       {RankIdentity{.rank = 3}, RankIdentity{.rank = 3, .comms = {{7, {9, 1, {2, 3}}}}},
        RankIdentity{.rank = 3, .comms = {{7, {9, 1, {1, 2, 3}}}}, .peers = {{{7, 1}, 0}}},
        RankIdentity{.rank = 3, .comms = {{7, {9, 2, {2, 3}}}}, .peers = {{{7, 1}, 0}}}}) {
    EXPECT_EQ(CopyAs(*source, identity, copy_).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace prism::trace
