#include "src/cli/capture_session.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "src/base/event_loop.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/cli/launch_command.h"
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

constexpr int kTickMs = 250;
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kAbortGraceNs =
    kSecondNs / 2;  // from Abort until the processes are stopped: their messages come first
constexpr int64_t kStopGraceNs =
    4 * kSecondNs;  // from asking to killing; the zygote kills its ranks after 2
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

void RemoveSharedMemoryOf(const std::string& session) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    if (entry.path().filename().string().find(session) != std::string::npos)
      unlink(entry.path().c_str());
  }
}

// The folder of this run's sockets, removed with everything in it.
class RuntimeFolder {
 public:
  static absl::StatusOr<std::unique_ptr<RuntimeFolder>> Make() {
    const char* base = std::getenv("TMPDIR");
    std::string path =
        fmt::format("{}/prism-XXXXXX", base == nullptr || *base == '\0' ? "/tmp" : base);
    if (mkdtemp(path.data()) == nullptr) {
      return WithHint(ErrnoStatus(errno, "create " + path),
                      "set TMPDIR to a directory that can be written");
    }
    if (std::FILE* file = std::fopen((path + "/pid").c_str(), "we")) {
      fmt::print(file, "{}\n", getpid());
      std::fclose(file);
    }
    return std::unique_ptr<RuntimeFolder>(new RuntimeFolder(path));
  }
  /// Name that this run's shared memory carries.
  static std::string SessionOf(const fs::path& folder) { return folder.filename().string(); }
  ~RuntimeFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  // What a prism left that was killed: folders whose process is gone, and the shared memory of
  // their ranks.
  static void RemoveStale(const std::string& parent) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(parent, error)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("prism-", 0) != 0 || !fs::is_regular_file(entry.path() / "pid", error))
        continue;
      std::FILE* file = std::fopen((entry.path() / "pid").c_str(), "re");
      int pid = 0;
      const bool read = file != nullptr && std::fscanf(file, "%d", &pid) == 1;
      if (file != nullptr) std::fclose(file);
      if (!read || pid <= 0 || kill(pid, 0) == 0 || errno != ESRCH) continue;
      RemoveSharedMemoryOf(SessionOf(entry.path()));
      fs::remove_all(entry.path(), error);
    }
  }
  explicit RuntimeFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

std::vector<int> ChildrenOf(int pid) {
  std::vector<int> children;
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  std::error_code error;
  for (const auto& task : fs::directory_iterator(tasks, error)) {
    std::FILE* file = std::fopen((task.path() / "children").c_str(), "re");
    if (file == nullptr) continue;
    int child;
    while (std::fscanf(file, "%d", &child) == 1) children.push_back(child);
    std::fclose(file);
  }
  return children;
}

std::vector<int> Descendants() {
  std::vector<int> all = ChildrenOf(getpid());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<int> children = ChildrenOf(all[i]);
    all.insert(all.end(), children.begin(), children.end());
  }
  return all;
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
  struct Pump {
    int from = -1;
    int terminal = -1;
    int log = -1;
  };

  absl::Status Prepare();
  absl::Status CheckMachine() const;
  void BuildEnvironment();
  absl::Status ListenForZygotes();
  absl::Status Start();
  void AddPump(int from, int terminal, const std::string& log);
  void Drain(Pump& pump);
  void OnZygote(int fd);
  void OnMessage(Zygote& zygote, const Json& message);
  void Tell(Zygote& zygote, const Json& message);
  void OnSignals();
  void Reap();
  void Stop(int signal);
  void Kill();
  void Watch();
  void EndProcesses();
  void RemoveSharedMemory();
  CaptureResult Finish();

  const CaptureOptions& options_;
  const Invocation& invocation_;
  LaunchCommand command_;
  Installation installation_;
  CudaLibraries cuda_;
  std::optional<JobDirectory> job_;
  std::unique_ptr<RuntimeFolder> runtime_;
  EventLoop loop_;
  std::unique_ptr<coordinator::Server> server_;
  coordinator::Liveness liveness_;
  std::map<std::string, std::string> environment_;  // what is changed
  std::string session_name_;
  std::set<std::string> shared_memory_before_;
  std::set<int> job_pids_;
  sigset_t old_mask_{};
  rlimit old_files_{};
  int signal_fd_ = -1;
  int control_fd_ = -1;
  std::map<int, Zygote> zygotes_;
  std::map<int, Pump> pumps_;
  int child_ = -1;
  bool child_ended_ = false;
  int child_status_ = 0;
  int64_t started_ns_ = 0;
  int64_t diagnosed_ns_ = 0;
  int64_t stop_ns_ = 0;
  int64_t status_ns_ = 0;
  bool killed_ = false;
  int interrupted_by_ = 0;
  std::string refusal_, refusal_hint_;
  std::set<uint32_t> ended_;
  Json versions_ = Json::object();
};

