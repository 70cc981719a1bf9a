#include "src/graph/matching_table.h"

#include <array>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace prism::graph {
namespace {

using nlohmann::ordered_json;
using trace::CommOp;

struct Total {
  uint64_t calls = 0, bytes = 0;
};
using Totals = std::array<Total, trace::kCommOpCount>;

// Of each participant of a program, by operation.
std::vector<Totals> TotalsOf(const Program& program) {
  std::vector<Totals> totals(program.participants.size());
  for (const Sequence& sequence : program.sequences) {
    if (sequence.kind != trace::SequenceKind::kStream) continue;
    for (const Op& op : sequence.ops) {
      if (op.kind != OpKind::kComm) continue;
      const Call& call = program.calls[op.a];
      Total& total = totals[call.participant][static_cast<size_t>(call.op)];
      ++total.calls;
      total.bytes += call.bytes;
    }
  }
  return totals;
}

uint64_t Number(const ordered_json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<uint64_t>() : 0;
}

// The ranks that an entry names; none if it is damaged.
std::vector<uint32_t> RanksOf(const ordered_json& entry) {
  std::vector<uint32_t> ranks;
  if (!entry.is_object() || !entry.contains("ranks") || !entry["ranks"].is_array()) return ranks;
  for (const ordered_json& rank : entry["ranks"])
    if (rank.is_number_unsigned()) ranks.push_back(rank.get<uint32_t>());
  return ranks;
}

}  // namespace

std::vector<Finding> CompareWithMatching(const Graph& graph, const ordered_json& table,
                                         size_t limit) {
  std::vector<Finding> findings;
  const auto disagree = [&](std::string text, std::vector<uint32_t> ranks) {
    if (findings.size() < limit) {
      findings.push_back({FindingKind::kDisagreement, std::move(text), std::move(ranks)});
    }
  };
  if (!table.is_object() || table.find("schema") == table.end() ||
      table["schema"] != "prism.matching" || !table.contains("communicators") ||
      !table["communicators"].is_array()) {
    disagree("matching.json is not the table of a coordinator", {});
    return findings;
  }
  std::vector<std::vector<Totals>> of_program;
  for (const Program& program : graph.programs) of_program.push_back(TotalsOf(program));
  absl::flat_hash_map<uint64_t, const ordered_json*> entries;
  for (const ordered_json& entry : table["communicators"])
    entries[Number(entry, "number")] = &entry;

  for (const Communicator& comm : graph.communicators) {
    const auto found = entries.find(comm.number);
    if (found == entries.end()) {
      disagree(absl::StrCat("communicator ", comm.number,
                            " is in the traces; the coordinator does not know it"),
               comm.world_ranks);
      continue;
    }
    const ordered_json& entry = *found->second;
    entries.erase(found);
    if (RanksOf(entry) != comm.world_ranks) {
      disagree(absl::StrCat("communicator ", comm.number, " is one of ranks ",
                            absl::StrJoin(comm.world_ranks, ","),
                            " in the traces, of others for the coordinator"),
               comm.world_ranks);
      continue;
    }
    const ordered_json none = ordered_json::object();
    const auto listed = entry.find("operations");
    const ordered_json& operations = listed != entry.end() && listed->is_object() ? *listed : none;
    for (uint32_t o = 0; o < trace::kCommOpCount; ++o) {
      const auto op = static_cast<CommOp>(o);
      if (op == CommOp::kRecv) continue;  // a transfer is counted by its send
      const std::string name(CommOpName(op));
      const auto counted = operations.find(name);
      const ordered_json& matched = counted == operations.end() ? none : *counted;
      Total all;
      bool complete = true;
      for (const Member& member : comm.members) {
        if (member.rank == kNone) {
          complete = false;
          continue;
        }
        const Rank& rank = graph.ranks[member.rank];
        const Total& own = of_program[rank.program][member.participant][o];
        all.calls += own.calls;
        all.bytes += own.bytes;
        // Every member takes part in every collective.
        if (op != CommOp::kSend && own.calls != Number(matched, "calls")) {
          disagree(absl::StrCat("communicator ", comm.number, ": rank ", rank.rank, " calls ", name,
                                " ", own.calls, " times in its trace; the coordinator matched ",
                                Number(matched, "calls")),
                   {rank.rank});
        }
      }
      if (!complete) continue;
      if (op == CommOp::kSend && all.calls != Number(matched, "calls")) {
        disagree(absl::StrCat("communicator ", comm.number, ": the traces have ", all.calls,
                              " sends; the coordinator matched ", Number(matched, "calls")),
                 comm.world_ranks);
      } else if (all.bytes != Number(matched, "bytes")) {
        disagree(
            absl::StrCat("communicator ", comm.number, ": ", name, " moves ", all.bytes,
                         " bytes by the traces, ", Number(matched, "bytes"), " by the coordinator"),
            comm.world_ranks);
      }
    }
  }
  if (graph.ranks.size() == graph.world) {
    for (const auto& [number, entry] : entries) {
      disagree(absl::StrCat("communicator ", number,
                            " of the coordinator is in the trace of none of its ranks"),
               RanksOf(*entry));
    }
  }
  return findings;
}

}  // namespace prism::graph
