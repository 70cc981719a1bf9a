#include "src/graph/graph.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/base/status.h"
#include "src/graph/measured.h"

namespace prism::graph {
namespace {

static_assert(kNone == trace::kUnknownRank);

using trace::Completeness;
using trace::Reader;

// Traces that are kept for comparison of each hash: where nodes differ from rank to rank, more
// would not help.
constexpr size_t kMaxCandidates = 4;

// Splits traces into the programs that a script ran one after the other, in that order: another one
// begins where a rank comes again or the world is another.
std::vector<std::vector<Reader>> Launches(std::vector<Reader> traces) {
  std::stable_sort(traces.begin(), traces.end(), [](const Reader& x, const Reader& y) {
    return x.start_unix_ns() < y.start_unix_ns();
  });
  std::vector<std::vector<Reader>> launches;
  std::set<uint32_t> ranks;
  for (Reader& trace : traces) {
    if (launches.empty() || trace.world() != launches.back().front().world() ||
        ranks.count(trace.rank()) != 0) {
      launches.emplace_back();
      ranks.clear();
    }
    ranks.insert(trace.rank());
    launches.back().push_back(std::move(trace));
  }
  return launches;
}

using WorldRanks = absl::flat_hash_map<uint32_t, std::vector<uint32_t>>;  // by communicator

// World ranks of the members of every communicator. A rank of a recorded job may know no other
// member than itself (kNone): each trace names its own, so together they name all.
WorldRanks MergeMembers(const std::vector<Reader>& traces) {
  WorldRanks merged;
  for (const Reader& t : traces) {
    for (const trace::Communicator& c : t.communicators()) {
      const auto [it, inserted] = merged.try_emplace(c.record.comm);
      std::vector<uint32_t>& ranks = it->second;
      if (inserted) {
        ranks.assign(c.world_ranks.begin(), c.world_ranks.end());
        continue;
      }
      // Traces that contradict each other are told of when the second one is added to the graph.
      for (size_t i = 0; i < std::min(ranks.size(), c.world_ranks.size()); ++i) {
        if (ranks[i] == kNone) ranks[i] = c.world_ranks[i];
      }
    }
  }
  return merged;
}

bool Contradict(const std::vector<uint32_t>& x, const std::vector<uint32_t>& y) {
  return x.size() != y.size() ||
         !std::equal(x.begin(), x.end(), y.begin(),
                     [](uint32_t a, uint32_t b) { return a == b || a == kNone || b == kNone; });
}

// "0,2,?"
std::string MemberList(const std::vector<uint32_t>& ranks) {
  return absl::StrJoin(ranks, ",", [](std::string* out, uint32_t rank) {
    rank == kNone ? absl::StrAppend(out, "?") : absl::StrAppend(out, rank);
  });
}

}  // namespace

absl::StatusOr<uint32_t> RankIndex(const Graph& graph, uint32_t world_rank,
                                   const std::string& purpose) {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < graph.ranks.size(); ++i) {
    if (graph.ranks[i].rank == world_rank) return i;
    ranks.push_back(graph.ranks[i].rank);
  }
  return WithHint(
      absl::InvalidArgumentError(absl::StrCat("there is no rank ", world_rank, purpose)),
      "the job has ranks " + RankList(ranks));
}

std::string RankList(const std::vector<uint32_t>& ranks, size_t most, const char* separator) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    parts.push_back(j == i ? absl::StrCat(ranks[i]) : absl::StrCat(ranks[i], "-", ranks[j]));
    i = j + 1;
  }
  if (parts.size() > most) {
    parts.resize(most);
    parts.push_back("...");
  }
  return absl::StrJoin(parts, separator);
}

std::string TraceName(uint32_t rank) { return absl::StrFormat("trace/rank-%05u.prt", rank); }

