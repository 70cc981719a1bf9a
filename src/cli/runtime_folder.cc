#include "src/cli/runtime_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "fmt/format.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "prism-";
constexpr char kSharedMemory[] = "/dev/shm";
constexpr char kCommunicatorPrefix[] = "hostnccl-";

std::string Parent() {
  const char* base = std::getenv("TMPDIR");
  return base == nullptr || *base == '\0' ? "/tmp" : base;
}

// True when no process has the file locked.
bool IsUnheld(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool unheld = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return unheld;
}

// The lock is taken before the file has its name: nobody sees it unlocked while its owner lives.
absl::StatusOr<int> WritePid(const std::string& folder) {
  const std::string unnamed = folder + "/pid.new", named = folder + "/pid";
  const int fd = open(unnamed.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, "create " + unnamed);
  const std::string text = fmt::format("{}\n", getpid());
  if (flock(fd, LOCK_EX) != 0 ||
      write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      rename(unnamed.c_str(), named.c_str()) != 0) {
    const absl::Status status = ErrnoStatus(errno, "write " + named);
    close(fd);
    return status;
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RuntimeFolder>> RuntimeFolder::Make() {
  for (const Found& found : FindAll()) {
    if (found.stale) Remove(found.path);
  }
  std::string path = fmt::format("{}/{}XXXXXX", Parent(), kPrefix);
  const char* const hint = "set TMPDIR to a directory that can be written";
  if (mkdtemp(path.data()) == nullptr) return WithHint(ErrnoStatus(errno, "create " + path), hint);
  const absl::StatusOr<int> lock = WritePid(path);
  if (!lock.ok()) {
    std::error_code error;
    fs::remove_all(path, error);
    return WithHint(lock.status(), hint);
  }
  return std::unique_ptr<RuntimeFolder>(new RuntimeFolder(path, *lock));
}

std::vector<RuntimeFolder::Found> RuntimeFolder::FindAll() {
  std::vector<Found> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(Parent(), error)) {
    if (entry.path().filename().string().rfind(kPrefix, 0) != 0) continue;
    const std::string pid_file = (entry.path() / "pid").string();
    std::FILE* file = std::fopen(pid_file.c_str(), "re");
    if (file == nullptr) continue;
    Found found{entry.path().string(), 0, false};
    const bool read = std::fscanf(file, "%d", &found.pid) == 1;
    std::fclose(file);
    if (!read || found.pid <= 0) continue;
    // The process alone does not tell: its number means another one in another container.
    found.stale = kill(found.pid, 0) != 0 && errno == ESRCH && IsUnheld(pid_file);
    all.push_back(std::move(found));
  }
  return all;
}

void RuntimeFolder::Remove(const std::string& path) {
  for (const std::string& file : LeftSharedMemory(fs::path(path).filename().string()))
    unlink(file.c_str());
  std::error_code error;
  fs::remove_all(path, error);
}

RuntimeFolder::~RuntimeFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
  close(lock_fd_);
}

std::string RuntimeFolder::session() const { return fs::path(path_).filename().string(); }

std::vector<std::string> LeftSharedMemory(const std::string& session) {
  std::vector<std::string> left;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kSharedMemory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.find(session) != std::string::npos ||
        (name.rfind(kCommunicatorPrefix, 0) == 0 && IsUnheld(entry.path().string()))) {
      left.push_back(entry.path().string());
    }
  }
  return left;
}

}  // namespace prism::cli
