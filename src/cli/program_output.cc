#include "src/cli/program_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "src/base/log.h"

namespace prism::cli {
OutputOnStderr::OutputOnStderr() {
  std::fflush(stdout);
  stdout_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (stdout_ >= 0) dup2(STDERR_FILENO, STDOUT_FILENO);
}

OutputOnStderr::~OutputOnStderr() {
  if (stdout_ < 0) return;
  std::fflush(stdout);
  dup2(stdout_, STDOUT_FILENO);
  close(stdout_);
}

absl::StatusOr<CaptureResult> CaptureProgram(const CaptureOptions& options,
                                             const Invocation& invocation) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (options.device.has_value() && visible != nullptr && *visible == '\0')
    spdlog::warn(
        "CUDA_VISIBLE_DEVICES is empty: the program sees no GPU; unset it to see the target's");
  if (!invocation.json) return RunCapture(options, invocation);
  const OutputOnStderr output;
  return RunCapture(options, invocation);
}

}  // namespace prism::cli
