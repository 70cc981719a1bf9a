// The flags that every verb shares which runs a program under prism (capture, run, check).
//
//   CaptureFlags flags;
//   flags.AddTo(app);                       // in AddOptions
//   PRISM_ASSIGN_OR_RETURN(CaptureOptions options, flags.Options());   // in Run
#ifndef PRISM_CLI_CAPTURE_OPTIONS_H_
#define PRISM_CLI_CAPTURE_OPTIONS_H_

#include <string>
#include <vector>

#include "src/cli/capture_session.h"

namespace prism::cli {

class CaptureFlags {
 public:
  void AddTo(CLI::App& app);
  absl::StatusOr<CaptureOptions> Options() const;

 private:
  std::string device_ = "host";
  std::string values_ = "none";
  std::string target_ = "h200x8";
  std::string job_ = "prism-job";
  std::string tee_ = "rank0";
  std::string launch_ = "auto";
  std::string exact_payload_;
  bool force_ = false;
  double patience_s_ = 4;
};

/// Fails, with the nearest of `known` as a hint, when a flag's value is none of them.
absl::Status OneOf(const char* flag, const std::string& value,
                   const std::vector<std::string>& known);

}  // namespace prism::cli

#endif  // PRISM_CLI_CAPTURE_OPTIONS_H_
