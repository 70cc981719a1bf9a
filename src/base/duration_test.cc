#include "src/base/duration.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism {
namespace {

using ::testing::HasSubstr;

TEST(ParseDurationTest, NumbersWithUnits) {
  EXPECT_EQ(*ParseDuration("5ms"), 5'000'000);
  EXPECT_EQ(*ParseDuration("1.5 s"), 1'500'000'000);
  EXPECT_EQ(*ParseDuration("250us"), 250'000);
  EXPECT_EQ(*ParseDuration("0ns"), 0);
  EXPECT_EQ(*ParseDuration("1e-3s"), 1'000'000);
}

TEST(ParseDurationTest, WhatIsWrongIsNamed) {
  const auto message = [](std::string_view text) {
    return ParseDuration(text).status().ToString();
  };
  EXPECT_THAT(message("5"), HasSubstr("no unit"));
  EXPECT_THAT(message("5min"), HasSubstr("unit is unknown"));
  EXPECT_THAT(message("ms"), HasSubstr("does not begin with a number"));
  EXPECT_THAT(message(""), HasSubstr("does not begin with a number"));
  EXPECT_THAT(message("nan s"), HasSubstr("does not begin with a number"));
  EXPECT_THAT(message("-5ms"), HasSubstr("negative"));
  EXPECT_THAT(message("1e30s"), HasSubstr("too long"));
  EXPECT_EQ(ParseDuration("5").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace prism
