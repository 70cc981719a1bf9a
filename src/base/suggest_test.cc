#include "src/base/suggest.h"

#include "gtest/gtest.h"

namespace prism {
namespace {

TEST(SuggestTest, SwappedAndMissingLettersFindTheWord) {
  EXPECT_EQ(Nearest("captrue", {"capture", "check", "run"}), "capture");
  EXPECT_EQ(Nearest("--taget", {"--target", "--values"}), "--target");
  EXPECT_EQ(Nearest("rum", {"capture", "run"}), "run");
}

TEST(SuggestTest, UnrelatedWordFindsNothing) {
  EXPECT_EQ(Nearest("frobnicate", {"capture", "check", "run"}), "");
  EXPECT_EQ(Nearest("x", {}), "");
}

}  // namespace
}  // namespace prism
