// How fast a job is opened, and how many nodes a second the engine evaluates. Goals: 20 M nodes/s
// on one core; a job opens at the speed of reading its files.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "src/engine/cost_model.h"
#include "src/engine/engine.h"
#include "src/graph/testing/synthetic.h"

namespace {

using namespace prism;  // NOLINT: a benchmark
using graph::testing::JobKind;

struct Job {
  std::string directory;
  Job(JobKind kind, uint32_t world, uint32_t steps) {
    std::string pattern = "/tmp/engine_benchmark_XXXXXX";
    directory = mkdtemp(pattern.data());
    graph::testing::WriteJob(directory,
                             {.kind = kind, .world = world, .steps = steps, .layers = 16});
  }
  ~Job() { std::filesystem::remove_all(directory); }
};

void Open(benchmark::State& state) {
  const Job job(static_cast<JobKind>(state.range(0)), static_cast<uint32_t>(state.range(1)), 20);
  uint64_t nodes = 0, bytes = 0;
  for (auto _ : state) {
    auto graph = graph::LoadJob(job.directory);
    if (!graph.ok()) return state.SkipWithError(graph.status().ToString().c_str());
    nodes += graph->ops;
    bytes += graph->trace_bytes;
  }
  state.counters["nodes/s"] =
      benchmark::Counter(static_cast<double>(nodes), benchmark::Counter::kIsRate);
  state.counters["ranks"] = static_cast<double>(state.range(1));
  state.counters["bytes/node"] = static_cast<double>(bytes) / static_cast<double>(nodes);
}
BENCHMARK(Open)->Args({1, 64})->Args({1, 1024})->Args({2, 64})->Unit(benchmark::kMillisecond);

void Evaluate(benchmark::State& state) {
  const Job job(static_cast<JobKind>(state.range(0)), static_cast<uint32_t>(state.range(1)), 20);
  auto graph = graph::LoadJob(job.directory);
  if (!graph.ok()) return state.SkipWithError(graph.status().ToString().c_str());
  const engine::CostModel model(*engine::ParseTarget("h200x8:128"));
  const engine::Durations durations = model.DurationsOf(*graph);
  uint64_t nodes = 0;
  for (auto _ : state) {
    auto outcome = engine::Evaluate(*graph, durations);
    if (!outcome.ok()) return state.SkipWithError(outcome.status().ToString().c_str());
    nodes += outcome->operations;
  }
  state.counters["nodes/s"] =
      benchmark::Counter(static_cast<double>(nodes), benchmark::Counter::kIsRate);
  state.counters["nodes"] = static_cast<double>(graph->ops);
}
BENCHMARK(Evaluate)
    ->Args({0, 64})
    ->Args({1, 64})
    ->Args({1, 1024})
    ->Args({2, 64})
    ->Args({3, 32})
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
