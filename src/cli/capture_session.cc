#include "src/cli/capture_session.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "src/base/event_loop.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/cli/command_process.h"
#include "src/cli/job_info.h"
#include "src/cli/launch_command.h"
#include "src/cli/python_stacks.h"
#include "src/cli/runtime_folder.h"
#include "src/coordinator/liveness.h"
#include "src/coordinator/server.h"
#include "src/trace/format.h"
#include "src/trace/pending.h"
#include "src/trace/reader.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;
using coordinator::Coordinator;
using coordinator::Diagnosis;
using coordinator::ProcessEnd;
using coordinator::SteadyNowNs;

constexpr char kControlVariable[] = "PRISM_CONTROL";
constexpr int kTickMs = 250;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kAbortGraceNs =
    kSecondNs / 2;  // from Abort until the processes are stopped: their messages come first
constexpr int64_t kStopGraceNs =
    4 * kSecondNs;  // from asking to killing; the zygote kills its ranks after 2
// Of idleness, where in its program a rank is: its answer comes before it is judged (--patience 1).
constexpr int64_t kAskAfterNs = kSecondNs / 2;
constexpr int64_t kQuietNs = kSecondNs / 2;
constexpr int64_t kStatusEveryNs = 10 * kSecondNs;
constexpr uint64_t kSharedMemoryNeeded = 64ull << 20;

// PyTorch's own watchdogs judge by wall time, which is not the job's: prism says why a job can not
// go on. (Listed in job.json.)
const std::map<std::string, std::string>& QuietWatchdogs() {
  static const auto* const kVariables = new std::map<std::string, std::string>{
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
      {"TORCH_NCCL_ENABLE_MONITORING", "0"},
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0"},
      {"TORCH_NCCL_PROPAGATE_ERROR", "0"},
  };
  return *kVariables;
}

std::string Quote(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

uint32_t ValuesNumber(const std::string& values) {
  return values == "cpu" ? 2 : values == "control" ? 1 : 0;
}

// One line of a zygote.
using Json = nlohmann::ordered_json;

class Session {
 public:
  Session(const CaptureOptions& options, const Invocation& invocation)
      : options_(options), invocation_(invocation) {}
  ~Session();
  absl::StatusOr<CaptureResult> Run();

 private:
  struct Zygote {
    int fd = -1;
    std::string received;
    bool done = false;
  };

  absl::Status Prepare();
  absl::Status CheckMachine() const;
  void BuildEnvironment();
  std::string ControlSocket() const { return runtime_->path() + "/control"; }
  absl::Status ListenForZygotes();
  // torchrun's ranks read no terminal, and the terminal's interrupt is not for them: the controller
  // stops them. What may read it (input(), pdb) must be in the group that the terminal talks to.
  // Is the command's own process rank 0 of 1?
  bool OwnRank() const { return command_.kind == LaunchCommand::Kind::kPython && !launches_; }
  bool HasOwnGroup() const { return command_.kind == LaunchCommand::Kind::kTorchrun; }
  absl::Status Start();
  void OnZygote(int fd);
  void OnMessage(Zygote& zygote, const Json& message);
  void Tell(Zygote& zygote, const Json& message);
  void Interrupted(int signal);
  void OnCommandEnd();
  void PlayOnce();
  /// The virtual clock that the ranks keep to, or null.
  VirtualClock* Clock() const {
    return options_.emulation.has_value() ? options_.emulation->clock : nullptr;
  }
  void Stop(int signal);
  void Watch();
  void RemoveSharedMemory();
  absl::Status CheckTraces() const;
  bool CapturedNothing() const;
  std::vector<std::string> Uncaptured(bool* ranks) const;
  CaptureResult Finish();

  const CaptureOptions& options_;
  const Invocation& invocation_;
  LaunchCommand command_;
  Installation installation_;
  CudaLibraries cuda_;
  std::optional<JobDirectory> job_;
  std::unique_ptr<RuntimeFolder> runtime_;
  EventLoop loop_;
  CommandProcess process_{&loop_};
  std::unique_ptr<coordinator::ReceivedWriter> received_;  // capture
  std::unique_ptr<coordinator::Server> server_;
  coordinator::Liveness liveness_;
  std::optional<PythonStacks> stacks_;
  std::map<std::string, std::string> environment_;  // what is changed
  std::string session_name_;
  bool clock_stands_ = false;  // until Continue
  std::set<std::string> shared_memory_before_;
  std::set<int> job_pids_;
  int control_fd_ = -1;
  std::map<int, Zygote> zygotes_;
  int64_t started_ns_ = 0;
  int64_t diagnosed_ns_ = 0;
  int64_t stop_ns_ = 0;
  int64_t status_ns_ = 0;
  bool launches_ = false;  // a Python program that starts torchrun
  std::string refusal_, refusal_hint_;
  std::set<uint32_t> ended_;
  Json versions_ = Json::object();
};

Session::~Session() {
  server_.reset();
  for (const auto& [fd, zygote] : zygotes_) close(fd);
  if (control_fd_ >= 0) close(control_fd_);
}

absl::Status Session::CheckMachine() const {
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) != 0) {
    return WithHint(ErrnoStatus(errno, "/dev/shm"),
                    "mount a tmpfs there (containers: --shm-size 8g)");
  }
  const uint64_t free_bytes = static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize;
  if (free_bytes < kSharedMemoryNeeded) {
    return WithHint(absl::ResourceExhaustedError(
                        fmt::format("/dev/shm has {} MiB free, at least {} MiB are needed",
                                    free_bytes >> 20, kSharedMemoryNeeded >> 20)),
                    "remove old files there, or give it more (containers: --shm-size 8g)");
  }
  if (access("/dev/shm", W_OK) != 0)
    return WithHint(ErrnoStatus(errno, "write to /dev/shm"), "mount it writable");
  if (access("/proc/self/stat", R_OK) != 0) {
    return WithHint(absl::FailedPreconditionError("/proc is not mounted"),
                    "prism sees by it whether ranks are blocked");
  }
  return absl::OkStatus();
}

