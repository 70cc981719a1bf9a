#include "src/base/job_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "src/base/parse_json.h"
#include "src/base/version.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

constexpr char kJobFile[] = "job.json";

absl::Status WriteAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, "write " + path);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      absl::Status status = ErrnoStatus(errno, "write " + path);
      close(fd);
      unlink(temporary.c_str());
      return status;
    }
    done += static_cast<size_t>(n);
  }
  if (close(fd) != 0 || rename(temporary.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, "write " + path);
  return absl::OkStatus();
}

// When the process was started, in clock ticks since the machine was; 0: there is none. With its
// number it tells a process from a later one of the same number.
uint64_t StartOfProcess(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<nlohmann::ordered_json> ReadJson(const std::string& path) {
  std::ifstream file(path);
  if (!file) return ErrnoStatus(errno == 0 ? ENOENT : errno, "read " + path);
  auto json = ParseJson<nlohmann::ordered_json>(file);
  if (json.is_discarded()) return absl::DataLossError(path + " is damaged: it is not JSON");
  return json;
}

bool LooksLikeAJob(const std::string& path) {
  const auto json = ReadJson(path + "/" + kJobFile);
  return (json.ok() && json->is_object() && json->value("schema", "") == "prism.job") ||
         json.status().code() == absl::StatusCode::kDataLoss;
}

}  // namespace

const char* StateName(JobDirectory::State state) {
  switch (state) {
    case JobDirectory::State::kRunning:
      return "running";
    case JobDirectory::State::kComplete:
      return "complete";
    case JobDirectory::State::kFailed:
      return "failed";
    case JobDirectory::State::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

absl::StatusOr<JobDirectory> JobDirectory::Create(const std::string& path, bool force,
                                                  uint32_t protocol_version,
                                                  uint32_t trace_version) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  std::string name = absolute.string();
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  if (fs::exists(name, error)) {
    if (!fs::is_directory(name, error)) {
      return WithHint(absl::AlreadyExistsError(name + " is a file"),
                      "choose another directory with --job");
    }
    if (LooksLikeAJob(name)) {
      if (!force) {
        return WithHint(absl::AlreadyExistsError(fmt::format("there is a job in {} already", name)),
                        "--force replaces it, --job DIR chooses another place");
      }
      // Its ranks still write there, and its prism would seal what is not its own.
      const auto earlier = Open(name);
      if (earlier.ok() && earlier->state() == State::kRunning) {
        return WithHint(
            absl::AlreadyExistsError(fmt::format("the job in {} is still running (process {})",
                                                 name, earlier->info_.value("controller_pid", 0))),
            "stop it first, or choose another directory with --job");
      }
      // Also what was made of it: a simulation of the earlier job says nothing about the next one.
      for (const char* part :
           {"trace", "ranks", "output", "matching.json", "diagnosis.json", "simulate.json",
            "timeline.pftrace.gz", "store.json", "received.bin", "slices"})
        fs::remove_all(name + "/" + part, error);
      // Last, so that an interrupted removal is still recognised as a job.
      fs::remove(name + "/" + kJobFile, error);
      if (error) return ErrnoStatus(error.value(), "remove the job in " + name);
    } else if (!fs::is_empty(name, error)) {
      return WithHint(
          absl::AlreadyExistsError(fmt::format("{} is not empty and holds no job", name)),
          "choose an empty or a new directory with --job");
    }
  }
  for (const char* part : {"", "/trace", "/ranks"}) {
    fs::create_directories(name + part, error);
    if (error) {
      return WithHint(ErrnoStatus(error.value(), "create " + name + part),
                      "choose a directory that can be written with --job");
    }
  }
  JobDirectory job(name);
  job.info_["schema"] = "prism.job";
  job.info_["schema_version"] = kSchemaVersion;
  job.info_["state"] = StateName(State::kRunning);
  job.info_["reason"] = "";
  job.info_["prism_version"] = kVersion;
  job.info_["protocol_version"] = protocol_version;
  job.info_["trace_version"] = trace_version;
  job.info_["controller_pid"] = getpid();
  job.info_["controller_start"] = StartOfProcess(getpid());
  job.info_["started_unix"] = static_cast<int64_t>(time(nullptr));
  if (const absl::Status status = job.Save(); !status.ok()) {
    return WithHint(status, "choose a directory that can be written with --job");
  }
  return job;
}

absl::StatusOr<JobDirectory> JobDirectory::Open(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    return WithHint(absl::NotFoundError(fmt::format("there is no job in {}", path)),
                    "'prism capture --job DIR -- command' makes one");
  }
  const std::string file = path + "/" + kJobFile;
  if (stat(file.c_str(), &status) != 0) {
    return WithHint(
        absl::NotFoundError(fmt::format("{} holds no job: it has no {}", path, kJobFile)),
        "'prism capture --job DIR -- command' makes one");
  }
  JobDirectory job(path);
  PRISM_ASSIGN_OR_RETURN(job.info_, ReadJson(file));
  if (!job.info_.is_object() || job.info_.value("schema", "") != "prism.job") {
    return WithHint(absl::DataLossError(file + " is not a job's"), "capture the job again");
  }
  if (const int version = job.info_.value("schema_version", 0); version != kSchemaVersion) {
    return WithHint(
        absl::FailedPreconditionError(fmt::format(
            "{} is a job of version {} (prism {}), this prism {} reads version {}", path, version,
            job.info_.value("prism_version", "?"), kVersion, kSchemaVersion)),
        "use the prism that wrote it, or capture the job again");
  }
  return job;
}

std::string JobDirectory::rank_directory(uint32_t rank) const {
  return fmt::format("{}/ranks/{:05}", path_, rank);
}

absl::Status JobDirectory::Save() { return WriteAtomically(path_ + "/" + kJobFile, Dump(info_)); }

absl::Status JobDirectory::Seal(State state, const std::string& reason) {
  info_["state"] = StateName(state);
  info_["reason"] = reason;
  info_["ended_unix"] = static_cast<int64_t>(time(nullptr));
  return Save();
}

JobDirectory::State JobDirectory::state() const {
  const std::string name = info_.value("state", "");
  if (name == "complete") return State::kComplete;
  if (name == "failed") return State::kFailed;
  if (name == "interrupted") return State::kInterrupted;
  const uint64_t start = StartOfProcess(info_.value("controller_pid", 0));
  return start != 0 && start == info_.value("controller_start", start) ? State::kRunning
                                                                       : State::kInterrupted;
}

std::string JobDirectory::reason() const {
  std::string reason = info_.value("reason", "");
  if (reason.empty() && state() == State::kInterrupted) {
    return "prism ended before the job did; what the ranks had written until then is here";
  }
  return reason;
}

absl::Status JobDirectory::Write(const std::string& name,
                                 const nlohmann::ordered_json& contents) const {
  return WriteAtomically(path_ + "/" + name, Dump(contents));
}

absl::StatusOr<nlohmann::ordered_json> JobDirectory::Read(const std::string& name) const {
  return ReadJson(path_ + "/" + name);
}

}  // namespace prism
