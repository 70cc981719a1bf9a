// Program output: where what a program prints goes while prism runs it.
//
// With --json stdout carries one object and nothing else, so the program's own output goes to
// stderr, whoever writes it: ranks, launchers, what a script starts. Changes the process's file
// descriptor 1 meanwhile: one capture at a time, on one thread.
//
//   PRISM_ASSIGN_OR_RETURN(const CaptureResult result, CaptureProgram(options, invocation));
#ifndef PRISM_CLI_PROGRAM_OUTPUT_H_
#define PRISM_CLI_PROGRAM_OUTPUT_H_

#include "src/cli/capture_session.h"

namespace prism::cli {

/// Until it ends, standard output goes to stderr.
class OutputOnStderr {
 public:
  OutputOnStderr();
  ~OutputOnStderr();
  OutputOnStderr(const OutputOnStderr&) = delete;
  OutputOnStderr& operator=(const OutputOnStderr&) = delete;

 private:
  int stdout_ = -1;  // the real one, kept
};

/// RunCapture, with the program's output where `invocation.json` leaves room for it.
absl::StatusOr<CaptureResult> CaptureProgram(const CaptureOptions& options,
                                             const Invocation& invocation);

}  // namespace prism::cli

#endif  // PRISM_CLI_PROGRAM_OUTPUT_H_
