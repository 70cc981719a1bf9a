#include "src/cli/process_tree.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "fmt/format.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

void AddChildrenOf(int pid, std::vector<int>* children) {
  std::error_code error;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::FILE* file = std::fopen((task.path() / "children").c_str(), "re");
    if (file == nullptr) continue;
    int child;
    while (std::fscanf(file, "%d", &child) == 1) children->push_back(child);
    std::fclose(file);
  }
}

}  // namespace

std::vector<int> DescendantsOf(int pid) {
  std::vector<int> all;
  AddChildrenOf(pid, &all);
  for (size_t i = 0; i < all.size(); ++i) AddChildrenOf(all[i], &all);
  return all;
}

std::vector<int> ProcessesWith(const std::string& mark) {
  std::vector<int> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string variables = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
    if (variables.find('\0' + mark + '\0') != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace prism::cli
