#include "src/report/waits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "src/base/status.h"
#include "src/engine/cost_model.h"

namespace prism::report {
namespace {

using engine::Interval;
using graph::Graph;
using graph::kNone;
using graph::OpKind;

// A rank is waited for if who waits longest spends this share of the step on it.
constexpr double kStragglerShare = 0.02;
// In this share of the steps: who is late by chance is not so in nearly all of them.
constexpr double kMostSteps = 0.9;
// Who comes this share of the longest wait before the last one is late too.
constexpr double kLateToo = 0.1;
// The timelines of all ranks take about 100 bytes an operation.
constexpr uint64_t kMaxOps = 5'000'000;

constexpr Cause kOwnCauses[] = {Cause::kHost, Cause::kCompute};

enum Activity { kCompute, kTransfer, kWaiting, kIdle, kActivities };

// Threads of a span's kernels, 16 bytes copied for one.
double WorkOf(const graph::Program& program, uint32_t span) {
  double work = 0;
  for (const uint32_t id : program.spans[span].kernels) {
    const graph::Kernel& k = program.kernels[id];
    work += k.bytes > 0 ? static_cast<double>(k.bytes) / 16
                        : static_cast<double>(uint64_t{k.grid[0]} * k.grid[1] * k.grid[2]) *
                              static_cast<double>(uint64_t{k.block[0]} * k.block[1] * k.block[2]);
  }
  return work;
}

// What a rank does at any time, as sums since the beginning.
class Activities {
 public:
  using Sums = std::array<int64_t, kActivities>;

  // `intervals` of the rank's streams.
  Activities(const Graph& graph, const std::vector<const Interval*>& intervals) {
    struct Edge {
      int64_t at;
      Activity what;
      int change;
    };
    std::vector<Edge> edges;
    const auto add = [&](int64_t from, int64_t to, Activity what) {
      if (from >= to) return;
      edges.push_back({from, what, 1});
      edges.push_back({to, what, -1});
    };
    for (const Interval* i : intervals) {
      const graph::Program& program = graph.program_of(graph.ranks[i->rank]);
      const graph::Op& op = program.sequences[i->sequence].ops[i->op];
      if (op.kind == OpKind::kSpan) {
        add(i->start_ns, i->end_ns, kCompute);
      } else if (op.kind == OpKind::kComm) {
        add(i->start_ns, i->met_ns, kWaiting);
        add(i->met_ns, i->end_ns, kTransfer);
      }
    }
    std::sort(edges.begin(), edges.end(), [](const Edge& x, const Edge& y) { return x.at < y.at; });
    std::array<int, kActivities> running = {};
    points_.push_back({});
    for (const Edge& edge : edges) {
      Point next = points_.back();
      next.sums[Current(running)] += edge.at - next.at;
      next.at = edge.at;
      if (next.at == points_.back().at) {
        points_.back() = next;
      } else {
        points_.push_back(next);
      }
      running[edge.what] += edge.change;
    }
  }

  Sums Between(int64_t from, int64_t to) const {
    Sums sums = SumsAt(to);
    const Sums before = SumsAt(from);
    for (size_t a = 0; a < kActivities; ++a) sums[a] -= before[a];
    return sums;
  }

 private:
  struct Point {
    int64_t at = 0;
    Sums sums = {};
  };
  static Activity Current(const std::array<int, kActivities>& running) {
    for (const Activity a : {kCompute, kTransfer, kWaiting}) {
      if (running[a] > 0) return a;
    }
    return kIdle;
  }
  Sums SumsAt(int64_t at) const {
    const auto after = std::upper_bound(points_.begin(), points_.end(), at,
                                        [](int64_t t, const Point& p) { return t < p.at; });
    if (after == points_.begin()) return {};
    const Point& before = *std::prev(after);
    Sums sums = before.sums;
    if (after == points_.end()) {
      sums[kIdle] += at - before.at;
      return sums;
    }
    // Between two points one thing is done.
    for (size_t a = 0; a < kActivities; ++a) {
      if (after->sums[a] != before.sums[a]) sums[a] += at - before.at;
    }
    return sums;
  }
  std::vector<Point> points_;
};

struct Visit {
  uint32_t rank;  // index in Graph::ranks
  const Interval* interval;
};

// One communication of all its participants.
struct Meeting {
  uint32_t comm;
  std::vector<Visit> visits;  // by rank
  size_t last = 0;            // of them: who comes last, the first such

