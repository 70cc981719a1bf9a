// Status: how prism's fallible functions answer (abseil's Status and StatusOr, and what is missing
// from them here).
//
// A message says what failed, the value, and the remedy. The remedy is kept apart as a hint, so
// that the command line shows it on a line of its own and --json in a field of its own. Stateless;
// thread-safe.
//
//   absl::StatusOr<Target> target = ParseTarget(text);
//   PRISM_ASSIGN_OR_RETURN(Target target, ParseTarget(text));
//   PRISM_RETURN_IF_ERROR(job.Seal());
//   return WithHint(absl::NotFoundError("no job in /tmp/j"), "prism capture --job /tmp/j --
//   torchrun ... makes one");
#ifndef PRISM_BASE_STATUS_H_
#define PRISM_BASE_STATUS_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace prism {

/// Returns `status` with a remedy attached; an earlier hint is replaced. An OK status stays as it
/// is.
absl::Status WithHint(absl::Status status, std::string_view hint);

/// Returns the remedy, or "" when there is none.
std::string HintOf(const absl::Status& status);

/// Returns a Status for a failed system call: "open /tmp/x: Permission denied", with the code that
/// fits `error`.
absl::Status ErrnoStatus(int error, std::string_view what);

/// Exit code of a verb that does not run a program: 0 ok, 1 the user can remedy it, 2 internal.
int ExitCodeOf(const absl::Status& status);

}  // namespace prism

#define PRISM_RETURN_IF_ERROR(expression)                                 \
  do {                                                                    \
    if (absl::Status prism_status_ = (expression); !prism_status_.ok()) { \
      return prism_status_;                                               \
    }                                                                     \
  } while (false)

#define PRISM_CONCAT_INNER_(a, b) a##b
#define PRISM_CONCAT_(a, b) PRISM_CONCAT_INNER_(a, b)
#define PRISM_ASSIGN_OR_RETURN(target, expression) \
  PRISM_ASSIGN_OR_RETURN_IMPL_(PRISM_CONCAT_(prism_or_, __LINE__), target, expression)
#define PRISM_ASSIGN_OR_RETURN_IMPL_(temporary, target, expression) \
  auto temporary = (expression);                                    \
  if (!temporary.ok()) {                                            \
    return std::move(temporary).status();                           \
  }                                                                 \
  target = *std::move(temporary)

#endif  // PRISM_BASE_STATUS_H_
