// prism doctor: what is installed here, and what prism can do with it.
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "fmt/format.h"
#include "src/base/version.h"
#include "src/cli/installation.h"
#include "src/cli/launch_command.h"
#include "src/cli/runtime_folder.h"
#include "src/cli/verbs.h"
#include "src/coordinator/server.h"
#include "src/trace/format.h"
#include "src/wire/protocol.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kTestedTorch[] = "2.11.0";
constexpr uint64_t kSharedMemoryWanted = 1ull << 30;
constexpr double kMiB = 1 << 20;

// One thing that was looked at.
struct Finding {
  enum class Level { kOk, kNote, kProblem };
  const char* what;
  Level level;
  std::string text;
  std::string remedy;
};

std::string FirstLine(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) return "";
  std::array<char, 512> line{};
  const bool any = std::fgets(line.data(), line.size(), pipe) != nullptr;
  pclose(pipe);
  std::string text = any ? line.data() : "";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class DoctorVerb final : public Verb {
 public:
  const char* name() const override { return "doctor"; }
  const char* summary() const override {
    return "Show what is installed and what prism can do with it";
  }
  const char* examples() const override { return "  prism doctor --python .env/bin/python\n"; }
  void AddOptions(CLI::App& app) override {
    app.add_option("--python", python_,
                   "Interpreter whose PyTorch is looked at; otherwise the one on PATH")
        ->type_name("PATH");
  }

  absl::StatusOr<int> Run(const Invocation& invocation) override {
    findings_.clear();
    LookAtMachine();
    LookAtInstallation(invocation.program);
    const bool problem = std::any_of(findings_.begin(), findings_.end(), [](const Finding& f) {
      return f.level == Finding::Level::kProblem;
    });
    if (invocation.json) {
      Json json;
      json["version"] = kVersion;
      json["protocol_version"] = wire::kProtocolVersion;
      json["trace_version"] = trace::kFormatVersion;
      json["ok"] = !problem;
      json["findings"] = Json::array();
      for (const Finding& finding : findings_) {
        json["findings"].push_back({{"what", finding.what},
                                    {"level", LevelName(finding.level)},
                                    {"text", finding.text},
                                    {"remedy", finding.remedy}});
      }
      PrintJson("prism.doctor", 1, json);
    } else {
      fmt::print("prism {} (protocol {}, trace {})\n", kVersion, wire::kProtocolVersion,
                 trace::kFormatVersion);
      for (const Finding& finding : findings_) {
        const char* color = !invocation.color                           ? ""
                            : finding.level == Finding::Level::kProblem ? "\033[31m"
                            : finding.level == Finding::Level::kNote    ? "\033[33m"
                                                                        : "\033[32m";
        fmt::print("  {}{:<8}{} {:<14} {}\n", color, LevelName(finding.level),
                   *color == '\0' ? "" : "\033[0m", finding.what, finding.text);
        if (!finding.remedy.empty()) fmt::print("           hint: {}\n", finding.remedy);
      }
    }
    return problem ? kExitUser : kExitOk;
  }

 private:
  static const char* LevelName(Finding::Level level) {
    return level == Finding::Level::kOk     ? "ok"
           : level == Finding::Level::kNote ? "note"
                                            : "problem";
  }
  void Add(const char* what, Finding::Level level, std::string text, std::string remedy = "") {
    findings_.push_back(
        {what, level, std::move(text), level == Finding::Level::kOk ? "" : std::move(remedy)});
  }
  void Expect(const char* what, bool ok, std::string text, std::string remedy) {
    Add(what, ok ? Finding::Level::kOk : Finding::Level::kProblem, std::move(text),
        std::move(remedy));
  }

  void LookAtMachine() {
    if (utsname system{}; uname(&system) == 0) Add("kernel", Finding::Level::kOk, system.release);
    Add("futex_waitv", coordinator::HasFutexWaitv() ? Finding::Level::kOk : Finding::Level::kNote,
        coordinator::HasFutexWaitv()
            ? "the coordinator sleeps until a rank rings"
            : "missing (Linux before 5.16): the coordinator polls once a millisecond");
    struct statvfs shm {};
    const bool mounted = statvfs("/dev/shm", &shm) == 0;
    const double free_mib =
        mounted ? static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize) / kMiB : 0;
    Expect("/dev/shm",
           mounted && access("/dev/shm", W_OK) == 0 && free_mib * kMiB >= kSharedMemoryWanted,
           fmt::format("{:.0f} MiB free", free_mib),
           "give it 1 GiB or more (containers: --shm-size 8g)");
    Expect("/proc", access("/proc/self/task", R_OK) == 0,
           access("/proc/self/task", R_OK) == 0 ? "mounted" : "not mounted",
           "blocked ranks are seen by it");
    LookForLeftovers();
    int gpus = 0;
    for (int i = 0; i < 64; ++i)
      gpus += access(fmt::format("/dev/nvidia{}", i).c_str(), F_OK) == 0 ? 1 : 0;
    Add("GPUs", Finding::Level::kOk,
        gpus == 0 ? "none: --device host only" : fmt::format("{}", gpus));
  }

  // A prism that was killed leaves its folder and the memory of its ranks; the next one removes
  // them.
  void LookForLeftovers() {
    std::string running, left;
    std::set<std::string> shared_memory;
    for (const RuntimeFolder::Found& found : RuntimeFolder::FindAll()) {
      if (!found.stale) {
        running += fmt::format("{}process {}", running.empty() ? "" : ", ", found.pid);
        continue;
      }
      left += (left.empty() ? "" : " ") + found.path;
      for (const std::string& file : LeftSharedMemory(fs::path(found.path).filename().string()))
        shared_memory.insert(file);
    }
    if (!running.empty()) Add("running", Finding::Level::kOk, running);
    if (!left.empty()) {
      Add("left behind", Finding::Level::kNote,
          fmt::format("by prisms that were killed: {}{}", left,
                      shared_memory.empty()
                          ? ""
                          : fmt::format(", and {} file{} in /dev/shm", shared_memory.size(),
                                        shared_memory.size() == 1 ? "" : "s")),
          "the next capture removes them");
    }
  }

  void LookAtInstallation(const std::string& program) {
    const auto installation = FindInstallation(program);
    Expect("python part", installation.ok(),
           installation.ok() ? installation->python : std::string(installation.status().message()),
           HintOf(installation.status()));
    if (!installation.ok()) return;
    constexpr size_t kShims = 4;
    Expect("shims", installation->preload.size() == kShims,
           installation->shims.empty() ? "not found"
                                       : fmt::format("{} of {} in {}", installation->preload.size(),
                                                     kShims, installation->shims),
           "build everything (make), or set PRISM_SHIM_DIR");
    const std::string python = python_.empty() ? FindProgram("python3") : FindProgram(python_);
    Expect("python", !python.empty(),
           python.empty() ? fmt::format("'{}' is not there", python_) : python,
           "activate the environment of your program, or name its interpreter with --python");
    if (python.empty()) return;
    const std::string version = FirstLine(fmt::format(
        "'{}' -c 'import importlib.metadata as m; print(m.version(\"torch\"))' 2>/dev/null",
        python));
    const bool tested = version.rfind(kTestedTorch, 0) == 0;
    Add("torch", version.empty() || !tested ? Finding::Level::kNote : Finding::Level::kOk,
        version.empty() ? "not installed in that environment" : version,
        version.empty() ? "tools/setup.sh installs it"
                        : fmt::format("tested is {}; values cpu needs exactly it", kTestedTorch));
    if (!version.empty()) {
      const std::string imports =
          FirstLine(fmt::format("'{}' -c 'import torch; print(torch.cuda.device_count(), "
                                "torch.cuda.get_device_name(0))' 2>&1 | tail -n 1",
                                python));
      const bool works = !imports.empty() && imports[0] >= '1' && imports[0] <= '9';
      Expect("CUDA in torch", works, imports,
             "hostcuda install puts a CUDA for the CPU into that environment");
    }
    for (const auto& [device, name] :
         {std::pair{Device::kHost, "--device host"}, std::pair{Device::kCuda, "--device cuda"}}) {
      const auto cuda = FindCuda(device, installation->hostcuda, python);
      Add(name, cuda.ok() ? Finding::Level::kOk : Finding::Level::kNote,
          cuda.ok() ? cuda->where : std::string(cuda.status().message()), HintOf(cuda.status()));
    }
  }

  std::string python_;
  std::vector<Finding> findings_;
};

}  // namespace

std::unique_ptr<Verb> MakeDoctorVerb() { return std::make_unique<DoctorVerb>(); }

}  // namespace prism::cli
