#include "src/calibrate/slices.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace prism::calibrate {

std::vector<Slice> Slices(const graph::Graph& graph) {
  std::vector<Slice> slices;
  std::map<uint32_t, size_t> by_program;
  for (uint32_t i = 0; i < graph.ranks.size(); ++i) {
    const auto [found, inserted] = by_program.try_emplace(graph.ranks[i].program, slices.size());
    if (inserted) slices.push_back({i, {}});
    slices[found->second].ranks.push_back(i);
  }
  return slices;
}

absl::StatusOr<trace::RankIdentity> IdentityOf(const graph::Graph& graph, uint32_t from,
                                               uint32_t to) {
  const graph::Rank& source = graph.ranks[from];
  const graph::Rank& copy = graph.ranks[to];
  if (source.program != copy.program) {
    return absl::FailedPreconditionError(
        absl::StrCat("ranks ", source.rank, " and ", copy.rank, " do not do the same"));
  }
  trace::RankIdentity identity;
  identity.rank = copy.rank;
  for (size_t d = 0; d < std::min(source.devices.size(), copy.devices.size()); ++d)
    identity.devices[source.devices[d]] = copy.devices[d];
  for (uint32_t p = 0; p < source.comm.size(); ++p) {
    const graph::Communicator& comm = graph.communicators[copy.comm[p]];
    identity.comms[graph.communicators[source.comm[p]].number] = {comm.number, copy.comm_rank[p],
                                                                  comm.world_ranks};
  }
  const graph::Program& program = graph.program_of(source);
  for (uint32_t call = 0; call < program.calls.size(); ++call) {
    if (source.peer[call] < 0) continue;
    const uint32_t comm = source.comm[program.calls[call].participant];
    identity.peers[{graph.communicators[comm].number, source.peer[call]}] = copy.peer[call];
  }
  return identity;
}

}  // namespace prism::calibrate