absl::Status Session::Prepare() {
  PRISM_ASSIGN_OR_RETURN(command_, ParseLaunchCommand(invocation_.command));
  PRISM_RETURN_IF_ERROR(CheckMachine());
  PRISM_ASSIGN_OR_RETURN(installation_, FindInstallation(invocation_.program));
  if (options_.device.has_value()) {
    if (installation_.shims.empty()) {
      return WithHint(absl::NotFoundError(
                          fmt::format("prism's shims are not beside {}", installation_.program)),
                      "build everything (make), or set PRISM_SHIM_DIR to their folder");
    }
    PRISM_ASSIGN_OR_RETURN(cuda_,
                           FindCuda(*options_.device, installation_.hostcuda, command_.python));
  }
  PRISM_ASSIGN_OR_RETURN(runtime_, RuntimeFolder::Make());
  PRISM_ASSIGN_OR_RETURN(job_, JobDirectory::Create(options_.job, options_.force,
                                                    wire::kProtocolVersion, trace::kFormatVersion));
  return absl::OkStatus();
}

void Session::BuildEnvironment() {
  VirtualClock* const clock = Clock();
  session_name_ = clock != nullptr ? clock->session() : runtime_->session();
  stacks_.emplace(runtime_->path(), installation_.python);
  auto& env = environment_;
  env[kControlVariable] = ControlSocket();
  env["PRISM_JOB"] = job_->path();
  env[PythonStacks::kVariable] = stacks_->Variable();
  env["PRISM_TEE"] = options_.tee;
  env["PRISM_LAUNCH"] = options_.launch;
  if (options_.emulation.has_value()) {
    env["PRISM_SANDBOX_RANKS"] = fmt::format("{}", fmt::join(options_.emulation->sandbox, ","));
    env["PRISM_CAPTURED"] = options_.emulation->captured;
  }
  env["PRISM_TARGET_GPUS"] = std::to_string(options_.target.gpus_per_node);
  for (const auto& [name, value] : QuietWatchdogs()) env[name] = value;
  if (options_.device.has_value()) {
    env[wire::kEnvSocket] = server_->path();
    env[wire::kEnvMode] = options_.emulation.has_value() ? "emulate" : "capture";
    for (const auto& [name, value] : ShimEnvironment(installation_, cuda_)) env[name] = value;
  }
  if (options_.device == Device::kHost) {
    env["HOSTCUDA_DEVICES"] = "1";
    env["HOSTCUDA_GPU"] = options_.target.gpu.key;
    env["HOSTCUDA_MEMORY_LIMIT"] = "0";  // the ledger of the shims enforces the target's
    env["HOSTCUDA_VALUES"] = options_.values;
    env["HOSTCUDA_SESSION"] = session_name_;
    if (clock != nullptr) {
      env["HOSTCUDA_CLOCK"] = "virtual";
      env["HOSTCUDA_PROCESSES"] = std::to_string(options_.emulation->sandbox.size());
    }
  }
  if (options_.device == Device::kCuda) {
    // With one connection a stream that waits for a peer would hold every other (docs/design/0001).
    const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (connections == nullptr || std::atoi(connections) < 8)
      env["CUDA_DEVICE_MAX_CONNECTIONS"] = "8";
  }
  // A program that no launcher made a rank of is rank 0 of 1; launchers below it say otherwise.
  if (command_.kind == LaunchCommand::Kind::kProgram) env[wire::kEnvRank] = "0";
  if (command_.kind != LaunchCommand::Kind::kTorchrun) {
    const char* path = std::getenv("PATH");
    env["PATH"] = fmt::format("{}/shadow{}{}", installation_.python, path == nullptr ? "" : ":",
                              path == nullptr ? "" : path);
  }
}