  const Visit& Last() const { return visits[last]; }
};

const graph::Call& CallOf(const Graph& graph, const Visit& visit) {
  const graph::Program& program = graph.program_of(graph.ranks[visit.rank]);
  return program.calls[program.sequences[visit.interval->sequence].ops[visit.interval->op].a];
}

std::string SiteOf(const Graph& graph, const Visit& visit) {
  const graph::Program& program = graph.program_of(graph.ranks[visit.rank]);
  const uint32_t site = CallOf(graph, visit).call_site;
  return site < program.strings.size() ? program.strings[site] : std::string();
}

const Visit* VisitOf(const Meeting& meeting, uint32_t rank) {
  const auto found =
      std::lower_bound(meeting.visits.begin(), meeting.visits.end(), rank,
                       [](const Visit& visit, uint32_t wanted) { return visit.rank < wanted; });
  return found == meeting.visits.end() || found->rank != rank ? nullptr : &*found;
}

class Analysis {
 public:
  Analysis(const Graph& graph, const engine::Outcome& outcome) : graph_(graph) {
    std::vector<std::vector<const Interval*>> of_rank(graph.ranks.size());
    for (const Interval& i : outcome.timeline) {
      const graph::Program& program = graph.program_of(graph.ranks[i.rank]);
      if (program.sequences[i.sequence].kind == trace::SequenceKind::kStream)
        of_rank[i.rank].push_back(&i);
    }
    for (const auto& intervals : of_rank) activities_.emplace_back(graph, intervals);
    CollectMeetings(of_rank);
    CollectWork(of_rank);
  }

  // What one rank had to do with others' waiting in a step: they for it, by its own causes, and it
  // for them.
  struct Balance {
    std::array<int64_t, kCauses> caused_ns = {};
    int64_t waited_ns = 0;
    int64_t own_ns() const {
      int64_t ns = 0;
      for (const Cause cause : kOwnCauses) ns += caused_ns[static_cast<size_t>(cause)];
      return ns;
    }
  };

