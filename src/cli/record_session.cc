#include "src/cli/record_session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "fmt/format.h"
#include "src/base/event_loop.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/cli/command_process.h"
#include "src/cli/job_info.h"
#include "src/cli/launch_command.h"
#include "src/cli/machine_target.h"
#include "src/cli/runtime_folder.h"
#include "src/trace/format.h"
#include "src/trace/reader.h"
#include "src/wire/protocol.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kTickMs = 250;
// From the signal until everything is killed. torchrun ends its workers within it, but for those
// that do not answer.
constexpr std::chrono::seconds kStopGrace{4};
constexpr char kHostTarget[] = "h200x8";

class Session {
 public:
  Session(const RecordOptions& options, const Invocation& invocation)
      : options_(options), invocation_(invocation) {}
  absl::StatusOr<RecordResult> Run();

 private:
  absl::Status Prepare();
  absl::Status FindTarget();
  std::map<std::string, std::string> Environment() const;
  void Describe(const std::map<std::string, std::string>& environment);
  absl::Status ReadTraces(RecordResult* result) const;

  const RecordOptions& options_;
  const Invocation& invocation_;
  LaunchCommand command_;
  Installation installation_;
  CudaLibraries cuda_;
  Target target_;
  std::optional<JobDirectory> job_;
  std::unique_ptr<RuntimeFolder> runtime_;
  EventLoop loop_;
  CommandProcess process_{&loop_};
};

absl::Status Session::Prepare() {
  PRISM_ASSIGN_OR_RETURN(command_, ParseLaunchCommand(invocation_.command));
  PRISM_ASSIGN_OR_RETURN(installation_, FindInstallation(invocation_.program));
  if (installation_.shims.empty()) {
    return WithHint(
        absl::NotFoundError(fmt::format("prism's shims are not beside {}", installation_.program)),
        "build everything (make), or set PRISM_SHIM_DIR to their folder");
  }
  PRISM_ASSIGN_OR_RETURN(cuda_, FindCuda(options_.device, installation_.hostcuda, command_.python));
  if (options_.device == Device::kCuda) PRISM_RETURN_IF_ERROR(CheckNoStandIns(command_.python));
  PRISM_ASSIGN_OR_RETURN(runtime_, RuntimeFolder::Make());
  PRISM_ASSIGN_OR_RETURN(job_, JobDirectory::Create(options_.job, options_.force,
                                                    wire::kProtocolVersion, trace::kFormatVersion));
  return absl::OkStatus();
}