absl::Status Session::ListenForZygotes() {
  const std::string path = ControlSocket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return WithHint(absl::InvalidArgumentError("the socket's path is too long: " + path),
                    "set TMPDIR to a shorter directory");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  control_fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (control_fd_ < 0 ||
      bind(control_fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(control_fd_, 16) != 0) {
    return ErrnoStatus(errno, "listen on " + path);
  }
  loop_.Add(control_fd_, [this] {
    const int fd = accept4(control_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    zygotes_[fd].fd = fd;
    loop_.Add(fd, [this, fd] { OnZygote(fd); });
  });
  return absl::OkStatus();
}

absl::Status Session::Start() {
  std::vector<std::string> words;
  if (command_.kind == LaunchCommand::Kind::kProgram) {
    words = command_.arguments;
  } else {
    words.push_back(command_.python);
    words.insert(words.end(), command_.interpreter_flags.begin(), command_.interpreter_flags.end());
    words.push_back(installation_.python + "/zygote.py");
    words.emplace_back(command_.kind == LaunchCommand::Kind::kPython ? "python"
                       : command_.legacy                             ? "launch"
                                                                     : "torchrun");
    words.insert(words.end(), command_.arguments.begin(), command_.arguments.end());
  }
  // One Python rank: its output is kept beside being shown, as that of every rank.
  const bool piped = command_.kind == LaunchCommand::Kind::kPython;
  PRISM_RETURN_IF_ERROR(process_.Start({.words = words,
                                        .environment = environment_,
                                        .log_folder = piped ? job_->rank_directory(0) : "",
                                        .shown = options_.tee != "none",
                                        .own_group = HasOwnGroup()}));
  job_pids_.insert(process_.pid());
  if (piped) {
    server_->coordinator().ExpectWorld(1);
    server_->coordinator().OnRankStarted(0, process_.pid());
  }
  return absl::OkStatus();
}

void Session::OnZygote(int fd) {
  char data[65536];
  while (true) {
    Zygote& zygote = zygotes_[fd];
    const ssize_t n = read(fd, data, sizeof data);
    if (n < 0) return;
    if (n == 0) {
      loop_.Remove(fd);
      close(fd);
      zygotes_.erase(fd);
      return;
    }
    zygote.received.append(data, static_cast<size_t>(n));
    for (size_t end; (end = zygote.received.find('\n')) != std::string::npos;) {
      const Json message =
          Json::parse(zygote.received.substr(0, end), nullptr, /*allow_exceptions=*/false);
      zygote.received.erase(0, end + 1);
      if (message.is_object()) OnMessage(zygote, message);
    }
  }
}

void Session::Tell(Zygote& zygote, const Json& message) {
  const std::string line = message.dump() + "\n";
  [[maybe_unused]] const ssize_t sent = send(zygote.fd, line.data(), line.size(), MSG_NOSIGNAL);
}

void Session::OnMessage(Zygote& zygote, const Json& message) {
  Coordinator& coordinator = server_->coordinator();
  const std::string type = message.value("type", "");
  if (type == "plan") {
    const auto world = message.value("world", 0u), nodes = message.value("nodes", 1u),
               per_node = message.value("per_node", 0u);
    versions_ = message.value("versions", Json::object());
    const absl::Status fits = CheckWorld(options_.target, world, per_node);
    if (!fits.ok()) {
      refusal_ = std::string(fits.message());
      refusal_hint_ = HintOf(fits);
      Tell(zygote, {{"type", "refuse"}});
      return;
    }
    if (OwnRank()) {
      // The Python program itself is not a rank, then: neither are its memory and output a rank's.
      launches_ = true;
      coordinator.Release(0);
      process_.StopLogging();
    }
    coordinator.ExpectWorld(world);
    spdlog::info("{} rank{} on {} node{} of {} x {}", world, world == 1 ? "" : "s", nodes,
                 nodes == 1 ? "" : "s", options_.target.gpus_per_node, options_.target.gpu.name);
    Tell(zygote, {{"type", "go"}});
  } else if (type == "started") {
    const int pid = message.value("pid", 0);
    job_pids_.insert(pid);
    coordinator.OnRankStarted(message.value("rank", 0u), pid);
  } else if (type == "ended") {
    const auto rank = message.value("rank", 0u);
    ended_.insert(rank);
    ProcessEnd end;
    end.exit_code = message.value("exit_code", -1);
    end.signal = message.value("signal", 0);
    end.error = message.value("error", "");
    end.traceback = message.value("traceback", "");
    end.call_site = message.value("call_site", "");
    coordinator.OnRankEnded(rank, end, SteadyNowNs());
  } else if (type == "failed") {
    refusal_ = message.value("error", "the ranks could not be started");
    refusal_hint_ = message.value("hint", "");
  } else if (type == "note") {
    const std::string reason = message.value("reason", "");
    if (!reason.empty()) spdlog::info("ranks are started as interpreters of their own: {}", reason);
    job_->info()["launch"] = message;
  } else if (type == "bye") {
    zygote.done = true;
  }
}

void Session::Stop(int signal) {
  if (stop_ns_ != 0) return;
  stop_ns_ = SteadyNowNs();
  bool asked = false;
  for (auto& [fd, zygote] : zygotes_) {
    if (zygote.done) continue;
    Tell(zygote, {{"type", "stop"}});
    asked = true;
  }
  // Without a zygote the command's own processes get the signal.
  if (!asked) process_.Signal(signal);
}

void Session::Interrupted(int signal) {
  if (const std::string status = server_->coordinator().Status(SteadyNowNs());
      !status.empty() && server_->coordinator().diagnosis() == nullptr) {
    spdlog::info("{}", status);
    job_->info()["stopped_while"] = status;
  }
  Stop(signal);
}

void Session::OnCommandEnd() {
  if (!OwnRank()) return;
  ProcessEnd end;
  if (process_.was_signalled()) {
    end.signal = process_.exit_code() - 128;
  } else {
    end.exit_code = process_.exit_code();
    if (const auto error = job_->Read("ranks/00000/error.json"); end.exit_code > 0 && error.ok()) {
      end.error = error->value("error", "");
      end.traceback = error->value("traceback", "");
      end.call_site = error->value("call_site", "");
    }
  }
  ended_.insert(0);
  server_->coordinator().OnRankEnded(0, end, SteadyNowNs());
}

void Session::Watch() {
  const int64_t now_ns = SteadyNowNs();
  Coordinator& coordinator = server_->coordinator();
  for (const std::string& refusal : server_->TakeRefusals()) spdlog::warn("{}", refusal);
  const std::map<uint32_t, int> processes = coordinator.Processes();
  for (const auto& [rank, pid] : processes) job_pids_.insert(pid);
  if (stop_ns_ == 0) {
    // Looking at every thread of a large job costs something: only while nothing is heard of it.
    std::map<uint32_t, coordinator::Idleness> idle;
    std::set<uint32_t> waiting;
    if (now_ns - coordinator.last_activity_ns() < kQuietNs) {
      liveness_ = {};
    } else {
      std::vector<int> others;
      std::set<int> ranks;
      for (const auto& [rank, pid] : processes) ranks.insert(pid);
      for (const int pid : process_.Descendants()) {
        if (ranks.count(pid) == 0) others.push_back(pid);
      }
      waiting = coordinator.WaitingRanks();
      idle = liveness_.Sample(processes, others, waiting.empty(), now_ns);
    }
    for (const auto& [rank, pid] : processes) {
      const auto found = idle.find(rank);
      if (found == idle.end()) {
        stacks_->Forget(rank);
      } else if (found->second.idle_ns >= kAskAfterNs && waiting.count(rank) == 0) {
        stacks_->Ask(rank, pid);
        found->second.where = stacks_->Where(rank);
      }
    }
    coordinator.Tick(now_ns, idle);
  }

  if (const Diagnosis* diagnosis = coordinator.diagnosis();
      diagnosis != nullptr && diagnosed_ns_ == 0) {
    diagnosed_ns_ = now_ns;
    // What the ranks say from now on follows from the abort; it is kept in their logs.
    for (auto& [fd, zygote] : zygotes_) Tell(zygote, {{"type", "mute"}});
    spdlog::error("{}", diagnosis->Text());
    // Not fmt::print, which throws where stderr is a closed pipe.
    if (!diagnosis->hint.empty())
      std::fputs(fmt::format("hint: {}\n", diagnosis->hint).c_str(), stderr);
    Json json;
    json["schema"] = "prism.diagnosis";
    json["schema_version"] = 1;
    json.update(diagnosis->Json());
    if (const absl::Status status = job_->Write("diagnosis.json", json); !status.ok()) {
      spdlog::warn("{}", std::string(status.message()));
    }
  }
  if (diagnosed_ns_ != 0 && now_ns - diagnosed_ns_ >= kAbortGraceNs) Stop(SIGTERM);
  if (stop_ns_ != 0 && !process_.killed() && now_ns - stop_ns_ >= kStopGraceNs) process_.Kill();
  if (diagnosed_ns_ == 0 && now_ns - status_ns_ >= kStatusEveryNs) {
    if (const std::string status = coordinator.Status(now_ns); !status.empty()) {
      spdlog::info("{}", status);
      status_ns_ = now_ns;
    }
  }
}

std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error))
    names.insert(entry.path().filename().string());
  return names;
}