Session::~Session() {
  server_.reset();
  for (const auto& [fd, zygote] : zygotes_) close(fd);
  for (auto& [fd, pump] : pumps_) {
    close(fd);
    if (pump.log >= 0) close(pump.log);
  }
  if (control_fd_ >= 0) close(control_fd_);
  if (signal_fd_ >= 0) {
    close(signal_fd_);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
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
    PRISM_ASSIGN_OR_RETURN(cuda_, FindCuda(*options_.device, installation_, command_.python));
  }
  PRISM_ASSIGN_OR_RETURN(runtime_, RuntimeFolder::Make());
  PRISM_ASSIGN_OR_RETURN(job_, JobDirectory::Create(options_.job, options_.force,
                                                    wire::kProtocolVersion, trace::kFormatVersion));
  return absl::OkStatus();
}

void Session::BuildEnvironment() {
  session_name_ = RuntimeFolder::SessionOf(runtime_->path());
  auto& env = environment_;
  env["PRISM_CONTROL"] = runtime_->path() + "/control";
  env["PRISM_JOB"] = job_->path();
  env["PRISM_TEE"] = options_.tee;
  env["PRISM_LAUNCH"] = options_.launch;
  env["PRISM_TARGET_GPUS"] = std::to_string(options_.target.gpus_per_node);
  for (const auto& [name, value] : QuietWatchdogs()) env[name] = value;
  if (options_.device.has_value()) {
    env[wire::kEnvSocket] = server_->path();
    env[wire::kEnvMode] = "capture";
    env[wire::kEnvRealDriver] = cuda_.driver;
    env[wire::kEnvRealRuntime] = cuda_.runtime;
    env[wire::kEnvRealNvml] = cuda_.nvml;
    env[wire::kEnvRealNccl] = cuda_.nccl;
    std::string preload;
    for (const std::string& library : installation_.preload)
      preload += (preload.empty() ? "" : ":") + library;
    if (const char* theirs = std::getenv("LD_PRELOAD"); theirs != nullptr && *theirs != '\0') {
      preload += std::string(":") + theirs;
    }
    env["LD_PRELOAD"] = preload;
  }
  if (options_.device == Device::kHost) {
    env["HOSTCUDA_DEVICES"] = "1";
    env["HOSTCUDA_GPU"] = options_.target.gpu.key;
    env["HOSTCUDA_MEMORY_LIMIT"] = "0";  // the ledger of the shims enforces the target's
    env["HOSTCUDA_VALUES"] = options_.values;
    env["HOSTCUDA_SESSION"] = session_name_;
  }
  if (options_.device == Device::kCuda) {
    // With one connection a stream that waits for a peer would hold every other (docs/design/0001).
    const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (connections == nullptr || std::atoi(connections) < 8)
      env["CUDA_DEVICE_MAX_CONNECTIONS"] = "8";
  }
  if (command_.kind == LaunchCommand::Kind::kProgram) {
    // A program that no launcher made a rank of is rank 0 of 1; launchers below it say otherwise.
    env[wire::kEnvRank] = "0";
    const char* path = std::getenv("PATH");
    env["PATH"] = fmt::format("{}/shadow{}{}", installation_.python, path == nullptr ? "" : ":",
                              path == nullptr ? "" : path);
  }
}

