#include <memory>
#include <string>
#include <vector>

#include "src/cli/command_line.h"
#include "src/cli/verbs.h"

int main(int argc, char** argv) {
  return prism::cli::RunCommandLine(prism::cli::AllVerbs(),
                                    std::vector<std::string>(argv, argv + argc));
}