// Removes what this job's processes left: files that came during it and carry its session's name or
// one of its processes', and communicators of processes that are all gone.
void Session::RemoveSharedMemory() {
  for (const std::string& name : SharedMemoryNames()) {
    if (shared_memory_before_.count(name) != 0) continue;
    const bool ours = std::any_of(job_pids_.begin(), job_pids_.end(), [&](int pid) {
      return name.find(fmt::format("_{}_", pid)) != std::string::npos;
    });
    if (ours) unlink(("/dev/shm/" + name).c_str());
  }
  if (Clock() != nullptr) return;  // its session is not this run's alone
  for (const std::string& file : LeftSharedMemory(session_name_)) unlink(file.c_str());
}

bool Session::CapturedNothing() const {
  for (const auto& [path, rank] : server_->coordinator().Traces()) {
    const auto trace = trace::Reader::Open(path, {.allow_incomplete = true, .check_nodes = false});
    if (trace.ok() && trace->node_count() != 0) return false;
  }
  return true;
}

// Commands of processes that ranks started and that used CUDA by themselves, each once. `ranks`:
// one of them was meant as a rank.
std::vector<std::string> Session::Uncaptured(bool* ranks) const {
  std::set<std::string> commands;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(runtime_->path(), error)) {
    if (entry.path().filename().string().rfind(wire::kUncapturedPrefix, 0) != 0) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    uint32_t ancestor = 0, world = 0;
    file >> ancestor >> world;
    std::string word, command;
    file.get();
    while (std::getline(file, word, '\0')) {
      // What `python -c` is given may be a program of many lines.
      command += (command.empty() ? "" : " ") + word.substr(0, word.find('\n'));
    }
    *ranks |= world > 1;
    commands.insert(command);
  }
  return {commands.begin(), commands.end()};
}