absl::Status Session::ListenForZygotes() {
  const std::string path = runtime_->path() + "/control";
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
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : environment_) variables[name] = value;
  std::vector<std::string> flat;
  for (const auto& [name, value] : variables) flat.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& entry : flat) envp.push_back(entry.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  // One Python rank: its output is kept beside being shown, as that of every rank.
  const bool piped = command_.kind == LaunchCommand::Kind::kPython;
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  if (piped && (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0))
    return ErrnoStatus(errno, "pipe");
  int problem[2];
  if (pipe2(problem, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const pid_t controller = getpid();
  child_ = fork();
  if (child_ < 0) return ErrnoStatus(errno, "fork");
  if (child_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != controller) _exit(125);
    sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    setrlimit(RLIMIT_NOFILE, &old_files_);
    if (piped) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
    }
    execve(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = write(problem[1], &error, sizeof error);
    _exit(125);
  }
  setpgid(child_, child_);
  close(problem[1]);
  int error = 0;
  const ssize_t n = read(problem[0], &error, sizeof error);
  close(problem[0]);
  if (piped) {
    close(out[1]);
    close(err[1]);
    const std::string folder = job_->rank_directory(0);
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    const bool shown = options_.tee != "none";
    AddPump(out[0], shown ? STDOUT_FILENO : -1, folder + "/stdout.log");
    AddPump(err[0], shown ? STDERR_FILENO : -1, folder + "/stderr.log");
  }
  if (n == sizeof error) {
    waitpid(child_, nullptr, 0);
    child_ = -1;
    return ErrnoStatus(error, fmt::format("run {}", words[0]));
  }
  job_pids_.insert(child_);
  if (piped) {
    server_->coordinator().ExpectWorld(1);
    server_->coordinator().OnRankStarted(0, child_);
  }
  return absl::OkStatus();
}

void Session::AddPump(int from, int terminal, const std::string& log) {
  fcntl(from, F_SETFL, O_NONBLOCK);
  Pump pump{from, terminal, open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  pumps_[from] = pump;
  loop_.Add(from, [this, from] { Drain(pumps_[from]); });
}

void Session::Drain(Pump& pump) {
  char data[65536];
  while (true) {
    const ssize_t n = read(pump.from, data, sizeof data);
    if (n < 0) return;
    if (n == 0) {
      loop_.Remove(pump.from);
      return;
    }
    for (const int to : {pump.terminal, pump.log}) {
      // A closed terminal or a full disk must not end the job.
      for (ssize_t done = 0; to >= 0 && done < n;) {
        const ssize_t written = write(to, data + done, static_cast<size_t>(n - done));
        if (written < 0 && errno == EAGAIN) {
          usleep(1000);
          continue;
        }
        if (written <= 0) break;
        done += written;
      }
    }
  }
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
  if (!asked && child_ > 0 && !child_ended_) kill(-child_, signal);
}

void Session::Kill() {
  killed_ = true;
  for (const int pid : Descendants()) kill(pid, SIGKILL);
}

void Session::OnSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    if (interrupted_by_ != 0) {
      Kill();
      continue;
    }
    interrupted_by_ = number;
    spdlog::warn("{}: stopping the job; once more kills it",
                 number == SIGINT ? "interrupted" : strsignal(number));
    Stop(number == SIGINT ? SIGINT : SIGTERM);
  }
  Reap();
}

