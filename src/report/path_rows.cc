#include "src/report/path_rows.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/report/prediction.h"

namespace prism::report {
namespace {

using graph::Op;
using graph::OpKind;

// The span's kernel that takes longest by the model, which knows all of them.
std::string SpanName(const engine::CostModel& model, const graph::Program& program, uint32_t span) {
  const std::vector<uint32_t>& kernels = program.spans[span].kernels;
  if (kernels.empty()) return "nothing";
  const auto longest =
      std::max_element(kernels.begin(), kernels.end(), [&](uint32_t x, uint32_t y) {
        return model.TimeOf(program.kernels[x]).ns < model.TimeOf(program.kernels[y]).ns;
      });
  const std::string& name = program.kernels[*longest].name;
  return kernels.size() == 1 ? name : absl::StrCat(name, " and ", kernels.size() - 1, " more");
}

}  // namespace

const char* PathKindName(PathRow::Kind kind) {
  constexpr const char* kNames[] = {"compute", "communication", "host", "waiting"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<PathRow> PathRows(const graph::Graph& graph, const engine::CostModel& model,
                              const std::vector<engine::PathStep>& path) {
  std::vector<std::string> groups;
  for (const graph::Communicator& c : graph.communicators)
    groups.push_back(GroupName(c.world_ranks, graph.world));
  std::map<std::pair<uint32_t, uint32_t>, std::string> span_names;  // [program, span]
  struct Sum {
    int64_t ns = 0;
    uint64_t times = 0;
    std::set<uint32_t> ranks;
  };
  std::map<std::pair<PathRow::Kind, std::string>, Sum> sums;
  for (const engine::PathStep& step : path) {
    const graph::Rank& rank = graph.ranks[step.rank];
    const graph::Program& program = graph.program_of(rank);
    const graph::Sequence& sequence = program.sequences[step.place.sequence];
    const Op& op = sequence.ops[step.place.op];
    PathRow::Kind kind = PathRow::Kind::kWaiting;
    std::string what;
    if (op.kind == OpKind::kSpan) {
      kind = PathRow::Kind::kCompute;
      std::string& name = span_names[{rank.program, op.a}];
      if (name.empty()) name = SpanName(model, program, op.a);
      what = name;
    } else if (op.kind == OpKind::kComm) {
      kind = PathRow::Kind::kCommunication;
      const graph::Call& call = program.calls[op.a];
      what = absl::StrCat(std::string(graph::CommOpName(call.op)), ", ",
                          groups[rank.comm[call.participant]]);
    } else if (sequence.kind == trace::SequenceKind::kThread && op.kind != OpKind::kWait &&
               op.kind != OpKind::kCommInit) {
      kind = PathRow::Kind::kHost;
      what = "the program, and its calls";
    } else {
      what = op.kind == OpKind::kCommInit ? "initialisation" : "until the host or a stream goes on";
    }
    Sum& sum = sums[{kind, std::move(what)}];
    sum.ns += step.end_ns - step.begin_ns;
    ++sum.times;
    sum.ranks.insert(rank.rank);
  }
  std::vector<PathRow> rows;
  for (auto& [key, sum] : sums) {
    rows.push_back({key.first, key.second, sum.ns, sum.times,
                    std::vector<uint32_t>(sum.ranks.begin(), sum.ranks.end())});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const PathRow& x, const PathRow& y) { return x.ns > y.ns; });
  return rows;
}

}  // namespace prism::report