// A program may end well although what it did could not be kept: that is not a captured job.
absl::Status Session::CheckTraces() const {
  std::string first;
  const char* hint = "";
  size_t bad = 0;
  const auto& traces = server_->coordinator().Traces();
  for (const auto& [path, rank] : traces) {
    const auto trace = trace::Reader::Open(path, {.allow_incomplete = true, .check_nodes = false});
    if (trace.ok() && trace->completeness() == trace::Completeness::kSealed) continue;
    if (bad++ != 0) continue;
    first = fmt::format("rank {}: {}", rank,
                        trace.ok() ? trace->problem() : std::string(trace.status().message()));
    hint = trace.ok() && trace->completeness() == trace::Completeness::kUnsealed
               ? "a rank that ends with os._exit leaves its trace open: let it return or sys.exit"
               : "is the disk full? --job DIR chooses another place";
  }
  if (bad == 0) return absl::OkStatus();
  return WithHint(absl::DataLossError(fmt::format("{} of {} traces {} not whole: {}", bad,
                                                  traces.size(), bad == 1 ? "is" : "are", first)),
                  hint);
}

// Emulation: what a rank waits for comes at a stated nanosecond. On a GPU that takes a processor
// that looks all the time; beside hostcuda's ranks, which need the processors, a nap.
void Session::PlayOnce() {
  Coordinator& coordinator = server_->coordinator();
  if (VirtualClock* clock = Clock()) {
    loop_.RunOnce(kTickMs);
    // What came before the clock stopped is in the sockets.
    while (loop_.RunOnce(0)) {
    }
    coordinator.OnBells(SteadyNowNs());
    coordinator.ReleaseDue(SteadyNowNs());
    if (std::exchange(clock_stands_, false)) clock->Continue(coordinator.NextReleaseNs());
    return;
  }
  const int64_t wait_ns = coordinator.NextReleaseNs() - SteadyNowNs();
  if (options_.device == Device::kCuda && coordinator.EverConnected()) {
    loop_.RunOnce(0);
    coordinator.OnBells(SteadyNowNs());
  } else {
    loop_.RunOnce(static_cast<int>(std::clamp<int64_t>(wait_ns / 1'000'000, 0, kTickMs)));
  }
  coordinator.ReleaseDue(SteadyNowNs());
}

