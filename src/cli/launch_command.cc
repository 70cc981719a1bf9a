#include "src/cli/launch_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "fmt/format.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

bool IsExecutableFile(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

std::string Absolute(const std::string& path) {
  return fs::absolute(path).lexically_normal().string();
}

// python, python3, python3.11
bool IsPython(const std::string& name) {
  if (name.rfind("python", 0) != 0) return false;
  return std::all_of(name.begin() + 6, name.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.';
  });
}

// The interpreter of a script: the python beside it (virtual environments that were moved or
// copied), else its first line.
std::string InterpreterOf(const std::string& script) {
  std::string beside = (fs::path(script).parent_path() / "python").string();
  if (IsExecutableFile(beside)) return beside;
  std::ifstream file(script);
  std::string line;
  std::getline(file, line);
  if (line.rfind("#!", 0) != 0) return "";
  line.erase(0, 2);
  line.erase(0, line.find_first_not_of(' '));
  if (line.rfind("/usr/bin/env ", 0) == 0)
    return FindProgram(line.substr(13, line.find(' ', 13) - 13));
  const std::string interpreter = line.substr(0, line.find(' '));
  return IsExecutableFile(interpreter) ? interpreter : "";
}

}  // namespace

std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return IsExecutableFile(name) ? Absolute(name) : "";
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string folder = rest.substr(0, colon);
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (IsExecutableFile(candidate)) return Absolute(candidate);
  }
  return "";
}

absl::StatusOr<LaunchCommand> ParseLaunchCommand(const std::vector<std::string>& command) {
  LaunchCommand launch;
  const std::string program = FindProgram(command[0]);
  if (program.empty()) {
    struct stat status {};
    const bool exists =
        command[0].find('/') != std::string::npos && stat(command[0].c_str(), &status) == 0;
    const std::string extension = fs::path(command[0]).extension().string();
    const char* interpreter = extension == ".py" ? "python" : extension == ".sh" ? "bash" : nullptr;
    return WithHint(
        absl::NotFoundError(exists ? fmt::format("'{}' is not executable", command[0])
                                   : fmt::format("there is no program '{}'", command[0])),
        interpreter != nullptr
            ? fmt::format("run it with its interpreter: -- {} {}", interpreter, command[0])
        : exists ? fmt::format("chmod +x {}", command[0])
                 : "is the environment active in which it is installed?");
  }
  const std::string name = fs::path(program).filename().string();
  if (name == "torchrun") {
    launch.kind = LaunchCommand::Kind::kTorchrun;
    launch.python = InterpreterOf(program);
    launch.arguments.assign(command.begin() + 1, command.end());
    if (launch.python.empty()) {
      return WithHint(absl::NotFoundError(fmt::format("no interpreter was found for {}", program)),
                      "use python -m torch.distributed.run instead of torchrun");
    }
    return launch;
  }
  if (!IsPython(name)) {
    launch.arguments = command;
    launch.arguments[0] = program;
    launch.python = FindProgram("python3");
    return launch;
  }
  launch.python = program;
  launch.kind = LaunchCommand::Kind::kPython;
  // The interpreter's flags end at the script, -m or -c; -W and -X take a value.
  size_t i = 1;
  for (; i < command.size() && command[i].size() > 1 && command[i][0] == '-'; ++i) {
    if (command[i] == "-m" || command[i] == "-c") break;
    const std::string& flag = command[i];
    launch.interpreter_flags.push_back(flag);
    if ((flag == "-W" || flag == "-X" || flag == "--check-hash-based-pycs") &&
        i + 1 < command.size()) {
      launch.interpreter_flags.push_back(command[++i]);
    }
  }
  static const auto* const kLaunchers = new std::set<std::string>{
      "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run"};
  if (i + 1 < command.size() && command[i] == "-m" && kLaunchers->count(command[i + 1]) != 0) {
    launch.kind = LaunchCommand::Kind::kTorchrun;
    launch.legacy = command[i + 1] == "torch.distributed.launch";
    launch.arguments.assign(command.begin() + static_cast<ptrdiff_t>(i) + 2, command.end());
    return launch;
  }
  launch.arguments.assign(command.begin() + static_cast<ptrdiff_t>(i), command.end());
  if (launch.arguments.empty()) {
    return WithHint(absl::InvalidArgumentError(fmt::format(
                        "'{}' without a script, -m or -c cannot be captured", command[0])),
                    "name a script: -- python train.py");
  }
  return launch;
}

}  // namespace prism::cli
