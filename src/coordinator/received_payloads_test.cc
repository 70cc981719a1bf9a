#include "src/coordinator/received_payloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace prism::coordinator {
namespace {

class ReceivedPayloadsTest : public ::testing::Test {
 protected:
  ReceivedPayloadsTest() : path_(::testing::TempDir() + "received-" + std::to_string(getpid())) {}
  ~ReceivedPayloadsTest() override { unlink(path_.c_str()); }

  void WriteThree() const {
    auto writer = ReceivedWriter::Create(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    (*writer)->Add({.rank = 0, .comm = 4, .op = wire::Op::kAllReduce, .order = 2}, "mine", "sum");
    (*writer)->Add({.rank = 1, .comm = 4, .op = wire::Op::kRecv, .peer = 3, .order = 0}, "",
                   std::string(kReceivedPayloadBytes, '\0'));
    (*writer)->Add({.rank = 1, .comm = 4, .op = wire::Op::kRecv, .peer = 2, .order = 0}, "", "two");
    EXPECT_TRUE((*writer)->Close().ok());
  }
  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Replace(const std::string& text) const {
    std::ofstream(path_, std::ios::binary).write(text.data(), static_cast<long>(text.size()));
  }

  const std::string path_;
};

TEST_F(ReceivedPayloadsTest, WrittenPayloads_AreFoundByTheirKeysAlone) {
  WriteThree();
  const auto all = ReceivedPayloads::Load(path_, {0, 1});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->size(), 3u);
  EXPECT_EQ(all->Find({.rank = 0, .comm = 4, .op = wire::Op::kAllReduce, .order = 2}, "mine"),
            "sum");
  EXPECT_EQ(all->Find({.rank = 0, .comm = 4, .op = wire::Op::kAllReduce, .order = 2}, "else"), "");
  EXPECT_EQ(all->Find({.rank = 1, .comm = 4, .op = wire::Op::kRecv, .peer = 2, .order = 0}, ""),
            "two");
  EXPECT_EQ(
      all->Find({.rank = 1, .comm = 4, .op = wire::Op::kRecv, .peer = 3, .order = 0}, "").size(),
      kReceivedPayloadBytes);
  EXPECT_EQ(all->Find({.rank = 0, .comm = 4, .op = wire::Op::kAllReduce, .order = 1}, "mine"), "");
  EXPECT_EQ(all->Find({.rank = 0, .comm = 5, .op = wire::Op::kAllReduce, .order = 2}, "mine"), "");
  EXPECT_EQ(all->Find({.rank = 2, .comm = 4, .op = wire::Op::kAllReduce, .order = 2}, "mine"), "");
}

TEST_F(ReceivedPayloadsTest, PayloadsOfOtherRanks_AreNotLoaded) {
  WriteThree();
  EXPECT_EQ(ReceivedPayloads::Load(path_, {0})->size(), 1u);
  EXPECT_EQ(ReceivedPayloads::Load(path_, {7})->size(), 0u);
}

TEST_F(ReceivedPayloadsTest, MissingFile_IsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(ReceivedPayloads::Load(path_ + "-none", {0}).status()));
}

TEST_F(ReceivedPayloadsTest, DamagedFile_IsRefused) {
  WriteThree();
  const std::string whole = Text();
  for (const size_t bytes : {0ul, 7ul, 15ul, 16ul + 20ul, 16ul + 33ul, whole.size() - 1}) {
    Replace(whole.substr(0, bytes));
    EXPECT_TRUE(absl::IsDataLoss(ReceivedPayloads::Load(path_, {0, 1}).status())) << bytes;
  }
  std::string broken = whole;
  broken[16 + 24 + 2] = 1;  // 65,539 bytes long
  Replace(broken);
  EXPECT_THAT(std::string(ReceivedPayloads::Load(path_, {0, 1}).status().message()),
              ::testing::HasSubstr("payload 0 is damaged"));
  broken = whole;
  broken[8] = 2;
  Replace(broken);
  EXPECT_THAT(std::string(ReceivedPayloads::Load(path_, {0, 1}).status().message()),
              ::testing::HasSubstr("has version 2"));
}

TEST_F(ReceivedPayloadsTest, UnwritablePlace_IsAnError) {
  EXPECT_FALSE(ReceivedWriter::Create("/proc/received").ok());
}

}  // namespace
}  // namespace prism::coordinator
