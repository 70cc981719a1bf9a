#include "src/base/status.h"

#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace prism {
namespace {
constexpr char kHintPayload[] = "prism/hint";
}  // namespace

absl::Status WithHint(absl::Status status, std::string_view hint) {
  if (!status.ok()) {
    status.SetPayload(kHintPayload, absl::Cord(absl::string_view(hint.data(), hint.size())));
  }
  return status;
}

std::string HintOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kHintPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Status ErrnoStatus(int error, std::string_view what) {
  return {absl::ErrnoToStatusCode(error),
          absl::StrCat(absl::string_view(what.data(), what.size()), ": ", std::strerror(error))};
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return 2;
    default:
      return 1;
  }
}

}  // namespace prism