  // Adds the waits of a step, [begins[rank], ends[rank]), to the rows; returns each rank's balance,
  // of communications whose ranks are meant to come together.
  std::vector<Balance> AddStep(const std::vector<int64_t>& begins,
                               const std::vector<int64_t>& ends) {
    std::vector<Balance> balances(graph_.ranks.size());
    // Of the meetings of one group the one that is waited for longest counts.
    struct Late {
      size_t meeting;
      const Visit* last;
      const Visit* first;
    };
    std::map<std::tuple<uint32_t, uint32_t, int64_t>, Late> late;
    for (size_t m = 0; m < meetings_.size(); ++m) {
      const Visit& last = meetings_[m].Last();
      const int64_t at = last.interval->start_ns;
      if (at < begins[last.rank] || at >= ends[last.rank]) continue;
      const std::vector<const Visit*> waiting = WaitingFor(meetings_[m], last);
      if (waiting.empty()) continue;
      const Visit* first =
          *std::min_element(waiting.begin(), waiting.end(), [](const Visit* x, const Visit* y) {
            return x->interval->start_ns < y->interval->start_ns;
          });
      const auto [entry, is_new] =
          late.try_emplace({last.rank, last.interval->sequence, at}, Late{m, &last, first});
      if (!is_new && first->interval->start_ns < entry->second.first->interval->start_ns)
        entry->second = {m, &last, first};
    }
    for (const auto& [unit, l] : late) {
      const Meeting& meeting = meetings_[l.meeting];
      const int64_t first_ns = l.first->interval->start_ns;
      const int64_t wait_ns = l.last->interval->start_ns - first_ns;
      const std::array<int64_t, kCauses> causes = Causes(l.meeting, *l.last, *l.first);
      WaitRow& row = RowOf(meeting, *l.last);
      ++row.calls;
      row.wait_ns += wait_ns;
      for (size_t c = 0; c < kCauses; ++c) row.by_cause_ns[c] += causes[c];
      if (row.waiting_call_site.empty()) row.waiting_call_site = SiteOf(graph_, *l.first);
      const std::vector<const Visit*> waiting = WaitingFor(meeting, *l.last);
      for (const Visit* visit : waiting) row.waiting.push_back(graph_.ranks[visit->rank].rank);
      if (!row.together) continue;
      std::map<uint32_t, const Visit*> first_of;  // by role
      for (const Visit* visit : waiting) {
        const Visit*& first = first_of[roles_[visit->rank]];
        if (first == nullptr || visit->interval->start_ns < first->interval->start_ns)
          first = visit;
      }
      for (const Visit& visit : meeting.visits) {
        // Who is late, against the first of its role.
        const double before = static_cast<double>(l.last->interval->start_ns) -
                              static_cast<double>(visit.interval->start_ns);
        if (before > kLateToo * static_cast<double>(wait_ns)) continue;
        const auto first = first_of.find(roles_[visit.rank]);
        if (first == first_of.end() ||
            first->second->interval->start_ns >= visit.interval->start_ns) {
          continue;
        }
        const auto own = Causes(l.meeting, visit, *first->second);
        for (size_t c = 0; c < kCauses; ++c) balances[visit.rank].caused_ns[c] += own[c];
      }
      for (const Visit* visit : waiting) {
        if (roles_[visit->rank] == roles_[l.last->rank])
          balances[visit->rank].waited_ns += l.last->interval->start_ns - visit->interval->start_ns;
      }
    }
    return balances;
  }

  std::vector<WaitRow> TakeRows() {
    std::vector<WaitRow> rows;
    for (auto& [key, row] : rows_) {
      std::sort(row.waiting.begin(), row.waiting.end());
      row.waiting.erase(std::unique(row.waiting.begin(), row.waiting.end()), row.waiting.end());
      rows.push_back(std::move(row));
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const WaitRow& x, const WaitRow& y) { return x.wait_ns > y.wait_ns; });
    return rows;
  }

  // The other ranks of a rank's role: indices.
  std::vector<uint32_t> Peers(uint32_t rank) const {
    std::vector<uint32_t> peers;
    for (uint32_t r = 0; r < roles_.size(); ++r) {
      if (r != rank && roles_[r] == roles_[rank]) peers.push_back(r);
    }
    return peers;
  }
  // The time of a rank's kernels, and their work, over the median of its peers.
  double TimeRatio(uint32_t rank) const { return Ratio(rank, span_ns_); }
  double WorkRatio(uint32_t rank) const { return Ratio(rank, work_); }

