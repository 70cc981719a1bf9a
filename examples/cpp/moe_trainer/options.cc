#include "examples/cpp/moe_trainer/options.h"

#include <CLI/CLI.hpp>
#include <initializer_list>

namespace moe_trainer {
namespace {

std::string Text(int value) { return std::to_string(value); }

std::string Number(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::string Problem(const Options& options, int world) {
  const Model& model = options.model;
  const Parallelism& sizes = options.sizes;
  struct Count {
    const char* name;
    int value, least;
  };
  for (const Count& count :
       {Count{"--dp", sizes.data, 1}, Count{"--tp", sizes.tensor, 1},
        Count{"--pp", sizes.pipeline, 1}, Count{"--ep", sizes.expert, 1},
        Count{"--interleave", sizes.interleave, 1}, Count{"--layers", model.layers, 1},
        Count{"--hidden", model.hidden, 1}, Count{"--heads", model.heads, 1},
        Count{"--expert-hidden", model.expert_hidden, 1}, Count{"--experts", model.experts, 1},
        Count{"--top-k", model.top_k, 1}, Count{"--sequence", model.sequence, 1},
        Count{"--vocabulary", model.vocabulary, 2}, Count{"--steps", options.steps, 1},
        Count{"--micro-batches", model.micro_batches, 1}, Count{"--launch", options.launch, 0},
        Count{"--gpus-per-node", options.gpus_per_node, 1}}) {
    if (count.value < count.least)
      return std::string(count.name) + " " + Text(count.value) + ": give at least " +
             Text(count.least);
  }
  if (options.real == options.timed)
    return options.real
               ? "--real and --timed are two programs: values, or times. Give one of them"
               : "nothing says what to run: give --real (small sizes, computed on the CPU) or "
                 "--timed (any size, kernels that only take time)";
  if (sizes.world() != world)
    return "--dp " + Text(sizes.data) + " x --tp " + Text(sizes.tensor) + " x --pp " +
           Text(sizes.pipeline) + " is " + Text(sizes.world()) + " ranks, and there are " +
           Text(world) + " processes: start " + Text(sizes.world()) +
           ", or choose sizes whose product is " + Text(world);
  struct Division {
    const char* name;
    int value;
    const char* by_name;
    int by;
  };
  for (const Division& division :
       {Division{"--dp x --tp", sizes.token_ranks(), "--ep", sizes.expert},
        Division{"--experts", model.experts, "--ep", sizes.expert},
        Division{"--hidden", model.hidden, "--heads", model.heads},
        Division{"--heads", model.heads, "--tp", sizes.tensor},
        Division{"--sequence", model.sequence, "--tp", sizes.tensor},
        Division{"--layers", model.layers, "--pp x --interleave",
                 sizes.pipeline * sizes.interleave}}) {
    if (division.value % division.by != 0)
      return std::string(division.name) + " " + Text(division.value) + " does not divide by " +
             division.by_name + " " + Text(division.by) + ": give a multiple of " +
             Text(division.by) + ", or another " + division.by_name;
  }
  if (model.top_k > model.experts)
    return "--top-k " + Text(model.top_k) + " of --experts " + Text(model.experts) +
           ": a token visits an expert once. Give --top-k at most " + Text(model.experts);
  if (sizes.interleave > 1 && sizes.pipeline == 1)
    return "--interleave " + Text(sizes.interleave) +
           " needs a pipeline: give --pp at least 2, or --interleave 1";
  if (sizes.interleave > 1 && model.micro_batches % sizes.pipeline != 0)
    return "--interleave " + Text(sizes.interleave) + " needs --micro-batches (" +
           Text(model.micro_batches) + ") to be a multiple of --pp " + Text(sizes.pipeline);
  for (const auto& [name, value] :
       {std::pair{"--imbalance", model.imbalance}, std::pair{"--jitter", options.jitter}}) {
    if (!(value >= 0 && value <= 10))
      return std::string(name) + " " + Number(value) +
             " is a standard deviation of a logarithm: give 0 (none) to 10";
  }
  for (const auto& [name, value] : {std::pair{"--kernel-scale", options.kernel_scale},
                                    std::pair{"--host-scale", options.host_scale},
                                    std::pair{"--straggler's factor", options.straggler.factor}}) {
    if (!(value >= 0 && value <= 1e6))
      return std::string(name) + " " + Number(value) + " scales durations: give 0 to 1000000";
  }
  if (!(options.bucket_mib > 0 && options.bucket_mib <= 1 << 20))
    return "--bucket-mib " + Number(options.bucket_mib) + ": give more than 0, at most 1048576";
  if (options.straggler.rank >= world)
    return "--straggler names rank " + Text(options.straggler.rank) + ", the last rank is " +
           Text(world - 1);
  if (options.real) {
    for (const auto& [name, set] : {std::pair{"--jitter", options.jitter != 0},
                                    std::pair{"--straggler", options.straggler.rank >= 0}}) {
      if (set) return std::string(name) + " changes times, of which --real has none: use --timed";
    }
  } else if (!options.save.empty()) {
    return "--save " + options.save + ": under --timed parameters have no values. Use --real";
  }
  return "";
}

std::optional<int> ParseCommandLine(int argc, char** argv, Options* options) {
  CLI::App app(
      "Trains a mixture of experts with tensor, pipeline, expert and data parallelism, on the "
      "CUDA runtime and NCCL.\nRank and world from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, "
      "MASTER_PORT (torchrun sets them), or --launch.",
      "moe_trainer");
  Model& model = options->model;
  Parallelism& sizes = options->sizes;
  app.add_flag("--real", options->real, "compute: parameters and losses have values");
  app.add_flag("--timed", options->timed, "kernels take stated times and compute nothing");
  app.add_option("--dp", sizes.data, "data parallel ranks");
  app.add_option("--tp", sizes.tensor, "tensor parallel ranks");
  app.add_option("--pp", sizes.pipeline, "pipeline stages");
  app.add_option("--ep", sizes.expert, "ranks that share out the experts; divides dp x tp");
  app.add_option("--interleave", sizes.interleave, "chunks of the model on each stage");
  app.add_option("--micro-batches", model.micro_batches, "sequences of each data parallel rank");
  app.add_option("--layers", model.layers);
  app.add_option("--hidden", model.hidden);
  app.add_option("--heads", model.heads);
  app.add_option("--experts", model.experts);
  app.add_option("--expert-hidden", model.expert_hidden);
  app.add_option("--top-k", model.top_k, "experts that a token visits");
  app.add_option("--sequence", model.sequence, "tokens of a sequence");
  app.add_option("--vocabulary", model.vocabulary);
  app.add_option("--steps", options->steps);
  app.add_option("--seed", model.seed);
  app.add_option("--learning-rate", model.learning_rate);
  app.add_option("--momentum", model.momentum);
  app.add_option("--imbalance", model.imbalance,
                 "standard deviation of the experts' log popularity");
  app.add_option("--bucket-mib", options->bucket_mib, "gradients reduced at once");
  app.add_option("--jitter", options->jitter,
                 "standard deviation of the logarithm of a kernel's duration");
  std::string straggler;
  app.add_option("--straggler", straggler, "RANK:FACTOR, a rank whose kernels take FACTOR times");
  app.add_option("--kernel-scale", options->kernel_scale, "factor on all kernels' durations");
  app.add_option("--host-scale", options->host_scale, "factor on all durations of host work");
  app.add_option("--launch", options->launch, "start this many processes on this machine");
  app.add_option("--gpus-per-node", options->gpus_per_node, "with --launch");
  app.add_option("--json", options->json, "write results to this file (rank 0)");
  app.add_option("--save", options->save, "write every rank's parameters to this folder");
  for (CLI::Option* option : app.get_options())
    if (option->get_expected_min() > 0 && option->get_name() != "--help")
      option->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitRefused;
  }
  if (!straggler.empty()) {
    int read = 0;
    if (sscanf(straggler.c_str(), "%d:%lf%n", &options->straggler.rank, &options->straggler.factor,
               &read) != 2 ||
        static_cast<size_t>(read) != straggler.size() || options->straggler.rank < 0) {
      fprintf(stderr, "moe_trainer: --straggler %s: give RANK:FACTOR, for example 3:1.2\n",
              straggler.c_str());
      return kExitRefused;
    }
  }
  return std::nullopt;
}

}  // namespace moe_trainer
