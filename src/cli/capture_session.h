// Capture session: one run of the user's command under prism, from the job directory to the last
// process.
//
// Owns the job directory, the coordinator and every process that the command starts: when it
// returns, none of them is left, nor a socket or shared memory of theirs. Single-threaded but for
// the coordinator's bell waiters.
//
//   CaptureOptions options{.device = Device::kHost, .values = "cpu", .target =
//   *ParseTarget("h200x8:2"), .job = "/tmp/j"}; PRISM_ASSIGN_OR_RETURN(CaptureResult result,
//   RunCapture(options, invocation)); return result.exit_code;
#ifndef PRISM_CLI_CAPTURE_SESSION_H_
#define PRISM_CLI_CAPTURE_SESSION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/base/target.h"
#include "src/cli/installation.h"
#include "src/cli/verb.h"
#include "src/cli/virtual_clock.h"
#include "src/coordinator/diagnosis.h"
#include "src/coordinator/virtual_peers.h"

namespace prism::cli {

/// Some ranks run for real, all others are played.
struct Emulation {
  coordinator::VirtualPeers* peers = nullptr;
  std::vector<uint32_t> sandbox;  // world ranks that run
  std::string captured;           // job directory of the graph that is played
  bool stall = false;             // on a GPU: streams wait, and no kernel stands for NCCL's
  bool measure = false;           // spans and host time
  bool hold = false;              // idle streams, while a span is enqueued
  VirtualClock* clock = nullptr;  // null: this machine's
  uint32_t call_ns = 0;           // what a communication's call takes on that clock
};

struct CaptureOptions {
  std::optional<Device> device = Device::kHost;  // none: no CUDA at all, a job on cpu and gloo
  std::string values = "none";                   // none, control, cpu
  Target target;
  std::string job;
  bool force = false;
  std::string tee = "rank0";    // none, rank0, all
  std::string launch = "auto";  // auto, fork, spawn
  double patience_s =
      4;  // of a rank that sleeps outside of any communication while others wait; 0: for ever
  std::string exchange = "exact";             // exact, control; emulation: rules
  uint64_t exact_payload_bytes = UINT64_MAX;  // of what always moves
  std::optional<Emulation> emulation;         // none: every rank runs
};

struct CaptureResult {
  int exit_code = 0;  // the program's, or kExitOwnFailure
  std::string job;    // absolute path of the job directory
  uint32_t world = 0;
  uint64_t operations = 0;
  double seconds = 0;
  std::string reason;  // "" when the job is complete
  std::optional<coordinator::Diagnosis> diagnosis;

  nlohmann::ordered_json Json() const;
};

/// Runs `invocation.command`. An error means that the command was not started, or that prism itself
/// failed.
absl::StatusOr<CaptureResult> RunCapture(const CaptureOptions& options,
                                         const Invocation& invocation);

}  // namespace prism::cli

#endif  // PRISM_CLI_CAPTURE_SESSION_H_