 private:
  void CollectMeetings(const std::vector<std::vector<const Interval*>>& of_rank) {
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, Meeting> meetings;
    for (uint32_t r = 0; r < of_rank.size(); ++r) {
      const graph::Rank& rank = graph_.ranks[r];
      const graph::Program& program = graph_.program_of(rank);
      for (const Interval* i : of_rank[r]) {
        const graph::Op& op = program.sequences[i->sequence].ops[i->op];
        if (op.kind != OpKind::kComm) continue;
        const uint32_t comm = rank.comm[program.calls[op.a].participant];
        Meeting& meeting = meetings[{comm, rank.channel[op.a], op.b}];
        meeting.comm = comm;
        meeting.visits.push_back({r, i});
      }
    }
    for (auto& [key, meeting] : meetings) {
      for (const Visit& visit : meeting.visits) {
        groups_[{visit.rank, visit.interval->sequence, visit.interval->start_ns}].push_back(
            meetings_.size());
        meetings_of_[{visit.rank, meeting.comm}].push_back(meetings_.size());
      }
      meeting.last =
          static_cast<size_t>(std::max_element(meeting.visits.begin(), meeting.visits.end(),
                                               [](const Visit& x, const Visit& y) {
                                                 return x.interval->start_ns < y.interval->start_ns;
                                               }) -
                              meeting.visits.begin());
      meetings_.push_back(std::move(meeting));
    }
    for (auto& [key, of] : meetings_of_) {
      std::sort(of.begin(), of.end(), [&, rank = key.first](size_t x, size_t y) {
        return VisitOf(meetings_[x], rank)->interval->end_ns <
               VisitOf(meetings_[y], rank)->interval->end_ns;
      });
    }
  }

  // What the ranks' kernels amount to, and the role that each has by its messages.
  void CollectWork(const std::vector<std::vector<const Interval*>>& of_rank) {
    std::map<std::set<std::tuple<trace::CommOp, uint32_t, std::string>>, uint32_t> roles;
    for (uint32_t r = 0; r < of_rank.size(); ++r) {
      const graph::Program& program = graph_.program_of(graph_.ranks[r]);
      double span_ns = 0, work = 0;
      for (const Interval* i : of_rank[r]) {
        const graph::Op& op = program.sequences[i->sequence].ops[i->op];
        if (op.kind != OpKind::kSpan) continue;
        span_ns += static_cast<double>(i->end_ns - i->start_ns);
        work += WorkOf(program, op.a);
      }
      span_ns_.push_back(span_ns);
      work_.push_back(work);
      std::set<std::tuple<trace::CommOp, uint32_t, std::string>> messages;
      for (const graph::Call& call : program.calls) {
        if (graph::IsCollective(call.op)) continue;
        messages.emplace(call.op, program.participants[call.participant].size,
                         call.call_site < program.strings.size() ? program.strings[call.call_site]
                                                                 : std::string());
      }
      const auto role = static_cast<uint32_t>(roles.size());
      roles_.push_back(roles.try_emplace(std::move(messages), role).first->second);
    }
  }

  double Ratio(uint32_t rank, const std::vector<double>& of) const {
    std::vector<double> others;
    for (const uint32_t peer : Peers(rank)) others.push_back(of[peer]);
    if (others.empty()) return 1;
    std::sort(others.begin(), others.end());
    const double median = others[others.size() / 2];
    return median > 0 ? of[rank] / median : 1;
  }

  // Who waits for `last`, and in no other message of its group for somebody later.
  std::vector<const Visit*> WaitingFor(const Meeting& meeting, const Visit& last) const {
    std::vector<const Visit*> waiting;
    for (const Visit& visit : meeting.visits) {
      if (visit.interval->met_ns >= last.interval->start_ns &&
          visit.interval->start_ns < last.interval->start_ns && WaitsMost(visit, last)) {
        waiting.push_back(&visit);
      }
    }
    return waiting;
  }

  // Of a group of messages that wait for several, the wait counts where it is longest.
  bool WaitsMost(const Visit& visit, const Visit& last) const {
    const auto& group =
        groups_.at({visit.rank, visit.interval->sequence, visit.interval->start_ns});
    return std::all_of(group.begin(), group.end(), [&](size_t m) {
      const Visit& other = meetings_[m].Last();
      return other.interval->start_ns < last.interval->start_ns ||
             (other.interval->start_ns == last.interval->start_ns && other.rank >= last.rank);
    });
  }

