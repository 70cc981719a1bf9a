#include "src/cli/python_stacks.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "fmt/format.h"

namespace prism::cli {
namespace {

constexpr size_t kFrames = 3;

// Far from the first real-time signals, which libraries take.
int StackSignal() { return SIGRTMIN + 23; }

bool Handles(int pid, int number) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  std::string word;
  while (file >> word) {
    if (word != "SigCgt:") continue;
    file >> word;
    return ((std::strtoull(word.c_str(), nullptr, 16) >> (number - 1)) & 1) != 0;
  }
  return false;
}

}  // namespace

std::string UserFrames(const std::string& stack, const std::string& own) {
  // "  File "/x/train.py", line 12 in step"
  constexpr char kFile[] = "  File \"", kLine[] = "\", line ";
  std::istringstream lines(stack);
  std::vector<std::string> frames;
  for (std::string line; std::getline(lines, line) && frames.size() < kFrames;) {
    const size_t end = line.find(kLine);
    if (line.rfind(kFile, 0) != 0 || end == std::string::npos) continue;
    const std::string path = line.substr(sizeof kFile - 1, end - (sizeof kFile - 1));
    const bool installed = path.find("-packages/") != std::string::npos ||
                           path.find("/lib/python3") != std::string::npos ||
                           path.rfind("<frozen", 0) == 0 || path.rfind(own + "/", 0) == 0;
    if (installed) continue;
    const std::string rest = line.substr(end + sizeof kLine - 1);  // "12 in step"
    frames.push_back(fmt::format("{}:{}", std::filesystem::path(path).filename().string(), rest));
  }
  return fmt::format("{}", fmt::join(frames, " < "));
}

std::string PythonStacks::FileOf(uint32_t rank) const {
  return fmt::format("{}/stack-{:05}", folder_, rank);
}

std::string PythonStacks::Variable() const { return fmt::format("{}:{}", StackSignal(), folder_); }

void PythonStacks::Ask(uint32_t rank, int pid) {
  if (!asked_.insert(rank).second || !Handles(pid, StackSignal())) return;
  if (truncate(FileOf(rank).c_str(), 0) == 0) kill(pid, StackSignal());
}

std::string PythonStacks::Where(uint32_t rank) const {
  if (asked_.count(rank) == 0) return "";
  std::ifstream file(FileOf(rank));
  return UserFrames(std::string(std::istreambuf_iterator<char>(file), {}), own_);
}

}  // namespace prism::cli
