#include "src/engine/what_if.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "src/base/status.h"
#include "src/graph/replicas.h"

namespace prism::engine {
namespace {

using graph::Graph;

constexpr struct {
  WhatIf::Kind kind;
  const char* name;
} kKinds[] = {{WhatIf::Kind::kRank, "rank"},
              {WhatIf::Kind::kHost, "host"},
              {WhatIf::Kind::kKernel, "kernel"},
              {WhatIf::Kind::kCommunicator, "communicator"},
              {WhatIf::Kind::kPort, "port"},
              {WhatIf::Kind::kNic, "nic"},
              {WhatIf::Kind::kReplicas, "replicas"},
              {WhatIf::Kind::kFailed, "failed"},
              {WhatIf::Kind::kMicroBatches, "micro-batches"}};
constexpr char kForms[] =
    "rank:3=1.3, host:3=0.5, kernel:gemm=0.8, communicator:2=1.5, port:3=0.5, nic:1.0=0.5 "
    "or nic:1.0=24GB/s (node.NIC), replicas:2=2 (communicator), failed:3.2 (rank.communicator) or "
    "micro-batches=2";
constexpr double kLeast = 1e-3, kMost = 1e3;
constexpr double kGiga = 1e9, kMostGiga = 1e6;
constexpr double kMostTimes = 64;  // of what there is more of

/// What a span of the program takes, over what it took, when kernels that `matches` take `factor`
/// times as long. Empty: there is no such kernel.
template <typename Matches>
std::vector<double> SpanFactors(const graph::Program& program, const CostModel& model,
                                double factor, const Matches& matches) {
  std::vector<double> factors(program.spans.size(), 1);
  bool found = false;
  for (size_t i = 0; i < program.spans.size(); ++i) {
    // The span's time is one; the model says which part of it these kernels have.
    double all = 0, changed = 0;
    for (const uint32_t k : program.spans[i].kernels) {
      const auto ns = static_cast<double>(model.TimeOf(program.kernels[k]).ns);
      all += ns;
      if (matches(program.kernels[k])) changed += ns;
    }
    if (changed == 0) continue;
    found = true;
    factors[i] = 1 + changed / all * (factor - 1);
  }
  return found ? factors : std::vector<double>();
}

void ScaleSpans(const Graph& graph, uint32_t rank, const std::vector<double>& factors,
                Durations* durations) {
  durations->span_scale.resize(graph.ranks.size());
  std::vector<double>& scales = durations->span_scale[rank];
  scales.resize(graph.program_of(graph.ranks[rank]).spans.size(), 1);
  for (size_t i = 0; i < factors.size(); ++i) scales[i] *= factors[i];
}

absl::Status ApplyToRank(const WhatIf& what_if, const Graph& graph, const CostModel& model,
                         Durations* durations) {
  PRISM_ASSIGN_OR_RETURN(const uint32_t rank, graph::RankIndex(graph, what_if.number));
  if (what_if.kind == WhatIf::Kind::kHost) {
    durations->host_time_scale.resize(graph.ranks.size(), 1);
    durations->host_time_scale[rank] *= what_if.factor;
    return absl::OkStatus();
  }
  const auto is_kernel = [](const graph::Kernel& kernel) {
    // Copies and sets are no slower on a slow GPU.
    return kernel.kind == trace::KernelKind::kKernel || kernel.kind == trace::KernelKind::kGraph;
  };
  const graph::Program& program = graph.program_of(graph.ranks[rank]);
  ScaleSpans(graph, rank, SpanFactors(program, model, what_if.factor, is_kernel), durations);
  return absl::OkStatus();
}

absl::Status ApplyToKernels(const WhatIf& what_if, const Graph& graph, const CostModel& model,
                            Durations* durations) {
  const auto is_named = [&](const graph::Kernel& kernel) {
    return kernel.name.find(what_if.kernel) != std::string::npos;
  };
  std::vector<std::vector<double>> factors;  // by program, which ranks share
  for (const graph::Program& program : graph.programs)
    factors.push_back(SpanFactors(program, model, what_if.factor, is_named));
  bool found = false;
  for (uint32_t rank = 0; rank < graph.ranks.size(); ++rank) {
    const std::vector<double>& of_rank = factors[graph.ranks[rank].program];
    if (of_rank.empty()) continue;
    found = true;
    ScaleSpans(graph, rank, of_rank, durations);
  }
  if (found) return absl::OkStatus();
  return WithHint(
      absl::InvalidArgumentError(absl::StrCat("no kernel has '", what_if.kernel, "' in its name")),
      "prism inspect DIR --nodes lists the kernels");
}

absl::Status ApplyToCommunicator(const WhatIf& what_if, const Graph& graph, Durations* durations) {
  bool found = false;
  durations->call_scale.resize(graph.ranks.size());
  for (size_t r = 0; r < graph.ranks.size(); ++r) {
    const graph::Rank& rank = graph.ranks[r];
    const graph::Program& program = graph.program_of(rank);
    durations->call_scale[r].resize(program.calls.size(), 1);
    for (size_t call = 0; call < program.calls.size(); ++call) {
      const uint32_t comm = rank.comm[program.calls[call].participant];
      if (graph.communicators[comm].number != what_if.number) continue;
      found = true;
      CallTime& time = durations->calls[r][call];
      time.ns = std::llround(static_cast<double>(time.ns) * what_if.factor);
      durations->call_scale[r][call] *= what_if.factor;
    }
  }
  if (found) return absl::OkStatus();
  return WithHint(absl::InvalidArgumentError(
                      absl::StrCat("communicator ", what_if.number, " is none that the job uses")),
                  "prism inspect DIR lists the communicators");
}

absl::Status AddLink(const WhatIf& what_if, const Graph& graph, const CostModel& model,
                     Factors* factors) {
  if (!model.shares_links()) {
    return WithHint(absl::FailedPreconditionError("nothing is known of the links"),
                    "--network FILE, of prism netprofile");
  }
  const std::optional<uint32_t> link = what_if.kind == WhatIf::Kind::kPort
                                           ? model.PortLink(graph, what_if.number)
                                           : model.NicLink(graph, what_if.number, what_if.nic);
  if (!link.has_value()) {
    return WithHint(
        absl::InvalidArgumentError(absl::StrCat("there is no such link: ", what_if.Text())),
        "ranks, nodes and NICs are numbered from 0");
  }
  const bool is_nic = what_if.kind == WhatIf::Kind::kNic;
  const std::optional<double> reached = is_nic ? model.NicBytesPerS() : model.PortBytesPerS();
  if (!reached.has_value()) {
    return WithHint(absl::FailedPreconditionError(absl::StrCat(
                        "no messages ", is_nic ? "between" : "within",
                        " nodes were measured: ", what_if.Text(), " would change nothing")),
                    is_nic ? "prism netprofile --nodes 2 --operations Send,..."
                           : "prism netprofile --operations Send,...");
  }
  double factor = what_if.factor;
  if (what_if.bytes_per_s > 0) {
    // What lets more through than was reached is not what limits it.
    factor = std::min(1.0, what_if.bytes_per_s / *reached);
  }
  factors->bandwidth.try_emplace(*link, 1).first->second *= factor;
  return absl::OkStatus();
}

absl::Status Apply(const WhatIf& what_if, const Graph& graph, const CostModel& model,
                   Durations* durations) {
  switch (what_if.kind) {
    case WhatIf::Kind::kRank:
    case WhatIf::Kind::kHost:
      return ApplyToRank(what_if, graph, model, durations);
    case WhatIf::Kind::kKernel:
      return ApplyToKernels(what_if, graph, model, durations);
    case WhatIf::Kind::kCommunicator:
      return ApplyToCommunicator(what_if, graph, durations);
    case WhatIf::Kind::kPort:
    case WhatIf::Kind::kNic:
    case WhatIf::Kind::kReplicas:
    case WhatIf::Kind::kFailed:
    case WhatIf::Kind::kMicroBatches:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

std::string WhatIf::Text() const {
  const std::string longer = absl::StrCat(" take ", factor, " times as long");
  const std::string faster = absl::StrCat(" has ", factor, " times its bandwidth");
  switch (kind) {
    case Kind::kRank:
      return absl::StrCat("kernels of rank ", number, longer);
    case Kind::kHost:
      return absl::StrCat("calls and host work of rank ", number, longer);
    case Kind::kKernel:
      return absl::StrCat("kernels with '", kernel, "' in their names", longer);
    case Kind::kCommunicator:
      return absl::StrCat("calls on communicator ", number, longer);
    case Kind::kPort:
      return absl::StrCat("the port of rank ", number, "'s GPU", faster);
    case Kind::kNic:
      return absl::StrCat("NIC ", nic, " of node ", number,
                          bytes_per_s > 0 ? absl::StrCat(" lets no more than ", bytes_per_s / kGiga,
                                                         " GB/s through")
                                          : faster);
    case Kind::kReplicas:
      return absl::StrCat("there are ", factor,
                          " times as many replicas as members of communicator ", number);
    case Kind::kFailed:
      return absl::StrCat("rank ", number,
                          " has failed, and the job goes on without its replica (of communicator ",
                          communicator, ")");
    case Kind::kMicroBatches:
      return absl::StrCat("steps have ", factor, " times as many micro-batches");
  }
  return "";
}

absl::StatusOr<WhatIf> ParseWhatIf(const std::string& text) {
  const auto bad = [&](const std::string& why) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat("'", text, "': ", why)), kForms);
  };
  WhatIf what_if;
  const std::string what = text.substr(0, text.find_first_of(":="));
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [&](const auto& k) { return k.name == what; });
  if (kind == std::end(kKinds))
    return bad(absl::StrCat("'", what, "' is nothing that can be changed"));
  what_if.kind = kind->kind;
  const bool has_which = what_if.kind != WhatIf::Kind::kMicroBatches;
  const bool has_factor = what_if.kind != WhatIf::Kind::kFailed;
  const size_t equals = has_factor ? text.rfind('=') : text.size();
  if (equals == std::string::npos ||
      has_which != (text.substr(0, equals).size() > what.size() && text[what.size()] == ':')) {
    return bad(absl::StrCat("is not WHAT", has_which ? ":WHICH" : "", has_factor ? "=FACTOR" : ""));
  }
  absl::string_view factor = absl::string_view(text).substr(std::min(equals + 1, text.size()));
  if (what_if.kind == WhatIf::Kind::kNic && absl::ConsumeSuffix(&factor, "GB/s")) {
    if (!absl::SimpleAtod(factor, &what_if.bytes_per_s) ||
        !(what_if.bytes_per_s >= kLeast && what_if.bytes_per_s <= kMostGiga))
      return bad(absl::StrCat("a bandwidth is a number from ", kLeast, " to ", kMostGiga));
    what_if.bytes_per_s *= kGiga;
  } else if (has_factor) {
    if (!absl::SimpleAtod(factor, &what_if.factor) ||
        !(what_if.factor >= kLeast && what_if.factor <= kMost))
      return bad(absl::StrCat("the factor is a number from ", kLeast, " to ", kMost));
    if (what_if.changes_job() && (what_if.factor != std::floor(what_if.factor) ||
                                  what_if.factor < 2 || what_if.factor > kMostTimes))
      return bad(absl::StrCat("the factor is a whole number from 2 to ", kMostTimes));
  }
  if (!has_which) return what_if;
  const std::string which = text.substr(what.size() + 1, equals - what.size() - 1);
  if (what_if.kind == WhatIf::Kind::kKernel) {
    if (which.empty()) return bad("no name is given");
    what_if.kernel = which;
    return what_if;
  }
  const std::vector<std::string> numbers = absl::StrSplit(which, '.');
  const bool is_nic = what_if.kind == WhatIf::Kind::kNic,
             failed = what_if.kind == WhatIf::Kind::kFailed;
  uint32_t* const second = is_nic ? &what_if.nic : failed ? &what_if.communicator : nullptr;
  if (numbers.size() != (second != nullptr ? 2 : 1) ||
      !absl::SimpleAtoi(numbers[0], &what_if.number) ||
      (second != nullptr && !absl::SimpleAtoi(numbers[1], second)))
    return bad(absl::StrCat("'", which, "' is not ",
                            is_nic   ? "NODE.NIC"
                            : failed ? "RANK.COMMUNICATOR"
                                     : "a number"));
  return what_if;
}

