#include "src/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/split_mix.h"
#include "src/base/status.h"

namespace prism::engine {
namespace {

using graph::Call;
using graph::Graph;
using graph::kNone;
using graph::Op;
using graph::OpKind;
using graph::Program;
using graph::Rank;
using trace::SequenceKind;

constexpr int64_t kUnknown = INT64_MIN;
constexpr uint64_t kNoToken = UINT64_MAX;

/// From a standard normal distribution; same key, same number.
double Normal(uint64_t key) {
  const double u1 = (static_cast<double>(key >> 11) + 0.5) * 0x1p-53;
  const double u2 = static_cast<double>(SplitMix(key) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u1)) * std::cos(2 * std::numbers::pi * u2);
}

int64_t Scaled(int64_t ns, double factor) {
  return factor == 1 ? ns : std::llround(static_cast<double>(ns) * factor);
}

struct Enqueued {
  int64_t first;
  int64_t last;  // kUnknown: the span's last launch is still to come
};

/// Enqueue times of the operations between a stream's head and what was enqueued last.
class EnqueueQueue {
 public:
  Enqueued& at(uint32_t op) { return slots_[op & mask_]; }
  /// `head`: first operation still needed; `tail`: the one to be added.
  void Reserve(uint32_t head, uint32_t tail) {
    if (tail - head <= mask_ && !slots_.empty()) return;
    const size_t size = std::max<size_t>(16, slots_.size() * 2);
    std::vector<Enqueued> bigger(size);
    if (!slots_.empty()) {
      for (uint32_t i = head; i != tail; ++i) bigger[i & (size - 1)] = slots_[i & mask_];
    }
    slots_ = std::move(bigger);
    mask_ = static_cast<uint32_t>(size - 1);
  }

 private:
  std::vector<Enqueued> slots_;
  uint32_t mask_ = 0;
};

enum class State : uint8_t {
  kReady,
  kRunning,
  kAwaitsEnqueue,
  kAwaitsLast,
  kAwaitsSlot,
  kAwaitsMeeting,
  kAwaitsOrder,
  kDone
};

/// A completed operation: its sequence (of all ranks) and number.
struct Cause {
  uint32_t sequence = kNone;
  uint32_t op = 0;
};

struct Sequence {
  const Op* ops = nullptr;
  const uint8_t* provenance = nullptr;
  const int64_t* measured = nullptr;  // durations of the trace, null or one an operation
  const graph::Sequence* source = nullptr;
  uint32_t size = 0;
  uint32_t at = 0;
  uint32_t rank = 0;
  uint32_t next_waiter = kNone;  // others that wait for the same slot or enqueue
  State state = State::kReady;
  bool is_stream = false;
  // Threads: delays that are still to come, by operation
  const Delay* delay = nullptr;
  const Delay* delay_end = nullptr;
  int64_t time = 0;
  // Streams
  uint32_t enqueued = 0;
  uint32_t order_waiters = kNone;  // threads that may enqueue only after others have
  int64_t last_enqueue = 0;
  Cause last_enqueuer;
  EnqueueQueue queue;
  // The group of communications (threads: the initialisation) that has arrived and is not complete
  bool arrived = false;
  uint32_t unmet = 0;
  int64_t group_end = 0;
  Cause group_cause;  // of group_end
};

struct Arrival {
  uint32_t sequence;  // kNone: from outside
  uint32_t op;
  uint32_t next;
  int64_t ready;
  bool waits;            // false: a send that has ended before its receive came
  uint64_t token;        // of a visit
  const CallTime* call;  // null: an initialisation, or a send whose flow was its own
  Cause cause;           // of `ready`
};

/// One communication that is not complete.
struct OpenMeeting {
  uint32_t arrived = 0;
  uint32_t first = kNone;  // Arrival
  int64_t ready = 0;
  int64_t cost = 0;
  bool measured = false;    // the cost is what some of them have measured
  int64_t sent = kUnknown;  // a send began before its receive came: when its flow has ended
};

/// Meetings of one communicator or channel, by sequence; those at the front that are complete are
/// dropped.
struct MeetingPlace {
  uint32_t expected = 0;
  uint32_t base = 0;
  std::vector<OpenMeeting> meetings;
  std::vector<uint32_t> counts;  // only to tolerate missing ranks: calls of each member, descending

  OpenMeeting& At(uint32_t sequence) {
    const uint32_t offset = sequence - base;
    if (offset >= meetings.size()) meetings.resize(offset + 1);
    return meetings[offset];
  }
  uint32_t Expected(uint32_t sequence) const {
    if (counts.empty()) return expected;
    return static_cast<uint32_t>(std::partition_point(counts.begin(), counts.end(),
                                                      [&](uint32_t c) { return c > sequence; }) -
                                 counts.begin());
  }
};

/// What NCCL's buffers hold of the messages of a channel: a send begins when its receive has come,
/// or as soon as it fits behind those before it that are not received.
struct Fifo {
  struct Message {
    uint64_t steps = 0;     // 0: its send has not come
    uint32_t send = kNone;  // Arrival, of a send that has not begun
    int64_t cost = 0;
    int64_t received = kUnknown;  // when its receive came
    Cause cause;                  // of that
  };
  uint32_t base = 0;  // of `messages`
  uint32_t next = 0;  // to begin
  std::vector<Message> messages;

  Message& At(uint32_t sequence) {
    if (sequence - base >= messages.size()) messages.resize(sequence - base + 1);
    return messages[sequence - base];
  }
};

/// A communication that uses links.
struct Flight {
  uint32_t first;  // Arrival
  int64_t met;
  uint32_t channel;  // of an early send: where its receive will come; else kNone
  uint32_t sequence;
};

class Evaluation {
 public:
  Evaluation(const Graph& graph, const Durations& durations, const Options& options,
             std::vector<uint8_t> outside = {})
      : graph_(graph),
        durations_(durations),
        options_(options),
        outside_(std::move(outside)),
        flows_(durations.links) {
    Prepare();
  }