absl::StatusOr<Graph> LoadJob(const std::string& directory, const LoadOptions& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return WithHint(absl::NotFoundError(absl::StrCat("no job directory at ", directory)),
                    "`prism capture --job DIR -- PROGRAM` makes one");
  }
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(directory) / "trace", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".prt")) paths.push_back(entry.path().string());
  }
  if (paths.empty()) {
    return WithHint(
        absl::FailedPreconditionError(
            absl::StrCat(directory, " holds no traces (", TraceName(0), " and so on)")),
        "the program made no CUDA call under prism, or the capture did not start: see its output");
  }
  std::sort(paths.begin(), paths.end());
  // "rank-00000-1.prt": a rank's second trace.
  const bool several = std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
    const std::string stem = fs::path(path).stem().string();
    return std::count(stem.begin(), stem.end(), '-') > 1;
  });
  std::vector<Reader> traces;
  traces.reserve(paths.size());
  std::vector<std::string> skipped;
  for (const std::string& path : paths) {
    auto reader =
        Reader::Open(path, {.allow_incomplete = options.allow_incomplete, .check_nodes = false});
    if (!reader.ok()) {
      if (options.allow_incomplete && reader.status().code() == absl::StatusCode::kDataLoss) {
        skipped.push_back(std::string(reader.status().message()));
        continue;
      }
      if (reader.status().code() == absl::StatusCode::kDataLoss) {
        return WithHint(reader.status(),
                        "`prism inspect` shows what it holds; --allow-incomplete goes on with what "
                        "is readable");
      }
      return reader.status();
    }
    traces.push_back(*std::move(reader));
  }
  std::vector<std::vector<Reader>> launches;
  if (several && !traces.empty()) {
    launches = Launches(std::move(traces));
  } else {
    launches.push_back(std::move(traces));
  }
  const auto count = static_cast<uint32_t>(launches.size());
  const uint32_t launch = options.launch == 0 ? count : options.launch;
  if (launch > count) {
    return WithHint(
        absl::InvalidArgumentError(absl::StrCat(directory, " holds ", count, " program",
                                                count == 1 ? "" : "s", ", no number ", launch)),
        "they are counted from 1, in the order in which the command ran them");
  }
  PRISM_ASSIGN_OR_RETURN(Graph graph, BuildGraph(std::move(launches[launch - 1]), options));
  graph.launch = launch;
  graph.launches = count;
  graph.warnings.insert(graph.warnings.end(), skipped.begin(), skipped.end());
  return graph;
}

