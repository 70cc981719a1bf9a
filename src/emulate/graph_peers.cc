#include "src/emulate/graph_peers.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status.h"

namespace prism::emulate {

using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::Program;
using graph::Rank;

engine::Durations InstantPeers(engine::Durations durations) {
  for (auto& program : durations.spans) {
    for (engine::SpanTime& span : program) span.ns = span.tail_ns = 0;
  }
  // Nor does it matter what they share.
  for (auto& rank : durations.calls) {
    for (engine::CallTime& call : rank) call.shares = 0;
  }
  durations.host = {0, 0, 0, 0};
  durations.launch_latency_ns = 0;
  for (double& scale : durations.host_scale) scale = 0;
  durations.measured_span_scale = 0;
  return durations;
}

GraphPeers::GraphPeers(graph::Graph graph, engine::Durations durations,
                       const std::vector<uint32_t>& sandbox)
    : graph_(std::move(graph)), durations_(std::move(durations)) {
  outside_.assign(graph_.ranks.size(), 0);
  for (uint32_t i = 0; i < graph_.ranks.size(); ++i) index_[graph_.ranks[i].rank] = i;
  for (const uint32_t rank : sandbox) {
    if (const auto found = index_.find(rank); found != index_.end()) outside_[found->second] = 1;
  }
  for (uint32_t i = 0; i < graph_.channels.size(); ++i) {
    const graph::Channel& channel = graph_.channels[i];
    channels_[{channel.comm, channel.from, channel.to}] = i;
  }
  live_ = std::make_unique<engine::LiveEvaluation>(graph_, durations_, engine::Options{}, outside_);
}

absl::StatusOr<coordinator::VirtualPeers::Group> GraphPeers::Join(uint32_t rank, uint32_t size,
                                                                  uint32_t comm_rank,
                                                                  int64_t now_ns) {
  const auto found = index_.find(rank);
  if (found == index_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " is none of the ", graph_.ranks.size(), " captured ones"));
  }
  const Rank& who = graph_.ranks[found->second];
  std::set<uint32_t>& joined = joined_[found->second];
  for (uint32_t p = 0; p < who.comm.size(); ++p) {
    const graph::Communicator& comm = graph_.communicators[who.comm[p]];
    // Initialisations in one group, or of several threads, end in any order.
    if (joined.count(p) != 0 ||
        (size != 0 && (comm.size() != size || who.comm_rank[p] != comm_rank))) {
      continue;
    }
    joined.insert(p);
    live_->Initialise(found->second, p, now_ns);
    return Group{who.comm[p], comm.number, comm.world_ranks, who.comm_rank[p]};
  }
  return WithHint(
      absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " makes communicator number ", joined.size() + 1,
          size == 0 ? std::string() : absl::StrCat(" as rank ", comm_rank, " of ", size),
          ", and in the captured job makes ", who.comm.size(), " in all, none of them this one")),
      "emulate the program that was captured, with its arguments");
}

const GraphPeers::Calls& GraphPeers::CallsOf(uint32_t rank) {
  std::unique_ptr<Calls>& calls = calls_[rank];
  if (calls != nullptr) return *calls;
  calls = std::make_unique<Calls>();
  const Rank& who = graph_.ranks[rank];
  const Program& program = graph_.program_of(who);
  calls->collectives.resize(program.participants.size());
  for (const graph::Sequence& sequence : program.sequences) {
    if (sequence.kind != trace::SequenceKind::kStream) continue;
    bool early = false;  // of the group
    const auto s = static_cast<size_t>(&sequence - program.sequences.data());
    for (size_t i = 0; i < sequence.ops.size(); ++i) {
      const Op& op = sequence.ops[i];
      if (op.kind != OpKind::kComm) continue;
      if (op.detail != 0) early = graph::EndsEarly(program, &op);
      if (early) calls->end_early.insert(op.a);
      const graph::Call& call = program.calls[op.a];
      const bool measured =
          s < who.measured_ns.size() && i < who.measured_ns[s].size() && who.measured_ns[s][i] >= 0;
      if (!measured && durations_.calls[rank][op.a].shares != 0 && graph::BeginsEarly(call))
        calls->begin_early.insert(op.a);
      std::vector<uint32_t>& list =
          who.channel[op.a] == kNone
              ? calls->collectives[call.participant]
              : calls->messages[{who.channel[op.a], call.op == trace::CommOp::kSend}];
      if (op.b >= list.size()) list.resize(op.b + 1, kNone);
      list[op.b] = op.a;
    }
  }
  return *calls;
}