  absl::StatusOr<Outcome> Run();

  // Ranks that are played from outside
  void Initialise(uint32_t rank, uint32_t participant, int64_t ready_ns);
  void Visited(const Visit& visit);
  void Advance(int64_t until_ns);
  int64_t NextNs() { return open_visits_ == 0 ? Flows::kNever : flows_.NextNs(); }
  const std::vector<Meeting>& met() const { return met_; }
  std::vector<Meeting> TakeMet() { return std::exchange(met_, {}); }
  bool Done() const;

 private:
  void Prepare();
  bool Outside(uint32_t rank) const { return rank < outside_.size() && outside_[rank] != 0; }
  void PrepareMissing();
  void PrepareDelays();
  void SpendHostTime(Sequence& s, uint32_t id, int64_t ns);
  void SpendDelays(Sequence& s, uint32_t id);
  void RunThread(uint32_t id);
  void RunStream(uint32_t id);
  uint32_t NewArrival(const Arrival& arrival);
  void Arrive(MeetingPlace& place, uint32_t sequence, const Arrival& arrival, int64_t cost,
              bool measured);
  /// One side of a message has come; `early`: a send that may begin without its receive.
  void EnterFifo(uint32_t channel, uint32_t sequence, const Call& call, const Arrival& arrival,
                 int64_t cost, bool early);
  void BeginSends(uint32_t channel);
  /// A send begins without its receive, as a flow of its own.
  void SendEarly(uint32_t channel, uint32_t sequence, uint32_t send, int64_t cost, int64_t begin);
  /// All have come: `first` and those behind it.
  void Meet(uint32_t first, int64_t met, int64_t cost, bool measured);
  /// Begins a flow with `shares_`.
  void Fly(uint32_t first, int64_t met, int64_t cost, uint32_t channel, uint32_t sequence);
  void Conclude(uint32_t first, int64_t met, int64_t end, Cause cause);
  /// What the last of them to come waited for.
  Cause LastCause(uint32_t first) const;
  void Land(const Flows::End& end);
  absl::Status Stuck() const;

  void Wake(uint32_t id) {
    sequences_[id].state = State::kReady;
    ready_.push_back(id);
  }

  bool SlotKnown(int64_t value) const { return value >= 0; }
  // Slots hold a time, or -1 - (first waiting sequence + 1).
  void AwaitSlot(Sequence& s, uint32_t id, int64_t& slot) {
    s.next_waiter = static_cast<uint32_t>(-1 - slot) - 1;
    slot = -1 - (static_cast<int64_t>(id) + 1);
    s.state = State::kAwaitsSlot;
  }
  /// The operation is complete.
  void SetSlot(const Sequence& s, uint32_t id, uint32_t op) {
    const uint64_t number = first_slot_[s.rank] + s.ops[op].slot;
    if (options_.history) setters_[number] = {id, op};
    int64_t& slot = slots_[number];
    auto waiter = static_cast<uint32_t>(-1 - slot) - 1;
    slot = s.time;
    while (waiter != kNone) {
      const uint32_t next = sequences_[waiter].next_waiter;
      Wake(waiter);
      waiter = next;
    }
  }

  int64_t Drawn(const Sequence& s, uint32_t id, uint32_t op, int64_t ns, TimeSource source) const {
    if (options_.draw == nullptr) return ns;
    return options_.draw->Draw(graph_.ranks[s.rank].rank, options_.iteration,
                               id - first_sequence_[s.rank], op, ns, source);
  }
  /// Where the members of a collective, or the two ends of a message, meet.
  MeetingPlace& PlaceOf(const Rank& rank, uint32_t call) {
    const uint32_t channel = rank.channel[call];
    return channel != kNone ? channels_[channel]
                            : comms_[rank.comm[graph_.program_of(rank).calls[call].participant]];
  }
  /// What a call takes that is not measured: the same for all that meet there.
  int64_t CallNs(const Rank& rank, uint32_t number, uint32_t sequence, const CallTime& call) const {
    double log = 0;
    if (call.spread > 0) {
      const uint32_t channel = rank.channel[number];
      const uint64_t place =
          channel != kNone
              ? uint64_t{channel} << 1 | 1
              : uint64_t{rank.comm[graph_.program_of(rank).calls[number].participant]} << 1;
      log = call.spread * Normal(SplitMix(SplitMix(Key() ^ place) ^ sequence));
    }
    if (options_.doubts && call.doubt > 0)
      log += call.doubt * Normal(SplitMix(~Key() ^ call.figure));
    return log == 0 ? call.ns : Scaled(call.ns, std::exp(log));
  }
  uint64_t Key() const { return SplitMix(SplitMix(options_.seed) ^ options_.iteration); }
  double MeasuredCallScale(uint32_t rank, uint32_t call) const {
    return durations_.measured_call_scale *
           (durations_.call_scale.empty() ? 1 : durations_.call_scale[rank][call]);
  }
  bool Listed(uint32_t rank) const {
    return rank < options_.timeline.size() && options_.timeline[rank] != 0;
  }
  void List(const Sequence& s, uint32_t id, uint32_t op, int64_t start, int64_t met, int64_t end) {
    if (Listed(s.rank))
      outcome_.timeline.push_back({s.rank, id - first_sequence_[s.rank], op, start, met, end});
  }

