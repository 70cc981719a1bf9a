#include "src/emulate/rules.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"

namespace prism::emulate {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using wire::Op;

constexpr uint32_t kInt64 = 4, kFloat32 = 7;

absl::StatusOr<Rules> Parsed(const std::string& rules) {
  return Rules::Parse(
      json::parse(R"({"schema": "prism.rules", "schema_version": 1, "rules": )" + rules + "}"),
      "rules.json", ::testing::TempDir(), 2);
}

Rules::Call CallOf(Op op, uint32_t dtype, uint64_t count, uint64_t out_bytes, uint64_t order = 0) {
  Rules::Call call{};
  call.comm = 3;
  call.size = 4;
  call.member = 2;
  call.record.op = op;
  call.record.dtype = dtype;
  call.record.count = count;
  call.record.peer = -1;
  call.record.out_bytes = out_bytes;
  call.order = order;
  return call;
}

TEST(RulesTest, FirstRuleThatMatchesGives) {
  auto rules = Parsed(R"([
    {"match": {"operation": "Recv", "bytes": [0, 15]}, "give": "own"},
    {"match": {"operation": ["Recv", "AllReduce"], "type": "float32", "size": 4, "calls": [1, 2]}, "give": "zeros"},
    {"match": {"communicator": 9}, "give": "zeros"}])");
  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto size = [&](const Rules::Call& call) {
    const auto given = rules->Give(call);
    return given.has_value() ? static_cast<int>(given->size()) : -1;
  };
  EXPECT_EQ(size(CallOf(Op::kRecv, kFloat32, 3, 12)), 0);
  EXPECT_EQ(size(CallOf(Op::kRecv, kFloat32, 4, 16, 0)), -1);
  EXPECT_EQ(size(CallOf(Op::kRecv, kFloat32, 4, 16, 1)), 16);
  EXPECT_EQ(size(CallOf(Op::kAllReduce, kFloat32, 4, 16, 2)), 16);
  EXPECT_EQ(size(CallOf(Op::kAllReduce, kFloat32, 4, 16, 3)), -1);
  EXPECT_EQ(size(CallOf(Op::kAllReduce, kInt64, 4, 32, 2)), -1);
  EXPECT_EQ(rules->given(), 3u);
  EXPECT_EQ(rules->largest_bytes(), UINT64_MAX);
}

// Mean and deviation of n draws are off by at most five of their own deviations.
TEST(RulesTest, NoiseHasItsMomentsAndFollowsFromItsSeed) {
  auto rules = Parsed(R"([{"give": {"noise": {"seed": 7, "mean": 3, "deviation": 0.5}}}])");
  auto other = Parsed(R"([{"give": {"noise": {"seed": 8, "mean": 3, "deviation": 0.5}}}])");
  constexpr size_t kCount = 40000;
  const Rules::Call call = CallOf(Op::kAllReduce, kFloat32, kCount, 4 * kCount);
  const std::string bytes(*rules->Give(call));
  std::vector<float> values(kCount);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / kCount;
  double square = 0;
  for (const float value : values) square += (value - mean) * (value - mean) / kCount;
  EXPECT_NEAR(mean, 3, 5 * 0.5 / std::sqrt(kCount));
  EXPECT_NEAR(std::sqrt(square), 0.5, 5 * 0.5 / std::sqrt(2.0 * kCount));
  EXPECT_EQ(std::string(*rules->Give(call)), bytes);
  EXPECT_NE(std::string(*other->Give(call)), bytes);
  Rules::Call next = call;
  next.order = 1;
  EXPECT_NE(std::string(*rules->Give(next)), bytes);
}

constexpr char kRouter[] =
    R"([{"match": {"type": "int64"}, "give": {"router": {"seed": 3, "members": [
        {"minimum": 0, "maximum": 60, "mean": 16, "deviation": 9, "median": 15, "skew": 0.6}]}}}])";

// What the rank sends: two experts on each of four members, 64 tokens in all.
const std::vector<int64_t>& Sent() {
  static const auto* const kSent = new std::vector<int64_t>{10, 6, 4, 12, 9, 7, 1, 15};
  return *kSent;
}
std::string_view Bytes(const std::vector<int64_t>& counts) {
  return {reinterpret_cast<const char*>(counts.data()), 8 * counts.size()};
}
std::vector<int64_t> Counts(std::string_view bytes) {
  std::vector<int64_t> counts(bytes.size() / 8);
  std::memcpy(counts.data(), bytes.data(), bytes.size());
  return counts;
}

TEST(RulesTest, RouterAnswersForThePeersAndTheOwnPartIsTheRanks) {
  auto rules = Parsed(kRouter);
  ASSERT_TRUE(rules.ok()) << rules.status();
  Rules::Call call = CallOf(Op::kAllToAll, kInt64, 2, 64);
  call.sent = Bytes(Sent());
  const std::vector<int64_t> given = Counts(*rules->Give(call));
  EXPECT_EQ(given[4], 9);
  EXPECT_EQ(given[5], 7);
  // What source 1 sends to this rank is what anybody else finds in its row.
  RouterSpec spec;
  spec.seed = 3;
  spec.members = {{0, 60, 16, 9, 15, 0.6}};
  MockRouter router(spec);
  for (const uint32_t source : {0u, 1u, 3u}) {
    const auto row = router.Row(3, source, 0, 4, 64);
    EXPECT_EQ(std::accumulate(row->begin(), row->end(), int64_t{0}), 64);
    EXPECT_EQ(given[2 * source] + given[2 * source + 1], (*row)[2]);
  }
}

