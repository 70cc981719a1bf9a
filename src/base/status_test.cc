#include "src/base/status.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace prism {
namespace {

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) {
    return WithHint(absl::InvalidArgumentError("3 is odd"), "pass an even number");
  }
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  PRISM_ASSIGN_OR_RETURN(const int half, Half(value));
  PRISM_RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(StatusTest, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HintOf(Quarter(6).status()), "pass an even number");
}

TEST(StatusTest, HintIsApartFromTheMessage) {
  const absl::Status status = WithHint(absl::NotFoundError("no job"), "make one");
  EXPECT_EQ(status.message(), "no job");
  EXPECT_EQ(HintOf(status), "make one");
  EXPECT_EQ(HintOf(absl::NotFoundError("no job")), "");
  EXPECT_TRUE(WithHint(absl::OkStatus(), "x").ok());
}

TEST(StatusTest, ErrnoBecomesTheFittingCodeAndExitCode) {
  const absl::Status status = ErrnoStatus(EACCES, "open /x");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message(), "open /x: Permission denied");
  EXPECT_EQ(ExitCodeOf(status), 1);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), 2);
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
}

}  // namespace
}  // namespace prism