absl::Status ChangeReplicas(const WhatIf& what_if, Graph* graph, Target* target) {
  if (what_if.kind == WhatIf::Kind::kFailed) {
    PRISM_ASSIGN_OR_RETURN(*graph,
                           graph::WithoutReplicaOf(*graph, what_if.communicator, what_if.number));
  } else if (what_if.kind == WhatIf::Kind::kReplicas) {
    PRISM_ASSIGN_OR_RETURN(
        *graph, graph::WithReplicas(*graph, what_if.number, static_cast<uint32_t>(what_if.factor),
                                    target->gpus_per_node));
    if (target->gpus() >= graph->world) return absl::OkStatus();
    target->nodes = (graph->world + target->gpus_per_node - 1) / target->gpus_per_node;
    target->text =
        absl::StrCat(target->text.substr(0, target->text.rfind(':')), ":", target->nodes);
  }
  return absl::OkStatus();
}

absl::StatusOr<Durations> DurationsIf(std::span<const WhatIf> what_ifs, const Graph& graph,
                                      const CostModel& model, Factors factors) {
  // Times are whole nanoseconds of 64 bits.
  constexpr double kMostTogether = 1e6;
  double together = 1;
  for (const WhatIf& what_if : what_ifs)
    together *= std::max(what_if.factor, 1 / std::max(what_if.factor, 1 / kMostTogether));
  if (together > kMostTogether) {
    return WithHint(absl::InvalidArgumentError(
                        absl::StrCat("the factors of all what-ifs together come to ", together)),
                    "at most 1000 each and 1e6 together");
  }
  for (const WhatIf& what_if : what_ifs) {
    if (what_if.kind == WhatIf::Kind::kPort || what_if.kind == WhatIf::Kind::kNic)
      PRISM_RETURN_IF_ERROR(AddLink(what_if, graph, model, &factors));
  }
  Durations durations = model.DurationsOf(graph, factors);
  for (const WhatIf& what_if : what_ifs)
    PRISM_RETURN_IF_ERROR(Apply(what_if, graph, model, &durations));
  return durations;
}

}  // namespace prism::engine
