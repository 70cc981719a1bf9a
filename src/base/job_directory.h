// Job directory: what one run of a program left behind, and whether it is whole.
//
//   job.json            state (running, complete, failed), command, target, versions
//   trace/rank-00000.prt   what each rank did (PrismTrace)
//   matching.json       communicators and what ran on them
//   diagnosis.json      why the job could not go on, if so
//   ranks/00000/        stdout.log, stderr.log, memory.json, error.json of a rank
//   simulate.json, timeline.pftrace.gz   the latest prediction, and when everything happens in it
//
// job.json is replaced atomically, so a crash or kill leaves the last state: one that says
// `running` without its process is an interrupted job. One writer; readers at any time.
//
//   PRISM_ASSIGN_OR_RETURN(JobDirectory job, JobDirectory::Create("/tmp/j", /*force=*/false));
//   job.info()["command"] = command;
//   PRISM_RETURN_IF_ERROR(job.Save());
//   ...
//   PRISM_RETURN_IF_ERROR(job.Seal(JobDirectory::State::kComplete, ""));
#ifndef PRISM_BASE_JOB_DIRECTORY_H_
#define PRISM_BASE_JOB_DIRECTORY_H_

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"
#include "src/base/status.h"

namespace prism {

class JobDirectory {
 public:
  enum class State { kRunning, kComplete, kFailed, kInterrupted };
  static constexpr int kSchemaVersion = 1;

  /// Makes `path` and its folders, state running. An earlier job there is removed with `force`, and
  /// only then; a directory that holds anything else is never touched. `protocol_version` and
  /// `trace_version` are what this build writes.
  static absl::StatusOr<JobDirectory> Create(const std::string& path, bool force,
                                             uint32_t protocol_version, uint32_t trace_version);
  /// Opens an existing job. Fails for a directory without a job, a damaged one, and one of another
  /// version.
  static absl::StatusOr<JobDirectory> Open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string trace_directory() const { return path_ + "/trace"; }
  std::string rank_directory(uint32_t rank) const;

  /// The contents of job.json; Save() writes them.
  nlohmann::ordered_json& info() { return info_; }
  const nlohmann::ordered_json& info() const { return info_; }
  absl::Status Save();
  /// Sets the state and when it ended, and writes job.json.
  absl::Status Seal(State state, const std::string& reason);
  State state() const;
  std::string reason() const;

  /// Writes a further file atomically ("matching.json").
  absl::Status Write(const std::string& name, const nlohmann::ordered_json& contents) const;
  /// Reads a further file; NotFound when it is not there.
  absl::StatusOr<nlohmann::ordered_json> Read(const std::string& name) const;

 private:
  explicit JobDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
  nlohmann::ordered_json info_;
};

/// "running", "complete", "failed", "interrupted".
const char* StateName(JobDirectory::State state);

}  // namespace prism

#endif  // PRISM_BASE_JOB_DIRECTORY_H_