CaptureResult Session::Finish() {
  // Ranks that did not end by themselves left what they held back beside their traces.
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(job_->path() + "/trace", error)) {
    if (file.path().extension() != trace::kPendingSuffix) continue;
    const absl::Status status =
        trace::Reader::Recover(std::filesystem::path(file.path()).replace_extension().string());
    if (!status.ok()) spdlog::warn("{}", std::string(status.message()));
  }
  Coordinator& coordinator = server_->coordinator();
  CaptureResult result;
  result.job = job_->path();
  result.world = coordinator.world();
  result.operations = coordinator.operations();
  result.seconds = static_cast<double>(SteadyNowNs() - started_ns_) / 1e9;
  const int code = process_.exit_code();
  result.exit_code = code;
  if (const Diagnosis* diagnosis = coordinator.diagnosis()) {
    result.diagnosis = *diagnosis;
    result.reason = diagnosis->headline;
    const bool ours = diagnosis->kind == "internal" || diagnosis->kind == "interception";
    // The code of processes that prism stopped says nothing; a rank's own failure is the program's.
    result.exit_code = ours ? kExitOwnFailure : stop_ns_ != 0 || code == 0 ? 1 : code;
  } else if (process_.interrupted_by() != 0) {
    result.reason = fmt::format("stopped by {}", strsignal(process_.interrupted_by()));
    result.exit_code = 128 + process_.interrupted_by();
  } else if (code != 0) {
    result.reason = process_.was_signalled()
                        ? fmt::format("the command was killed by signal {}", code - 128)
                        : fmt::format("the command exited with code {}", code);
  }
  return result;
}