  // ---- What operations waited for; nothing unless it is wanted
  struct Record {
    int64_t end_ns;
    Cause cause;
  };
  void Completed(uint32_t id, uint32_t op, int64_t end_ns, Cause cause) {
    if (options_.history) records_[id][op] = {end_ns, cause};
  }
  /// The start of the stream's next operation.
  Cause StartCause(const Sequence& s, uint32_t id, const Enqueued& enqueued) const {
    if (!options_.history || s.time >= enqueued.first + durations_.launch_latency_ns)
      return Before(s, id);
    return enqueuers_[id][s.at].first;
  }
  static Cause Before(const Sequence& s, uint32_t id) {
    return s.at == 0 ? Cause{} : Cause{id, s.at - 1};
  }
  Cause SlotCause(const Sequence& s, uint32_t slot) const {
    return options_.history ? setters_[first_slot_[s.rank] + slot] : Cause{};
  }
  History TakeHistory();

  const Graph& graph_;
  const Durations& durations_;
  const Options options_;
  const std::vector<uint8_t> outside_;  // by rank
  std::vector<Meeting> met_;            // visits
  uint64_t open_visits_ = 0;
  Outcome outcome_;

  std::vector<Sequence> sequences_;
  std::vector<uint32_t> first_sequence_;  // of each rank
  std::vector<uint64_t> first_slot_;
  std::vector<int64_t> slots_;
  std::vector<MeetingPlace> comms_, channels_, inits_;
  std::vector<Arrival> arrivals_;
  uint32_t free_arrival_ = kNone;
  std::vector<Fifo> fifos_;  // of channels; none: sends begin when they come
  Flows flows_;
  std::vector<Flight> flights_;  // by flow
  std::vector<LinkShare> shares_;
  std::vector<uint32_t> ready_;
  std::vector<Delay> delays_;
  std::vector<std::vector<Record>> records_;                     // [sequence][operation]
  std::vector<std::vector<std::pair<Cause, Cause>>> enqueuers_;  // the same: of first and last
  std::vector<Cause> setters_;                                   // [slot]
};

void Evaluation::Prepare() {
  const size_t ranks = graph_.ranks.size();
  outcome_.ranks.resize(ranks);
  uint64_t slots = 0;
  size_t sequences = 0;
  for (const Rank& rank : graph_.ranks) {
    first_sequence_.push_back(static_cast<uint32_t>(sequences));
    first_slot_.push_back(slots);
    sequences += graph_.program_of(rank).sequences.size();
    slots += graph_.program_of(rank).slots;
  }
  first_sequence_.push_back(static_cast<uint32_t>(sequences));
  slots_.assign(slots, -1);
  sequences_.resize(sequences);
  for (uint32_t r = 0; r < ranks; ++r) {
    const Rank& rank = graph_.ranks[r];
    const Program& program = graph_.program_of(rank);
    for (uint32_t i = 0; i < program.sequences.size(); ++i) {
      const graph::Sequence& source = program.sequences[i];
      Sequence& s = sequences_[first_sequence_[r] + i];
      s.ops = source.ops.data();
      s.provenance = source.provenance.data();
      s.source = &source;
      s.size = static_cast<uint32_t>(source.ops.size());
      s.rank = r;
      s.is_stream = source.kind == SequenceKind::kStream;
      if (Outside(r)) s.size = 0;
      if (s.is_stream && i < rank.measured_ns.size() && rank.measured_ns[i].size() >= s.size &&
          s.size > 0) {
        s.measured = rank.measured_ns[i].data();
      }
      s.state = s.size == 0 ? State::kDone : s.is_stream ? State::kAwaitsEnqueue : State::kReady;
    }
  }
  // Streams run when something is enqueued; threads start, in order (the last pushed runs first).
  for (uint32_t id = static_cast<uint32_t>(sequences); id-- > 0;) {
    if (!sequences_[id].is_stream && sequences_[id].size > 0) ready_.push_back(id);
  }
  comms_.resize(graph_.communicators.size());
  inits_.resize(graph_.communicators.size());
  for (size_t i = 0; i < comms_.size(); ++i) {
    comms_[i].expected = graph_.communicators[i].size();
    inits_[i].expected = graph_.communicators[i].expected_init;
  }
  channels_.resize(graph_.channels.size());
  for (MeetingPlace& channel : channels_) channel.expected = 2;
  // Where receives are missing, nobody makes room.
  if (durations_.links != 0 && !options_.tolerate_missing) fifos_.resize(channels_.size());
  if (options_.history) {
    setters_.resize(slots_.size());
    records_.resize(sequences_.size());
    enqueuers_.resize(sequences_.size());
    for (size_t id = 0; id < sequences_.size(); ++id) {
      records_[id].resize(sequences_[id].size);
      if (sequences_[id].is_stream) enqueuers_[id].resize(sequences_[id].size);
    }
  }
  if (options_.tolerate_missing) PrepareMissing();
  if (!options_.delays.empty()) PrepareDelays();
}

void Evaluation::PrepareDelays() {
  delays_ = options_.delays;
  const auto key = [&](const Delay& d) {
    return std::pair(first_sequence_[d.rank] + d.before.sequence, d.before.op);
  };
  std::sort(delays_.begin(), delays_.end(),
            [&](const Delay& x, const Delay& y) { return key(x) < key(y); });
  for (const Delay& d : delays_) {
    Sequence& s = sequences_[key(d).first];
    if (s.delay == nullptr) s.delay = &d;
    s.delay_end = &d + 1;
  }
}

void Evaluation::SpendDelays(Sequence& s, uint32_t id) {
  for (; s.delay != s.delay_end && s.delay->before.op <= s.at; ++s.delay) {
    outcome_.ranks[s.rank].host_ns += s.delay->ns;
    List(s, id, s.at, s.time, s.time, s.time + s.delay->ns);
    s.time += s.delay->ns;
  }
}

void Evaluation::PrepareMissing() {
  for (MeetingPlace& channel : channels_) channel.counts.assign(2, 0);
  for (const Rank& rank : graph_.ranks) {
    const Program& program = graph_.program_of(rank);
    std::vector<uint32_t> collectives(program.participants.size(), 0);
    for (const graph::Sequence& s : program.sequences) {
      if (s.kind != SequenceKind::kStream) continue;
      for (const Op& op : s.ops) {
        if (op.kind != OpKind::kComm) continue;
        const Call& call = program.calls[op.a];
        const uint32_t channel = rank.channel[op.a];
        uint32_t& count = channel == kNone
                              ? collectives[call.participant]
                              : channels_[channel].counts[call.op == trace::CommOp::kSend ? 0 : 1];
        count = std::max(count, op.b + 1);
      }
    }
    for (uint32_t p = 0; p < collectives.size(); ++p)
      comms_[rank.comm[p]].counts.push_back(collectives[p]);
  }
  for (auto* places : {&comms_, &channels_}) {
    for (MeetingPlace& place : *places)
      std::sort(place.counts.begin(), place.counts.end(), std::greater<>());
  }
}

uint32_t Evaluation::NewArrival(const Arrival& arrival) {
  const uint32_t number = free_arrival_;
  if (number == kNone) {
    arrivals_.push_back(arrival);
    return static_cast<uint32_t>(arrivals_.size() - 1);
  }
  free_arrival_ = arrivals_[number].next;
  arrivals_[number] = arrival;
  return number;
}

void Evaluation::Arrive(MeetingPlace& place, uint32_t sequence, const Arrival& arrival,
                        int64_t cost, bool measured) {
  OpenMeeting& meeting = place.At(sequence);
  const uint32_t number = NewArrival(arrival);
  arrivals_[number].next = meeting.first;
  meeting.first = number;
  meeting.ready = std::max(meeting.ready, arrival.ready);
  if (measured == meeting.measured) {
    meeting.cost = std::max(meeting.cost, cost);
  } else if (measured) {
    // What one has measured says more than what is modelled of the others.
    meeting.measured = true;
    meeting.cost = cost;
  }
  if (++meeting.arrived < place.Expected(sequence)) return;

  if (meeting.sent != kUnknown) {
    int64_t end = kUnknown;
    uint32_t by = kNone;
    Cause cause;
    for (uint32_t a = meeting.first; a != kNone; a = arrivals_[a].next) {
      const Arrival& each = arrivals_[a];
      const bool receives = each.call != nullptr;
      const int64_t own = receives ? each.ready + durations_.receive_ns : meeting.sent;
      if (own > end || (own == end && each.sequence < by)) {
        end = own;
        by = each.sequence;
        cause = each.cause;
      }
    }
    Conclude(meeting.first, meeting.ready, end, cause);
  } else {
    Meet(meeting.first, meeting.ready, meeting.cost, meeting.measured);
  }
  meeting.first = kNone;
  meeting.arrived = UINT32_MAX;  // complete
  size_t complete = 0;
  while (complete < place.meetings.size() && place.meetings[complete].arrived == UINT32_MAX)
    ++complete;
  if (complete == place.meetings.size()) {
    place.meetings.clear();
    place.base += static_cast<uint32_t>(complete);
  } else if (complete > 16) {
    place.meetings.erase(place.meetings.begin(),
                         place.meetings.begin() + static_cast<std::ptrdiff_t>(complete));
    place.base += static_cast<uint32_t>(complete);
  }
}

void Evaluation::EnterFifo(uint32_t channel, uint32_t sequence, const Call& call,
                           const Arrival& arrival, int64_t cost, bool early) {
  if (channel == kNone) return;  // no message
  const uint32_t send = early ? NewArrival(arrival) : kNone;
  if (fifos_.empty()) {
    if (early) SendEarly(channel, sequence, send, cost, arrival.ready);
    return;
  }
  Fifo& fifo = fifos_[channel];
  if (sequence < fifo.base) return;  // a receive for which nobody waits
  Fifo::Message& message = fifo.At(sequence);
  if (call.op == trace::CommOp::kSend) {
    message.steps = graph::FifoSteps(call);
    message.send = send;
    message.cost = cost;
  } else {
    message.received = arrival.ready;
    message.cause = arrival.cause;
  }
  BeginSends(channel);
}

void Evaluation::BeginSends(uint32_t channel) {
  Fifo& fifo = fifos_[channel];
  for (; fifo.next - fifo.base < fifo.messages.size(); ++fifo.next) {
    const Fifo::Message& message = fifo.At(fifo.next);
    if (message.steps == 0) break;
    if (message.send == kNone) continue;  // it begins when its receive has come
    int64_t begin = arrivals_[message.send].ready;
    uint64_t used = message.steps;
    uint32_t before = fifo.next;
    while (before > fifo.base && used <= trace::kEarlySendSteps) used += fifo.At(--before).steps;
    if (used > trace::kEarlySendSteps) {
      // There is room when that one is received.
      const Fifo::Message& last = fifo.At(before);
      if (last.received == kUnknown) break;
      if (last.received > begin) {
        begin = last.received;
        arrivals_[message.send].cause = last.cause;
      }
    }
    SendEarly(channel, fifo.next, message.send, message.cost, begin);
  }
  // A message takes a step at least: who is farther behind does not matter.
  constexpr uint32_t kKept = trace::kEarlySendSteps;
  if (fifo.next - fifo.base <= 2 * kKept) return;
  const uint32_t base = fifo.next - kKept;
  fifo.messages.erase(fifo.messages.begin(), fifo.messages.begin() + (base - fifo.base));
  fifo.base = base;
}

void Evaluation::SendEarly(uint32_t channel, uint32_t sequence, uint32_t send, int64_t cost,
                           int64_t begin) {
  const CallTime& call = *arrivals_[send].call;
  const auto first = durations_.shares.begin() + call.first_share;
  shares_.assign(first, first + call.shares);
  Fly(send, begin, cost, channel, sequence);
}

void Evaluation::Meet(uint32_t first, int64_t met, int64_t cost, bool measured) {
  shares_.clear();
  // What was measured in the job was measured with all that it met there.
  for (uint32_t a = measured ? kNone : first; a != kNone; a = arrivals_[a].next) {
    const CallTime* call = arrivals_[a].call;
    if (call == nullptr || call->shares == 0) continue;
    const auto begin = durations_.shares.begin() + call->first_share;
    shares_.insert(shares_.end(), begin, begin + call->shares);
  }
  if (shares_.empty() || cost <= 0) {
    Conclude(first, met, met + cost, LastCause(first));
    return;
  }
  Fly(first, met, cost, kNone, 0);
}

void Evaluation::Fly(uint32_t first, int64_t met, int64_t cost, uint32_t channel,
                     uint32_t sequence) {
  const uint32_t flow = flows_.Add(met, cost, shares_);
  if (flow >= flights_.size()) flights_.resize(flow + 1);
  flights_[flow] = {first, met, channel, sequence};
}

Cause Evaluation::LastCause(uint32_t first) const {
  if (!options_.history) return {};
  const Arrival* last = &arrivals_[first];
  for (uint32_t a = last->next; a != kNone; a = arrivals_[a].next) {
    const Arrival& each = arrivals_[a];
    if (std::pair(each.ready, last->sequence) > std::pair(last->ready, each.sequence)) last = &each;
  }
  return last->cause;
}

void Evaluation::Conclude(uint32_t first, int64_t met, int64_t end, Cause cause) {
  for (uint32_t a = first; a != kNone;) {
    Arrival& each = arrivals_[a];
    if (each.sequence == kNone) {
      if (each.token != kNoToken) {
        met_.push_back({each.token, met, end});
        --open_visits_;
      }
    } else {
      Sequence& s = sequences_[each.sequence];
      if (each.waits && end >= s.group_end) {
        s.group_end = end;
        s.group_cause = cause;
      }
      if (s.is_stream && each.waits) {
        RankOutcome& rank = outcome_.ranks[s.rank];
        rank.transfer_ns += end - met;
        rank.wait_ns += met - each.ready;
        List(s, each.sequence, each.op, each.ready, met, end);
      }
      if (each.waits && --s.unmet == 0 && s.state == State::kAwaitsMeeting) Wake(each.sequence);
    }
    const uint32_t next = each.next;
    each.next = free_arrival_;
    free_arrival_ = a;
    a = next;
  }
}

void Evaluation::Land(const Flows::End& end) {
  const Flight flight = flights_[end.flow];
  const Cause cause = LastCause(flight.first);
  Conclude(flight.first, flight.met, end.ns, cause);
  if (flight.channel == kNone) return;
  MeetingPlace& place = channels_[flight.channel];
  place.At(flight.sequence).sent = end.ns;
  Arrive(place, flight.sequence, {kNone, 0, kNone, flight.met, false, kNoToken, nullptr, cause}, 0,
         false);
}

void Evaluation::SpendHostTime(Sequence& s, uint32_t id, int64_t ns) {
  if (ns == 0) return;
  const auto source = static_cast<TimeSource>(s.provenance[s.at] & 3);
  double scale = durations_.host_scale[static_cast<size_t>(source)];
  if (!durations_.host_time_scale.empty()) scale *= durations_.host_time_scale[s.rank];
  ns = Scaled(ns, scale);
  ns = Drawn(s, id, s.at, ns, source);
  outcome_.ranks[s.rank].host_ns += ns;
  List(s, id, s.at, s.time, s.time, s.time + ns);
  s.time += ns;
}

void Evaluation::RunThread(uint32_t id) {
  Sequence& s = sequences_[id];
  const uint32_t base = first_sequence_[s.rank];
  int64_t* slots = slots_.data() + first_slot_[s.rank];
  const bool timed = graph_.program_of(graph_.ranks[s.rank]).host_timed;
  s.state = State::kRunning;
  for (; s.at < s.size; ++s.at) {
    const Op& op = s.ops[s.at];
    Cause cause = Before(s, id);
    if (s.delay != s.delay_end) SpendDelays(s, id);
    switch (op.kind) {
      case OpKind::kHost:
        SpendHostTime(s, id, op.b);
        break;
      case OpKind::kEnqueue: {
        Sequence& stream = sequences_[base + op.a];
        if (stream.enqueued != op.b) {
          s.next_waiter = stream.order_waiters;
          stream.order_waiters = id;
          s.state = State::kAwaitsOrder;
          return;
        }
        const Op& target = stream.ops[op.b];
        if (!timed) {
          SpendHostTime(s, id,
                        target.kind == OpKind::kSpan   ? durations_.host.launch
                        : target.kind == OpKind::kComm ? durations_.host.communication
                                                       : durations_.host.event);
        }
        if (stream.last_enqueue > s.time) {
          s.time = stream.last_enqueue;
          cause = stream.last_enqueuer;
        }
        stream.last_enqueue = s.time;
        stream.last_enqueuer = {id, s.at};
        if (options_.history) enqueuers_[base + op.a][op.b] = {{id, s.at}, {id, s.at}};
        const uint32_t count = target.kind == OpKind::kComm ? target.detail : 1;
        stream.queue.Reserve(stream.at, op.b + 1);
        stream.queue.at(op.b) = {s.time, (target.flags & graph::kHasLast) != 0 ? kUnknown : s.time};
        stream.enqueued += count;
        if (stream.state == State::kAwaitsEnqueue) Wake(base + op.a);
        for (uint32_t waiter = stream.order_waiters; waiter != kNone;) {
          const uint32_t next = sequences_[waiter].next_waiter;
          Wake(waiter);
          waiter = next;
        }
        stream.order_waiters = kNone;
        break;
      }
      case OpKind::kEnqueueLast: {
        Sequence& stream = sequences_[base + op.a];
        if (!timed) SpendHostTime(s, id, (stream.ops[op.b].b - 1) * durations_.host.launch);
        Enqueued& e = stream.queue.at(op.b);
        e.last = std::max(e.first, s.time - op.detail);
        if (options_.history) enqueuers_[base + op.a][op.b].second = {id, s.at};
        if (stream.state == State::kAwaitsLast && stream.at == op.b) Wake(base + op.a);
        break;
      }
      case OpKind::kWait:
        if (!SlotKnown(slots[op.a])) {
          AwaitSlot(s, id, slots[op.a]);
          return;
        }
        if (slots[op.a] > s.time) {
          List(s, id, s.at, s.time, s.time, slots[op.a]);
          s.time = slots[op.a];
          cause = SlotCause(s, op.a);
        }
        if (!timed) SpendHostTime(s, id, durations_.host.synchronize);
        break;
      case OpKind::kCommInit:
        if (!s.arrived) {
          s.arrived = true;
          s.unmet = 1;
          s.group_end = s.time;
          Arrive(inits_[graph_.ranks[s.rank].comm[op.a]], 0,
                 {id, s.at, kNone, s.time, true, kNoToken, nullptr, cause}, 0, false);
        }
        if (s.unmet != 0) {
          s.state = State::kAwaitsMeeting;
          return;
        }
        s.arrived = false;
        s.time = s.group_end;
        cause = s.group_cause;
        break;
      default:
        break;
    }
    ++outcome_.operations;
    Completed(id, s.at, s.time, cause);
    if (op.slot != kNone) SetSlot(s, id, s.at);
  }
  s.state = State::kDone;
}

void Evaluation::RunStream(uint32_t id) {
  Sequence& s = sequences_[id];
  const Rank& graph_rank = graph_.ranks[s.rank];
  const Program& program = graph_.program_of(graph_rank);
  int64_t* slots = slots_.data() + first_slot_[s.rank];
  RankOutcome& rank = outcome_.ranks[s.rank];
  const std::vector<SpanTime>& spans = durations_.spans[graph_rank.program];
  const std::vector<CallTime>& calls = durations_.calls[s.rank];
  const int64_t latency = durations_.launch_latency_ns;
  const bool changed = !durations_.span_scale.empty() && !durations_.span_scale[s.rank].empty();
  s.state = State::kRunning;
  while (s.at < s.size) {
    if (s.at >= s.enqueued) {
      s.state = State::kAwaitsEnqueue;
      return;
    }
    const Op& op = s.ops[s.at];
    const Enqueued& enqueued = s.queue.at(s.at);
    const int64_t start = std::max(s.time, enqueued.first + latency);
    Cause cause = StartCause(s, id, enqueued);
    switch (op.kind) {
      case OpKind::kSpan: {
        if (enqueued.last == kUnknown) {
          s.state = State::kAwaitsLast;
          return;
        }
        SpanTime span = spans[op.a];
        if (s.measured != nullptr && s.measured[s.at] >= 0) {
          span.tail_ns = span.ns == 0 ? 0 : span.tail_ns * s.measured[s.at] / span.ns;
          const bool retimed = !durations_.retimed.empty() && durations_.retimed[s.rank] != 0;
          const double scale =
              retimed ? durations_.retimed_span_scale : durations_.measured_span_scale;
          span.ns = Scaled(s.measured[s.at], scale);
          span.tail_ns = Scaled(span.tail_ns, scale);
          span.source = retimed ? TimeSource::kInterpolated : TimeSource::kMeasured;
        }
        if (changed) {
          const double factor = durations_.span_scale[s.rank][op.a];
          span.ns = Scaled(span.ns, factor);
          span.tail_ns = Scaled(span.tail_ns, factor);
        }
        const int64_t ns = Drawn(s, id, s.at, span.ns, span.source);
        const int64_t end =
            std::max(start + ns, enqueued.last + latency + std::min(span.tail_ns, ns));
        if (options_.history && end > start + ns) cause = enqueuers_[id][s.at].second;
        rank.span_ns += end - start;
        List(s, id, s.at, start, start, end);
        s.time = end;
        break;
      }
      case OpKind::kWait:
        if (!SlotKnown(slots[op.a])) {
          AwaitSlot(s, id, slots[op.a]);
          return;
        }
        if (slots[op.a] > start) cause = SlotCause(s, op.a);
        s.time = std::max(start, slots[op.a]);
        break;
      case OpKind::kComm: {
        if (!s.arrived) {
          s.arrived = true;
          s.group_cause = cause;
          const bool waits = !graph::EndsEarly(program, s.ops + s.at);
          s.unmet = 0;
          s.group_end = start;
          for (uint32_t i = s.at; i < s.at + op.detail; ++i) {
            const Op& part = s.ops[i];
            const CallTime& call = calls[part.a];
            const bool measured = s.measured != nullptr && s.measured[i] >= 0;
            const int64_t ns =
                Drawn(s, id, i,
                      measured ? Scaled(s.measured[i], MeasuredCallScale(s.rank, part.a))
                               : CallNs(graph_rank, part.a, part.b, call),
                      measured ? TimeSource::kMeasured : call.source);
            const Call& what = program.calls[part.a];
            const bool early = !measured && call.shares != 0 && graph::BeginsEarly(what);
            // What a message takes counts from the meeting for who waits for it.
            if (waits || early) ++s.unmet;
            const Arrival arrival{id, i, kNone, start, waits || early, kNoToken, &call, cause};
            if (!fifos_.empty() || early) [[unlikely]]
              EnterFifo(graph_rank.channel[part.a], part.b, what, arrival, ns, early);
            if (early) continue;
            Arrive(PlaceOf(graph_rank, part.a), part.b, arrival, waits ? ns : 0, waits && measured);
            if (waits) continue;
            s.group_end = std::max(s.group_end, start + ns);
            rank.transfer_ns += ns;
            List(s, id, i, start, start, start + ns);
          }
        }
        if (s.unmet != 0) {
          s.state = State::kAwaitsMeeting;
          return;
        }
        s.arrived = false;
        s.time = s.group_end;
        const uint32_t end = s.at + op.detail;
        outcome_.operations += op.detail;
        for (; s.at < end; ++s.at) {
          Completed(id, s.at, s.time, s.group_cause);
          if (s.ops[s.at].slot != kNone) SetSlot(s, id, s.at);
        }
        continue;
      }
      default:
        s.time = start;
        break;
    }
    ++outcome_.operations;
    Completed(id, s.at, s.time, cause);
    if (op.slot != kNone) SetSlot(s, id, s.at);
    ++s.at;
  }
  s.state = State::kDone;
}

absl::Status Evaluation::Stuck() const {
  std::string text;
  size_t stuck = 0;
  for (const Sequence& s : sequences_) {
    if (s.at >= s.size) continue;
    ++stuck;
    const Op& op = s.ops[s.at];
    // What nobody enqueued waits for its thread, which is listed itself.
    if (s.state == State::kAwaitsEnqueue || stuck > 8) continue;
    const Rank& rank = graph_.ranks[s.rank];
    const Program& program = graph_.program_of(rank);
    absl::StrAppend(&text, "\n  rank ", rank.rank, " ", s.source->name, " #", s.at, ": ");
    switch (s.state) {
      case State::kAwaitsMeeting:
        if (op.kind == OpKind::kComm) {
          const Call& call = program.calls[op.a];
          absl::StrAppend(&text, std::string(graph::CommOpName(call.op)), " ", op.b,
                          " of communicator ",
                          graph_.communicators[rank.comm[call.participant]].number);
          if (call.call_site < program.strings.size()) {
            absl::StrAppend(&text, " at ", program.strings[call.call_site]);
          }
        } else {
          absl::StrAppend(&text, "initialisation of communicator ",
                          graph_.communicators[rank.comm[op.a]].number);
        }
        break;
      case State::kAwaitsSlot:
        absl::StrAppend(&text, s.is_stream ? "waits for an event" : "waits for a stream");
        break;
      default:
        absl::StrAppend(&text, "waits for a launch");
        break;
    }
  }
  return WithHint(
      absl::FailedPreconditionError(absl::StrCat(
          stuck,
          " sequences can never end; they wait for each other or for what no rank does:", text)),
      "`prism inspect DIR` lists communications that do not match");
}

void Evaluation::Initialise(uint32_t rank, uint32_t participant, int64_t ready_ns) {
  const Rank& who = graph_.ranks[rank];
  if (!graph_.program_of(who).participants[participant].has_init) return;
  Arrive(inits_[who.comm[participant]], 0, {kNone, 0, kNone, ready_ns, true, kNoToken, nullptr, {}},
         0, false);
}

void Evaluation::Visited(const Visit& visit) {
  const Rank& rank = graph_.ranks[visit.rank];
  const CallTime& call = durations_.calls[visit.rank][visit.call];
  const int64_t ns = CallNs(rank, visit.call, visit.sequence, call);
  const bool early = visit.early && call.shares != 0;
  if (visit.waits || early) ++open_visits_;
  const bool waits = visit.waits || early;
  const Arrival arrival{kNone, 0, kNone, visit.ready_ns, waits, waits ? visit.token : kNoToken,
                        &call, {}};
  if (early || !fifos_.empty())
    EnterFifo(rank.channel[visit.call], visit.sequence, graph_.program_of(rank).calls[visit.call],
              arrival, ns, early);
  if (early) return;
  // Who waits for nobody is answered at once, with what the call takes on its stream.
  if (!waits) met_.push_back({visit.token, visit.ready_ns, visit.ready_ns + ns});
  Arrive(PlaceOf(rank, visit.call), visit.sequence, arrival, waits ? ns : 0, false);
}

bool Evaluation::Done() const {
  return std::all_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& s) { return s.at >= s.size; });
}

