#include "src/engine/network_profile.h"

#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/base/status.h"

namespace prism::engine {
namespace {

using ::testing::HasSubstr;
using trace::CommOp;

std::string File(const std::string& entries) {
  return R"({"schema": "prism.netprofile", "schema_version": 1, "machine": {"gpu": "NVIDIA H200"},
             "settings": {}, "entries": [)" +
         entries + "]}";
}

std::string Entry(const std::string& changed = "", const std::string& value = "") {
  const std::pair<std::string, std::string> members[] = {{"operation", R"("AllReduce")"},
                                                         {"type", R"("bf16")"},
                                                         {"ranks", "2"},
                                                         {"nodes", "1"},
                                                         {"bytes", "1024"},
                                                         {"isolated", "true"},
                                                         {"median_ns", "12000"},
                                                         {"p10_ns", "11000"},
                                                         {"p90_ns", "13000.5"},
                                                         {"n", "20"}};
  std::string text;
  for (const auto& [name, usual] : members) {
    const std::string& shown = name == changed ? value : usual;
    if (!shown.empty()) text += (text.empty() ? "\"" : ", \"") + name + "\": " + shown;
  }
  return "{" + text + "}";
}

TEST(NetworkProfileTest, WhatIsWrittenIsReadBack) {
  NetworkProfile profile;
  profile.machine["gpu"] = "NVIDIA H200";
  profile.settings["repeats"] = 20;
  profile.entries = {
      {CommOp::kAllReduce, TypeOf("bf16"), 2, 1, 1024, true, 12000.5, 11000, 13000, 20},
      {CommOp::kAllReduce, TypeOf("bf16"), 2, 1, 1024, false, 9000, 9000, 9000, 1},
      {CommOp::kSend, std::nullopt, 2, 2, uint64_t{1} << 40, false, 1e12, 9e11, 2e12, 3}};
  profile.entries[2].rails = 2;
  EXPECT_FALSE(ParseNetworkProfile(SerializeNetworkProfile(profile))->links.has_value());
  profile.entries[2].leaves = 2;
  profile.links = NetworkLinks{6000.5, {0, 0, 1, 1}, {0, 4}, 4, 0.5};
  const auto read = ParseNetworkProfile(SerializeNetworkProfile(profile));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->links.has_value());
  EXPECT_EQ(read->links->receive_ns, 6000.5);
  EXPECT_THAT(read->links->nic_of_gpu, ::testing::ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(read->links->nodes, ::testing::ElementsAre(0, 4));
  EXPECT_EQ(read->links->nodes_per_leaf, 4u);
  EXPECT_EQ(read->links->leaf_share, 0.5);
  EXPECT_EQ(read->entries[0].leaves, 0u);
  EXPECT_EQ(read->entries[2].leaves, 2u);
  EXPECT_EQ(read->entries[0].rails, 0u);
  EXPECT_EQ(read->entries[2].rails, 2u);
  EXPECT_EQ(read->gpu(), "NVIDIA H200");
  EXPECT_EQ(read->settings["repeats"], 20);
  ASSERT_EQ(read->entries.size(), 3u);
  EXPECT_EQ(read->entries[0].type, TypeOf("bf16"));
  EXPECT_EQ(read->entries[0].median_ns, 12000.5);
  EXPECT_EQ(read->entries[2].op, CommOp::kSend);
  EXPECT_EQ(read->entries[2].type, std::nullopt);
  EXPECT_EQ(read->entries[2].bytes, uint64_t{1} << 40);
  EXPECT_EQ(read->entries[2].nodes, 2u);
}

TEST(NetworkProfileTest, MembersThatAreNotKnownAreLeftAlone) {
  const auto profile = ParseNetworkProfile(File(
      R"({"operation": "AlltoAll", "ranks": 8, "nodes": 2, "bytes": 1, "isolated": false, "median_ns": 1,
          "p10_ns": 1, "p90_ns": 1, "n": 1, "of_a_later_version": [1, 2]})"));
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->entries[0].op, CommOp::kAllToAll);
}

TEST(NetworkProfileTest, EachWrongMemberIsNamedWithItsValue) {
  const struct {
    const char *member, *value, *message;
  } cases[] = {
      {"operation", "\"AllReduse\"", "operation is \"AllReduse\", not one of AllReduce"},
      {"operation", "\"Recv\"", "operation is \"Recv\""},
      {"operation", "7", "operation is 7, not a text"},
      {"operation", "", "has no operation"},
      {"type", "\"float\"", "type is \"float\", not one of int8"},
      {"type", "", "has no type"},
      {"ranks", "1", "ranks is 1, not an integer from 2"},
      {"ranks", "2.5", "ranks is 2.5"},
      {"ranks", "-2", "ranks is -2"},
      {"ranks", "1e300", "ranks is 1e+300"},
      {"nodes", "0", "nodes is 0, not an integer from 1 to 2"},
      {"nodes", "3", "nodes is 3, not an integer from 1 to 2"},
      {"bytes", "0", "bytes is 0"},
      {"bytes", "9223372036854775807", "bytes is 9223372036854775807"},
      {"bytes", "\"1024\"", "bytes is \"1024\""},
      {"isolated", "1", "isolated is 1, not true or false"},
      {"median_ns", "0", "median_ns is 0, not nanoseconds above 0"},
      {"median_ns", "-12000", "median_ns is -12000"},
      {"median_ns", "null", "median_ns is null"},
      {"median_ns", "1e300", "median_ns is 1e+300"},
      {"p10_ns", "12001", "not ascending"},
      {"p90_ns", "11999", "not ascending"},
      {"n", "0", "n is 0"},
      {"n", "[]", "n is []"},
  };
  for (const auto& c : cases) {
    const auto profile = ParseNetworkProfile(File(Entry() + "," + Entry(c.member, c.value)));
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(profile.status().ToString(), HasSubstr("entry 1: ")) << c.message;
    EXPECT_THAT(profile.status().ToString(), HasSubstr(c.message));
    EXPECT_THAT(HintOf(profile.status()), HasSubstr("netprofile.md"));
  }
}

TEST(NetworkProfileTest, DuplicatesAreRefused) {
  EXPECT_THAT(ParseNetworkProfile(File(Entry() + "," + Entry())).status().ToString(),
              HasSubstr("entry 1: another entry has the same operation"));
  EXPECT_TRUE(ParseNetworkProfile(File(Entry() + "," + Entry("isolated", "false"))).ok());
}

TEST(NetworkProfileTest, OperationsThatOnlyMoveBytesHaveNoType) {
  const std::string gather = Entry("operation", "\"AllGather\"");
  EXPECT_THAT(ParseNetworkProfile(File(gather)).status().ToString(),
              HasSubstr("has a type, on which the time of AllGather does not depend"));
}

TEST(NetworkProfileTest, OtherFilesAreRefused) {
  const std::string good = File(Entry());
  ASSERT_TRUE(ParseNetworkProfile(good).ok());
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string("NaN"),
        std::string("\x80\xff\x00", 3), good.substr(0, good.size() / 2),
        File(Entry("median_ns", "NaN")), File(Entry("median_ns", "1e999")), File("3"), File(""),
        std::string(100'000, '['), std::string(R"({"schema": "prism.netprofile"})"),
        std::string(R"({"schema": "prism.netprofile", "schema_version": "1"})"),
        std::string(R"({"schema": "prism.netprofile", "schema_version": 1, "machine": {"gpu": 3},
                        "settings": {}, "entries": []})"),
        std::string(R"({"schema": "prism.netprofile", "schema_version": 1, "machine": {},
                        "settings": {}, "entries": {}})")}) {
    const auto profile = ParseNetworkProfile(text);
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_FALSE(HintOf(profile.status()).empty()) << text.substr(0, 100);
  }
}

