// The command line: finds the verb, parses its flags, runs it, prints its error. Separate from main
// so that tests call it.
//
// Owns nothing but the parse; single-threaded.
//
//   std::vector<std::unique_ptr<Verb>> verbs = ...;
//   return RunCommandLine(verbs, {"/usr/bin/prism", "capture", "--job", "/tmp/j", "--", "torchrun",
//   "x.py"});
#ifndef PRISM_CLI_COMMAND_LINE_H_
#define PRISM_CLI_COMMAND_LINE_H_

#include <memory>
#include <string>
#include <vector>

#include "src/cli/verb.h"

namespace prism::cli {

/// Returns the process's exit code. `arguments[0]` is the program's path.
int RunCommandLine(const std::vector<std::unique_ptr<Verb>>& verbs,
                   const std::vector<std::string>& arguments);

/// Returns the path of the running executable (/proc/self/exe), or `fallback`.
std::string OwnPath(const std::string& fallback);

}  // namespace prism::cli

#endif  // PRISM_CLI_COMMAND_LINE_H_
