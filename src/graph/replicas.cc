#include "src/graph/replicas.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status.h"
#include "src/base/straight_line.h"

namespace prism::graph {
namespace {

using trace::CommOp;
using trace::SequenceKind;

// How world ranks count through the replicas.
struct Layout {
  uint32_t stride = 1;    // from a rank to the next replica's
  uint32_t replicas = 1;  // in the job
  uint32_t block = 1;     // replicas that only come and go together

  uint32_t ReplicaOf(uint32_t world_rank) const { return world_rank / stride % replicas; }
};

enum class Role { kCopied, kJoined };

// "communicator 3 (ranks 0, 2)"
std::string Named(const Communicator& c) {
  std::vector<uint32_t> ranks = c.world_ranks;
  std::sort(ranks.begin(), ranks.end());
  return absl::StrCat("communicator ", c.number, " (ranks ", RankList(ranks), ")");
}

absl::Status Refused(const Communicator& c, const std::string& why) {
  return WithHint(absl::FailedPreconditionError(absl::StrCat(
                      "the replicas of this job cannot be changed: ", Named(c), " ", why)),
                  "name a communicator whose members are one rank of each replica; prism inspect "
                  "DIR lists them");
}

absl::StatusOr<Layout> FindLayout(const Graph& graph, uint32_t number) {
  const auto found = std::find_if(graph.communicators.begin(), graph.communicators.end(),
                                  [&](const Communicator& c) { return c.number == number; });
  const auto bad = [&](const std::string& why) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat("communicator ", number, " ", why)),
                    "prism inspect DIR lists the communicators");
  };
  if (found == graph.communicators.end()) return bad("is none that the job uses");
  if (graph.ranks.size() != graph.world) {
    return WithHint(absl::FailedPreconditionError(
                        absl::StrCat(graph.world - graph.ranks.size(), " of ", graph.world,
                                     " ranks have no trace, or have failed: communicator ", number,
                                     " can have no more or fewer replicas")),
                    "a complete job, and no such --what-if after a failed rank");
  }
  for (const Communicator& c : graph.communicators) {
    for (const Member& member : c.members) {
      if (member.rank == kNone) {
        return absl::FailedPreconditionError(
            absl::StrCat("not all ranks of ", Named(c), " are known: their traces are incomplete"));
      }
    }
  }
  const std::vector<uint32_t>& members = found->world_ranks;
  if (members.size() < 2) return bad("has one member: there are no replicas");
  Layout layout;
  layout.stride = members[1] - members[0];
  layout.replicas = static_cast<uint32_t>(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[0] == kNone || members[1] <= members[0] ||
        members[i] != members[0] + i * layout.stride ||
        layout.ReplicaOf(members[i]) != static_cast<uint32_t>(i)) {
      return bad(
          absl::StrCat("is of ranks ", RankList(members), ", which do not number replicas evenly"));
    }
  }
  if (graph.world % (layout.stride * layout.replicas) != 0)
    return bad(absl::StrCat("does not divide the ", graph.world, " ranks evenly"));
  return layout;
}

// What the job's communicators are used for.
struct Uses {
  std::vector<bool> crossed;      // messages, or what is made of them, between replicas
  std::vector<bool> collectives;  // others
};

Uses UsesOf(const Graph& graph, const Layout& layout) {
  Uses uses{std::vector<bool>(graph.communicators.size(), false),
            std::vector<bool>(graph.communicators.size(), false)};
  for (const Channel& channel : graph.channels) {
    const std::vector<uint32_t>& ranks = graph.communicators[channel.comm].world_ranks;
    if (layout.ReplicaOf(ranks[channel.from]) != layout.ReplicaOf(ranks[channel.to]))
      uses.crossed[channel.comm] = true;
  }
  for (const Rank& rank : graph.ranks) {
    for (const Call& call : graph.program_of(rank).calls) {
      const uint32_t comm = rank.comm[call.participant];
      if (call.op == CommOp::kAllToAll || call.op == CommOp::kGather ||
          call.op == CommOp::kScatter) {
        uses.crossed[comm] = true;
      } else if (IsCollective(call.op)) {
        uses.collectives[comm] = true;
      }
    }
  }
  return uses;
}

