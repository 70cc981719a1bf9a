#include "src/cli/sandbox.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "src/base/job_directory.h"
#include "src/base/log.h"
#include "src/cli/capture_options.h"
#include "src/cli/installation.h"
#include "src/cli/launch_command.h"
#include "src/cli/program_output.h"
#include "src/cli/report_flags.h"
#include "src/emulate/graph_peers.h"
#include "src/engine/cost_model.h"
#include "src/wire/protocol.h"

namespace prism::cli {
absl::StatusOr<CapturedJob> OpenCaptured(const std::string& directory, const std::string& network,
                                         const std::string& job_to_write) {
  PRISM_ASSIGN_OR_RETURN(const JobDirectory job, JobDirectory::Open(directory));
  if (job.state() != JobDirectory::State::kComplete) {
    return WithHint(absl::FailedPreconditionError(fmt::format("the captured job is {}: {}",
                                                              StateName(job.state()), directory)),
                    "capture it again: what never happened cannot be played");
  }
  std::error_code error;
  if (std::filesystem::equivalent(directory, job_to_write, error)) {
    return WithHint(
        absl::InvalidArgumentError(fmt::format("--job {} is the job that is read", job_to_write)),
        "choose another directory with --job");
  }
  CapturedJob captured;
  captured.path = job.path();
  const std::string mode = job.info().value("mode", "");
  if (mode != "capture" && mode != "calibrate") {
    return WithHint(
        absl::FailedPreconditionError(fmt::format(
            "{} is no captured job: {}", directory,
            mode.empty() ? "it does not say what it is" : "it is one of prism " + mode)),
        "what ranks told each other before they communicated is kept by 'prism capture' alone");
  }
  captured.command = job.info().value("command", std::vector<std::string>{});
  const auto target = job.info().value("target", nlohmann::ordered_json::object());
  PRISM_ASSIGN_OR_RETURN(captured.target, ParseTarget(target.value("text", "")));
  captured.target.gpu.memory_bytes =
      target.value("gpu_memory_bytes", captured.target.gpu.memory_bytes);
  PRISM_ASSIGN_OR_RETURN(captured.network, LoadNetwork(network));
  PRISM_ASSIGN_OR_RETURN(captured.graph, graph::LoadJob(directory));
  return captured;
}

void ClockFlag::AddTo(CLI::App& app) {
  app.add_option("--clock", name_,
                 "Without a GPU: the clock of kernels and host work, machine or virtual (times are "
                 "those that HOSTCUDA_TIMES and the program state)")
      ->capture_default_str()
      ->type_name("WHICH");
}

absl::StatusOr<std::unique_ptr<VirtualClock>> ClockFlag::Join(const CapturedJob& captured,
                                                              const CaptureOptions& options,
                                                              const Invocation& invocation) const {
  PRISM_RETURN_IF_ERROR(OneOf("--clock", name_, {"machine", "virtual"}));
  if (!is_virtual()) return nullptr;
  if (options.device != Device::kHost) {
    return WithHint(absl::InvalidArgumentError("--clock virtual: a GPU keeps to its own clock"),
                    "--device host");
  }
  PRISM_ASSIGN_OR_RETURN(
      const LaunchCommand command,
      ParseLaunchCommand(invocation.command.empty() ? captured.command : invocation.command));
  PRISM_ASSIGN_OR_RETURN(
      const CudaLibraries cuda,
      FindCuda(*options.device, HostcudaFolder(invocation.program), command.python));
  return VirtualClock::Join(cuda.driver, {{"HOSTCUDA_DEVICES", "1"},
                                          {"HOSTCUDA_GPU", options.target.gpu.key},
                                          {"HOSTCUDA_MEMORY_LIMIT", "0"}});
}

bool IsMeasured(const CaptureOptions& options, bool virtual_clock) {
  const char* const times = std::getenv(wire::kEnvRecordTimes);
  return options.device == Device::kCuda || virtual_clock ||
         (times != nullptr && std::strcmp(times, "1") == 0);
}

absl::StatusOr<SandboxResult> RunSandbox(const CapturedJob& captured, const Sandbox& sandbox,
                                         CaptureOptions options, Invocation invocation) {
  if (invocation.command.empty()) invocation.command = captured.command;
  PRISM_ASSIGN_OR_RETURN(const engine::Target target, engine::ParseTarget(options.target.text));
  engine::Durations durations =
      engine::CostModel(target, captured.network).DurationsOf(captured.graph);
  if (sandbox.peers == Peers::kInstant) durations = emulate::InstantPeers(std::move(durations));
  emulate::GraphPeers played(captured.graph, std::move(durations), {sandbox.rank});
  if (auto received = coordinator::ReceivedPayloads::Load(
          captured.path + "/" + coordinator::kReceivedFile, {sandbox.rank});
      received.ok()) {
    played.SetReceived(*std::move(received));
  } else if (!absl::IsNotFound(received.status())) {
    return received.status();
  }
  std::optional<emulate::Rules> rules;
  if (!sandbox.rules.empty()) {
    PRISM_ASSIGN_OR_RETURN(rules, emulate::Rules::Load(sandbox.rules, sandbox.rank));
    played.SetRules(&*rules);
    options.exchange = "rules";
  }
  const bool measure = IsMeasured(options, sandbox.clock != nullptr);
  options.emulation = Emulation{&played, {sandbox.rank}, captured.path, sandbox.stall,
                                measure, sandbox.hold,   sandbox.clock, 0};
  if (captured.network != nullptr)
    options.emulation->call_ns = static_cast<uint32_t>(captured.network->profile().call_ns());
  // Larger ones the device fills from the rank's own data.
  options.exact_payload_bytes =
      std::max(coordinator::kReceivedPayloadBytes, rules ? rules->largest_bytes() : 0);
  SandboxResult result;
  PRISM_ASSIGN_OR_RETURN(result.capture, CaptureProgram(options, invocation));
  result.communications = played.visits();
  result.resized = played.resized();
  if (rules.has_value()) {
    PRISM_RETURN_IF_ERROR(rules->status());
    result.ruled = rules->given();
  }
  if (result.resized != 0) {
    spdlog::warn("{} of {} communications are of another size than in the captured job",
                 result.resized, result.communications);
  }
  return result;
}

}  // namespace prism::cli
