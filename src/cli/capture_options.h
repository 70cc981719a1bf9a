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
  /// The same for a verb that goes on with a captured job: its target where no other is given.
  absl::Status TakeTarget(const Target& captured, CaptureOptions* options) const;

 private:
  absl::Status SetMemory(Target* target) const;

  const CLI::Option* target_option_ = nullptr;
  std::string gpu_memory_;
  std::string device_ = "host";
  std::string values_ = "none";
  std::string target_ = "h200x8";
  std::string job_ = "prism-job";
  std::string tee_ = "rank0";
  std::string launch_ = "auto";
  std::string exchange_ = "auto";
  std::string exact_payload_;
  bool force_ = false;
  double patience_s_ = 4;
};

/// Fails, with the nearest of `known` as a hint, when a flag's value is none of them.
absl::Status OneOf(const char* flag, const std::string& value,
                   const std::vector<std::string>& known);

}  // namespace prism::cli

#endif  // PRISM_CLI_CAPTURE_OPTIONS_H_
