// Launch command: what the command after `--` is, and so how its ranks come to be.
//
//   torchrun ..., python -m torch.distributed.run ...   ranks are forked by a zygote of that Python
//   python train.py ..., python -m package ...          one rank: that Python, through the zygote's
//   front door anything else (bash pretrain.sh, a C++ program)     started as it is; torchrun is
//   shadowed on its PATH
//
// Looks at the file system (PATH, the interpreter beside a script), starts nothing. Stateless.
#ifndef PRISM_CLI_LAUNCH_COMMAND_H_
#define PRISM_CLI_LAUNCH_COMMAND_H_

#include <string>
#include <vector>

#include "src/base/status.h"

namespace prism::cli {

struct LaunchCommand {
  enum class Kind { kTorchrun, kPython, kProgram };
  Kind kind = Kind::kProgram;
  bool legacy = false;  // torch.distributed.launch: torchrun with other defaults
  std::string python;   // absolute; for kProgram the python on PATH, "" if there is none
  std::vector<std::string> interpreter_flags;  // "-u", "-X", "faulthandler"
  std::vector<std::string> arguments;  // torchrun's, the script and its, or the whole command
};

/// Absolute path of an executable, searched as execvp does; "" when there is none.
std::string FindProgram(const std::string& name);

/// Fails when the program, or the interpreter of a torchrun script, is not there.
absl::StatusOr<LaunchCommand> ParseLaunchCommand(const std::vector<std::string>& command);

}  // namespace prism::cli

#endif  // PRISM_CLI_LAUNCH_COMMAND_H_