void Session::Reap() {
  while (true) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return;
    if (pid != child_) continue;  // an orphan of the command's: adopted, so that none is left
    child_ended_ = true;
    child_status_ = status;
    if (command_.kind != LaunchCommand::Kind::kPython) continue;
    ProcessEnd end;
    if (WIFSIGNALED(status)) {
      end.signal = WTERMSIG(status);
    } else {
      end.exit_code = WEXITSTATUS(status);
      if (const auto error = job_->Read("ranks/00000/error.json");
          end.exit_code > 0 && error.ok()) {
        end.error = error->value("error", "");
        end.traceback = error->value("traceback", "");
        end.call_site = error->value("call_site", "");
      }
    }
    ended_.insert(0);
    server_->coordinator().OnRankEnded(0, end, SteadyNowNs());
  }
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
    if (now_ns - coordinator.last_activity_ns() < kQuietNs) {
      liveness_ = {};
    } else {
      std::vector<int> others;
      std::set<int> ranks;
      for (const auto& [rank, pid] : processes) ranks.insert(pid);
      for (const int pid : Descendants()) {
        if (ranks.count(pid) == 0) others.push_back(pid);
      }
      idle = liveness_.Sample(processes, others, now_ns);
    }
    coordinator.Tick(now_ns, idle);
  }

  if (const Diagnosis* diagnosis = coordinator.diagnosis();
      diagnosis != nullptr && diagnosed_ns_ == 0) {
    diagnosed_ns_ = now_ns;
    // What the ranks say from now on follows from the abort; it is kept in their logs.
    for (auto& [fd, zygote] : zygotes_) Tell(zygote, {{"type", "mute"}});
    spdlog::error("{}", diagnosis->Text());
    if (!diagnosis->hint.empty()) fmt::print(stderr, "hint: {}\n", diagnosis->hint);
    Json json;
    json["schema"] = "prism.diagnosis";
    json["schema_version"] = 1;
    json.update(diagnosis->Json());
    if (const absl::Status status = job_->Write("diagnosis.json", json); !status.ok()) {
      spdlog::warn("{}", std::string(status.message()));
    }
  }
  if (diagnosed_ns_ != 0 && now_ns - diagnosed_ns_ >= kAbortGraceNs) Stop(SIGTERM);
  if (stop_ns_ != 0 && !killed_ && now_ns - stop_ns_ >= kStopGraceNs) Kill();
  if (diagnosed_ns_ == 0 && now_ns - status_ns_ >= kStatusEveryNs) {
    if (const std::string status = coordinator.Status(now_ns); !status.empty()) {
      spdlog::info("{}", status);
      status_ns_ = now_ns;
    }
  }
}

// The command has ended: what it left running does not outlive it.
void Session::EndProcesses() {
  for (int round = 0; round < 60; ++round) {
    Reap();
    const std::vector<int> left = Descendants();
    if (left.empty()) return;
    if (round == 0) spdlog::debug("{} processes are left", left.size());
    for (const int pid : left) kill(pid, round < 10 ? SIGTERM : SIGKILL);
    loop_.RunOnce(50);
  }
  const size_t left = Descendants().size();
  if (left != 0) spdlog::warn("{} processes of the job could not be ended", left);
}

std::set<std::string> SharedMemoryNames() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error))
    names.insert(entry.path().filename().string());
  return names;
}

// Removes what this job's processes left: files that came during it and carry its session's name or
// one of its processes'.
void Session::RemoveSharedMemory() {
  for (const std::string& name : SharedMemoryNames()) {
    if (shared_memory_before_.count(name) != 0) continue;
    const bool ours = name.find(session_name_) != std::string::npos ||
                      std::any_of(job_pids_.begin(), job_pids_.end(), [&](int pid) {
                        return name.find(fmt::format("_{}_", pid)) != std::string::npos;
                      });
    if (ours) unlink(("/dev/shm/" + name).c_str());
  }
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
  const int code =
      WIFSIGNALED(child_status_) ? 128 + WTERMSIG(child_status_) : WEXITSTATUS(child_status_);
  result.exit_code = code;
  if (const Diagnosis* diagnosis = coordinator.diagnosis()) {
    result.diagnosis = *diagnosis;
    result.reason = diagnosis->headline;
    const bool ours = diagnosis->kind == "internal" || diagnosis->kind == "interception";
    // The code of processes that prism stopped says nothing; a rank's own failure is the program's.
    result.exit_code = ours ? kExitOwnFailure : stop_ns_ != 0 || code == 0 ? 1 : code;
  } else if (interrupted_by_ != 0) {
    result.reason = fmt::format("stopped by {}", strsignal(interrupted_by_));
    result.exit_code = 128 + interrupted_by_;
  } else if (code != 0) {
    result.reason = WIFSIGNALED(child_status_)
                        ? fmt::format("the command was killed by signal {}", code - 128)
                        : fmt::format("the command exited with code {}", code);
  }
  return result;
}