absl::StatusOr<Graph> BuildGraph(std::vector<Reader> traces, const LoadOptions& options) {
  if (traces.empty()) return absl::FailedPreconditionError("no readable trace");
  std::sort(traces.begin(), traces.end(),
            [](const Reader& x, const Reader& y) { return x.rank() < y.rank(); });
  Graph graph;
  graph.world = traces[0].world();
  for (size_t i = 0; i < traces.size(); ++i) {
    if (traces[i].world() != graph.world) {
      return absl::FailedPreconditionError(absl::StrCat(
          traces[i].path(), " is of a job of ", traces[i].world(), " ranks, ", traces[0].path(),
          " of one of ", graph.world, ": the directory holds two jobs"));
    }
    if (traces[i].rank() >= graph.world || (i > 0 && traces[i].rank() == traces[i - 1].rank())) {
      return absl::FailedPreconditionError(
          absl::StrCat(traces[i].path(), " is rank ", traces[i].rank(), " of ", graph.world,
                       i > 0 && traces[i].rank() == traces[i - 1].rank()
                           ? absl::StrCat(", as is ", traces[i - 1].path())
                           : std::string()));
    }
  }
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0, i = 0; rank < graph.world; ++rank) {
    if (i < traces.size() && traces[i].rank() == rank) {
      ++i;
    } else {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    const std::string text = absl::StrCat(missing.size(), " of ", graph.world,
                                          " ranks have no trace: ", RankList(missing));
    if (!options.allow_incomplete) {
      return WithHint(
          absl::FailedPreconditionError(text),
          "they never called CUDA, or died first; --allow-incomplete goes on without them");
    }
    graph.warnings.push_back(text);
  }

  const WorldRanks members = MergeMembers(traces);

  absl::flat_hash_map<uint64_t, std::vector<std::pair<size_t, uint32_t>>>
      candidates;  // hash -> (trace, program)
  absl::flat_hash_map<uint64_t, std::vector<std::pair<uint32_t, std::vector<uint32_t>>>>
      programs_by_hash;
  absl::flat_hash_map<uint32_t, uint32_t> comm_index;
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> channel_index;
  absl::flat_hash_map<std::string, uint32_t> meta_index;
  std::vector<uint32_t> incomplete;
  uint64_t truncated = 0;
  for (size_t i = 0; i < traces.size(); ++i) {
    const Reader& t = traces[i];
    Rank rank;
    rank.rank = t.rank();
    rank.path = t.path();
    graph.start_unix_ns =
        i == 0 ? t.start_unix_ns() : std::min(graph.start_unix_ns, t.start_unix_ns());
    rank.completeness = t.completeness();
    if (t.completeness() != Completeness::kSealed) incomplete.push_back(t.rank());
    graph.trace_bytes += t.file_bytes();

    // Equal files are recognised without compiling them. An incomplete trace is not trusted to
    // equal another one.
    std::vector<std::pair<size_t, uint32_t>>& same = candidates[TraceHash(t)];
    const auto match = std::find_if(same.begin(), same.end(), [&](const auto& candidate) {
      return traces[candidate.first].completeness() == t.completeness() &&
             SameTrace(traces[candidate.first], t);
    });
    if (match != same.end()) {
      rank.program = match->second;
    } else {
      PRISM_RETURN_IF_ERROR(t.CheckNodes());
      PRISM_ASSIGN_OR_RETURN(Program program, Compile(t, options.allow_incomplete));
      truncated += program.truncated;
      // Others differ in what does not matter: thread names, how often an event was asked for.
      const std::vector<uint32_t> peers = PeerPattern(t);
      auto& compiled = programs_by_hash[ProgramHash(program, peers)];
      const auto equal = std::find_if(compiled.begin(), compiled.end(), [&](const auto& candidate) {
        return candidate.second == peers && SameProgram(graph.programs[candidate.first], program);
      });
      if (equal != compiled.end()) {
        rank.program = equal->first;
      } else {
        rank.program = static_cast<uint32_t>(graph.programs.size());
        graph.programs.push_back(std::move(program));
        compiled.emplace_back(rank.program, peers);
      }
      if (same.size() < kMaxCandidates) same.emplace_back(i, rank.program);
    }
    const Program& program = graph.programs[rank.program];
    graph.ops += program.op_count;

    PRISM_ASSIGN_OR_RETURN(RankBinding binding, Bind(t));
    rank.devices = std::move(binding.devices);
    rank.comm_rank = std::move(binding.comm_rank);
    rank.peer = std::move(binding.peer);
    rank.channel_bytes = binding.channel_bytes;
    for (uint32_t p = 0; p < binding.comm.size(); ++p) {
      const auto [it, inserted] = comm_index.try_emplace(
          binding.comm[p], static_cast<uint32_t>(graph.communicators.size()));
      if (inserted) {
        Communicator c{binding.comm[p], members.at(binding.comm[p]), {}, 0};
        c.members.resize(c.world_ranks.size());
        graph.communicators.push_back(std::move(c));
      }
      Communicator& c = graph.communicators[it->second];
      if (Contradict(c.world_ranks, binding.world_ranks[p])) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", t.rank(), " knows communicator ", c.number, " as one of ranks ",
            MemberList(binding.world_ranks[p]), ", others as one of ", MemberList(c.world_ranks)));
      }
      Member& member = c.members[rank.comm_rank[p]];
      if (member.rank != kNone) {
        return absl::FailedPreconditionError(absl::StrCat(
            "ranks ", graph.ranks.size() == member.rank ? t.rank() : graph.ranks[member.rank].rank,
            " and ", t.rank(), " are both rank ", rank.comm_rank[p], " of communicator ",
            c.number));
      }
      member = {static_cast<uint32_t>(i), p};
      c.expected_init += program.participants[p].has_init;
      rank.comm.push_back(it->second);
    }
    for (uint32_t call = 0; call < program.calls.size(); ++call) {
      const Call& c = program.calls[call];
      if (IsCollective(c.op)) {
        rank.channel.push_back(kNone);
        continue;
      }
      const uint32_t comm = rank.comm[c.participant], self = rank.comm_rank[c.participant];
      const auto peer = static_cast<uint32_t>(rank.peer[call]);
      const Channel channel =
          c.op == trace::CommOp::kSend ? Channel{comm, self, peer} : Channel{comm, peer, self};
      const auto [it, inserted] = channel_index.try_emplace(
          {channel.comm, channel.from, channel.to}, static_cast<uint32_t>(graph.channels.size()));
      if (inserted) graph.channels.push_back(channel);
      rank.channel.push_back(it->second);
    }
    rank.measured_ns = MeasuredNs(t);
    // Threads that do nothing may be more or fewer than the program's.
    if (!rank.measured_ns.empty()) rank.measured_ns.resize(program.sequences.size());
    std::string meta;
    for (std::string_view part : t.meta()) {
      if (!meta.empty()) meta += "\n";
      meta += part;
    }
    if (!meta.empty()) {
      const auto [it, inserted] =
          meta_index.try_emplace(meta, static_cast<uint32_t>(graph.metas.size()));
      if (inserted) graph.metas.push_back(meta);
      rank.meta = it->second;
    }
    graph.ranks.push_back(std::move(rank));
  }
  for (const Communicator& c : graph.communicators) {
    std::vector<uint32_t> unnamed;
    for (uint32_t i = 0; i < c.size(); ++i) {
      if (c.world_ranks[i] == kNone) unnamed.push_back(i);
    }
    if (unnamed.empty()) continue;
    const std::string text =
        absl::StrCat("communicator ", c.number, " of ranks ", MemberList(c.world_ranks),
                     ": no trace names its member", unnamed.size() == 1 ? " " : "s ",
                     RankList(unnamed), " of ", c.size());
    if (!options.allow_incomplete) {
      return WithHint(absl::FailedPreconditionError(text),
                      "their ranks died before they told, or their traces are of another run; "
                      "--allow-incomplete goes on without them");
    }
    graph.warnings.push_back(text);
  }
  if (options.align_communications) AlignCommunications(&graph);
  if (!incomplete.empty()) {
    graph.warnings.push_back(absl::StrCat(
        "incomplete traces of ranks ", RankList(incomplete),
        truncated > 0 ? absl::StrCat(" (", truncated, " operations left out)") : std::string()));
  }
  return graph;
}

}  // namespace prism::graph
