#include "src/graph/check.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace prism::graph {
namespace {

using trace::CommOp;
using trace::SequenceKind;

// Cycles are searched on the explicit graph, which costs about 60 bytes an operation.
constexpr uint64_t kMaxCycleSearchOps = 8'000'000;

// Calls of each participant's collectives, by sequence.
std::vector<std::vector<uint32_t>> Collectives(const Program& program) {
  std::vector<std::vector<uint32_t>> calls(program.participants.size());
  for (size_t i = 0; i < calls.size(); ++i)
    calls[i].resize(program.participants[i].collectives, kNone);
  for (const Sequence& sequence : program.sequences) {
    if (sequence.kind != SequenceKind::kStream) continue;
    for (const Op& op : sequence.ops) {
      if (op.kind != OpKind::kComm || !IsCollective(program.calls[op.a].op)) continue;
      std::vector<uint32_t>& list = calls[program.calls[op.a].participant];
      if (op.b < list.size()) list[op.b] = op.a;
    }
  }
  // The end of an incomplete trace is cut: participants[i].collectives counts what is no longer
  // there.
  for (auto& list : calls) {
    while (!list.empty() && list.back() == kNone) list.pop_back();
  }
  return calls;
}

std::string Describe(const Rank& rank, const Program& program, uint32_t call) {
  const Call& c = program.calls[call];
  std::string text = absl::StrCat("rank ", rank.rank, ": ", std::string(CommOpName(c.op)), " of ",
                                  c.count, " (type ", c.dtype, ", reduction ", c.reduction);
  if (rank.peer[call] >= 0) absl::StrAppend(&text, ", root ", rank.peer[call]);
  absl::StrAppend(&text, ")");
  if (c.call_site < program.strings.size())
    absl::StrAppend(&text, " at ", program.strings[c.call_site]);
  return text;
}

bool HasReduction(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kReduce || op == CommOp::kReduceScatter;
}
bool HasRoot(CommOp op) {
  return op == CommOp::kReduce || op == CommOp::kBroadcast || op == CommOp::kGather ||
         op == CommOp::kScatter;
}

void CheckCommunicator(const Graph& graph, const Communicator& comm,
                       const std::vector<std::vector<std::vector<uint32_t>>>& collectives,
                       size_t limit, std::vector<Finding>* findings) {
  const Member* first = nullptr;
  for (const Member& member : comm.members) {
    if (member.rank == kNone) continue;
    if (first == nullptr) {
      first = &member;
      continue;
    }
    if (findings->size() >= limit) return;
    const Rank &x = graph.ranks[first->rank], &y = graph.ranks[member.rank];
    const Program &p = graph.program_of(x), &q = graph.program_of(y);
    const auto& xs = collectives[x.program][first->participant];
    const auto& ys = collectives[y.program][member.participant];
    for (size_t i = 0; i < std::min(xs.size(), ys.size()); ++i) {
      const Call &c = p.calls[xs[i]], &d = q.calls[ys[i]];
      const bool same = c.op == d.op && c.count == d.count && c.dtype == d.dtype &&
                        (!HasReduction(c.op) || c.reduction == d.reduction) &&
                        (!HasRoot(c.op) || x.peer[xs[i]] == y.peer[ys[i]]);
      if (same) continue;
      findings->push_back({FindingKind::kMismatch,
                           absl::StrCat("communicator ", comm.number, ", collective #", i + 1, ": ",
                                        Describe(x, p, xs[i]), "; ", Describe(y, q, ys[i])),
                           {x.rank, y.rank}});
      break;
    }
    if (xs.size() != ys.size() && findings->size() < limit) {
      const bool x_longer = xs.size() > ys.size();
      const size_t shorter = std::min(xs.size(), ys.size());
      findings->push_back(
          {FindingKind::kUnmatched,
           absl::StrCat("communicator ", comm.number, ": rank ", x_longer ? y.rank : x.rank,
                        " ends after ", shorter, " collectives; next is ",
                        x_longer ? Describe(x, p, xs[shorter]) : Describe(y, q, ys[shorter])),
           {x.rank, y.rank}});
    }
  }
}

void CheckChannels(const Graph& graph, size_t limit, std::vector<Finding>* findings) {
  // Counts of every message, both sides; a channel is compared once both are known.
  std::vector<std::vector<uint32_t>> sent(graph.channels.size()), received(graph.channels.size());
  for (const Rank& rank : graph.ranks) {
    const Program& program = graph.program_of(rank);
    for (const Sequence& sequence : program.sequences) {
      if (sequence.kind != SequenceKind::kStream) continue;
      for (const Op& op : sequence.ops) {
        if (op.kind != OpKind::kComm || rank.channel[op.a] == kNone) continue;
        auto& side = program.calls[op.a].op == CommOp::kSend ? sent : received;
        std::vector<uint32_t>& calls = side[rank.channel[op.a]];
        if (calls.size() <= op.b) calls.resize(op.b + 1, kNone);
        calls[op.b] = op.a;
      }
    }
  }
  for (size_t i = 0; i < graph.channels.size() && findings->size() < limit; ++i) {
    const Communicator& comm = graph.communicators[graph.channels[i].comm];
    const Member &from = comm.members[graph.channels[i].from],
                 &to = comm.members[graph.channels[i].to];
    const uint32_t from_rank = comm.world_ranks[graph.channels[i].from];
    const uint32_t to_rank = comm.world_ranks[graph.channels[i].to];
    if (sent[i].size() != received[i].size()) {
      // Nobody's fault that is not in the graph at all.
      if (from.rank == kNone || to.rank == kNone) continue;
      findings->push_back({FindingKind::kUnmatched,
                           absl::StrCat("communicator ", comm.number, ": rank ", from_rank,
                                        " sends ", sent[i].size(), " messages to rank ", to_rank,
                                        ", which receives ", received[i].size()),
                           {from_rank, to_rank}});
      continue;
    }
    for (size_t m = 0; m < sent[i].size(); ++m) {
      if (sent[i][m] == kNone || received[i][m] == kNone) continue;
      const Rank &x = graph.ranks[from.rank], &y = graph.ranks[to.rank];
      const Call& c = graph.program_of(x).calls[sent[i][m]];
      const Call& d = graph.program_of(y).calls[received[i][m]];
      if (c.count == d.count && c.dtype == d.dtype) continue;
      findings->push_back({FindingKind::kMismatch,
                           absl::StrCat("communicator ", comm.number, ", message #", m + 1, ": ",
                                        Describe(x, graph.program_of(x), sent[i][m]), "; ",
                                        Describe(y, graph.program_of(y), received[i][m])),
                           {from_rank, to_rank}});
      break;
    }
  }
}

std::string DescribeNode(const Graph& graph, NodeId node) {
  const Rank& rank = graph.ranks[node.rank];
  const Program& program = graph.program_of(rank);
  const Sequence& sequence = program.sequences[node.sequence];
  const Op& op = sequence.ops[node.op];
  std::string what = "node";
  if (op.kind == OpKind::kComm) {
    const Call& call = program.calls[op.a];
    what = absl::StrCat(std::string(CommOpName(call.op)), " #", op.b + 1, " of communicator ",
                        graph.communicators[rank.comm[call.participant]].number);
    if (call.call_site < program.strings.size())
      absl::StrAppend(&what, " at ", program.strings[call.call_site]);
  } else if (op.kind == OpKind::kWait) {
    what = sequence.kind == SequenceKind::kThread ? "synchronization" : "event wait";
  } else if (op.kind == OpKind::kSpan) {
    what = "span";
  } else if (op.kind == OpKind::kEnqueue) {
    what = "launch";
  }
  return absl::StrCat("rank ", rank.rank, " ", sequence.name, " #", node.op, " (", what, ")");
}

void CheckCycles(const Graph& graph, std::vector<Finding>* findings) {
  const ExplicitGraph g = ExpandEdges(graph);
  const auto n = static_cast<uint32_t>(g.vertices.size());
  std::vector<uint32_t> first(n + 1, 0), to(g.edges.size()), degree(n, 0);
  for (const auto& [from, target] : g.edges) {
    ++first[from + 1];
    ++degree[target];
  }
  for (uint32_t v = 0; v < n; ++v) first[v + 1] += first[v];
  std::vector<uint32_t> fill(first.begin(), first.end() - 1);
  for (const auto& [from, target] : g.edges) to[fill[from]++] = target;
  std::vector<uint32_t> ready;
  for (uint32_t v = 0; v < n; ++v) {
    if (degree[v] == 0) ready.push_back(v);
  }
  uint32_t done = 0;
  while (!ready.empty()) {
    const uint32_t v = ready.back();
    ready.pop_back();
    ++done;
    for (uint32_t e = first[v]; e < first[v + 1]; ++e) {
      if (--degree[to[e]] == 0) ready.push_back(to[e]);
    }
  }
  if (done == n) return;
  // Every vertex that is left has a predecessor that is left: going back from any of them runs into
  // a cycle.
  std::vector<uint32_t> before(n, kNone);
  for (const auto& [from, target] : g.edges) {
    if (degree[from] > 0 && degree[target] > 0) before[target] = from;
  }
  uint32_t v = 0;
  while (degree[v] == 0) ++v;
  std::vector<uint8_t> seen(n, 0);
  while (seen[v] == 0 && before[v] != kNone) {
    seen[v] = 1;
    v = before[v];
  }
  std::vector<uint32_t> cycle;
  for (uint32_t at = v; cycle.empty() || at != v; at = before[at]) {
    cycle.push_back(at);
    if (before[at] == kNone) break;
  }
  std::reverse(cycle.begin(), cycle.end());
  Finding finding{FindingKind::kCycle, "operations wait for each other: ", {}};
  size_t shown = 0;
  for (uint32_t vertex : cycle) {
    const NodeId node = g.vertices[vertex].node;
    const OpKind kind =
        graph.program_of(graph.ranks[node.rank]).sequences[node.sequence].ops[node.op].kind;
    if (kind == OpKind::kNothing || g.vertices[vertex].role != ExplicitGraph::Role::kDone) continue;
    if (shown++ == 12) {
      finding.text += " <- ...";
      break;
    }
    if (shown > 1) finding.text += " <- ";
    finding.text += DescribeNode(graph, node);
    const uint32_t rank = graph.ranks[node.rank].rank;
    if (std::find(finding.ranks.begin(), finding.ranks.end(), rank) == finding.ranks.end()) {
      finding.ranks.push_back(rank);
    }
  }
  findings->push_back(std::move(finding));
}

// A collective as a thread of the host launches it. Those of one group have one `unit`: NCCL orders
// them itself.
struct Launch {
  uint32_t participant;
  uint32_t number;  // on its communicator
  uint32_t call;
  uint32_t thread;
  size_t unit;
};

std::vector<Launch> Launches(const Program& program) {
  std::vector<Launch> launches;
  const std::vector<Enqueue> enqueues = program.Enqueues();
  for (size_t unit = 0; unit < enqueues.size(); ++unit) {
    const auto& [place, by] = enqueues[unit];
    const std::vector<Op>& ops = program.sequences[place.sequence].ops;
    for (uint32_t i = place.op; i < place.op + std::max<uint32_t>(ops[place.op].detail, 1); ++i) {
      if (ops[i].kind != OpKind::kComm) break;
      const Call& call = program.calls[ops[i].a];
      if (IsCollective(call.op))
        launches.push_back({call.participant, ops[i].b, ops[i].a, by.sequence, unit});
    }
  }
  return launches;
}

// Of two communicators that several ranks share, every one of these must launch the collectives in
// one order. They are compared with the first.
void CheckOrder(const Graph& graph, size_t limit, std::vector<Finding>* findings) {
  struct Sharer {
    uint32_t rank, first, second;  // participants
  };
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Sharer>> pairs;
  for (uint32_t r = 0; r < graph.ranks.size(); ++r) {
    const std::vector<uint32_t>& comms = graph.ranks[r].comm;
    for (uint32_t p = 0; p < comms.size(); ++p) {
      for (uint32_t q = 0; q < comms.size(); ++q) {
        if (comms[p] < comms[q]) pairs[{comms[p], comms[q]}].push_back({r, p, q});
      }
    }
  }
  std::vector<std::vector<Launch>> launches;
  for (const Program& program : graph.programs) launches.push_back(Launches(program));
  const auto of = [&](const Sharer& sharer) {
    std::vector<Launch> both;
    for (const Launch& launch : launches[graph.ranks[sharer.rank].program]) {
      if (launch.participant == sharer.first || launch.participant == sharer.second)
        both.push_back(launch);
    }
    return both;
  };
  for (const auto& [comms, sharers] : pairs) {
    const Sharer& x = sharers.front();
    const std::vector<Launch> xs = of(x);
    for (const Sharer& y : sharers) {
      if (findings->size() >= limit) return;
      const Rank &rank = graph.ranks[x.rank], &other = graph.ranks[y.rank];
      if (rank.program == other.program && x.first == y.first && x.second == y.second) continue;
      const std::vector<Launch> ys = of(y);
      size_t i = 0;
      while (i < std::min(xs.size(), ys.size()) && xs[i].number == ys[i].number &&
             (xs[i].participant == x.first) == (ys[i].participant == y.first)) {
        ++i;
      }
      if (i == std::min(xs.size(), ys.size())) continue;
      // Each launches first what the other launches later.
      const auto later = [i](const std::vector<Launch>& in, uint32_t participant, uint32_t number) {
        return std::find_if(
            in.begin() + static_cast<std::ptrdiff_t>(i), in.end(),
            [&](const Launch& l) { return l.participant == participant && l.number == number; });
      };
      const bool x_first = xs[i].participant == x.first;
      const auto x_later = later(xs, x_first ? x.second : x.first, ys[i].number);
      const auto y_later = later(ys, x_first ? y.first : y.second, xs[i].number);
      if (x_later == xs.end() || y_later == ys.end()) continue;
      // Threads that nothing orders, and calls of one group, have no order that could be wrong.
      if (xs[i].thread != x_later->thread || ys[i].thread != y_later->thread ||
          xs[i].unit == x_later->unit || ys[i].unit == y_later->unit) {
        continue;
      }
      const auto describe = [&](const Rank& who, const Launch& launch) {
        const Program& program = graph.program_of(who);
        const Call& call = program.calls[launch.call];
        return absl::StrCat(std::string(CommOpName(call.op)), " #", launch.number + 1,
                            " of communicator ",
                            graph.communicators[who.comm[launch.participant]].number,
                            call.call_site < program.strings.size()
                                ? absl::StrCat(" (", program.strings[call.call_site], ")")
                                : std::string());
      };
      findings->push_back(
          {FindingKind::kOrder,
           absl::StrCat("communicators ", graph.communicators[comms.first].number, " and ",
                        graph.communicators[comms.second].number,
                        " are used in different orders: rank ", rank.rank, " launches ",
                        describe(rank, xs[i]), " before ", describe(rank, *x_later), "; rank ",
                        other.rank, " launches ", describe(other, ys[i]), " before ",
                        describe(other, *y_later), "; on GPUs this may hang"),
           {rank.rank, other.rank}});
      break;
    }
  }
}

}  // namespace

