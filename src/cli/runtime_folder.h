// RuntimeFolder: the folder of one run's sockets, and what a prism that was killed left behind.
//
// Owns "$TMPDIR/prism-XXXXXX" with everything in it; its name is the session that shared memory of
// the run carries. `pid` in it names the process, which holds a lock on that file: a folder whose
// lock is free and whose process is gone was left by a prism that was killed, and the next Make()
// removes it. Thread-compatible.
//
//   PRISM_ASSIGN_OR_RETURN(std::unique_ptr<RuntimeFolder> runtime, RuntimeFolder::Make());
//   Listen(runtime->path() + "/socket");
#ifndef PRISM_CLI_RUNTIME_FOLDER_H_
#define PRISM_CLI_RUNTIME_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace prism::cli {

class RuntimeFolder {
 public:
  struct Found {
    std::string path;
    int pid = 0;
    bool stale = false;
  };

  /// Makes a folder, after removing those that were left.
  static absl::StatusOr<std::unique_ptr<RuntimeFolder>> Make();
  /// Folders of prisms that run, and of some that were killed.
  static std::vector<Found> FindAll();
  /// Removes a folder and the shared memory of its session.
  static void Remove(const std::string& path);

  ~RuntimeFolder();
  RuntimeFolder(const RuntimeFolder&) = delete;
  RuntimeFolder& operator=(const RuntimeFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string session() const;

 private:
  RuntimeFolder(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  const std::string path_;
  const int lock_fd_;
};

/// Files in /dev/shm, by path, that carry the session's name; and communicators of hostnccl that no
/// process holds any more, whose names carry none.
std::vector<std::string> LeftSharedMemory(const std::string& session);

}  // namespace prism::cli

#endif  // PRISM_CLI_RUNTIME_FOLDER_H_
