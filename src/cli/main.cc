#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "src/cli/command_line.h"
#include "src/cli/verbs.h"

int main(int argc, char** argv) {
  // Whoever starts prism may ignore it, and then the end of a child is never told.
  signal(SIGCHLD, SIG_DFL);
  return prism::cli::RunCommandLine(prism::cli::AllVerbs(),
                                    std::vector<std::string>(argv, argv + argc));
}