std::vector<Finding> CheckStructure(const Graph& graph, size_t limit) {
  std::vector<Finding> findings;
  std::vector<std::vector<std::vector<uint32_t>>> collectives;
  for (const Program& program : graph.programs) collectives.push_back(Collectives(program));
  for (const Communicator& comm : graph.communicators) {
    if (findings.size() >= limit) break;
    CheckCommunicator(graph, comm, collectives, limit, &findings);
  }
  if (findings.size() < limit) CheckChannels(graph, limit, &findings);
  if (findings.empty() && graph.ops <= kMaxCycleSearchOps) CheckCycles(graph, &findings);
  if (findings.empty()) CheckOrder(graph, limit, &findings);
  return findings;
}

ExplicitGraph ExpandEdges(const Graph& graph) {
  using Role = ExplicitGraph::Role;
  ExplicitGraph g;
  const auto add = [&](NodeId node, Role role) {
    g.vertices.push_back({node, role});
    return static_cast<uint32_t>(g.vertices.size() - 1);
  };
  // (communicator, no channel, sequence), (.., channel, order) or (communicator, -, initialisation)
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> meetings;
  const auto meeting = [&](uint32_t comm, uint32_t channel, uint32_t order, NodeId node) {
    const auto [it, inserted] = meetings.try_emplace({comm, channel, order}, 0);
    if (inserted) it->second = add(node, Role::kMeeting);
    return it->second;
  };
  constexpr uint32_t kInitialisation = kNone - 1;

  for (uint32_t r = 0; r < graph.ranks.size(); ++r) {
    const Rank& rank = graph.ranks[r];
    const Program& program = graph.program_of(rank);
    std::vector<std::vector<uint32_t>> done(program.sequences.size()),
        ready(program.sequences.size());
    std::vector<Place> slot_at(program.slots);
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      const std::vector<Op>& ops = program.sequences[s].ops;
      for (uint32_t i = 0; i < ops.size(); ++i) {
        done[s].push_back(add({r, s, i}, Role::kDone));
        const bool meets =
            (ops[i].kind == OpKind::kComm && ops[i].detail > 0) || ops[i].kind == OpKind::kCommInit;
        ready[s].push_back(meets ? add({r, s, i}, Role::kReady) : kNone);
        if (ops[i].slot != kNone) slot_at[ops[i].slot] = {s, i};
      }
    }
    // First operation of the group that an operation is in, and how many there are.
    const auto unit_of = [&](Place place) {
      const std::vector<Op>& ops = program.sequences[place.sequence].ops;
      uint32_t i = place.op;
      while (ops[i].kind == OpKind::kComm && ops[i].detail == 0) --i;
      return std::pair<uint32_t, uint32_t>(i, ops[i].kind == OpKind::kComm ? ops[i].detail : 1);
    };
    const auto after = [&](Place place, uint32_t target) {
      const auto [unit, count] = unit_of(place);
      for (uint32_t i = unit; i < unit + count; ++i)
        g.edges.emplace_back(done[place.sequence][i], target);
    };
    std::vector<std::map<uint32_t, uint32_t>> enqueue_of(
        program.sequences.size());  // first op -> vertex
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      const std::vector<Op>& ops = program.sequences[s].ops;
      uint32_t first = 0;  // of the current group
      for (uint32_t i = 0; i < ops.size(); ++i) {
        const Op& op = ops[i];
        const bool follower = op.kind == OpKind::kComm && op.detail == 0;
        if (!follower) first = i;
        const uint32_t entry = ready[s][i] != kNone ? ready[s][i] : done[s][i];
        if (i > 0 && !follower) after({s, i - 1}, entry);
        switch (op.kind) {
          case OpKind::kComm: {
            const Call& call = program.calls[op.a];
            const uint32_t m =
                meeting(rank.comm[call.participant], rank.channel[op.a], op.b, {r, s, i});
            g.edges.emplace_back(ready[s][first], m);
            g.edges.emplace_back(EndsEarly(program, &ops[first]) ? ready[s][first] : m, done[s][i]);
            break;
          }
          case OpKind::kCommInit: {
            const uint32_t m = meeting(rank.comm[op.a], kInitialisation, 0, {r, s, i});
            g.edges.emplace_back(ready[s][i], m);
            g.edges.emplace_back(m, done[s][i]);
            break;
          }
          case OpKind::kWait:
            after(slot_at[op.a], done[s][i]);
            break;
          case OpKind::kEnqueue:
            g.edges.emplace_back(done[s][i],
                                 ready[op.a][op.b] != kNone ? ready[op.a][op.b] : done[op.a][op.b]);
            enqueue_of[op.a][op.b] = done[s][i];
            break;
          case OpKind::kEnqueueLast:
            g.edges.emplace_back(done[s][i], done[op.a][op.b]);
            break;
          default:
            break;
        }
      }
    }
    for (const auto& order : enqueue_of) {
      for (auto it = order.begin(); it != order.end(); ++it) {
        if (it != order.begin()) g.edges.emplace_back(std::prev(it)->second, it->second);
      }
    }
  }
  return g;
}

}  // namespace prism::graph
