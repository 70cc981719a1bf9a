// How this process became a rank: by a launcher's environment, or by --launch.
//
//   if (options.launch > 0) if (const auto code = Launch(n, gpus, &identity)) return *code;
#ifndef MOE_TRAINER_PROCESSES_H_
#define MOE_TRAINER_PROCESSES_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace moe_trainer {

struct Identity {
  int rank = 0, world = 1, local_rank = 0;
  std::string address = "127.0.0.1";  // where the store listens
  int port = 0;
  bool store_is_served = false;  // by torchrun or --launch; else rank 0 serves it
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT. Throws std::runtime_error that
/// names the variable, its value and the remedy. Without any of them: rank 0 of 1.
Identity IdentityFromEnvironment();

/// Forks `processes` ranks and serves their store; must run before CUDA is used. In a rank: sets
/// the environment as torchrun would and returns nothing. In the parent: waits for all, ends the
/// others when one fails, returns the exit code: the first failed rank's.
std::optional<int> LaunchProcesses(int processes, int gpus_per_node);

/// What `make` returns on rank 0, on every rank: by way of the store. Throws.
std::string FromRankZero(const Identity& identity, const std::string& key,
                         std::chrono::seconds timeout, const std::function<std::string()>& make);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_PROCESSES_H_
