// Writes a synthetic job directory: `write_synthetic_job DIR KIND WORLD STEPS [LAYERS]`.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "src/graph/testing/synthetic.h"

int main(int argc, char** argv) {
  using namespace prism::graph::testing;  // NOLINT: a test program
  static const std::map<std::string, JobKind> kKinds = {{"data", JobKind::kDataParallel},
                                                        {"sharded", JobKind::kFullyShardedDP},
                                                        {"pipeline", JobKind::kPipeline},
                                                        {"expert", JobKind::kExpertParallel},
                                                        {"single", JobKind::kSingle}};
  if (argc == 5 && std::string(argv[2]) == "recorded") {
    const RecordedJob job = {
        .world = static_cast<uint32_t>(std::atoi(argv[3])),
        .steps = static_cast<uint32_t>(std::atoi(argv[4])),
        .host_ns = [](uint32_t, uint32_t) { return 100'000; },
        .span_ns = [](uint32_t r, uint32_t) { return 8'000'000 + 1'000'000 * r; },
        .transfer_ns = [](uint32_t) { return 500'000; }};
    return WriteRecordedJob(argv[1], job).empty() ? 1 : 0;
  }
  if (argc < 5 || kKinds.count(argv[2]) == 0) {
    std::fprintf(
        stderr, "usage: %s DIR data|sharded|pipeline|expert|single|recorded WORLD STEPS [LAYERS]\n",
        argv[0]);
    return 1;
  }
  SyntheticJob job;
  job.kind = kKinds.at(argv[2]);
  job.world = static_cast<uint32_t>(std::atoi(argv[3]));
  job.steps = static_cast<uint32_t>(std::atoi(argv[4]));
  if (argc > 5) job.layers = static_cast<uint32_t>(std::atoi(argv[5]));
  return WriteJob(argv[1], job);
}