void Evaluation::Advance(int64_t until_ns) {
  while (true) {
    while (!ready_.empty()) {
      const uint32_t id = ready_.back();
      ready_.pop_back();
      if (sequences_[id].is_stream) {
        RunStream(id);
      } else {
        RunThread(id);
      }
    }
    const int64_t next_ns = flows_.NextNs();
    if (next_ns == Flows::kNever || next_ns > until_ns) return;
    for (const Flows::End& end : flows_.Step()) Land(end);
  }
}

History Evaluation::TakeHistory() {
  History history(graph_.ranks.size());
  for (uint32_t id = 0; id < sequences_.size(); ++id) {
    std::vector<Completion> completions;
    completions.reserve(records_[id].size());
    for (const Record& record : records_[id]) {
      Completion& c = completions.emplace_back();
      c.end_ns = record.end_ns;
      if (record.cause.sequence == kNone) continue;
      c.rank = sequences_[record.cause.sequence].rank;
      c.cause = {record.cause.sequence - first_sequence_[c.rank], record.cause.op};
    }
    records_[id] = {};
    history[sequences_[id].rank].push_back(std::move(completions));
  }
  return history;
}

absl::StatusOr<Outcome> Evaluation::Run() {
  Advance(Flows::kNever);
  for (const Sequence& s : sequences_) {
    if (s.at < s.size) return Stuck();
    RankOutcome& rank = outcome_.ranks[s.rank];
    rank.finish_ns = std::max(rank.finish_ns, s.time);
    outcome_.finish_ns = std::max(outcome_.finish_ns, s.time);
  }
  if (options_.probes != nullptr) {
    for (uint32_t r = 0; r < graph_.ranks.size(); ++r) {
      const uint32_t p = graph_.ranks[r].program;
      if (p >= options_.probes->size()) continue;
      for (const graph::Place place : (*options_.probes)[p]) {
        if (place.sequence == kNone) {
          outcome_.ranks[r].probes.push_back(-1);
          continue;
        }
        const uint32_t slot = graph_.programs[p].sequences[place.sequence].ops[place.op].slot;
        outcome_.ranks[r].probes.push_back(slots_[first_slot_[r] + slot]);
      }
    }
  }
  if (options_.history) outcome_.history = TakeHistory();
  return std::move(outcome_);
}

}  // namespace

