// Record session: a true run of the user's command, with its own launcher, processes and NCCL,
// while each rank's shims write down what it does.
//
// Owns the job directory and every process that the command starts: when it returns, none of them
// is left. There is no coordinator: ranks talk to each other alone. Single-threaded.
//
//   RecordOptions options{.device = Device::kCuda, .job = "/tmp/j"};
//   PRISM_ASSIGN_OR_RETURN(RecordResult result, RunRecord(options, invocation));
//   return result.exit_code;
#ifndef PRISM_CLI_RECORD_SESSION_H_
#define PRISM_CLI_RECORD_SESSION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "src/base/status.h"
#include "src/base/target.h"
#include "src/cli/installation.h"
#include "src/cli/verb.h"

namespace prism::cli {

struct RecordOptions {
  Device device = Device::kCuda;
  std::string values = "none";   // none, control, cpu; on Device::kHost
  std::optional<Target> target;  // none: what this machine has
  std::string job;
  bool force = false;
  bool kernel_parameters = false;  // launches are told apart by their scalar parameters, too
  bool shown = true;               // the program's output is shown as well as kept
};

struct RecordResult {
  int exit_code = 0;  // the program's, or kExitOwnFailure
  std::string job;    // absolute path of the job directory
  uint32_t world = 0;
  uint32_t ranks = 0;           // that left a trace
  uint64_t communications = 0;  // over all ranks
  double seconds = 0;
  std::string reason;  // "" when the job is complete

  nlohmann::ordered_json Json() const;
};

/// Runs `invocation.command`. An error means that the command was not started, or that prism itself
/// failed.
absl::StatusOr<RecordResult> RunRecord(const RecordOptions& options, const Invocation& invocation);

}  // namespace prism::cli

#endif  // PRISM_CLI_RECORD_SESSION_H_