// The role of each communicator; finds the blocks.
absl::StatusOr<std::vector<Role>> FindRoles(const Graph& graph, Layout* layout) {
  const Uses uses = UsesOf(graph, *layout);
  std::vector<Role> roles;
  std::vector<std::pair<size_t, uint32_t>> steps;  // of joined communicators: every n-th replica
  for (size_t i = 0; i < graph.communicators.size(); ++i) {
    const Communicator& c = graph.communicators[i];
    std::map<uint32_t, std::vector<uint32_t>> within;  // replica -> its members, as of replica 0
    for (const uint32_t rank : c.world_ranks) {
      const uint32_t replica = layout->ReplicaOf(rank);
      within[replica].push_back(rank - replica * layout->stride);
    }
    for (auto& [replica, members] : within) std::sort(members.begin(), members.end());
    const auto count = static_cast<uint32_t>(within.size());
    const uint32_t first = within.begin()->first, last = within.rbegin()->first;
    bool even = count > 1;
    for (uint32_t n = 0; auto& [replica, members] : within)
      even = even && members == within.begin()->second &&
             (replica - first) * (count - 1) == n++ * (last - first);
    const uint32_t step = count > 1 ? (last - first) / (count - 1) : 0;
    if (even && step * count == layout->replicas && !uses.crossed[i]) {
      roles.push_back(Role::kJoined);
      steps.emplace_back(i, step);
      continue;
    }
    roles.push_back(Role::kCopied);
    uint32_t block = 1;
    while (block < layout->replicas &&
           (layout->replicas % block != 0 || first / block != last / block))
      ++block;
    if (count > 1 && block == layout->replicas) {
      return Refused(c, uses.crossed[i]
                            ? "exchanges messages between all of them, so what is sharded over it "
                              "would have copies whose reduction the job does not show"
                            : "has members in some of them, in no regular order");
    }
    layout->block = std::lcm(layout->block, block);
  }
  for (const auto& [i, step] : steps) {
    if (layout->block % step != 0)
      return Refused(graph.communicators[i], "has members in some of them, in no regular order");
  }
  return roles;
}

// ---- What a rank does on its shard

uint64_t Threads(const Kernel& kernel) {
  uint64_t threads = 1;
  for (const uint32_t extent : kernel.grid) threads *= std::max(extent, 1u);
  for (const uint32_t extent : kernel.block) threads *= std::max(extent, 1u);
  return threads;
}

// Spans between a ReduceScatter of a joined communicator and the AllGather that waits for what was
// made of it.
std::vector<Place> ShardSpans(const Program& program, const std::vector<bool>& joined) {
  const auto is = [&](const Op& op, CommOp kind) {
    return op.kind == OpKind::kComm && program.calls[op.a].op == kind &&
           joined[program.calls[op.a].participant];
  };
  std::vector<Place> place_of(program.slots);
  std::vector<bool> gathers(program.slots, false);  // a gather waits for the slot
  for (uint32_t s = 0; s < program.sequences.size(); ++s) {
    const Sequence& sequence = program.sequences[s];
    std::vector<uint32_t> waits;  // directly before
    for (uint32_t i = 0; i < sequence.ops.size(); ++i) {
      const Op& op = sequence.ops[i];
      if (op.slot != kNone) place_of[op.slot] = {s, i};
      if (sequence.kind != SequenceKind::kStream) continue;
      if (op.kind == OpKind::kWait) waits.push_back(op.a);
      if (is(op, CommOp::kAllGather)) {
        for (const uint32_t slot : waits) gathers[slot] = true;
      }
      if (op.kind == OpKind::kSpan || op.kind == OpKind::kComm) waits.clear();
    }
  }
  // Whether the last that a stream did before a slot was to reduce a shard.
  const auto reduces = [&](uint32_t slot) {
    const Place place = place_of[slot];
    if (place.sequence == kNone) return false;
    const Sequence& sequence = program.sequences[place.sequence];
    if (sequence.kind != SequenceKind::kStream) return false;
    for (uint32_t i = place.op + 1; i-- > 0;) {
      const OpKind kind = sequence.ops[i].kind;
      if (kind == OpKind::kComm) return is(sequence.ops[i], CommOp::kReduceScatter);
      if (kind == OpKind::kSpan) return false;
    }
    return false;
  };
  std::vector<Place> spans;
  for (uint32_t s = 0; s < program.sequences.size(); ++s) {
    const Sequence& sequence = program.sequences[s];
    if (sequence.kind != SequenceKind::kStream) continue;
    bool reduced = false;
    for (uint32_t i = 0; i < sequence.ops.size(); ++i) {
      const Op& op = sequence.ops[i];
      if (op.kind == OpKind::kSpan && reduced) spans.push_back({s, i});
      if (is(op, CommOp::kReduceScatter) || (op.kind == OpKind::kWait && reduces(op.a)))
        reduced = true;
      if (is(op, CommOp::kAllGather) || (op.slot != kNone && gathers[op.slot])) reduced = false;
    }
  }
  return spans;
}