absl::StatusOr<CaptureResult> Session::Run() {
  PRISM_RETURN_IF_ERROR(Prepare());
  shared_memory_before_ = SharedMemoryNames();
  // One connection a rank; the ranks themselves keep the limit that they were given.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  // Before the coordinator's threads.
  process_.TakeSignals([this](int signal) { Interrupted(signal); });
  process_.OnEnd([this] { OnCommandEnd(); });

  process_.StartGuard(fmt::format("{}={}", kControlVariable, ControlSocket()), runtime_->path());

  coordinator::JobRules rules;
  rules.mode = wire::Mode::kCapture;
  // Never what happened to be in memory: values of it would be no numbers soon.
  const bool computes = options_.device == Device::kCuda || options_.values == "cpu";
  if (computes) rules.welcome_flags |= wire::kMirrorPayloads;
  if (computes && options_.exchange == "control" && !options_.emulation.has_value())
    rules.welcome_flags |= wire::kMoveUntilRecurring;
  if (options_.emulation.has_value()) {
    rules.mode = wire::Mode::kEmulate;
    if (options_.emulation->measure) rules.welcome_flags |= wire::kMeasure;
    if (options_.emulation->hold) rules.welcome_flags |= wire::kHoldStreams;
    if (VirtualClock* clock = Clock()) {
      rules.clock_number = clock->number();
      rules.call_ns = options_.emulation->call_ns;
    }
    if (options_.device == Device::kCuda && !options_.emulation->stall)
      rules.welcome_flags |= wire::kStandInKernels;
  }
  rules.devices = options_.target.gpus_per_node;
  rules.values = ValuesNumber(options_.values);
  rules.device_memory_bytes = options_.target.gpu.memory_bytes;
  rules.context_bytes = options_.target.gpu.context_bytes;
  rules.exact_payload_bytes = options_.exact_payload_bytes;
  rules.device_name = options_.target.gpu.name;
  rules.trace_directory = job_->trace_directory();
  rules.patience_ns = static_cast<int64_t>(options_.patience_s * 1e9);
  if (!options_.emulation.has_value()) {
    PRISM_ASSIGN_OR_RETURN(received_, coordinator::ReceivedWriter::Create(
                                          job_->path() + "/" + coordinator::kReceivedFile));
  }
  PRISM_ASSIGN_OR_RETURN(
      server_, coordinator::Server::Listen(
                   runtime_->path() + "/socket", rules, &loop_,
                   options_.emulation.has_value() ? options_.emulation->peers : nullptr, Clock(),
                   received_.get()));
  if (VirtualClock* clock = Clock()) {
    loop_.Add(clock->fd(), [this, clock] {
      clock->Acknowledge();
      clock_stands_ = true;
    });
  }
  PRISM_RETURN_IF_ERROR(ListenForZygotes());
  BuildEnvironment();

  Json& info = job_->info();
  info["mode"] = options_.emulation.has_value() ? "emulate" : "capture";
  if (options_.emulation.has_value()) {
    info["sandbox_ranks"] = options_.emulation->sandbox;
    info["captured"] = options_.emulation->captured;
  }
  info["command"] = invocation_.command;
  info["cwd"] = fs::current_path().string();
  info["device"] = !options_.device.has_value()       ? "none"
                   : options_.device == Device::kHost ? "host"
                                                      : "cuda";
  info["values"] = options_.values;
  info["target"] = DescribeTarget(options_.target);
  info["exchange"] = options_.exchange;
  info["exact_payload_bytes"] = options_.exact_payload_bytes;
  info["cuda"] = DescribeCuda(cuda_);
  info["environment"] = environment_;
  PRISM_RETURN_IF_ERROR(job_->Save());

  started_ns_ = SteadyNowNs();
  status_ns_ = started_ns_;
  if (const absl::Status status = Start(); !status.ok()) {
    [[maybe_unused]] const absl::Status sealed =
        job_->Seal(JobDirectory::State::kFailed, std::string(status.message()));
    return status;
  }
  int64_t next_tick_ns = started_ns_;
  while (!process_.ended()) {
    if (options_.emulation.has_value()) {
      PlayOnce();
    } else {
      loop_.RunOnce(kTickMs);
    }
    // The diagnosis may be found while packets are handled; the look at processes has its own pace.
    if (SteadyNowNs() >= next_tick_ns || server_->coordinator().diagnosis() != nullptr) {
      next_tick_ns = SteadyNowNs() + int64_t{kTickMs} * 1'000'000;
      Watch();
    }
  }
  // What the last processes said is still in the sockets and pipes.
  for (int round = 0; round < 4; ++round) loop_.RunOnce(0);
  // A later run of this process may use the clock.
  if (std::exchange(clock_stands_, false)) Clock()->Continue(INT64_MAX);
  process_.Drain();
  if (diagnosed_ns_ == 0 && process_.interrupted_by() == 0) {
    // A failed end becomes the diagnosis after its grace; the command is over, so nothing more can
    // come.
    Coordinator& coordinator = server_->coordinator();
    coordinator.Tick(SteadyNowNs() + kSecondNs, {});
    Watch();
  }
  process_.EndLeftovers();
  RemoveSharedMemory();

  CaptureResult result = Finish();
  const bool any_rank = result.world != 0 && server_->coordinator().EverConnected();
  absl::Status problem = absl::OkStatus();
  if (!refusal_.empty()) {
    problem = WithHint(absl::InvalidArgumentError(refusal_), refusal_hint_);
  } else if (options_.device.has_value() && !any_rank && result.exit_code == 0) {
    problem = WithHint(
        absl::FailedPreconditionError(fmt::format(
            "no process of '{}' became a rank: nothing was captured", Quote(invocation_.command))),
        "does it use CUDA? A launcher that prism does not know must set RANK and WORLD_SIZE");
  } else if (result.reason.empty()) {
    problem = CheckTraces();
  }
  if (received_ != nullptr) problem.Update(received_->Close());
  bool uncaptured_ranks = false;
  if (const auto uncaptured = Uncaptured(&uncaptured_ranks); !uncaptured.empty()) {
    info["uncaptured"] = uncaptured;
    const std::string what = fmt::format(
        "{} process{} that ranks started used CUDA and {} not captured: {}{}", uncaptured.size(),
        uncaptured.size() == 1 ? "" : "es", uncaptured.size() == 1 ? "was" : "were",
        uncaptured.front(), uncaptured.size() == 1 ? "" : ", ...");
    const char* const hint =
        uncaptured_ranks ? "ranks were started by something that prism does not stand before; it "
                           "does before torchrun, as the command or found on PATH by it"
                         : "capture the program that uses CUDA itself, or start it with torchrun";
    // Without anything else the capture would be an empty one.
    if (problem.ok() && result.reason.empty() && CapturedNothing()) {
      problem = WithHint(absl::FailedPreconditionError(what), hint);
    } else {
      spdlog::warn("{}", what);
      std::fputs(fmt::format("hint: {}\n", hint).c_str(), stderr);
    }
  }
  if (!problem.ok()) result.reason = std::string(problem.message());
  info["versions"] = versions_;
  info["world"] = result.world;
  info["seconds"] = result.seconds;
  info["exit_code"] = problem.ok() ? result.exit_code : kExitOwnFailure;
  if (const absl::Status status = job_->Write("matching.json", server_->coordinator().Matching());
      !status.ok()) {
    problem.Update(status);
  }
  const bool complete = problem.ok() && result.reason.empty();
  PRISM_RETURN_IF_ERROR(job_->Seal(
      complete ? JobDirectory::State::kComplete : JobDirectory::State::kFailed, result.reason));
  if (!problem.ok()) return problem;
  return result;
}

}  // namespace

nlohmann::ordered_json CaptureResult::Json() const {
  nlohmann::ordered_json json;
  json["job"] = job;
  json["state"] = reason.empty() ? "complete" : "failed";
  json["reason"] = reason;
  json["exit_code"] = exit_code;
  json["world"] = world;
  json["operations"] = operations;
  json["seconds"] = seconds;
  json["diagnosis"] = diagnosis.has_value() ? diagnosis->Json() : nlohmann::ordered_json();
  return json;
}

absl::StatusOr<CaptureResult> RunCapture(const CaptureOptions& options,
                                         const Invocation& invocation) {
  return Session(options, invocation).Run();
}

}  // namespace prism::cli
