// PythonStacks: where in its program a rank is that does not move.
//
// A rank that prism started writes its Python frames to a file when it gets a signal (faulthandler,
// which needs no help from the interpreter). The signal goes only to processes that handle it, and
// once in a time of idleness. Single-threaded.
//
//   PythonStacks stacks(runtime.path(), installation.python);
//   environment[PythonStacks::kVariable] = stacks.Variable();
//   stacks.Ask(rank, pid);   // and a little later:
//   stacks.Where(rank);      "train.py:12 in step < train.py:40 in main"
#ifndef PRISM_CLI_PYTHON_STACKS_H_
#define PRISM_CLI_PYTHON_STACKS_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

namespace prism::cli {

/// The innermost frames of the user's own code in what faulthandler writes; `own` is the folder of
/// prism's Python part. "" without any.
std::string UserFrames(const std::string& stack, const std::string& own);

class PythonStacks {
 public:
  static constexpr char kVariable[] = "PRISM_STACKS";

  PythonStacks(std::string folder, std::string own)
      : folder_(std::move(folder)), own_(std::move(own)) {}
  std::string Variable() const;
  /// Asks a rank for its frames, unless it was asked since the last Forget(), or would not answer.
  void Ask(uint32_t rank, int pid);
  /// The rank works again: what it answered does not hold any more.
  void Forget(uint32_t rank) { asked_.erase(rank); }
  std::string Where(uint32_t rank) const;

 private:
  std::string FileOf(uint32_t rank) const;
  const std::string folder_, own_;
  std::set<uint32_t> asked_;
};

}  // namespace prism::cli

#endif  // PRISM_CLI_PYTHON_STACKS_H_
