#include "examples/cpp/moe_trainer/durations.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "examples/cpp/moe_trainer/random.h"

namespace moe_trainer {
namespace {

struct Rates {
  double fixed_ns, flops_per_ns, bytes_per_ns;
};

const std::map<std::string_view, Rates>& Table() {
  static const std::map<std::string_view, Rates> table = {
      {"gemm", {4000, 650e3, 3800}},
      {"expert_gemm", {6000, 500e3, 3500}},
      {"expert_weight_gradient", {6000, 450e3, 3300}},
      {"attention", {5000, 500e3, 3500}},
      {"attention_gradient", {8000, 380e3, 3300}},
      {"embed", {2500, 1e3, 2800}},
      {"embed_gradient", {3000, 1e3, 1500}},
      {"add", {2000, 30e3, 3900}},
      {"silu", {2000, 30e3, 3900}},
      {"silu_gradient", {2000, 30e3, 3800}},
      {"route", {7000, 2e3, 2000}},
      {"draw_counts", {7000, 2e3, 2000}},
      {"route_gradient", {4000, 2e3, 2000}},
      {"dispatch", {3000, 1e3, 3000}},
      {"dispatch_gradient", {3000, 10e3, 2900}},
      {"combine", {3000, 10e3, 3000}},
      {"combine_gradient", {3500, 10e3, 2800}},
      {"group_rows", {3000, 1e3, 3000}},
      {"cross_entropy", {5000, 10e3, 3000}},
      {"sgd", {2500, 30e3, 3700}},
  };
  return table;
}

}  // namespace

double TableNs(std::string_view kernel, const Work& work) {
  const Rates& rates = Table().at(kernel);
  return rates.fixed_ns +
         std::max(work.flops / rates.flops_per_ns, work.bytes / rates.bytes_per_ns);
}

uint64_t DurationNs(const Options& options, int rank, const Occasion& occasion,
                    std::string_view kernel, int kernel_number, const Work& work) {
  double ns = TableNs(kernel, work) * options.kernel_scale;
  if (options.jitter > 0) {
    const double z =
        Normal(options.model.seed, Stream::kJitter,
               {static_cast<uint64_t>(rank), static_cast<uint64_t>(occasion.step),
                static_cast<uint64_t>(occasion.layer), static_cast<uint64_t>(occasion.micro_batch),
                static_cast<uint64_t>(occasion.backward), static_cast<uint64_t>(kernel_number)});
    ns *= std::exp(options.jitter * z);
  }
  if (rank == options.straggler.rank) ns *= options.straggler.factor;
  return static_cast<uint64_t>(std::llround(ns));
}

}  // namespace moe_trainer
