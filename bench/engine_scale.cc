// Writes a synthetic job with the trace writer, or opens one from disk and evaluates it, and prints
// what that took as JSON. The measurement of bench/engine.py; two processes, so that the memory of
// one is not the other's.
//
//   engine_scale write DIR KIND WORLD STEPS LAYERS MICRO_BATCHES TENSOR DATA HOST_NS_OF_RANK
//   engine_scale evaluate DIR TARGET
#include <sys/resource.h>
#include <time.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/engine/cost_model.h"
#include "src/engine/engine.h"
#include "src/graph/graph.h"
#include "src/graph/testing/synthetic.h"

namespace {

using namespace prism;  // NOLINT: a benchmark
using graph::testing::JobKind;

constexpr struct {
  const char* name;
  JobKind kind;
} kKinds[] = {{"data", JobKind::kDataParallel},
              {"sharded", JobKind::kFullyShardedDP},
              {"pipeline", JobKind::kPipeline},
              {"expert", JobKind::kExpertParallel},
              {"hybrid", JobKind::kHybrid}};

double Seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// Wall and processor seconds of this process since it was made.
class Stopwatch {
 public:
  double wall_s() const { return Seconds(CLOCK_MONOTONIC) - wall_; }
  double cpu_s() const { return Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_; }
  void Print(const char* name) const {
    std::printf("\"%s_wall_s\": %.6f, \"%s_cpu_s\": %.6f, ", name, wall_s(), name, cpu_s());
  }

 private:
  const double wall_ = Seconds(CLOCK_MONOTONIC), cpu_ = Seconds(CLOCK_PROCESS_CPUTIME_ID);
};

uint32_t Number(const char* text) { return static_cast<uint32_t>(std::strtoul(text, nullptr, 10)); }

int Write(char** argv) {
  for (const auto& known : kKinds) {
    if (std::strcmp(known.name, argv[1]) != 0) continue;
    const graph::testing::SyntheticJob job = {.kind = known.kind,
                                              .world = Number(argv[2]),
                                              .steps = Number(argv[3]),
                                              .layers = Number(argv[4]),
                                              .micro_batches = Number(argv[5]),
                                              .tensor = Number(argv[6]),
                                              .data = Number(argv[7]),
                                              .host_ns_of_rank = Number(argv[8])};
    const int error = graph::testing::WriteJob(argv[0], job);
    if (error != 0) std::fprintf(stderr, "%s: %s\n", argv[0], std::strerror(error));
    return error == 0 ? 0 : 1;
  }
  std::fprintf(stderr, "%s is no kind of job\n", argv[1]);
  return 2;
}

int Evaluate(char** argv) {
  const auto fail = [](const absl::Status& status) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  };
  const absl::StatusOr<engine::Target> target = engine::ParseTarget(argv[1]);
  if (!target.ok()) return fail(target.status());
  std::printf("{");
  const Stopwatch open;
  const absl::StatusOr<graph::Graph> graph = graph::LoadJob(argv[0]);
  if (!graph.ok()) return fail(graph.status());
  open.Print("open");
  const Stopwatch price;
  const engine::Durations durations = engine::CostModel(*target).DurationsOf(*graph);
  price.Print("durations");
  const Stopwatch evaluate;
  const absl::StatusOr<engine::Outcome> outcome = engine::Evaluate(*graph, durations);
  if (!outcome.ok()) return fail(outcome.status());
  evaluate.Print("evaluate");
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("\"ranks\": %zu, \"programs\": %zu, \"nodes\": %" PRIu64 ", \"evaluated\": %" PRIu64
              ", \"trace_bytes\": %" PRIu64 ", \"finish_ns\": %" PRId64 ", \"peak_bytes\": %ld}\n",
              graph->ranks.size(), graph->programs.size(), graph->ops, outcome->operations,
              graph->trace_bytes, outcome->finish_ns, usage.ru_maxrss * 1024);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 11 && std::strcmp(argv[1], "write") == 0) return Write(argv + 2);
  if (argc == 4 && std::strcmp(argv[1], "evaluate") == 0) return Evaluate(argv + 2);
  std::fprintf(
      stderr,
      "engine_scale write DIR KIND WORLD STEPS LAYERS MICRO_BATCHES TENSOR DATA HOST_NS_OF_RANK\n"
      "engine_scale evaluate DIR TARGET\n");
  return 2;
}
