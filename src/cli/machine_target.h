// Machine target: what this machine's own GPUs are called as a target.
//
// Asks NVML, which needs no CUDA context. Stateless.
//
//   PRISM_ASSIGN_OR_RETURN(Target target, TargetOfMachine("/usr/lib/.../libnvidia-ml.so.1"));
//   target.text == "h200x2"
#ifndef PRISM_CLI_MACHINE_TARGET_H_
#define PRISM_CLI_MACHINE_TARGET_H_

#include <string>

#include "src/base/status.h"
#include "src/base/target.h"

namespace prism::cli {

/// Counts the GPUs that CUDA_VISIBLE_DEVICES leaves. Fails where they are of no known kind, or of
/// several.
absl::StatusOr<Target> TargetOfMachine(const std::string& nvml);

}  // namespace prism::cli

#endif  // PRISM_CLI_MACHINE_TARGET_H_