// Sizes become `old_replicas` / `new_replicas` of what they were.
struct Shrink {
  uint64_t old_replicas, new_replicas;
  uint64_t operator()(uint64_t size) const {
    return (size * old_replicas + new_replicas - 1) / new_replicas;
  }
};

// Streams on which there is nothing but communications of `alone` participants, and what orders
// them.
std::vector<bool> StreamsOf(const Program& program, const std::vector<bool>& alone) {
  std::vector<bool> streams;
  for (const Sequence& sequence : program.sequences) {
    bool some = false, others = sequence.kind != SequenceKind::kStream;
    for (const Op& op : sequence.ops) {
      const bool is_alone = op.kind == OpKind::kComm && alone[program.calls[op.a].participant];
      some = some || is_alone;
      others = others || op.kind == OpKind::kSpan || (op.kind == OpKind::kComm && !is_alone);
    }
    streams.push_back(some && !others);
  }
  return streams;
}

// Whoever is alone has nothing to reduce or gather. Such a group is not made, nor its stream: the
// host calls nothing for either, nor to order other streams before or behind it.
void LeaveOut(const std::vector<bool>& alone, Program* program) {
  const std::vector<bool> streams = StreamsOf(*program, alone);
  std::vector<bool> made_there(program->slots, false), awaited_there(program->slots, false),
      awaited_elsewhere(program->slots, false);
  for (size_t s = 0; s < streams.size(); ++s) {
    for (const Op& op : program->sequences[s].ops) {
      if (op.slot != kNone) made_there[op.slot] = streams[s];
      if (op.kind == OpKind::kWait) (streams[s] ? awaited_there : awaited_elsewhere)[op.a] = true;
    }
  }
  const auto is_called = [&](uint32_t s, const Op& op) {
    if (streams[s]) return false;
    if (op.kind == OpKind::kComm) return !alone[program->calls[op.a].participant];
    if (op.kind == OpKind::kWait) return !made_there[op.a];
    return op.kind != OpKind::kNothing || op.slot == kNone || !awaited_there[op.slot] ||
           awaited_elsewhere[op.slot];
  };
  for (Sequence& thread : program->sequences) {
    if (thread.kind == SequenceKind::kStream) continue;
    for (size_t i = 1; i < thread.ops.size(); ++i) {
      const Op& op = thread.ops[i];
      Op& before = thread.ops[i - 1];  // what the host did until the call's end
      if (op.kind == OpKind::kEnqueue && before.kind == OpKind::kHost &&
          !is_called(op.a, program->sequences[op.a].ops[op.b]))
        before.b = 0;
    }
  }
  for (Sequence& sequence : program->sequences) {
    for (Op& op : sequence.ops) {
      if (op.kind != OpKind::kComm || op.detail != 1) continue;
      const uint32_t participant = program->calls[op.a].participant;
      if (!alone[participant]) continue;
      op = {OpKind::kNothing, 0, 0, 0, 0, op.slot};
      --program->participants[participant].collectives;
    }
  }
}

struct Changed {
  uint32_t program = 0;       // in the new graph
  std::vector<Place> shards;  // spans that have become another's
};

