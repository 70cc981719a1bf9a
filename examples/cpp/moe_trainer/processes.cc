#include "examples/cpp/moe_trainer/processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>

#include "examples/cpp/moe_trainer/rendezvous.h"

namespace moe_trainer {
namespace {

int Number(const char* name, const char* text, int least) {
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < least || value > 1 << 20)
    throw std::runtime_error(std::string(name) + "='" + text + "' is no number of at least " +
                             std::to_string(least) + "; torchrun sets it, or use --launch instead");
  return static_cast<int>(value);
}

}  // namespace

Identity IdentityFromEnvironment() {
  Identity identity;
  const char* rank = getenv("RANK");
  const char* world = getenv("WORLD_SIZE");
  if (rank == nullptr && world == nullptr) return identity;
  const auto need = [](const char* name) {
    const char* text = getenv(name);
    if (text == nullptr)
      throw std::runtime_error(
          std::string(name) +
          " is not set, though RANK or WORLD_SIZE is; set all of RANK, "
          "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or use --launch");
    return text;
  };
  identity.rank = Number("RANK", need("RANK"), 0);
  identity.world = Number("WORLD_SIZE", need("WORLD_SIZE"), 1);
  identity.local_rank = Number("LOCAL_RANK", need("LOCAL_RANK"), 0);
  identity.address = need("MASTER_ADDR");
  identity.port = Number("MASTER_PORT", need("MASTER_PORT"), 1);
  if (identity.rank >= identity.world)
    throw std::runtime_error("RANK=" + std::to_string(identity.rank) + " of WORLD_SIZE=" +
                             std::to_string(identity.world) + ": ranks count from 0");
  const char* served = getenv("TORCHELASTIC_USE_AGENT_STORE");
  identity.store_is_served = served != nullptr && strcmp(served, "True") == 0;
  return identity;
}

std::optional<int> LaunchProcesses(int processes, int gpus_per_node) {
  const int socket = ListenOn("127.0.0.1", 0);
  const pid_t parent = getpid();
  std::map<pid_t, int> ranks;
  for (int rank = 0; rank < processes; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) {
      fprintf(stderr, "moe_trainer: --launch %d: fork of rank %d: %s\n", processes, rank,
              strerror(errno));
      for (const auto& [child, number] : ranks) kill(child, SIGKILL);
      return 1;
    }
    if (pid > 0) {
      ranks[pid] = rank;
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    for (const auto& [name, value] :
         std::map<const char*, std::string>{{"RANK", std::to_string(rank)},
                                            {"WORLD_SIZE", std::to_string(processes)},
                                            {"LOCAL_RANK", std::to_string(rank % gpus_per_node)},
                                            {"LOCAL_WORLD_SIZE", std::to_string(gpus_per_node)},
                                            {"GROUP_RANK", std::to_string(rank / gpus_per_node)},
                                            {"MASTER_ADDR", "127.0.0.1"},
                                            {"MASTER_PORT", std::to_string(PortOf(socket))},
                                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}})
      setenv(name, value.c_str(), 1);
    close(socket);
    return std::nullopt;
  }
  StoreServer store(socket);
  int code = 0;
  while (!ranks.empty()) {
    int status = 0;
    const pid_t pid = wait(&status);
    const auto found = ranks.find(pid);
    if (found == ranks.end()) continue;
    const int own = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (own != 0 && code == 0) {
      code = own;
      fprintf(stderr, "moe_trainer: rank %d ended with code %d; the others are ended\n",
              found->second, own);
      for (const auto& [child, number] : ranks)
        if (child != pid) kill(child, SIGTERM);
    }
    ranks.erase(found);
  }
  return code;
}

std::string FromRankZero(const Identity& identity, const std::string& key,
                         std::chrono::seconds timeout, const std::function<std::string()>& make) {
  if (identity.world == 1) return make();
  std::unique_ptr<StoreServer> server;
  if (!identity.store_is_served && identity.rank == 0)
    server = std::make_unique<StoreServer>(ListenOn(identity.address, identity.port));
  StoreClient store(identity.address, identity.port, timeout);
  std::string value;
  if (identity.rank == 0) {
    value = make();
    store.Set(key, value);
  } else {
    value = store.Get(key);
  }
  if (server != nullptr) {
    // The server lives until everybody has read.
    for (int rank = 1; rank < identity.world; ++rank)
      store.Get(key + "/read/" + std::to_string(rank));
  } else if (!identity.store_is_served) {
    store.Set(key + "/read/" + std::to_string(identity.rank), "");
  }
  return value;
}

}  // namespace moe_trainer
