// Processes of a job, as /proc shows them. Stateless; thread-safe.
//
//   for (const int pid : DescendantsOf(getpid())) kill(pid, SIGTERM);
#ifndef PRISM_CLI_PROCESS_TREE_H_
#define PRISM_CLI_PROCESS_TREE_H_

#include <string>
#include <vector>

namespace prism::cli {

/// Children of a process, their children and so on, parents first.
std::vector<int> DescendantsOf(int pid);

/// Processes of this user that were started with the variable `mark`, NAME=VALUE.
std::vector<int> ProcessesWith(const std::string& mark);

}  // namespace prism::cli

#endif  // PRISM_CLI_PROCESS_TREE_H_
