// The public API in one program: how a job's end moves when one rank's GPU is slower. Run as
// `what_if_example DIR TARGET`.
#include <prism/engine.h>
#include <prism/graph.h>
#include <prism/trace.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DIR TARGET\n", argv[0]);
    return 1;
  }
  const auto fail = [](const absl::Status& status) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  };
  const auto target = prism::engine::ParseTarget(argv[2]);
  if (!target.ok()) return fail(target.status());
  const auto graph = prism::LoadJob(argv[1]);
  if (!graph.ok()) return fail(graph.status());
  const auto trace = prism::OpenTrace(std::string(argv[1]) + "/" + prism::graph::TraceName(0));
  if (!trace.ok()) return fail(trace.status());
  std::printf("%u ranks, %zu roles; rank 0 has %llu nodes\n", graph->world, graph->programs.size(),
              static_cast<unsigned long long>(trace->node_count()));

  const auto normal = prism::Evaluate(*graph, *target);
  if (!normal.ok()) return fail(normal.status());

  /// Rank 0 computes at two thirds of its speed.
  class SlowRank final : public prism::engine::DurationDraw {
   public:
    int64_t Draw(uint32_t rank, uint32_t, uint32_t, uint32_t, int64_t base_ns,
                 prism::engine::TimeSource) const override {
      return rank == 0 ? base_ns * 3 / 2 : base_ns;
    }
  } slow;
  const auto throttled = prism::Evaluate(*graph, *target, {.draw = &slow});
  if (!throttled.ok()) return fail(throttled.status());
  std::printf("normal %.3f ms, rank 0 throttled %.3f ms\n",
              static_cast<double>(normal->finish_ns) / 1e6,
              static_cast<double>(throttled->finish_ns) / 1e6);
  return throttled->finish_ns >= normal->finish_ns ? 0 : 2;
}