TEST(RulesTest, RouterAnswersTheSameWhereCountsAreMessages) {
  auto whole = Parsed(kRouter), parts = Parsed(kRouter);
  Rules::Call call = CallOf(Op::kAllToAll, kInt64, 2, 64);
  call.sent = Bytes(Sent());
  const std::vector<int64_t> given = Counts(*whole->Give(call));
  for (const int32_t peer : {0, 1, 3}) {
    Rules::Call message = CallOf(Op::kRecv, kInt64, 2, 16);
    message.record.peer = peer;
    message.sent = Bytes(Sent());
    EXPECT_EQ(Counts(*parts->Give(message)),
              (std::vector<int64_t>{given[2 * static_cast<size_t>(peer)],
                                    given[2 * static_cast<size_t>(peer) + 1]}));
  }
  // A lone message of whole numbers is none of an exchange of counts.
  Rules::Call lone = CallOf(Op::kRecv, kInt64, 2, 16);
  EXPECT_FALSE(parts->Give(lone).has_value());
  EXPECT_TRUE(parts->status().ok());
}

TEST(RulesTest, RecordedCountsKeepTheOwnPart) {
  const std::string path = ::testing::TempDir() + "/rules_test_received.bin";
  const std::vector<int64_t> recorded{1, 2, 3, 4, 5, 6, 7, 8};
  auto writer = coordinator::ReceivedWriter::Create(path);
  ASSERT_TRUE(writer.ok());
  (*writer)->Add({2, 3, Op::kAllToAll, -1, 5}, "something else", Bytes(recorded));
  ASSERT_TRUE((*writer)->Close().ok());
  auto rules = Parsed(R"([{"give": {"recorded": ")" + path + R"("}}])");
  ASSERT_TRUE(rules.ok()) << rules.status();
  Rules::Call call = CallOf(Op::kAllToAll, kInt64, 2, 64, 5);
  call.sent = Bytes(Sent());
  EXPECT_EQ(Counts(*rules->Give(call)), (std::vector<int64_t>{1, 2, 3, 4, 9, 7, 7, 8}));
  call.order = 6;
  EXPECT_FALSE(rules->Give(call).has_value());
  unlink(path.c_str());
}

TEST(RulesTest, RouterOfOtherMembersFailsAfterwards) {
  auto rules = Parsed(kRouter);
  auto three = Parsed(R"([{"give": {"router": {"members": [
      {"minimum": 0, "maximum": 60, "mean": 16, "deviation": 9, "median": 15, "skew": 0.6},
      {"minimum": 0, "maximum": 60, "mean": 16, "deviation": 9, "median": 15, "skew": 0.6}]}}}])");
  Rules::Call call = CallOf(Op::kAllToAll, kInt64, 2, 64);
  call.sent = Bytes(Sent());
  EXPECT_FALSE(three->Give(call).has_value());
  EXPECT_THAT(std::string(three->status().message()),
              HasSubstr("2 members on a communicator of 4"));
}

struct BadRules {
  const char* rules;
  const char* message;
};
class BadRulesTest : public ::testing::TestWithParam<BadRules> {};

TEST_P(BadRulesTest, NamesThePlaceTheValueAndTheRemedy) {
  const auto rules = Parsed(GetParam().rules);
  ASSERT_FALSE(rules.ok());
  EXPECT_THAT(std::string(rules.status().message()), HasSubstr(GetParam().message));
  EXPECT_NE(HintOf(rules.status()), "");
}

INSTANTIATE_TEST_SUITE_P(
    All, BadRulesTest,
    ::testing::Values(
        BadRules{"7", "rules.json: rules is 7"}, BadRules{"[7]", "rules[0] is no object: 7"},
        BadRules{"[{}]", "rules[0] gives nothing"},
        BadRules{R"([{"giv": "own"}])", "'giv' is not one of match, give"},
        BadRules{R"([{"give": "ones"}])", "rules[0].give 'ones' is not one of own, zeros"},
        BadRules{R"([{"give": {"own": 1}}])", "own takes nothing"},
        BadRules{R"([{"give": "own", "match": {"operation": "AllReduse"}}])", "'AllReduse' is not"},
        BadRules{R"([{"give": "own", "match": {"type": []}}])", "match.type names nothing"},
        BadRules{R"([{"give": "own", "match": {"bytes": [9, 1]}}])", "[9,1] holds nothing"},
        BadRules{R"([{"give": "own", "match": {"calls": -1}}])", "match.calls is no range: -1"},
        BadRules{R"([{"give": "own", "match": {"size": 0}}])", "match.size is 0"},
        BadRules{R"([{"give": {"noise": {"deviation": -2}}}])", "give.noise.deviation is -2"},
        BadRules{R"([{"give": {"recorded": "/nowhere"}}])", "there is no /nowhere"},
        BadRules{R"([{"give": {"router": {"seed": 1}}}])", "give.router has no members"},
        BadRules{R"([{"give": {"router": {"members": [{"mean": 3}]}}}])",
                 "has no number 'minimum'"},
        BadRules{R"([{"give": {"router": "/nowhere.json"}}])", "cannot read /nowhere.json"}));

TEST(RulesTest, FileThatIsNoneIsRefused) {
  EXPECT_THAT(std::string(Rules::Load("/nowhere", 0).status().message()),
              HasSubstr("cannot read /nowhere"));
  const auto parsed = Rules::Parse(json::parse(R"({"schema": "prism.job"})"), "x", "", 0);
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("schema is \"prism.job\""));
}

}  // namespace
}  // namespace prism::emulate
