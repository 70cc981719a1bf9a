#include "src/graph/program.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status.h"

namespace prism::graph {
namespace {

using trace::CommOp;
using trace::Node;
using trace::NodeKind;
using trace::Reader;
using trace::SequenceKind;
using trace::SyncKind;

// Numbers calls: a call of a communicator that has several members in this process (one a device)
// is one call for each.
struct CallNumbers {
  std::vector<uint32_t> first;                      // of each call of the trace
  std::vector<std::vector<uint32_t>> participants;  // of each call of the trace
  uint32_t count = 0;
};

absl::StatusOr<CallNumbers> NumberCalls(const Reader& trace) {
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> by_number;
  for (uint32_t i = 0; i < trace.communicators().size(); ++i) {
    by_number[trace.communicators()[i].record.comm].push_back(i);
  }
  CallNumbers numbers;
  for (const trace::CallRecord& call : trace.calls()) {
    const auto it = by_number.find(call.comm);
    if (it == by_number.end()) {
      return absl::DataLossError(absl::StrCat(trace.path(), ": a call names communicator ",
                                              call.comm, ", which the trace lacks"));
    }
    numbers.first.push_back(numbers.count);
    numbers.participants.push_back(it->second);
    numbers.count += static_cast<uint32_t>(it->second.size());
  }
  return numbers;
}

// Tells which of the members that a communicator has in this process makes a call: the one of the
// stream's device. Where one stream stands for several devices (each has a default stream, with one
// handle for all), the next that has not made this call yet.
class Members {
 public:
  Members(const Reader& trace, const CallNumbers& numbers) : trace_(trace), numbers_(numbers) {}

  /// Index in numbers.participants[call]. `sequence`: of the call, as its node has it.
  size_t MemberOf(uint32_t call, uint32_t sequence, uint32_t device) {
    const std::vector<uint32_t>& members = numbers_.participants[call];
    if (members.size() == 1) return 0;
    const trace::CallRecord& record = trace_.calls()[call];
    const bool collective = IsCollective(static_cast<CommOp>(record.op));
    std::vector<bool>& called =
        called_[{record.comm, collective ? UINT32_MAX : record.op, record.peer, sequence}];
    called.resize(members.size());
    size_t chosen = members.size();
    for (size_t i = 0; i < members.size(); ++i) {
      const trace::CommRecord& member = trace_.communicators()[members[i]].record;
      const bool to_itself = !collective && static_cast<int64_t>(member.rank) == record.peer;
      if (called[i] || to_itself) continue;
      if (chosen == members.size() || member.device == device) chosen = i;
      if (member.device == device) break;
    }
    if (chosen == members.size()) return 0;
    called[chosen] = true;
    return chosen;
  }