int64_t LogNormalDraw::Draw(uint32_t rank, uint32_t iteration, uint32_t sequence, uint32_t op,
                            int64_t base_ns, TimeSource) const {
  const uint64_t key = SplitMix(
      SplitMix(SplitMix(seed_ ^ uint64_t{rank} << 32) ^ uint64_t{iteration} << 32 ^ sequence) ^ op);
  return std::llround(static_cast<double>(base_ns) * std::exp(sigma_ * Normal(key)));
}

SampleDraw::SampleDraw(const Graph& graph, graph::StepSamples samples, uint64_t seed)
    : samples_(std::move(samples)), seed_(seed), index_of_(graph.world, kNone) {
  for (uint32_t i = 0; i < graph.ranks.size(); ++i) index_of_[graph.ranks[i].rank] = i;
}

int64_t SampleDraw::Draw(uint32_t rank, uint32_t iteration, uint32_t sequence, uint32_t op,
                         int64_t base_ns, TimeSource) const {
  const uint64_t key = SplitMix(SplitMix(seed_) ^ iteration);
  return Scaled(base_ns, samples_.Ratio(index_of_[rank], sequence, op, key));
}

absl::StatusOr<Outcome> Evaluate(const Graph& graph, const Durations& durations,
                                 const Options& options) {
  return Evaluation(graph, durations, options).Run();
}