  bool ComeTogether(const Meeting& meeting, const Visit& visit) const {
    if (graph::IsCollective(CallOf(graph_, visit).op)) return true;
    const graph::Rank& rank = graph_.ranks[visit.rank];
    const graph::Program& program = graph_.program_of(rank);
    std::set<std::pair<trace::CommOp, int32_t>> messages;
    for (const size_t m :
         groups_.at({visit.rank, visit.interval->sequence, visit.interval->start_ns})) {
      if (meetings_[m].comm != meeting.comm) continue;
      const Interval& own = *VisitOf(meetings_[m], visit.rank)->interval;
      const uint32_t call = program.sequences[own.sequence].ops[own.op].a;
      messages.emplace(program.calls[call].op, rank.peer[call]);
    }
    const graph::Communicator& comm = graph_.communicators[meeting.comm];
    for (uint32_t peer = 0; peer < comm.size(); ++peer) {
      if (comm.world_ranks[peer] == rank.rank) continue;
      for (const trace::CommOp op : {trace::CommOp::kSend, trace::CommOp::kRecv}) {
        if (messages.count({op, static_cast<int32_t>(peer)}) == 0) return false;
      }
    }
    return true;
  }

  // When two ranks last left a communication that both were in, before meeting `m`.
  std::pair<int64_t, int64_t> LeftLast(size_t m, const Visit& late, const Visit& early) const {
    std::pair<int64_t, int64_t> left = {0, 0};
    for (const uint32_t comm : graph_.ranks[late.rank].comm) {
      const auto of_late = meetings_of_.find({late.rank, comm});
      if (of_late == meetings_of_.end() || meetings_of_.count({early.rank, comm}) == 0) continue;
      const std::vector<size_t>& of = of_late->second;
      auto at = std::partition_point(of.begin(), of.end(), [&](size_t other) {
        return VisitOf(meetings_[other], late.rank)->interval->end_ns <= late.interval->start_ns;
      });
      while (at != of.begin()) {
        const Meeting& other = meetings_[*--at];
        const Visit* both = VisitOf(other, early.rank);
        if (*at == m || both == nullptr || both->interval->end_ns > early.interval->start_ns)
          continue;
        const int64_t end = VisitOf(other, late.rank)->interval->end_ns;
        if (end > left.first) left = {end, both->interval->end_ns};
        break;
      }
    }
    return left;
  }

  // Why `late` is later than `early`; adds up to how much it is.
  std::array<int64_t, kCauses> Causes(size_t m, const Visit& late, const Visit& early) const {
    const auto [late_from, early_from] = LeftLast(m, late, early);
    const Activities::Sums mine =
        activities_[late.rank].Between(late_from, late.interval->start_ns);
    const Activities::Sums other =
        activities_[early.rank].Between(early_from, early.interval->start_ns);
    std::array<double, kCauses> more = {};
    const auto add = [&](Cause cause, double ns) {
      more[static_cast<size_t>(cause)] += std::max(0.0, ns);
    };
    add(Cause::kCompute, static_cast<double>(mine[kCompute] - other[kCompute]));
    add(Cause::kHost, static_cast<double>(mine[kIdle] - other[kIdle]));
    add(Cause::kPassedOn, static_cast<double>(mine[kWaiting] - other[kWaiting]));
    add(Cause::kPassedOn,
        static_cast<double>(mine[kTransfer] - other[kTransfer] + late_from - early_from));
    double sum = 0;
    for (const double ns : more) sum += ns;
    std::array<int64_t, kCauses> causes = {};
    const auto late_ns = static_cast<double>(late.interval->start_ns - early.interval->start_ns);
    for (size_t c = 0; c < kCauses && sum > 0; ++c)
      causes[c] = std::llround(late_ns * more[c] / sum);
    return causes;
  }