// A program of which the participants in `joined` have `sizes`, with the rank's shard as it then
// is.
Program Change(const Program& old, const std::vector<bool>& joined,
               const std::vector<uint32_t>& sizes, const Shrink& shrink,
               const std::vector<Place>& shards) {
  Program program = old;
  for (Call& call : program.calls) {
    if (!joined[call.participant] ||
        (call.op != CommOp::kReduceScatter && call.op != CommOp::kAllGather))
      continue;
    const Shrink part{old.participants[call.participant].size, sizes[call.participant]};
    call.count = part(call.count);
    call.bytes = part(call.bytes);
  }
  for (size_t i = 0; i < sizes.size(); ++i) program.participants[i].size = sizes[i];
  std::vector<bool> alone;
  for (size_t i = 0; i < sizes.size(); ++i) alone.push_back(joined[i] && sizes[i] == 1);
  if (std::find(alone.begin(), alone.end(), true) != alone.end()) LeaveOut(alone, &program);
  std::map<uint32_t, uint32_t> kernels, spans;  // old -> new
  for (const Place place : shards) {
    Op& op = program.sequences[place.sequence].ops[place.op];
    const auto [span, is_new] =
        spans.try_emplace(op.a, static_cast<uint32_t>(program.spans.size()));
    if (is_new) {
      Span changed = program.spans[op.a];
      // Another one, to whoever compares spans by their hashes.
      changed.hash =
          (changed.hash ^ shrink.new_replicas << 32 ^ shrink.old_replicas) * trace::kFnvPrime;
      for (uint32_t& k : changed.kernels) {
        const auto [kernel, first] =
            kernels.try_emplace(k, static_cast<uint32_t>(program.kernels.size()));
        if (first) {
          Kernel smaller = program.kernels[k];
          uint32_t& extent = *std::max_element(std::begin(smaller.grid), std::end(smaller.grid));
          extent = static_cast<uint32_t>(shrink(extent));
          smaller.bytes = shrink(smaller.bytes);
          program.kernels.push_back(std::move(smaller));
        }
        k = kernel->second;
      }
      program.spans.push_back(std::move(changed));
    }
    op.a = span->second;
  }
  return program;
}

// Moves what a rank measured of its shards' spans along the line of their kernels' times by size.
void Remeasure(const Program& old, const Program& changed, const std::vector<Place>& shards,
               std::vector<std::vector<int64_t>>* measured) {
  // Of one size nothing is known but that there is less to do.
  const auto time_at = [](const StraightLine& line, double size) {
    return line.slope() > 0 ? std::max(line.At(0), 0.0) + line.slope() * size : size;
  };
  std::map<std::string, StraightLine> lines;  // by the names of a span's kernels
  const auto name_of = [](const Program& program, const Op& op) {
    std::string name;
    for (const uint32_t k : program.spans[op.a].kernels)
      absl::StrAppend(&name, program.kernels[k].name, "\n");
    return name;
  };
  const auto size_of = [](const Program& program, const Op& op) {
    double size = 0;
    for (const uint32_t k : program.spans[op.a].kernels)
      size += static_cast<double>(Threads(program.kernels[k]));
    return size;
  };
  for (const bool apply : {false, true}) {
    for (const Place place : shards) {
      if (place.sequence >= measured->size() || place.op >= (*measured)[place.sequence].size())
        continue;
      int64_t& ns = (*measured)[place.sequence][place.op];
      if (ns < 0) continue;
      const Op& op = old.sequences[place.sequence].ops[place.op];
      StraightLine& line = lines[name_of(old, op)];
      const double size = size_of(old, op);
      if (apply) {
        const double now = size_of(changed, changed.sequences[place.sequence].ops[place.op]);
        const double before = time_at(line, size);
        if (before > 0) ns = std::llround(static_cast<double>(ns) * time_at(line, now) / before);
        continue;
      }
      line.Add(size, static_cast<double>(ns));
    }
  }
}

// ---- The new graph

// Which ranks there are, and what they are called: each copy has all ranks of the job or some.
struct Copies {
  uint32_t count = 1;
  uint32_t replicas = 1;                     // of all copies
  std::vector<bool> kept;                    // of the job's ranks, in every copy
  std::vector<std::vector<uint32_t>> ranks;  // [copy][index of the rank]: its world rank
};