absl::StatusOr<CaptureResult> Session::Run() {
  PRISM_RETURN_IF_ERROR(Prepare());
  shared_memory_before_ = SharedMemoryNames();
  // One connection a rank; the ranks themselves keep the limit that they were given.
  if (getrlimit(RLIMIT_NOFILE, &old_files_) == 0) {
    const rlimit most{old_files_.rlim_max, old_files_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
  }
  // Before the coordinator's threads, which inherit the mask.
  sigset_t mask;
  sigemptyset(&mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, &old_mask_);
  signal_fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  loop_.Add(signal_fd_, [this] { OnSignals(); });

  coordinator::JobRules rules;
  rules.mode = wire::Mode::kCapture;
  rules.devices = options_.target.gpus_per_node;
  rules.values = ValuesNumber(options_.values);
  rules.device_memory_bytes = options_.target.gpu.memory_bytes;
  rules.context_bytes = options_.target.gpu.context_bytes;
  rules.exact_payload_bytes = options_.exact_payload_bytes;
  rules.device_name = options_.target.gpu.name;
  rules.trace_directory = job_->trace_directory();
  rules.patience_ns = static_cast<int64_t>(options_.patience_s * 1e9);
  PRISM_ASSIGN_OR_RETURN(server_,
                         coordinator::Server::Listen(runtime_->path() + "/socket", rules, &loop_));
  PRISM_RETURN_IF_ERROR(ListenForZygotes());
  BuildEnvironment();

  Json& info = job_->info();
  info["command"] = invocation_.command;
  info["cwd"] = fs::current_path().string();
  info["device"] = !options_.device.has_value()       ? "none"
                   : options_.device == Device::kHost ? "host"
                                                      : "cuda";
  info["values"] = options_.values;
  info["target"] = {{"text", options_.target.text},
                    {"gpu", options_.target.gpu.key},
                    {"gpu_name", options_.target.gpu.name},
                    {"gpu_memory_bytes", options_.target.gpu.memory_bytes},
                    {"gpu_context_bytes", options_.target.gpu.context_bytes},
                    {"gpus_per_node", options_.target.gpus_per_node},
                    {"nodes", options_.target.nodes}};
  info["exact_payload_bytes"] = options_.exact_payload_bytes;
  info["cuda"] = {{"where", cuda_.where},
                  {"driver", cuda_.driver},
                  {"runtime", cuda_.runtime},
                  {"nvml", cuda_.nvml}};
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
  while (!child_ended_) {
    loop_.RunOnce(kTickMs);
    // The diagnosis may be found while packets are handled; the look at processes has its own pace.
    if (SteadyNowNs() >= next_tick_ns || server_->coordinator().diagnosis() != nullptr) {
      next_tick_ns = SteadyNowNs() + int64_t{kTickMs} * 1'000'000;
      Watch();
    }
  }
  // What the last processes said is still in the sockets and pipes.
  for (int round = 0; round < 4; ++round) loop_.RunOnce(0);
  for (auto& [fd, pump] : pumps_) Drain(pump);
  if (diagnosed_ns_ == 0 && interrupted_by_ == 0) {
    // A failed end becomes the diagnosis after its grace; the command is over, so nothing more can
    // come.
    Coordinator& coordinator = server_->coordinator();
    coordinator.Tick(SteadyNowNs() + kSecondNs, {});
    Watch();
  }
  EndProcesses();
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