  WaitRow& RowOf(const Meeting& meeting, const Visit& late) {
    const graph::Call& call = CallOf(graph_, late);
    const std::string site = SiteOf(graph_, late);
    const uint32_t number = graph_.communicators[meeting.comm].number;
    const bool together = ComeTogether(meeting, late);
    const auto [row, is_new] =
        rows_.try_emplace({late.rank, number, static_cast<uint32_t>(call.op), together, site});
    const graph::Program& program = graph_.program_of(graph_.ranks[late.rank]);
    const uint64_t n =
        program.sequences[late.interval->sequence].ops[late.interval->op].b + uint64_t{1};
    if (is_new) {
      row->second.late = graph_.ranks[late.rank].rank;
      row->second.comm = number;
      row->second.comm_ranks = graph_.communicators[meeting.comm].world_ranks;
      row->second.operation = together && !graph::IsCollective(call.op)
                                  ? "all-to-all messages"
                                  : std::string(graph::CommOpName(call.op));
      row->second.together = together;
      row->second.call_site = site;
      row->second.first_call = n;
    }
    row->second.first_call = std::min(row->second.first_call, n);
    return row->second;
  }

  const Graph& graph_;
  std::vector<Activities> activities_;  // of each rank
  std::vector<double> span_ns_, work_;  // of each rank
  std::vector<uint32_t> roles_;         // of each rank
  std::vector<Meeting> meetings_;
  std::map<std::tuple<uint32_t, uint32_t, int64_t>, std::vector<size_t>> groups_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<size_t>> meetings_of_;  // (rank, comm)
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, bool, std::string>, WaitRow> rows_;
};

bool HasMeasuredSpans(const Graph& graph) {
  for (const graph::Rank& rank : graph.ranks) {
    const graph::Program& program = graph.program_of(rank);
    for (size_t s = 0; s < rank.measured_ns.size(); ++s) {
      const auto& ops = program.sequences[s].ops;
      for (size_t i = 0; i < std::min(ops.size(), rank.measured_ns[s].size()); ++i) {
        if (ops[i].kind == OpKind::kSpan && rank.measured_ns[s][i] >= 0) return true;
      }
    }
  }
  return false;
}

std::string Milliseconds(double ns) { return fmt::format("{:.3g} ms", ns / 1e6); }

std::string Name(const std::vector<uint32_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", graph::RankList(ranks));
}

}  // namespace

std::string_view CauseName(Cause cause) {
  constexpr std::string_view kNames[kCauses] = {"host", "compute", "passed on"};
  return kNames[static_cast<size_t>(cause)];
}

