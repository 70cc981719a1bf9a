// moe_trainer: see README.md.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/cpp/moe_trainer/checkpoint.h"
#include "examples/cpp/moe_trainer/communication.h"
#include "examples/cpp/moe_trainer/gpu.h"
#include "examples/cpp/moe_trainer/options.h"
#include "examples/cpp/moe_trainer/processes.h"
#include "examples/cpp/moe_trainer/trainer.h"

namespace moe_trainer {
namespace {

constexpr int kSchema = 1;  // of --json
constexpr auto kRendezvousTimeout = std::chrono::minutes(5);

/// What every rank tells of itself when training is over.
struct Summary {
  unsigned long long checksum = 0;  // of what has values: the parameters, or when each step ended
  unsigned long long peak_bytes = 0;
};

ncclUniqueId AgreeOnId(const Identity& identity) {
  ncclUniqueId id;
  const std::string bytes = FromRankZero(identity, "moe_trainer/id", kRendezvousTimeout, [&] {
    MOE_TRAINER_CHECK(ncclGetUniqueId(&id));
    return std::string(id.internal, sizeof id.internal);
  });
  if (bytes.size() != sizeof id.internal)
    throw std::runtime_error("the store holds an id of " + std::to_string(bytes.size()) +
                             " bytes: is another job using MASTER_PORT?");
  memcpy(id.internal, bytes.data(), sizeof id.internal);
  return id;
}

std::vector<SavedShard> ReadParameters(const Optimizer& optimizer) {
  std::vector<SavedShard> shards;
  for (const auto& units : optimizer.layout().chunks)
    for (const Unit& unit : units)
      for (int domain = 0; domain < kDomains; ++domain)
        for (const Shard& shard : unit.shards[domain])
          shards.push_back({NameOf(shard.matrix), shard.row, shard.column, shard.rows,
                            shard.columns, optimizer.Read(static_cast<Domain>(domain), shard)});
  return shards;
}

/// Everybody's summaries, by rank.
std::vector<Summary> Gather(Gpu& gpu, const Channel& world, Summary own) {
  const auto ranks = static_cast<size_t>(world.size), rank = static_cast<size_t>(world.rank);
  Buffer buffer = gpu.Allocate(ranks * sizeof(Summary));
  own.peak_bytes = gpu.allocated_bytes();  // the last allocation, and none is given back before
  Summary* data = reinterpret_cast<Summary*>(buffer.data());
  MOE_TRAINER_CHECK(
      cudaMemcpyAsync(data + rank, &own, sizeof own, cudaMemcpyHostToDevice, world.stream));
  MOE_TRAINER_CHECK(
      ncclAllGather(data + rank, data, sizeof own, ncclUint8, world.comm, world.stream));
  std::vector<Summary> all(ranks);
  MOE_TRAINER_CHECK(
      cudaMemcpyAsync(all.data(), data, ranks * sizeof own, cudaMemcpyDeviceToHost, world.stream));
  MOE_TRAINER_CHECK(cudaStreamSynchronize(world.stream));
  return all;
}

std::string Hex(unsigned long long value) {
  char text[19];
  snprintf(text, sizeof text, "0x%016llx", value);
  return text;
}

void WriteJson(const Options& options, const std::vector<StepResult>& steps,
               const std::vector<Summary>& ranks) {
  const Model& model = options.model;
  const Parallelism& sizes = options.sizes;
  nlohmann::ordered_json json;
  json["schema"] = kSchema;
  json["mode"] = options.real ? "real" : "timed";
  json["world"] = sizes.world();
  json["parallelism"] = {{"dp", sizes.data},
                         {"tp", sizes.tensor},
                         {"pp", sizes.pipeline},
                         {"ep", sizes.expert},
                         {"interleave", sizes.interleave}};
  json["model"] = {{"layers", model.layers},
                   {"hidden", model.hidden},
                   {"heads", model.heads},
                   {"experts", model.experts},
                   {"expert_hidden", model.expert_hidden},
                   {"top_k", model.top_k},
                   {"sequence", model.sequence},
                   {"vocabulary", model.vocabulary},
                   {"micro_batches", model.micro_batches},
                   {"imbalance", model.imbalance},
                   {"seed", model.seed}};
  for (const StepResult& step : steps) {
    auto& entry = json["steps"].emplace_back();
    entry["milliseconds"] = step.milliseconds;
    if (options.real) entry["loss"] = step.loss;
  }
  for (const Summary& rank : ranks) {
    auto& entry = json["ranks"].emplace_back();
    entry["peak_device_bytes"] = rank.peak_bytes;
    entry[options.real ? "checksum" : "times"] = Hex(rank.checksum);
  }
  std::ofstream file(options.json);
  file << json.dump(1) << "\n";
  if (!file.flush())
    throw std::runtime_error("--json: cannot write " + options.json + ": " + strerror(errno));
}

void Train(const Options& options, const Identity& identity) {
  // Before CUDA: on hostcuda's virtual clock, which begins when all have called CUDA, times would
  // depend on how long others sit in a socket.
  const ncclUniqueId id = AgreeOnId(identity);
  Gpu gpu(options, identity.rank, identity.local_rank);
  Communication communication(gpu, options.sizes, identity.rank, id);
  std::vector<StepResult> steps;
  Summary own;
  {
    Trainer trainer(gpu, communication, identity.rank);
    std::vector<uint64_t> ends_ns;
    for (int step = 0; step < options.steps; ++step) {
      steps.push_back(trainer.Step(step));
      ends_ns.push_back(steps.back().end_ns);
      if (identity.rank != 0) continue;
      printf("step %d  %.6f ms", step, steps.back().milliseconds);
      if (options.real) printf("  loss %.9g", static_cast<double>(steps.back().loss));
      printf("\n");
      fflush(stdout);
    }
    MOE_TRAINER_CHECK(cudaDeviceSynchronize());
    if (options.real) {
      const std::vector<SavedShard> parameters = ReadParameters(trainer.optimizer());
      own.checksum = Checksum(parameters);
      if (!options.save.empty()) WriteCheckpoint(options.save, identity.rank, parameters);
    } else {
      own.checksum = Checksum(ends_ns.data(), ends_ns.size() * sizeof(uint64_t));
    }
  }
  const std::vector<Summary> ranks = Gather(gpu, communication.world(), own);
  if (identity.rank != 0) return;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    printf("rank %zu  peak %.1f MiB", rank, static_cast<double>(ranks[rank].peak_bytes) / 0x1p20);
    printf("  %s %s", options.real ? "checksum" : "times", Hex(ranks[rank].checksum).c_str());
    printf("\n");
  }
  if (!options.json.empty()) WriteJson(options, steps, ranks);
}

/// Without values the program would compute with what happens to lie in memory.
std::string EnvironmentProblem(const Options& options) {
  const char* values = getenv("HOSTCUDA_VALUES");
  if (!options.real || (values != nullptr && strcmp(values, "cpu") == 0)) return "";
  return std::string("--real needs every value, and HOSTCUDA_VALUES is '") +
         (values == nullptr ? "none" : values) +
         "': run it by `hostcuda run --values cpu -- moe_trainer ...`, or by `prism capture "
         "--values cpu`";
}

int Main(int argc, char** argv) {
  Options options;
  if (const auto code = ParseCommandLine(argc, argv, &options)) return *code;
  const auto refuse = [](const std::string& problem) {
    if (!problem.empty()) fprintf(stderr, "moe_trainer: %s\n", problem.c_str());
    return !problem.empty();
  };
  Identity identity;
  try {
    identity = IdentityFromEnvironment();
  } catch (const std::runtime_error& error) {
    if (options.launch == 0 && refuse(error.what())) return kExitRefused;
  }
  const int world = options.launch > 0 ? options.launch : identity.world;
  if (refuse(Problem(options, world)) || refuse(EnvironmentProblem(options))) return kExitRefused;
  try {
    if (options.launch > 0) {
      if (const auto code = LaunchProcesses(options.launch, options.gpus_per_node)) return *code;
      identity = IdentityFromEnvironment();
    }
    Train(options, identity);
  } catch (const std::exception& error) {
    fprintf(stderr, "moe_trainer: rank %d: %s\n", identity.rank, error.what());
    // Not through destructors: they would wait for peers that may wait for this rank.
    fflush(stdout);
    _Exit(kExitFailed);
  }
  return 0;
}

}  // namespace
}  // namespace moe_trainer

int main(int argc, char** argv) { return moe_trainer::Main(argc, argv); }