class LiveEvaluation::State {
 public:
  State(const Graph& graph, const Durations& durations, const Options& options,
        std::vector<uint8_t> outside, uint32_t waits_before_look)
      : waits_before_look_(waits_before_look),
        now_(std::in_place, graph, durations, options, std::move(outside)) {}

  void Initialise(uint32_t rank, uint32_t participant, int64_t ready_ns) {
    ahead_.reset();
    now_->Initialise(rank, participant, ready_ns);
  }

  void Visit(const engine::Visit& visit) {
    ahead_.reset();
    waits_ = 0;
    group_of_[visit.token] = visit.group;
    ++open_[visit.group];
    now_->Visited(visit);
  }

  std::vector<Meeting> Run(int64_t until_ns) {
    if (ahead_.has_value()) {
      // Until then no group ends, and what is told of before would be told of twice.
      if (until_ns < ahead_ns_) return {};
      now_.emplace(*std::move(ahead_));
      ahead_.reset();
    }
    now_->Advance(until_ns);
    std::vector<Meeting> met = now_->TakeMet();
    for (const Meeting& meeting : met) {
      Close(meeting, &open_);
      group_of_.erase(meeting.token);
    }
    return met;
  }

  int64_t NextNs() {
    const int64_t next_ns = now_->NextNs();
    if (next_ns == Flows::kNever || waits_++ < waits_before_look_) return next_ns;
    if (!ahead_.has_value()) LookAhead();
    return ahead_ns_;
  }