absl::StatusOr<Waits> AnalyzeWaits(Graph* graph, const PredictOptions& options) {
  Waits waits;
  if (graph->ranks.size() < 2) {
    waits.unknown_because = "the job has one rank";
    return waits;
  }
  if (!HasMeasuredSpans(*graph)) {
    waits.unknown_because = "the job's kernels have no times: record or calibrate it";
    return waits;
  }
  if (graph->ops > kMaxOps) {
    waits.unknown_because =
        fmt::format("the job has {} operations, {} is the most", graph->ops, kMaxOps);
    return waits;
  }
  const absl::StatusOr<graph::Steps> steps = graph::DetectSteps(graph, options.step);
  engine::Options o;
  o.timeline.assign(graph->ranks.size(), 1);
  if (steps.ok()) o.probes = &steps->ends;
  const engine::CostModel model(options.target, options.network);
  PRISM_ASSIGN_OR_RETURN(const engine::Outcome outcome,
                         engine::Evaluate(*graph, model.DurationsOf(*graph), o));
  Analysis analysis(*graph, outcome);

  // The first step is the program's warm-up where there are others.
  std::vector<size_t> chosen;
  for (size_t k = 0; steps.ok() && k < steps->count(); ++k) {
    if (steps->classes[k] == graph::Steps::kTraining) chosen.push_back(k);
  }
  if (chosen.size() > 1) chosen.erase(chosen.begin());
  waits.steps = chosen.size();
  if (chosen.empty()) chosen.push_back(0);
  std::vector<int64_t> lengths;
  std::vector<std::array<int64_t, kCauses>> caused(graph->ranks.size());
  std::vector<size_t> late_steps(graph->ranks.size(), 0);
  for (const size_t k : chosen) {
    std::vector<int64_t> begins, ends;
    int64_t begin = 0, end = 0;
    for (const engine::RankOutcome& rank : outcome.ranks) {
      const bool has = waits.steps > 0 && rank.probes.size() > k + 1;
      begins.push_back(has ? std::max<int64_t>(0, rank.probes[k]) : 0);
      ends.push_back(has ? rank.probes[k + 1] : rank.finish_ns + 1);
      begin = std::max(begin, begins.back());
      end = std::max(end, ends.back());
    }
    lengths.push_back(end - begin);
    const std::vector<Analysis::Balance> in_step = analysis.AddStep(begins, ends);
    for (size_t r = 0; r < in_step.size(); ++r) {
      for (size_t c = 0; c < kCauses; ++c) caused[r][c] += in_step[r].caused_ns[c];
      const auto more = static_cast<double>(in_step[r].own_ns() - in_step[r].waited_ns);
      if (more > kStragglerShare * static_cast<double>(lengths.back())) ++late_steps[r];
    }
  }
  std::nth_element(lengths.begin(),
                   lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2),
                   lengths.end());
  waits.step_ns = lengths[lengths.size() / 2];
  waits.rows = analysis.TakeRows();

  for (uint32_t r = 0; r < caused.size(); ++r) {
    if (static_cast<double>(late_steps[r]) < kMostSteps * static_cast<double>(chosen.size()))
      continue;
    Straggler straggler;
    straggler.rank = graph->ranks[r].rank;
    straggler.steps = late_steps[r];
    straggler.time = analysis.TimeRatio(r);
    straggler.work = analysis.WorkRatio(r);
    for (const uint32_t peer : analysis.Peers(r))
      straggler.peers.push_back(graph->ranks[peer].rank);
    for (const Cause cause : kOwnCauses) {
      const auto c = static_cast<size_t>(cause);
      straggler.by_cause_ns[c] = caused[r][c] / static_cast<int64_t>(chosen.size());
      straggler.wait_ns += straggler.by_cause_ns[c];
      if (caused[r][c] > caused[r][static_cast<size_t>(straggler.cause)]) straggler.cause = cause;
    }
    // Its own row, or one where it comes together with who is last.
    const auto find = [&](auto belongs) {
      return static_cast<size_t>(
          std::find_if(waits.rows.begin(), waits.rows.end(),
                       [&](const WaitRow& row) { return row.together && belongs(row); }) -
          waits.rows.begin());
    };
    straggler.row = find([&](const WaitRow& row) { return row.late == straggler.rank; });
    if (straggler.row == waits.rows.size()) {
      straggler.row = find([&](const WaitRow& row) {
        return std::count(row.comm_ranks.begin(), row.comm_ranks.end(), straggler.rank) != 0 &&
               std::count(row.waiting.begin(), row.waiting.end(), straggler.rank) == 0;
      });
    }
    if (straggler.row < waits.rows.size()) waits.stragglers.push_back(std::move(straggler));
  }
  std::stable_sort(waits.stragglers.begin(), waits.stragglers.end(),
                   [](const Straggler& x, const Straggler& y) { return x.wait_ns > y.wait_ns; });
  return waits;
}

std::string Straggler::Why() const {
  std::string why;
  for (const Cause one : kOwnCauses) {
    const int64_t ns = by_cause_ns[static_cast<size_t>(one)];
    if (ns * 10 < wait_ns) continue;
    why +=
        fmt::format("{}{} ({})", why.empty() ? "" : ", ",
                    one == Cause::kHost
                        ? "its streams wait for the host"
                        : fmt::format("its kernels take {:.2f} times as long as on {}, for {:.2f} "
                                      "times the work",
                                      time, Name(peers), work),
                    Milliseconds(static_cast<double>(ns)));
  }
  return why;
}

