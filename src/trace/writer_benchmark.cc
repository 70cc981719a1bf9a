// What recording costs the user's program: nanoseconds a call, into a file in /tmp.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <string>

#include "src/trace/writer.h"

namespace {

using namespace prism::trace;  // NOLINT: a benchmark

struct OpenWriter {
  std::string path = "/tmp/writer_benchmark_" + std::to_string(getpid()) + ".prt";
  Writer w;
  uint32_t stream;
  uint32_t kernels[64];
  OpenWriter() {
    w.Open(path.c_str(), 0, 1);
    stream = w.AddStream(0, 0, "default");
    const uint32_t grid[3] = {132, 1, 1}, block[3] = {256, 1, 1};
    for (int i = 0; i < 64; ++i) {
      kernels[i] = w.Kernel(KernelKind::kKernel, std::string(150, 'k') + std::to_string(i), grid,
                            block, 0, 0);
    }
  }
  ~OpenWriter() { unlink(path.c_str()); }
};

void Launch(benchmark::State& state) {
  OpenWriter o;
  uint32_t i = 0;
  for (auto _ : state) {
    o.w.HostCall(1000);
    o.w.Launch(o.stream, o.kernels[i++ % 64]);
  }
}
BENCHMARK(Launch);

void InternKernelAndLaunch(benchmark::State& state) {
  OpenWriter o;
  const uint32_t grid[3] = {132, 1, 1}, block[3] = {256, 1, 1};
  const std::string name(150, 'k');
  for (auto _ : state) {
    o.w.HostCall(1000);
    o.w.Launch(o.stream, o.w.Kernel(KernelKind::kKernel, name, grid, block, 0, 0));
  }
}
BENCHMARK(InternKernelAndLaunch);

// A record is two nodes and ends a span: five nodes an iteration.
void LaunchAndRecord(benchmark::State& state) {
  OpenWriter o;
  uint64_t version = 0;
  for (auto _ : state) {
    o.w.HostCall(1000);
    o.w.Launch(o.stream, o.kernels[version % 64]);
    o.w.Record(o.stream, 1, ++version);
  }
  state.counters["ns/node"] =
      benchmark::Counter(5 * static_cast<double>(state.iterations()) / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(LaunchAndRecord);

}  // namespace

BENCHMARK_MAIN();