Graph Build(const Graph& old, const Layout& layout, const std::vector<Role>& roles,
            const Copies& copies, uint32_t world, uint32_t gpus_per_node) {
  Graph graph;
  graph.world = world;
  graph.metas = old.metas;
  graph.warnings = old.warnings;
  graph.trace_bytes = old.trace_bytes;
  graph.launch = old.launch;
  graph.launches = old.launches;
  graph.start_unix_ns = old.start_unix_ns;

  // Communicators, with the position of each old member in them.
  uint32_t next_number = 0;
  for (const Communicator& c : old.communicators) next_number = std::max(next_number, c.number + 1);
  struct Image {
    uint32_t comm = kNone;            // in the new graph
    std::vector<uint32_t> positions;  // by old position; kNone: gone
    bool moved = false;               // lies otherwise on the nodes, or has other members
  };
  std::vector<std::vector<Image>> images(old.communicators.size());  // [old][copy]
  for (size_t i = 0; i < old.communicators.size(); ++i) {
    const Communicator& c = old.communicators[i];
    const bool joined = roles[i] == Role::kJoined;
    const bool sorted = std::is_sorted(c.world_ranks.begin(), c.world_ranks.end());
    images[i].resize(copies.count);
    for (uint32_t copy = 0; copy < copies.count; ++copy) {
      Image& image = images[i][copy];
      image.positions.assign(c.size(), kNone);
      if (!joined || copy == 0) {
        image.comm = static_cast<uint32_t>(graph.communicators.size());
        graph.communicators.push_back({copy == 0 ? c.number : next_number++, {}, {}, 0});
      } else {
        image.comm = images[i][0].comm;
      }
      Communicator& now = graph.communicators[image.comm];
      for (uint32_t position = 0; position < c.size(); ++position) {
        const uint32_t rank = c.members[position].rank;
        if (!copies.kept[rank]) continue;
        image.positions[position] = now.size();
        now.world_ranks.push_back(copies.ranks[copy][rank]);
        now.members.emplace_back();
      }
      // A copy of a group of ranks that are gone.
      if (now.size() == 0) {
        graph.communicators.pop_back();
        image.comm = kNone;
        continue;
      }
      image.moved = joined;
      if (!joined) {
        for (uint32_t p = 1; p < c.size() && gpus_per_node > 0; ++p) {
          image.moved =
              image.moved ||
              (c.world_ranks[p] / gpus_per_node == c.world_ranks[0] / gpus_per_node) !=
                  (now.world_ranks[p] / gpus_per_node == now.world_ranks[0] / gpus_per_node);
        }
      }
    }
    if (!joined || !sorted || copies.count == 1) continue;
    // Positions ascend with the ranks, as they did.
    Communicator& now = graph.communicators[images[i][0].comm];
    std::vector<uint32_t> order = now.world_ranks;
    std::sort(order.begin(), order.end());
    for (Image& image : images[i]) {
      for (uint32_t& position : image.positions) {
        if (position == kNone) continue;
        position = static_cast<uint32_t>(
            std::lower_bound(order.begin(), order.end(), now.world_ranks[position]) -
            order.begin());
      }
    }
    now.world_ranks = order;
  }
  std::vector<std::vector<uint32_t>> channel_images(old.channels.size());  // [old][copy]
  for (size_t i = 0; i < old.channels.size(); ++i) {
    const Channel& channel = old.channels[i];
    for (uint32_t copy = 0; copy < copies.count; ++copy) {
      const Image& image = images[channel.comm][copy];
      const uint32_t from = image.positions[channel.from], to = image.positions[channel.to];
      if (from == kNone || to == kNone) {
        channel_images[i].push_back(kNone);
        continue;
      }
      channel_images[i].push_back(static_cast<uint32_t>(graph.channels.size()));
      graph.channels.push_back({image.comm, from, to});
    }
  }

  // Ranks, in their new order.
  std::vector<std::pair<uint32_t, std::pair<uint32_t, uint32_t>>> order;  // world rank, (copy, old)
  for (uint32_t copy = 0; copy < copies.count; ++copy) {
    for (uint32_t rank = 0; rank < old.ranks.size(); ++rank) {
      if (copies.kept[rank]) order.push_back({copies.ranks[copy][rank], {copy, rank}});
    }
  }
  std::sort(order.begin(), order.end());
  const Shrink shrink{layout.replicas, copies.replicas};
  std::map<std::pair<uint32_t, std::vector<bool>>, Changed> programs;
  for (const auto& [world_rank, from] : order) {
    const auto [copy, index] = from;
    const Rank& source = old.ranks[index];
    const Program& program = old.program_of(source);
    std::vector<bool> joined;
    std::vector<uint32_t> sizes;
    for (const uint32_t comm : source.comm) {
      joined.push_back(roles[comm] == Role::kJoined);
      sizes.push_back(graph.communicators[images[comm][copy].comm].size());
    }
    const auto [known, is_new] = programs.try_emplace({source.program, joined});
    Changed& changed = known->second;
    if (is_new) {
      changed.program = static_cast<uint32_t>(graph.programs.size());
      changed.shards = ShardSpans(program, joined);
      graph.programs.push_back(Change(program, joined, sizes, shrink, changed.shards));
    }
    Rank rank = source;
    rank.rank = world_rank;
    rank.program = changed.program;
    for (size_t p = 0; p < rank.comm.size(); ++p) {
      const Image& image = images[source.comm[p]][copy];
      rank.comm[p] = image.comm;
      rank.comm_rank[p] = image.positions[source.comm_rank[p]];
      Communicator& c = graph.communicators[image.comm];
      c.members[rank.comm_rank[p]] = {static_cast<uint32_t>(graph.ranks.size()),
                                      static_cast<uint32_t>(p)};
      c.expected_init += program.participants[p].has_init;
    }
    for (size_t call = 0; call < program.calls.size(); ++call) {
      const uint32_t comm = source.comm[program.calls[call].participant];
      const uint32_t peer_copy = IsCollective(program.calls[call].op) ? 0 : copy;  // a root is one
      if (rank.peer[call] >= 0) {
        const uint32_t position = images[comm][roles[comm] == Role::kJoined ? peer_copy : copy]
                                      .positions[static_cast<size_t>(rank.peer[call])];
        // The root's place is taken by the first that is left.
        rank.peer[call] = position == kNone ? 0 : static_cast<int32_t>(position);
      }
      if (rank.channel[call] != kNone)
        rank.channel[call] = channel_images[rank.channel[call]][copy];
    }
    Remeasure(program, graph.programs[changed.program], changed.shards, &rank.measured_ns);
    for (size_t s = 0; s < rank.measured_ns.size(); ++s) {
      const std::vector<Op>& ops = program.sequences[s].ops;
      if (program.sequences[s].kind != SequenceKind::kStream) continue;
      for (size_t i = 0; i < std::min(ops.size(), rank.measured_ns[s].size()); ++i) {
        if (ops[i].kind == OpKind::kComm &&
            images[source.comm[program.calls[ops[i].a].participant]][copy].moved)
          rank.measured_ns[s][i] = -1;
      }
    }
    graph.ops += program.op_count;
    graph.ranks.push_back(std::move(rank));
  }
  return graph;
}

}  // namespace