  bool Done() const { return now_->Done(); }

 private:
  using Open = std::unordered_map<uint64_t, uint32_t>;  // visits of each group

  /// Whether it was the last of its group.
  bool Close(const Meeting& meeting, Open* open) const {
    const auto group = open->find(group_of_.at(meeting.token));
    if (--group->second != 0) return false;
    open->erase(group);
    return true;
  }

  void LookAhead() {
    ahead_.emplace(*now_);
    Open open = open_;
    bool closed = false;
    for (size_t told = 0; !closed;) {
      ahead_ns_ = ahead_->NextNs();
      if (ahead_ns_ == Flows::kNever) return;
      ahead_->Advance(ahead_ns_);
      for (; told < ahead_->met().size(); ++told) closed |= Close(ahead_->met()[told], &open);
    }
  }

  const uint32_t waits_before_look_;
  std::optional<Evaluation> now_;
  std::unordered_map<uint64_t, uint64_t> group_of_;  // of each token
  Open open_;
  uint32_t waits_ = 0;  // since the last visit
  /// What comes if nobody visits: the evaluation as it will be at `ahead_ns_`, when the next group
  /// ends.
  std::optional<Evaluation> ahead_;
  int64_t ahead_ns_ = 0;
};

LiveEvaluation::LiveEvaluation(const Graph& graph, const Durations& durations,
                               const Options& options, std::vector<uint8_t> outside,
                               uint32_t waits_before_look)
    // Delays are told by place in the evaluation, of which a look ahead is a copy.
    : state_(std::make_unique<State>(graph, durations, options, std::move(outside),
                                     options.delays.empty() ? waits_before_look : UINT32_MAX)) {}
LiveEvaluation::~LiveEvaluation() = default;

void LiveEvaluation::Initialise(uint32_t rank, uint32_t participant, int64_t ready_ns) {
  state_->Initialise(rank, participant, ready_ns);
}

void LiveEvaluation::Visit(const engine::Visit& visit) { state_->Visit(visit); }

std::vector<Meeting> LiveEvaluation::Run(int64_t until_ns) { return state_->Run(until_ns); }

int64_t LiveEvaluation::NextNs() { return state_->NextNs(); }

bool LiveEvaluation::Done() const { return state_->Done(); }

}  // namespace prism::engine
