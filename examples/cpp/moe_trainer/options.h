// The program's options: one structure, its command line, its checks.
//
//   Options options;
//   if (const auto code = ParseCommandLine(argc, argv, &options)) return *code;
#ifndef MOE_TRAINER_OPTIONS_H_
#define MOE_TRAINER_OPTIONS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "examples/cpp/moe_trainer/layout.h"
#include "examples/cpp/moe_trainer/model.h"

namespace moe_trainer {

inline constexpr int kExitFailed = 1;   // CUDA, NCCL or a peer failed
inline constexpr int kExitRefused = 2;  // these options, or this environment, do not work

struct Straggler {
  int rank = -1;
  double factor = 1;  // of its kernels' durations
};

struct Options {
  Model model;
  Parallelism sizes;
  bool real = false, timed = false;
  int steps = 5;
  int launch = 0;         // processes to fork; 0: this is one of WORLD_SIZE
  int gpus_per_node = 8;  // with launch
  double bucket_mib = 64;
  double jitter = 0;        // standard deviation of the logarithm of a kernel's duration
  double kernel_scale = 1;  // of all durations
  double host_scale = 1;
  Straggler straggler;
  std::string json;  // file for the results, or empty
  std::string save;  // folder for the parameters, or empty

  /// Bytes of an element of parameters, gradients and activations: fp32 computes, bf16 is timed.
  size_t element_bytes() const { return real ? 4 : 2; }
};

/// What is wrong with the options for a job of `world` processes: what, the value, the remedy.
/// Empty: nothing.
std::string Problem(const Options& options, int world);

/// Returns an exit code where the program ends here (help, or options that do not parse).
std::optional<int> ParseCommandLine(int argc, char** argv, Options* options);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_OPTIONS_H_