absl::StatusOr<Graph> WithReplicas(const Graph& graph, uint32_t communicator, uint32_t factor,
                                   uint32_t gpus_per_node) {
  PRISM_ASSIGN_OR_RETURN(Layout layout, FindLayout(graph, communicator));
  PRISM_ASSIGN_OR_RETURN(const std::vector<Role> roles, FindRoles(graph, &layout));
  Copies copies{factor, factor * layout.replicas, std::vector<bool>(graph.ranks.size(), true), {}};
  const uint32_t group = layout.stride * layout.replicas;
  for (uint32_t copy = 0; copy < factor; ++copy) {
    std::vector<uint32_t>& ranks = copies.ranks.emplace_back();
    for (const Rank& rank : graph.ranks)
      ranks.push_back((rank.rank / group * factor + copy) * group + rank.rank % group);
  }
  return Build(graph, layout, roles, copies, graph.world * factor, gpus_per_node);
}

absl::StatusOr<Graph> WithoutReplicaOf(const Graph& graph, uint32_t communicator, uint32_t failed) {
  PRISM_RETURN_IF_ERROR(RankIndex(graph, failed, " to fail").status());
  PRISM_ASSIGN_OR_RETURN(Layout layout, FindLayout(graph, communicator));
  PRISM_ASSIGN_OR_RETURN(const std::vector<Role> roles, FindRoles(graph, &layout));
  if (layout.block == layout.replicas) {
    return absl::FailedPreconditionError(
        "what the job's communicators join is all of its replicas: none is left without one");
  }
  const auto block_of = [&](uint32_t rank) { return layout.ReplicaOf(rank) / layout.block; };
  Copies copies{1, layout.replicas - layout.block, {}, {{}}};
  for (const Rank& rank : graph.ranks) {
    copies.kept.push_back(block_of(rank.rank) != block_of(failed));
    copies.ranks[0].push_back(rank.rank);
  }
  return Build(graph, layout, roles, copies, graph.world, /*gpus_per_node=*/0);
}

}  // namespace prism::graph