TEST(NetworkProfileTest, LaterVersionsAreNamed) {
  std::string text = File(Entry());
  text.replace(text.find("\"schema_version\": 1"), 19, "\"schema_version\": 2");
  EXPECT_THAT(ParseNetworkProfile(text).status().ToString(),
              HasSubstr("schema_version is 2, this prism reads 1"));
}

TEST(NetworkProfileTest, MessagesOfAFileNameIt) {
  EXPECT_THAT(ReadNetworkProfile("/nowhere/net.json").status().ToString(),
              HasSubstr("/nowhere/net.json"));
  EXPECT_EQ(ReadNetworkProfile("/dev/zero").status().code(), absl::StatusCode::kNotFound);
  const std::string path = ::testing::TempDir() + "/bad_profile.json";
  std::ofstream(path) << File(Entry("ranks", "0"));
  EXPECT_THAT(ReadNetworkProfile(path).status().ToString(), HasSubstr(path + ": entry 0: ranks"));
  std::remove(path.c_str());
}

TEST(NetworkProfileTest, NamesOfOperationsMayBeWrittenInSeveralWays) {
  for (const char* name : {"AllReduce", "allreduce", "all_reduce", "ALL-REDUCE"})
    EXPECT_EQ(ProfiledOpOf(name), CommOp::kAllReduce) << name;
  EXPECT_EQ(ProfiledOpOf("alltoall"), CommOp::kAllToAll);
  EXPECT_EQ(ProfiledOpOf("recv"), std::nullopt);
  EXPECT_EQ(ProfiledOpOf(""), std::nullopt);
}

TEST(NetworkProfileTest, BadLinksAreExplained) {
  const auto with = [](const std::string& links) {
    std::string file = File(Entry());
    return ParseNetworkProfile(file.insert(file.find("\"entries\""), "\"links\": " + links + ", "));
  };
  EXPECT_TRUE(with(R"({"receive_ns": 0, "nic_of_gpu": []})").ok());
  for (const auto& [links, why] :
       {std::pair{"[]", "links is no object"},
        {R"({"nic_of_gpu": []})", "receive_ns is no time"},
        {R"({"receive_ns": -1, "nic_of_gpu": []})", "receive_ns is no time"},
        {R"({"receive_ns": 5})", "nic_of_gpu is no array"},
        {R"({"receive_ns": 5, "nic_of_gpu": [0, 2]})", "as they come"},
        {R"({"receive_ns": 5, "nic_of_gpu": [-1]})", "as they come"}}) {
    const auto profile = with(links);
    ASSERT_FALSE(profile.ok()) << links;
    EXPECT_THAT(profile.status().message(), HasSubstr(why));
  }
}

TEST(NetworkProfile, NestedDeeperThanAnyProfileIsRefused) {
  const std::string deep(200000, '[');
  const auto profile = ParseNetworkProfile(R"({"schema": "prism.network", "machine": {"a": )" +
                                           deep + std::string(deep.size(), ']') + "}}");
  ASSERT_FALSE(profile.ok());
  EXPECT_NE(profile.status().message().find("nested deeper"), std::string::npos)
      << profile.status();
}

}  // namespace
}  // namespace prism::engine