std::optional<uint32_t> GraphPeers::Find(uint32_t comm, uint32_t member, wire::Op op, uint32_t peer,
                                         uint64_t order) {
  const graph::Member& who = graph_.communicators[comm].members[member];
  if (who.rank == kNone) return std::nullopt;
  const Calls& calls = CallsOf(who.rank);
  const std::vector<uint32_t>* list = nullptr;
  if (op == wire::Op::kSend || op == wire::Op::kRecv) {
    const bool send = op == wire::Op::kSend;
    const auto channel = channels_.find({comm, send ? member : peer, send ? peer : member});
    if (channel == channels_.end()) return std::nullopt;
    const auto found = calls.messages.find({channel->second, send});
    if (found != calls.messages.end()) list = &found->second;
  } else {
    list = &calls.collectives[who.participant];
  }
  if (list == nullptr || order >= list->size() || (*list)[order] == kNone) return std::nullopt;
  return (*list)[order];
}

std::optional<coordinator::VirtualPeers::Call> GraphPeers::Describe(
    uint32_t comm, uint32_t member, std::optional<uint32_t> call) const {
  if (!call.has_value()) return std::nullopt;
  const Rank& rank = graph_.ranks[graph_.communicators[comm].members[member].rank];
  const Program& program = graph_.program_of(rank);
  const graph::Call& made = program.calls[*call];
  Call described;
  described.record.op = static_cast<wire::Op>(made.op);
  described.record.dtype = made.dtype;
  described.record.reduction = made.reduction;
  described.record.peer = rank.peer[*call];
  described.record.count = made.count;
  if (made.call_site < program.strings.size())
    described.call_site = program.strings[made.call_site];
  return described;
}

std::optional<coordinator::VirtualPeers::Call> GraphPeers::Collective(uint32_t comm,
                                                                      uint32_t member,
                                                                      uint64_t order) {
  return Describe(comm, member, Find(comm, member, wire::Op::kAllReduce, 0, order));
}

std::optional<coordinator::VirtualPeers::Call> GraphPeers::Message(uint32_t comm, uint32_t member,
                                                                   wire::Op op, uint32_t peer,
                                                                   uint64_t order) {
  return Describe(comm, member, Find(comm, member, op, peer, order));
}

void GraphPeers::Arrive(uint32_t comm, uint32_t member, const wire::OpRecord& record,
                        uint64_t order, uint64_t token, uint64_t group, int64_t now_ns) {
  ++visits_;
  const auto call =
      Find(comm, member, record.op, static_cast<uint32_t>(std::max(record.peer, 0)), order);
  if (!call.has_value()) {
    // A message to itself, of which the graph has fewer: it meets nobody else.
    met_.push_back({token, now_ns, now_ns});
    return;
  }
  const uint32_t rank = graph_.communicators[comm].members[member].rank;
  if (graph_.program_of(graph_.ranks[rank]).calls[*call].count != record.count) ++resized_;
  live_->Visit({.rank = rank,
                .call = *call,
                .sequence = static_cast<uint32_t>(order),
                .ready_ns = now_ns,
                .token = token,
                .group = group,
                .waits = CallsOf(rank).end_early.count(*call) == 0,
                .early = CallsOf(rank).begin_early.count(*call) != 0});
}

std::string_view GraphPeers::Received(uint32_t comm, uint32_t member, const wire::OpRecord& record,
                                      uint64_t order, std::string_view brought,
                                      std::string_view sent) {
  const graph::Communicator& played = graph_.communicators[comm];
  if (rules_ != nullptr) {
    const auto size = static_cast<uint32_t>(played.size());
    const auto given = rules_->Give({played.number, size, member, record, order, sent});
    if (given.has_value()) return *given;
  }
  const bool receive = record.op == wire::Op::kRecv;
  return received_.Find(
      {played.world_ranks[member], played.number, record.op, receive ? record.peer : -1, order},
      brought);
}

std::vector<coordinator::VirtualPeers::Meeting> GraphPeers::Advance(int64_t until_ns) {
  std::vector<Meeting> met = std::exchange(met_, {});
  for (const engine::Meeting& meeting : live_->Run(until_ns))
    met.push_back({meeting.token, meeting.met_ns, meeting.end_ns});
  return met;
}

}  // namespace prism::emulate