 private:
  const Reader& trace_;
  const CallNumbers& numbers_;
  // Of (communicator, operation unless it is collective, peer of such, sequence)
  std::map<std::tuple<uint32_t, uint32_t, int32_t, uint32_t>, std::vector<bool>> called_;
};

// A call that belongs to the group before it, though it was launched by itself: of another member
// of the communicator on the same stream. They meet each other, so none can wait for the one
// before.
constexpr uint8_t kJoinsGroup = 2;

uint64_t EventKey(uint32_t event, uint32_t version) { return uint64_t{event} << 32 | version; }

// 64-bit mixing of 8 bytes a step; only ever used to find candidates, which are then compared.
class Hasher {
 public:
  void Add(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
    hash_ ^= hash_ >> 32;
  }
  void Add(const void* data, size_t bytes) {
    const auto* p = static_cast<const char*>(data);
    for (; bytes >= 8; p += 8, bytes -= 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      Add(word);
    }
    uint64_t rest = bytes;
    if (bytes > 0) std::memcpy(&rest, p, bytes);
    Add(rest);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0x243f6a8885a308d3;
};

// Devices that a process uses, in the order in which it comes to them: ranks of a node that are
// otherwise equal each have another one. Of streams and of communicators apart, because a default
// stream stands for whichever device there is.
void AddDevice(uint32_t device, std::vector<uint32_t>* devices) {
  if (std::find(devices->begin(), devices->end(), device) == devices->end())
    devices->push_back(device);
}

std::vector<uint32_t> StreamDevices(const Reader& trace) {
  std::vector<uint32_t> devices;
  for (const trace::SequenceRecord& record : trace.sequences()) {
    if (record.kind == SequenceKind::kStream) AddDevice(record.device, &devices);
  }
  return devices;
}

std::vector<uint32_t> CommDevices(const Reader& trace) {
  std::vector<uint32_t> devices;
  for (const trace::Communicator& c : trace.communicators()) AddDevice(c.record.device, &devices);
  return devices;
}

uint32_t DeviceNumber(const std::vector<uint32_t>& devices, uint32_t device) {
  return static_cast<uint32_t>(std::find(devices.begin(), devices.end(), device) - devices.begin());
}

uint32_t DeviceNumber(const std::vector<uint32_t>& devices, const trace::SequenceRecord& record) {
  return record.kind == SequenceKind::kStream ? DeviceNumber(devices, record.device) : 0;
}

// Position of each call's communicator among the trace's.
std::vector<uint32_t> CommPattern(const Reader& trace) {
  absl::flat_hash_map<uint32_t, uint32_t> position;
  for (uint32_t i = 0; i < trace.communicators().size(); ++i) {
    position.try_emplace(trace.communicators()[i].record.comm, i);
  }
  std::vector<uint32_t> pattern;
  for (const trace::CallRecord& call : trace.calls()) {
    const auto it = position.find(call.comm);
    pattern.push_back(it == position.end() ? kNone : it->second);
  }
  return pattern;
}

// What of a call is the program's (the rest is the rank's).
trace::CallRecord Shared(trace::CallRecord call) {
  call.comm = 0;
  call.peer = 0;
  return call;
}

// kCommInit nodes name job-wide communicators, which differ between ranks that are otherwise equal.
bool SameNodes(const Reader& x, const Reader& y, uint32_t sequence) {
  const trace::NodeList& xs = x.nodes(sequence);
  const trace::NodeList& ys = y.nodes(sequence);
  if (xs.size() != ys.size()) return false;
  // A writer's runs end where a buffer was full or a timer came: they differ between equal ranks.
  bool equal = true;
  auto q = ys.runs().begin();
  size_t in_q = 0;
  for (auto p = xs.runs().begin(); equal && p != xs.runs().end(); ++p) {
    for (size_t in_p = 0; equal && in_p < p->size();) {
      const size_t count = std::min(p->size() - in_p, q->size() - in_q);
      equal = std::memcmp(p->data() + in_p, q->data() + in_q, count * sizeof(Node)) == 0;
      in_p += count;
      in_q += count;
      if (in_q == q->size()) {
        ++q;
        in_q = 0;
      }
    }
  }
  if (equal) return true;
  auto at = ys.begin();
  for (const Node& n : xs) {
    const Node& m = *at;
    ++at;
    if (n.kind == NodeKind::kCommInit && m.kind == NodeKind::kCommInit) continue;
    if (std::memcmp(&n, &m, sizeof(Node)) != 0) return false;
  }
  return true;
}

// Positions in the communicator table of the communicators that a thread's kCommInit nodes name, in
// order.
std::vector<uint32_t> InitPattern(const Reader& trace) {
  absl::flat_hash_map<uint32_t, uint32_t> position;
  for (uint32_t i = 0; i < trace.communicators().size(); ++i) {
    position.try_emplace(trace.communicators()[i].record.comm, i);
  }
  std::vector<uint32_t> pattern;
  for (uint32_t s = 0; s < trace.sequences().size(); ++s) {
    if (trace.sequences()[s].kind != SequenceKind::kThread) continue;
    for (const Node& n : trace.nodes(s)) {
      if (n.kind != NodeKind::kCommInit) continue;
      const auto it = position.find(n.a);
      pattern.push_back(it == position.end() ? kNone : it->second);
    }
  }
  return pattern;
}

// Nodes of threads that are no operations.
bool IsDropped(const Node& n) {
  return (n.kind == NodeKind::kHost && n.b == 0) ||
         (n.kind == NodeKind::kSync && static_cast<SyncKind>(n.detail) == SyncKind::kQueryTrue);
}

bool IsIdle(const Sequence& sequence) {
  return sequence.kind == SequenceKind::kThread && sequence.ops.empty();
}

}  // namespace

uint32_t SequenceOf(const Program& program, const Reader& trace, uint32_t sequence) {
  const auto is_idle = [&](uint32_t s) {
    const trace::NodeList& nodes = trace.nodes(s);
    return trace.sequences()[s].kind == SequenceKind::kThread &&
           std::all_of(nodes.begin(), nodes.end(), IsDropped);
  };
  if (is_idle(sequence)) return kNone;
  uint32_t place = 0;
  for (uint32_t s = 0; s < sequence; ++s) place += !is_idle(s);
  for (uint32_t s = 0; s < program.sequences.size(); ++s) {
    if (!IsIdle(program.sequences[s]) && place-- == 0) return s;
  }
  return kNone;
}

std::vector<uint32_t> PeerPattern(const Reader& trace) {
  absl::flat_hash_map<std::pair<uint32_t, int32_t>, uint32_t> seen;
  absl::flat_hash_map<uint32_t, uint32_t> next;
  std::vector<uint32_t> pattern;
  for (const trace::CallRecord& call : trace.calls()) {
    if (IsCollective(static_cast<CommOp>(call.op))) {
      pattern.push_back(kNone);
      continue;
    }
    const auto [it, inserted] = seen.try_emplace({call.comm, call.peer}, 0);
    if (inserted) it->second = next[call.comm]++;
    pattern.push_back(it->second);
  }
  return pattern;
}

bool EndsEarly(const Program& program, const Op* first) {
  return std::all_of(first, first + first->detail, [&](const Op& op) {
    const Call& call = program.calls[op.a];
    return BeginsEarly(call) && call.group == first->detail;
  });
}

bool BeginsEarly(const Call& call) {
  return call.op == trace::CommOp::kSend && call.bytes <= trace::kEarlySendBytes;
}

uint64_t FifoSteps(const Call& call) {
  constexpr uint64_t kStepBytes = trace::kEarlySendBytes / trace::kEarlySendSteps;
  return std::max<uint64_t>((call.bytes + kStepBytes - 1) / kStepBytes, 1);
}

std::string_view CommOpName(CommOp op) {
  static constexpr std::string_view kNames[] = {
      "AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
      "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown operation";
}

uint32_t Program::AddSlot(Place place) {
  uint32_t& slot = sequences[place.sequence].ops[place.op].slot;
  if (slot == kNone) slot = slots++;
  return slot;
}

std::vector<Place> Program::EnqueueOrder() const {
  std::vector<Place> order;
  for (const Enqueue& enqueue : Enqueues()) order.push_back(enqueue.unit);
  return order;
}

std::vector<Enqueue> Program::Enqueues() const {
  std::vector<Enqueue> order;
  std::vector<uint32_t> enqueued(sequences.size(), 0), at(sequences.size(), 0);
  // Threads that hand over to each other wait for operations of threads.
  std::vector<Place> slot_of_thread(slots);
  for (uint32_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].kind != SequenceKind::kThread) continue;
    for (uint32_t i = 0; i < sequences[s].ops.size(); ++i) {
      const uint32_t slot = sequences[s].ops[i].slot;
      if (slot != kNone) slot_of_thread[slot] = {s, i};
    }
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (uint32_t s = 0; s < sequences.size(); ++s) {
      if (sequences[s].kind != SequenceKind::kThread) continue;
      const std::vector<Op>& ops = sequences[s].ops;
      for (; at[s] < ops.size(); ++at[s], progress = true) {
        const Op& op = ops[at[s]];
        if (op.kind == OpKind::kWait) {
          const Place other = slot_of_thread[op.a];
          if (other.sequence != kNone && at[other.sequence] <= other.op) break;
        }
        if (op.kind != OpKind::kEnqueue) continue;
        if (enqueued[op.a] != op.b) break;
        const Op& target = sequences[op.a].ops[op.b];
        enqueued[op.a] += target.kind == OpKind::kComm ? target.detail : 1;
        order.push_back({{op.a, op.b}, {s, at[s]}});
      }
    }
  }
  return order;
}

absl::StatusOr<RankBinding> Bind(const Reader& trace) {
  PRISM_ASSIGN_OR_RETURN(const CallNumbers numbers, NumberCalls(trace));
  RankBinding binding;
  binding.devices = CommDevices(trace);
  for (const trace::Communicator& c : trace.communicators()) {
    binding.comm.push_back(c.record.comm);
    binding.comm_rank.push_back(c.record.rank);
    binding.world_ranks.emplace_back(c.world_ranks.begin(), c.world_ranks.end());
    binding.channel_bytes += c.record.channel_bytes;
  }
  for (size_t i = 0; i < trace.calls().size(); ++i) {
    const trace::CallRecord& call = trace.calls()[i];
    for (uint32_t participant : numbers.participants[i]) {
      const uint32_t size = trace.communicators()[participant].record.size;
      const bool needs_peer = !IsCollective(static_cast<CommOp>(call.op));
      if ((needs_peer && call.peer < 0) || call.peer >= static_cast<int64_t>(size)) {
        return absl::DataLossError(absl::StrCat(trace.path(), ": a call names peer ", call.peer,
                                                " of a communicator of ", size));
      }
      binding.peer.push_back(call.peer);
    }
  }
  return binding;
}

absl::StatusOr<Program> Compile(const Reader& trace, bool allow_incomplete) {
  PRISM_ASSIGN_OR_RETURN(const CallNumbers numbers, NumberCalls(trace));
  const auto contradiction = [&](uint32_t sequence, uint64_t node, std::string_view what) {
    return absl::DataLossError(absl::StrCat(trace.path(), ": node ", node, " of sequence ",
                                            sequence, ": ",
                                            absl::string_view(what.data(), what.size())));
  };

  Program p;
  absl::flat_hash_map<uint32_t, uint32_t> string_ids;  // of the trace -> of the program
  const auto intern = [&](uint32_t id) {
    if (id == kNone) return kNone;
    const auto [it, inserted] = string_ids.try_emplace(id, static_cast<uint32_t>(p.strings.size()));
    if (inserted) p.strings.emplace_back(trace.string(id));
    return it->second;
  };
  for (const trace::KernelRecord& k : trace.kernels()) {
    Kernel kernel{
        std::string(trace.string(k.name)), k.kind, {}, {}, k.shared_bytes, k.bytes, k.parameters};
    std::copy(std::begin(k.grid), std::end(k.grid), kernel.grid);
    std::copy(std::begin(k.block), std::end(k.block), kernel.block);
    p.kernels.push_back(std::move(kernel));
  }
  for (size_t i = 0; i < trace.span_count(); ++i) {
    const trace::Span span = trace.span(static_cast<uint32_t>(i));
    p.spans.push_back({span.hash, {span.kernels.begin(), span.kernels.end()}});
  }
  const std::vector<uint32_t> devices = StreamDevices(trace), comm_devices = CommDevices(trace);
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> participants_of;
  for (const trace::Communicator& c : trace.communicators()) {
    participants_of[c.record.comm].push_back(static_cast<uint32_t>(p.participants.size()));
    p.participants.push_back(
        {c.record.size, DeviceNumber(comm_devices, c.record.device), 0, false});
  }
  const std::vector<uint32_t> peers = PeerPattern(trace);
  std::vector<uint32_t> peer_of_call;
  for (size_t i = 0; i < trace.calls().size(); ++i) {
    const trace::CallRecord& c = trace.calls()[i];
    for (uint32_t participant : numbers.participants[i]) {
      p.calls.push_back({participant, static_cast<CommOp>(c.op), c.dtype, c.reduction, c.count,
                         c.bytes, c.group, intern(c.call_site)});
      peer_of_call.push_back(peers[i]);
    }
  }

  // Streams first: what their operations are does not depend on who enqueues them.
  absl::flat_hash_map<uint64_t, Place> records;
  // Of each (participant, peer, direction; collectives: no peer): sequence numbers with their
  // places, to be numbered from 0 without gaps.
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, bool>, std::vector<std::pair<uint32_t, Place>>>
      channels;
  Members members(trace, numbers);
  const auto sequence_count = static_cast<uint32_t>(trace.sequences().size());
  p.sequences.resize(sequence_count);
  for (uint32_t s = 0; s < sequence_count; ++s) {
    const trace::SequenceRecord& record = trace.sequences()[s];
    Sequence& sequence = p.sequences[s];
    sequence.kind = record.kind;
    sequence.device = DeviceNumber(devices, record);
    sequence.priority = record.priority;
    sequence.name = std::string(trace.string(record.name));
    if (trace.nodes(s).size() >= UINT32_MAX)
      return contradiction(s, 0, "more nodes than 32 bits count");
    sequence.ops.reserve(trace.nodes(s).size());
    sequence.provenance.reserve(trace.nodes(s).size());
    if (record.kind != SequenceKind::kStream) continue;
    uint16_t group = 0;
    uint32_t group_first = 0;
    for (const Node& n : trace.nodes(s)) {
      const auto index = static_cast<uint32_t>(sequence.ops.size());
      Op op{OpKind::kNothing, 0, 0, 0, 0, kNone};
      switch (n.kind) {
        case NodeKind::kSpan:
          op.kind = OpKind::kSpan;
          op.a = n.a;
          op.b = n.b;
          break;
        case NodeKind::kComm: {
          op.kind = OpKind::kComm;
          op.a =
              numbers.first[n.a] + static_cast<uint32_t>(members.MemberOf(n.a, n.b, record.device));
          op.b = n.b;
          op.detail = 1;
          const Call& call = p.calls[op.a];
          if (IsCollective(call.op)) ++p.participants[call.participant].collectives;
          channels[{call.participant, peer_of_call[op.a], call.op == CommOp::kSend}].push_back(
              {n.b, {s, index}});
          const bool grouped = n.detail != 0 && n.detail == group;
          const bool joins =
              !grouped && index > 0 && sequence.ops[index - 1].kind == OpKind::kComm &&
              std::any_of(sequence.ops.begin() + group_first, sequence.ops.end(),
                          [&](const Op& other) {
                            const Call& meets = p.calls[other.a];
                            return IsCollective(meets.op) && IsCollective(call.op) &&
                                   other.b == n.b && meets.participant != call.participant &&
                                   trace.communicators()[meets.participant].record.comm ==
                                       trace.communicators()[call.participant].record.comm;
                          });
          if ((grouped || joins) && index > 0 && sequence.ops[group_first].detail < UINT16_MAX) {
            if (joins) op.flags |= kJoinsGroup;
            op.detail = 0;
            ++sequence.ops[group_first].detail;
          } else {
            group_first = index;
          }
          break;
        }
        case NodeKind::kRecord:
          records[EventKey(n.a, n.b)] = {s, index};
          break;
        case NodeKind::kWait:
          op.kind = OpKind::kWait;
          op.a = n.a;
          op.b = n.b;
          break;
        default:
          break;
      }
      group = n.kind == NodeKind::kComm ? n.detail : 0;
      sequence.ops.push_back(op);
      sequence.provenance.push_back(n.provenance);
    }
  }
  for (auto& [key, list] : channels) {
    std::sort(list.begin(), list.end(),
              [](const auto& x, const auto& y) { return x.first < y.first; });
    for (uint32_t i = 0; i < list.size(); ++i)
      p.sequences[list[i].second.sequence].ops[list[i].second.op].b = i;
  }

  // Which operations are enqueued: exactly one kEnqueue for each, but for the followers of a group.
  std::vector<std::vector<uint8_t>> enqueues(sequence_count);
  for (uint32_t s = 0; s < sequence_count; ++s) enqueues[s].resize(p.sequences[s].ops.size(), 0);
  for (uint32_t s = 0; s < sequence_count; ++s) {
    if (p.sequences[s].kind != SequenceKind::kThread) continue;
    uint64_t index = 0;
    for (const Node& n : trace.nodes(s)) {
      if (n.kind == NodeKind::kEnqueue && n.b < enqueues[n.a].size() && enqueues[n.a][n.b]++ != 0) {
        return contradiction(
            s, index, absl::StrCat("enqueues node ", n.b, " of sequence ", n.a, " again").c_str());
      }
      ++index;
    }
  }
  for (uint32_t s = 0; s < sequence_count; ++s) {
    Sequence& sequence = p.sequences[s];
    if (sequence.kind != SequenceKind::kStream) continue;
    for (uint32_t i = 0; i < sequence.ops.size(); ++i) {
      const bool follower = sequence.ops[i].kind == OpKind::kComm && sequence.ops[i].detail == 0;
      if (follower && enqueues[s][i] != 0 && (sequence.ops[i].flags & kJoinsGroup) == 0)
        return contradiction(s, i, "enqueued apart from its group");
      if (follower || enqueues[s][i] != 0) continue;
      if (!allow_incomplete) return contradiction(s, i, "never enqueued");
      p.truncated += static_cast<uint32_t>(sequence.ops.size()) - i;
      sequence.ops.resize(i);
      sequence.provenance.resize(i);
      break;
    }
  }

  // Waits and threads, now that it is known which operations exist.
  const auto slot_of_event = [&](uint32_t event, uint32_t version) -> uint32_t {
    if (version == 0) return kNone;
    const auto it = records.find(EventKey(event, version));
    if (it == records.end() || it->second.op >= p.sequences[it->second.sequence].ops.size())
      return kNone;
    return p.AddSlot(it->second);
  };
  std::vector<absl::flat_hash_map<uint32_t, Place>> last_launch(sequence_count);
  struct Handoff {
    Place waits;
    uint32_t thread;
    uint64_t nodes;  // of that thread
  };
  std::vector<Handoff> handoffs;
  for (uint32_t s = 0; s < sequence_count; ++s) {
    Sequence& sequence = p.sequences[s];
    if (sequence.kind == SequenceKind::kStream) {
      for (Op& op : sequence.ops) {
        if (op.kind != OpKind::kWait) continue;
        // Which event it is, and how often it was used, is a matter of whose was free.
        const uint32_t slot = slot_of_event(op.a, op.b);
        op = slot == kNone ? Op{OpKind::kNothing, 0, 0, 0, 0, kNone}
                           : Op{OpKind::kWait, 0, 0, slot, 0, op.slot};
      }
      continue;
    }
    for (const Node& n : trace.nodes(s)) {
      if (IsDropped(n)) continue;
      Op op{OpKind::kNothing, 0, 0, n.a, n.b, kNone};
      switch (n.kind) {
        case NodeKind::kHost:
          op.kind = OpKind::kHost;
          op.a = 0;  // how many calls it was does not matter
          p.host_timed = true;
          break;
        case NodeKind::kEnqueue:
          if (n.b < p.sequences[n.a].ops.size() &&
              (p.sequences[n.a].ops[n.b].flags & kJoinsGroup) == 0) {
            op.kind = OpKind::kEnqueue;
          }
          break;
        case NodeKind::kEnqueueLast: {
          if (n.b >= p.sequences[n.a].ops.size()) break;
          Op& target = p.sequences[n.a].ops[n.b];
          if (target.kind != OpKind::kSpan)
            return contradiction(s, sequence.ops.size(), "is no span's last launch");
          const Place here{s, static_cast<uint32_t>(sequence.ops.size())};
          const auto [it, inserted] = last_launch[n.a].try_emplace(n.b, here);
          if (!inserted) {
            p.sequences[it->second.sequence].ops[it->second.op].kind = OpKind::kNothing;
            it->second = here;
          }
          target.flags |= kHasLast;
          op.kind = OpKind::kEnqueueLast;
          op.detail = n.detail;
          break;
        }
        case NodeKind::kSync: {
          const auto kind = static_cast<SyncKind>(n.detail);
          uint32_t slot = kNone;
          if (kind == SyncKind::kHandoff) {
            // The other thread's operations may not be known yet.
            handoffs.push_back({{s, static_cast<uint32_t>(sequence.ops.size())}, n.a, n.b});
            op = {OpKind::kNothing, 0, 0, 0, 0, kNone};
          } else if (kind == SyncKind::kEvent) {
            slot = slot_of_event(n.a, n.b);
          } else {
            const auto nodes =
                static_cast<uint32_t>(std::min<size_t>(n.b, p.sequences[n.a].ops.size()));
            if (nodes > 0) slot = p.AddSlot({n.a, nodes - 1});
          }
          if (slot != kNone) op = {OpKind::kWait, 0, 0, slot, 0, kNone};
          break;
        }
        case NodeKind::kCommInit: {
          const auto it = participants_of.find(n.a);
          if (it == participants_of.end() || it->second.size() != 1) break;
          if (p.participants[it->second[0]].has_init) break;
          p.participants[it->second[0]].has_init = true;
          op = {OpKind::kCommInit, 0, 0, it->second[0], 0, kNone};
          break;
        }
        case NodeKind::kMark:
          op.kind = OpKind::kMark;
          op.a = intern(n.a);
          op.detail = n.detail;
          break;
        default:
          break;
      }
      sequence.ops.push_back(op);
      sequence.provenance.push_back(n.provenance);
    }
  }
  std::vector<std::vector<uint32_t>> ops_before(sequence_count);  // of each node of a thread
  for (const Handoff& handoff : handoffs) {
    std::vector<uint32_t>& before = ops_before[handoff.thread];
    if (before.empty()) {
      before.push_back(0);
      for (const Node& n : trace.nodes(handoff.thread))
        before.push_back(before.back() + !IsDropped(n));
    }
    const uint32_t done = before[std::min<size_t>(handoff.nodes, before.size() - 1)];
    if (done == 0) continue;
    Op& op = p.sequences[handoff.waits.sequence].ops[handoff.waits.op];
    op.kind = OpKind::kWait;
    op.a = p.AddSlot({handoff.thread, done - 1});
  }

  uint64_t units = 0, enqueue_ops = 0;
  for (const Sequence& sequence : p.sequences) {
    p.op_count += sequence.ops.size();
    for (const Op& op : sequence.ops) {
      if (sequence.kind == SequenceKind::kThread) {
        enqueue_ops += op.kind == OpKind::kEnqueue;
      } else {
        units += op.kind != OpKind::kComm || op.detail != 0;
      }
    }
  }
  const uint64_t ordered = p.EnqueueOrder().size();
  if (ordered != units || enqueue_ops != units) {
    return absl::DataLossError(
        absl::StrCat(trace.path(), ": only ", ordered, " of ", units,
                     " stream operations can be enqueued in the order of their streams"));
  }
  return p;
}

uint64_t TraceHash(const Reader& trace) {
  Hasher h;
  const std::vector<uint32_t> devices = StreamDevices(trace), comm_devices = CommDevices(trace);
  for (uint32_t s = 0; s < trace.sequences().size(); ++s) {
    const trace::SequenceRecord& record = trace.sequences()[s];
    h.Add(uint64_t{DeviceNumber(devices, record)} << 32 | static_cast<uint32_t>(record.priority));
    h.Add(uint64_t{record.name} << 32 | static_cast<uint32_t>(record.kind));
    h.Add(trace.nodes(s).size());
  }
  for (size_t i = 0; i < trace.span_count(); ++i) h.Add(trace.span(static_cast<uint32_t>(i)).hash);
  for (const trace::Communicator& c : trace.communicators())
    h.Add(uint64_t{c.record.size} << 32 | DeviceNumber(comm_devices, c.record.device));
  for (const trace::CallRecord& c : trace.calls()) {
    const trace::CallRecord shared = Shared(c);
    h.Add(&shared, sizeof(shared));
  }
  for (uint32_t i : PeerPattern(trace)) h.Add(i);
  for (uint32_t i : CommPattern(trace)) h.Add(i);
  // Nodes are compared, not hashed: ranks that agree in all of the above but not in their nodes are
  // rare.
  return h.value();
}

bool SameTrace(const Reader& x, const Reader& y) {
  if (x.sequences().size() != y.sequences().size() || x.span_count() != y.span_count() ||
      x.communicators().size() != y.communicators().size() ||
      x.calls().size() != y.calls().size() || x.string_count() != y.string_count() ||
      x.kernels().size() != y.kernels().size()) {
    return false;
  }
  const std::vector<uint32_t> x_devices = StreamDevices(x), y_devices = StreamDevices(y);
  const std::vector<uint32_t> x_comms = CommDevices(x), y_comms = CommDevices(y);
  for (uint32_t s = 0; s < x.sequences().size(); ++s) {
    const trace::SequenceRecord &p = x.sequences()[s], &q = y.sequences()[s];
    if (p.kind != q.kind || DeviceNumber(x_devices, p) != DeviceNumber(y_devices, q) ||
        p.priority != q.priority || p.name != q.name)
      return false;
  }
  for (uint32_t i = 0; i < x.string_count(); ++i) {
    if (x.string(i) != y.string(i)) return false;
  }
  for (size_t i = 0; i < x.kernels().size(); ++i) {
    if (std::memcmp(&x.kernels()[i], &y.kernels()[i], sizeof(trace::KernelRecord)) != 0)
      return false;
  }
  for (uint32_t i = 0; i < x.span_count(); ++i) {
    if (!std::ranges::equal(x.span(i).kernels, y.span(i).kernels)) return false;
  }
  for (size_t i = 0; i < x.communicators().size(); ++i) {
    const trace::CommRecord &p = x.communicators()[i].record, &q = y.communicators()[i].record;
    if (p.size != q.size || DeviceNumber(x_comms, p.device) != DeviceNumber(y_comms, q.device))
      return false;
  }
  for (size_t i = 0; i < x.calls().size(); ++i) {
    const trace::CallRecord p = Shared(x.calls()[i]), q = Shared(y.calls()[i]);
    if (std::memcmp(&p, &q, sizeof(p)) != 0) return false;
  }
  if (PeerPattern(x) != PeerPattern(y) || CommPattern(x) != CommPattern(y)) return false;
  for (uint32_t s = 0; s < x.sequences().size(); ++s) {
    if (!SameNodes(x, y, s)) return false;
  }
  return InitPattern(x) == InitPattern(y);
}

uint32_t OpAtNode(const trace::NodeList& thread, uint64_t node) {
  uint32_t op = 0;
  uint64_t index = 0;
  for (const Node& n : thread) {
    if (index++ == node) break;
    op += !IsDropped(n);
  }
  return op;
}

uint64_t ProgramHash(const Program& program, const std::vector<uint32_t>& peers) {
  Hasher h;
  for (const Sequence& s : program.sequences) {
    if (IsIdle(s)) continue;
    h.Add(uint64_t{s.device} << 32 | static_cast<uint32_t>(s.priority));
    h.Add(static_cast<uint64_t>(s.kind));
    h.Add(s.ops.data(), s.ops.size() * sizeof(Op));
    h.Add(s.provenance.data(), s.provenance.size());
  }
  for (const Span& s : program.spans) h.Add(s.hash);
  for (const Participant& p : program.participants) h.Add(uint64_t{p.size} << 32 | p.device);
  for (const Call& c : program.calls) {
    h.Add(uint64_t{c.participant} << 32 | static_cast<uint32_t>(c.op));
    h.Add(c.count);
  }
  for (uint32_t peer : peers) h.Add(peer);
  return h.value();
}

bool SameProgram(const Program& x, const Program& y) {
  const auto same_bytes = [](const auto& p, const auto& q) {
    return p.size() == q.size() &&
           (p.empty() || std::memcmp(p.data(), q.data(), p.size() * sizeof(p[0])) == 0);
  };
  const auto working = [](const Program& program) {
    std::vector<const Sequence*> sequences;
    for (const Sequence& s : program.sequences) {
      if (!IsIdle(s)) sequences.push_back(&s);
    }
    return sequences;
  };
  return x.slots == y.slots && x.strings == y.strings &&
         std::ranges::equal(working(x), working(y),
                            [&](const Sequence* p, const Sequence* q) {
                              return p->kind == q->kind && p->device == q->device &&
                                     p->priority == q->priority &&
                                     (p->kind == SequenceKind::kThread || p->name == q->name) &&
                                     same_bytes(p->ops, q->ops) &&
                                     same_bytes(p->provenance, q->provenance);
                            }) &&
         std::ranges::equal(x.kernels, y.kernels,
                            [](const Kernel& p, const Kernel& q) {
                              return p.name == q.name && p.kind == q.kind &&
                                     std::ranges::equal(p.grid, q.grid) &&
                                     std::ranges::equal(p.block, q.block) &&
                                     p.shared_bytes == q.shared_bytes && p.bytes == q.bytes;
                            }) &&
         std::ranges::equal(x.spans, y.spans,
                            [](const Span& p, const Span& q) {
                              return p.hash == q.hash && p.kernels == q.kernels;
                            }) &&
         std::ranges::equal(x.participants, y.participants,
                            [](const Participant& p, const Participant& q) {
                              return p.size == q.size && p.device == q.device &&
                                     p.collectives == q.collectives && p.has_init == q.has_init;
                            }) &&
         std::ranges::equal(x.calls, y.calls, [](const Call& p, const Call& q) {
           return p.participant == q.participant && p.op == q.op && p.dtype == q.dtype &&
                  p.reduction == q.reduction && p.count == q.count && p.bytes == q.bytes &&
                  p.group == q.group && p.call_site == q.call_site;
         });
}

}  // namespace prism::graph