// Asks NVML, which may make threads.
absl::Status Session::FindTarget() {
  if (options_.target.has_value()) {
    target_ = *options_.target;
  } else if (options_.device == Device::kHost) {
    PRISM_ASSIGN_OR_RETURN(target_, ParseTarget(kHostTarget));
  } else {
    PRISM_ASSIGN_OR_RETURN(target_, TargetOfMachine(cuda_.nvml));
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> Session::Environment() const {
  std::map<std::string, std::string> env = ShimEnvironment(installation_, cuda_);
  env[wire::kEnvMode] = "record";
  env[wire::kEnvTraceDir] = job_->trace_directory();
  if (options_.kernel_parameters) env[wire::kEnvKernelParameters] = "1";
  if (options_.device == Device::kHost) {
    // The devices are hostcuda's, as on a machine that has them: prism's are for jobs of a
    // coordinator. Their memory is limited by hostcuda, too.
    env["HOSTCUDA_DEVICES"] = std::to_string(target_.gpus_per_node);
    env["HOSTCUDA_GPU"] = target_.gpu.key;
    env["HOSTCUDA_VALUES"] = options_.values;
    env["HOSTCUDA_SESSION"] = runtime_->session();
    // hostcuda has no clock: durations would be this machine's, of no use to anybody.
    if (std::getenv(wire::kEnvRecordTimes) == nullptr) env[wire::kEnvRecordTimes] = "0";
  }
  return env;
}

void Session::Describe(const std::map<std::string, std::string>& environment) {
  Json& info = job_->info();
  info["mode"] = "record";
  info["command"] = invocation_.command;
  info["cwd"] = fs::current_path().string();
  info["device"] = options_.device == Device::kHost ? "host" : "cuda";
  info["values"] = options_.device == Device::kHost ? options_.values : "cuda";
  info["target"] = DescribeTarget(target_);
  info["cuda"] = DescribeCuda(cuda_);
  info["environment"] = environment;
  info["versions"] = InstalledVersions(command_.python);
}

// Fails for a job of which nothing or not everything could be kept. Opening a trace also moves to
// it what its rank held back when it was killed.
absl::Status Session::ReadTraces(RecordResult* result) const {
  uint64_t nodes = 0;
  std::string torn;
  const char* hint = "";
  std::error_code error;
  for (const auto& file : fs::directory_iterator(job_->trace_directory(), error)) {
    if (file.path().extension() != ".prt") continue;
    const auto reader = trace::Reader::Open(file.path().string(), {.allow_incomplete = true});
    if (!reader.ok()) {
      torn = std::string(reader.status().message());
      hint = "is the disk full? --job DIR chooses another place";
      continue;
    }
    if (reader->completeness() != trace::Completeness::kSealed) {
      torn = fmt::format("rank {}: {}", reader->rank(), reader->problem());
      hint = reader->completeness() == trace::Completeness::kUnsealed
                 ? "a rank that ends with os._exit leaves its trace open: let it return or sys.exit"
                 : "is the disk full? --job DIR chooses another place";
    }
    ++result->ranks;
    result->world = std::max(result->world, reader->world());
    nodes += reader->node_count();
    for (uint32_t s = 0; s < reader->sequences().size(); ++s) {
      for (const trace::Node& node : reader->nodes(s))
        result->communications += node.kind == trace::NodeKind::kComm;
    }
  }
  if (nodes == 0) {
    return WithHint(absl::FailedPreconditionError(
                        fmt::format("no process of '{}' did anything that is recorded",
                                    fmt::join(invocation_.command, " "))),
                    "does it use CUDA? A launcher that uses CUDA itself is taken for the only "
                    "rank: start ranks with torchrun, or with another one that sets RANK and "
                    "WORLD_SIZE");
  }
  // A program may end well although what it did could not be kept: that is not a recorded job.
  if (!torn.empty()) {
    return WithHint(absl::DataLossError("a trace is not whole: " + torn), hint);
  }
  return absl::OkStatus();
}

absl::StatusOr<RecordResult> Session::Run() {
  PRISM_RETURN_IF_ERROR(Prepare());
  Clock::time_point stopped{};
  process_.TakeSignals([&](int signal) {
    stopped = Clock::now();
    process_.Signal(signal);
  });
  process_.StartGuard(fmt::format("{}={}", wire::kEnvTraceDir, job_->trace_directory()),
                      runtime_->path());
  PRISM_RETURN_IF_ERROR(FindTarget());
  const std::map<std::string, std::string> environment = Environment();
  Describe(environment);
  PRISM_RETURN_IF_ERROR(job_->Save());

  std::vector<std::string> words = invocation_.command;
  words[0] = FindProgram(words[0]);
  // A script torchrun: with the interpreter in whose environment CUDA was looked for. The first
  // line of a script that was moved or copied names another one.
  if (command_.kind == LaunchCommand::Kind::kTorchrun && words[0] != command_.python)
    words.insert(words.begin(), command_.python);
  const Clock::time_point started = Clock::now();
  if (const absl::Status status =
          process_.Start({.words = words,
                          .environment = environment,
                          .log_folder = job_->path() + "/output",
                          .shown = options_.shown,
                          .own_group = command_.kind == LaunchCommand::Kind::kTorchrun});
      !status.ok()) {
    [[maybe_unused]] const absl::Status sealed =
        job_->Seal(JobDirectory::State::kFailed, std::string(status.message()));
    return status;
  }
  while (!process_.ended()) {
    loop_.RunOnce(kTickMs);
    if (process_.interrupted_by() != 0 && !process_.killed() &&
        Clock::now() - stopped >= kStopGrace) {
      process_.Kill();
    }
  }
  process_.Drain();
  process_.EndLeftovers();
  process_.Drain();
  for (const std::string& file : LeftSharedMemory(runtime_->session())) unlink(file.c_str());

  RecordResult result;
  result.job = job_->path();
  result.seconds = std::chrono::duration<double>(Clock::now() - started).count();
  result.exit_code = process_.exit_code();
  const absl::Status traces = ReadTraces(&result);
  absl::Status problem = absl::OkStatus();
  if (process_.interrupted_by() != 0) {
    result.reason = fmt::format("stopped by {}", strsignal(process_.interrupted_by()));
    result.exit_code = 128 + process_.interrupted_by();
  } else if (result.exit_code != 0) {
    result.reason = process_.was_signalled()
                        ? fmt::format("the command was killed by signal {}", result.exit_code - 128)
                        : fmt::format("the command exited with code {}", result.exit_code);
  } else if (!traces.ok()) {
    problem = traces;
    result.reason = std::string(problem.message());
  }
  Json& info = job_->info();
  info["world"] = result.world;
  info["seconds"] = result.seconds;
  info["exit_code"] = problem.ok() ? result.exit_code : kExitOwnFailure;
  PRISM_RETURN_IF_ERROR(job_->Seal(
      result.reason.empty() ? JobDirectory::State::kComplete : JobDirectory::State::kFailed,
      result.reason));
  if (!problem.ok()) return problem;
  return result;
}

}  // namespace

Json RecordResult::Json() const {
  nlohmann::ordered_json json;
  json["job"] = job;
  json["state"] = reason.empty() ? "complete" : "failed";
  json["reason"] = reason;
  json["exit_code"] = exit_code;
  json["world"] = world;
  json["ranks"] = ranks;
  json["communications"] = communications;
  json["seconds"] = seconds;
  return json;
}

absl::StatusOr<RecordResult> RunRecord(const RecordOptions& options, const Invocation& invocation) {
  return Session(options, invocation).Run();
}

}  // namespace prism::cli
