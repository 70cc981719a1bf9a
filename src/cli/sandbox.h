// Sandbox: one rank of a captured job runs for real, the others are played. What `emulate` and
// `calibrate` share.
//
//   PRISM_ASSIGN_OR_RETURN(CapturedJob captured, OpenCaptured("job", "", "emulated"));
//   PRISM_ASSIGN_OR_RETURN(const SandboxResult result,
//                          RunSandbox(captured, {.rank = 0}, options, invocation));
#ifndef PRISM_CLI_SANDBOX_H_
#define PRISM_CLI_SANDBOX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "src/cli/capture_session.h"
#include "src/engine/network_table.h"
#include "src/graph/graph.h"

namespace prism::cli {

struct CapturedJob {
  std::string path;  // absolute
  Target target;
  std::vector<std::string> command;
  graph::Graph graph;
  std::shared_ptr<const engine::NetworkTable> network;  // null: formulas
};

/// Opens a complete job; `network`: path of a measured profile, "" for none. `job_to_write`: where
/// what is made of it will be, which is refused if it is the job itself.
absl::StatusOr<CapturedJob> OpenCaptured(const std::string& directory, const std::string& network,
                                         const std::string& job_to_write);

/// How the others are played: as long as their traces or a table say that they take, or always
/// there first.
enum class Peers { kTimed, kInstant };

struct Sandbox {
  uint32_t rank = 0;  // world rank that runs
  Peers peers = Peers::kInstant;
  bool stall = false;             // on a GPU: streams wait, and no kernel stands for NCCL's
  bool hold = false;              // on a GPU: idle streams, while a span is enqueued
  VirtualClock* clock = nullptr;  // that the rank keeps to; null: this machine's
  std::string rules = {};         // a file that says what the rank is given; "": none
};

struct SandboxResult {
  CaptureResult capture;
  uint64_t communications = 0;
  uint64_t resized = 0;  // of them of another size than in the captured job
  uint64_t ruled = 0;    // payloads that rules gave
};

/// The flag that says which clock a rank without a GPU keeps to: machine, or virtual.
class ClockFlag {
 public:
  void AddTo(CLI::App& app);
  bool is_virtual() const { return name_ != "machine"; }
  /// Joins the virtual clock of the driver that the rank will use; null where the flag says
  /// machine.
  absl::StatusOr<std::unique_ptr<VirtualClock>> Join(const CapturedJob& captured,
                                                     const CaptureOptions& options,
                                                     const Invocation& invocation) const;

 private:
  std::string name_ = "machine";
};

/// Whether a rank is measured. A GPU's times are its own; hostcuda's are this machine's unless its
/// clock is virtual, and only who asks for them (PRISM_RECORD_TIMES=1) gets them.
bool IsMeasured(const CaptureOptions& options, bool virtual_clock);

/// Runs `invocation.command`, or the captured job's where that is empty, as one rank.
/// `options` say where and how; the rest is the captured job's.
absl::StatusOr<SandboxResult> RunSandbox(const CapturedJob& captured, const Sandbox& sandbox,
                                         CaptureOptions options, Invocation invocation);

}  // namespace prism::cli

#endif  // PRISM_CLI_SANDBOX_H_