nlohmann::ordered_json Waits::Json() const {
  nlohmann::ordered_json j;
  if (!unknown_because.empty()) {
    j["unknown_because"] = unknown_because;
    return j;
  }
  j["steps"] = steps;
  j["step_ns"] = step_ns;
  j["stragglers"] = nlohmann::ordered_json::array();
  for (const Straggler& s : stragglers) {
    j["stragglers"].push_back({{"rank", s.rank},
                               {"cause", CauseName(s.cause)},
                               {"wait_ns_a_step", s.wait_ns},
                               {"steps", s.steps},
                               {"row", s.row}});
    for (const Cause cause : kOwnCauses)
      j["stragglers"].back()["by_cause_ns"][CauseName(cause)] =
          s.by_cause_ns[static_cast<size_t>(cause)];
    j["stragglers"].back()["kernels"] = {{"time", s.time}, {"work", s.work}, {"of_ranks", s.peers}};
  }
  j["rows"] = nlohmann::ordered_json::array();
  for (const WaitRow& row : rows) {
    j["rows"].push_back({{"late", row.late},
                         {"waiting", row.waiting},
                         {"communicator", {{"number", row.comm}, {"ranks", row.comm_ranks}}},
                         {"operation", row.operation},
                         {"together", row.together},
                         {"first_call", row.first_call},
                         {"calls", row.calls},
                         {"call_site", row.call_site},
                         {"waiting_call_site", row.waiting_call_site},
                         {"wait_ns", row.wait_ns}});
    for (size_t c = 0; c < kCauses; ++c)
      j["rows"].back()["by_cause_ns"][CauseName(static_cast<Cause>(c))] = row.by_cause_ns[c];
  }
  return j;
}

std::string Waits::Text(size_t most) const {
  if (!unknown_because.empty()) return fmt::format("waits: not known: {}\n", unknown_because);
  const double count = static_cast<double>(std::max<size_t>(steps, 1));
  const char* each = steps == 0 ? "in the run" : "a step";
  std::string out;
  for (const Straggler& s : stragglers) {
    const WaitRow& row = rows[s.row];
    out += fmt::format(
        "straggler: rank {}: others wait {} {} for it ({:.1f} % of the step{}): {}\n"
        "  most in {} #{} of communicator {} ({}){}: {} wait{}{}\n",
        s.rank, Milliseconds(static_cast<double>(s.wait_ns)), each,
        100 * static_cast<double>(s.wait_ns) / static_cast<double>(std::max<int64_t>(step_ns, 1)),
        steps == 0 ? std::string() : fmt::format(", in {} of {} steps", s.steps, steps), s.Why(),
        row.operation, row.first_call, row.comm, Name(row.comm_ranks),
        row.call_site.empty() ? "" : " at " + row.call_site, Name(row.waiting),
        row.waiting.size() == 1 ? "s" : "",
        row.waiting_call_site.empty() ? "" : " at " + row.waiting_call_site);
  }
  size_t shown = 0;
  for (const WaitRow& row : rows) {
    if (static_cast<double>(row.wait_ns) / count < kStragglerShare * static_cast<double>(step_ns) ||
        shown++ == most) {
      break;
    }
    std::string causes;
    for (size_t c = 0; c < kCauses; ++c) {
      if (row.by_cause_ns[c] * 100 < row.wait_ns) continue;
      causes += fmt::format("{}{} {}", causes.empty() ? "" : ", ", CauseName(static_cast<Cause>(c)),
                            Milliseconds(static_cast<double>(row.by_cause_ns[c]) / count));
    }
    out += fmt::format(
        "wait: {} for rank {}: {} {} in {} on communicator {} ({}), {} calls from #{}{}{}\n",
        Name(row.waiting), row.late, Milliseconds(static_cast<double>(row.wait_ns) / count), each,
        row.operation, row.comm, Name(row.comm_ranks), row.calls, row.first_call,
        causes.empty() ? "" : ": " + causes, row.call_site.empty() ? "" : "; at " + row.call_site);
  }
  return out;
}

}  // namespace prism::report
