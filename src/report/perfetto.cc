#include "src/report/perfetto.h"

#include <errno.h>
#include <stdio.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "src/base/status.h"
#include "src/engine/communication_cost.h"

namespace prism::report {
namespace {

using engine::Interval;
using graph::Graph;
using graph::Op;
using graph::OpKind;

// Field numbers of perfetto/trace/{trace,trace_packet}.proto and
// perfetto/trace/track_event/*.proto.
enum Field : uint32_t {
  kTracePacket = 1,
  kPacketTimestamp = 8,
  kPacketSequence = 10,
  kPacketTrackEvent = 11,
  kPacketInternedData = 12,
  kPacketSequenceFlags = 13,
  kPacketTrackDescriptor = 60,
  kInternedEventNames = 2,
  kInternedNameIid = 1,
  kInternedNameText = 2,
  kTrackUuid = 1,
  kTrackName = 2,
  kTrackProcess = 3,
  kTrackThread = 4,
  kTrackParent = 5,
  kTrackCounter = 8,
  kProcessPid = 1,
  kProcessName = 6,
  kThreadPid = 1,
  kThreadTid = 2,
  kThreadName = 5,
  kCounterUnit = 3,
  kEventDebugAnnotations = 4,
  kEventType = 9,
  kEventNameIid = 10,
  kEventTrack = 11,
  kEventCounterValue = 30,
  kEventFlowIds = 47,
  kAnnotationUint = 3,
  kAnnotationString = 6,
  kAnnotationName = 10,
};
constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2, kCounter = 4;
constexpr uint64_t kUnitBytes = 3;
constexpr uint64_t kIncrementalStateCleared = 1, kNeedsIncrementalState = 2;
constexpr uint64_t kSequence = 1;

/// Encodes one protobuf message.
class Message {
 public:
  void Varint(uint32_t field, uint64_t value) {
    Raw(uint64_t{field} << 3);
    Raw(value);
  }
  void Fixed64(uint32_t field, uint64_t value) {
    Raw(uint64_t{field} << 3 | 1);
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> 8 * i));
  }
  void Bytes(uint32_t field, std::string_view value) {
    Raw(uint64_t{field} << 3 | 2);
    Raw(value.size());
    bytes_.append(value);
  }
  void Nested(uint32_t field, const Message& message) { Bytes(field, message.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void Raw(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  std::string bytes_;
};

class TraceBuilder {
 public:
  /// A process's track.
  uint64_t Process(uint32_t pid, std::string_view name) {
    Message process, track;
    process.Varint(kProcessPid, pid);
    process.Bytes(kProcessName, name);
    track.Varint(kTrackUuid, ++uuid_);
    track.Nested(kTrackProcess, process);
    return Emit(track);
  }
  uint64_t Thread(uint32_t pid, uint32_t tid, std::string_view name) {
    Message thread, track;
    thread.Varint(kThreadPid, pid);
    thread.Varint(kThreadTid, tid);
    thread.Bytes(kThreadName, name);
    track.Varint(kTrackUuid, ++uuid_);
    track.Nested(kTrackThread, thread);
    return Emit(track);
  }
  uint64_t Counter(uint64_t parent, std::string_view name) {
    Message counter, track;
    counter.Varint(kCounterUnit, kUnitBytes);
    track.Varint(kTrackUuid, ++uuid_);
    track.Bytes(kTrackName, name);
    track.Varint(kTrackParent, parent);
    track.Nested(kTrackCounter, counter);
    return Emit(track);
  }

  void Annotate(std::string_view name, std::string_view value) {
    Message a;
    a.Bytes(kAnnotationName, name);
    a.Bytes(kAnnotationString, value);
    annotations_.push_back(std::move(a));
  }
  void Annotate(std::string_view name, uint64_t value) {
    Message a;
    a.Bytes(kAnnotationName, name);
    a.Varint(kAnnotationUint, value);
    annotations_.push_back(std::move(a));
  }
  void Flow(uint64_t id) { flows_.push_back(id); }

  /// A slice with the annotations and flows since the last one.
  void Slice(uint64_t track, int64_t begin, int64_t end, const std::string& name) {
    Message packet;
    const auto [it, inserted] = names_.try_emplace(name, names_.size() + 1);
    if (inserted) {
      Message entry, interned;
      entry.Varint(kInternedNameIid, it->second);
      entry.Bytes(kInternedNameText, name);
      interned.Nested(kInternedEventNames, entry);
      packet.Nested(kPacketInternedData, interned);
    }
    Message event;
    event.Varint(kEventType, kSliceBegin);
    event.Varint(kEventTrack, track);
    event.Varint(kEventNameIid, it->second);
    for (const Message& a : annotations_) event.Nested(kEventDebugAnnotations, a);
    for (uint64_t id : flows_) event.Fixed64(kEventFlowIds, id);
    annotations_.clear();
    flows_.clear();
    Event(packet, event, begin);
    Message close;
    close.Varint(kEventType, kSliceEnd);
    close.Varint(kEventTrack, track);
    Event(Message(), close, end);
  }
  void Value(uint64_t track, int64_t at, int64_t value) {
    Message event;
    event.Varint(kEventType, kCounter);
    event.Varint(kEventTrack, track);
    event.Varint(kEventCounterValue, static_cast<uint64_t>(value));
    Event(Message(), event, at);
  }

  std::string Take() { return std::move(trace_); }

 private:
  uint64_t Emit(const Message& track) {
    Message packet;
    packet.Nested(kPacketTrackDescriptor, track);
    Append(packet);
    return uuid_;
  }
  void Event(Message packet, const Message& event, int64_t at) {
    packet.Varint(kPacketTimestamp, static_cast<uint64_t>(std::max<int64_t>(at, 0)));
    packet.Nested(kPacketTrackEvent, event);
    Append(packet);
  }
  void Append(Message packet) {
    packet.Varint(kPacketSequence, kSequence);
    packet.Varint(kPacketSequenceFlags,
                  kNeedsIncrementalState | (trace_.empty() ? kIncrementalStateCleared : 0));
    Message trace;
    trace.Nested(kTracePacket, packet);
    trace_ += trace.bytes();
  }

  std::string trace_;
  uint64_t uuid_ = 0;
  std::unordered_map<std::string, uint64_t> names_;
  std::vector<Message> annotations_;
  std::vector<uint64_t> flows_;
};

// What a slice of host time shows: the call that it ends in.
std::string HostName(const graph::Program& program, const graph::Sequence& sequence, const Op& op) {
  switch (op.kind) {
    case OpKind::kHost:
      return "host";
    case OpKind::kEnqueue: {
      const Op& target = program.sequences[op.a].ops[op.b];
      if (target.kind == OpKind::kSpan) return "launch";
      if (target.kind == OpKind::kComm) return "enqueue communication";
      return target.kind == OpKind::kWait ? "wait event" : "record event";
    }
    case OpKind::kEnqueueLast:
      return absl::StrCat("launch x", program.sequences[op.a].ops[op.b].b - 1);
    case OpKind::kWait:
      return "synchronize";
    case OpKind::kCommInit:
      return "communicator initialisation";
    default:
      return sequence.name;
  }
}

// A readable form of a kernel's name: library kernels as they are, mangled ones by their longest
// component.
std::string ShortName(const std::string& name) {
  if (name.size() < 3 || name.compare(0, 2, "_Z") != 0) return name.substr(0, 80);
  std::string best;
  for (size_t i = 2; i < name.size();) {
    if (name[i] < '0' || name[i] > '9') {
      ++i;
      continue;
    }
    size_t length = 0;
    while (i < name.size() && name[i] >= '0' && name[i] <= '9' && length < 10000)
      length = length * 10 + static_cast<size_t>(name[i++] - '0');
    std::string part = name.substr(i, length);
    i += part.size();
    if (part.find("kernel") != std::string::npos) return part;
    if (part.size() > best.size()) best = part;
  }
  return best.empty() ? name.substr(0, 80) : best;
}

}  // namespace

std::string PerfettoTrace(const Graph& graph, const Evaluated& evaluated,
                          const std::vector<MemoryCurve>& memory) {
  TraceBuilder t;
  // Slices of one track must nest, so they are written in the order of time; of equal times the
  // longer one first.
  std::vector<const Interval*> order;
  for (const Interval& i : evaluated.outcome.timeline) order.push_back(&i);
  std::sort(order.begin(), order.end(), [](const Interval* x, const Interval* y) {
    return std::tuple(x->rank, x->sequence, x->start_ns, -x->end_ns, x->op) <
           std::tuple(y->rank, y->sequence, y->start_ns, -y->end_ns, y->op);
  });

  if (!evaluated.steps.classes.empty()) {
    const uint64_t job = t.Process(1, "job");
    static_cast<void>(job);
    const uint64_t track = t.Thread(1, 1, "steps");
    std::vector<int64_t> ends(evaluated.steps.count() + 1, 0);
    for (const engine::RankOutcome& r : evaluated.outcome.ranks) {
      for (size_t k = 0; k < std::min(ends.size(), r.probes.size()); ++k)
        ends[k] = std::max(ends[k], r.probes[k]);
    }
    for (size_t k = 0; k < evaluated.steps.count(); ++k) {
      t.Annotate("class", evaluated.steps.class_names[evaluated.steps.classes[k]]);
      t.Slice(track, ends[k], ends[k + 1], absl::StrCat("step ", k));
    }
  }

  // (rank, sequence) -> track; calls that meet share a flow.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> tracks;
  std::map<uint32_t, uint64_t> processes;
  for (uint32_t r : evaluated.timeline) {
    const graph::Program& program = graph.program_of(graph.ranks[r]);
    const uint32_t pid = 10 + graph.ranks[r].rank;
    processes[r] = t.Process(pid, absl::StrCat("rank ", graph.ranks[r].rank));
    for (uint32_t s = 0; s < program.sequences.size(); ++s) {
      const graph::Sequence& sequence = program.sequences[s];
      if (sequence.ops.empty()) continue;
      const bool stream = sequence.kind == trace::SequenceKind::kStream;
      tracks[{r, s}] = t.Thread(pid, pid * 1000 + s + 1,
                                stream ? absl::StrCat("stream ", s, " ", sequence.name)
                                       : absl::StrCat("thread ", s, " ", sequence.name));
    }
  }
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint64_t> flows;
  for (size_t k = 0; k < order.size(); ++k) {
    const Interval& i = *order[k];
    const graph::Rank& rank = graph.ranks[i.rank];
    const graph::Program& program = graph.program_of(rank);
    const graph::Sequence& sequence = program.sequences[i.sequence];
    const Op& op = sequence.ops[i.op];
    const uint64_t track = tracks[{i.rank, i.sequence}];
    std::string name;
    int64_t end = i.end_ns;
    if (op.kind == OpKind::kSpan) {
      const graph::Span& span = program.spans[op.a];
      name = span.kernels.empty() ? "span" : ShortName(program.kernels[span.kernels[0]].name);
      if (span.kernels.size() > 1) absl::StrAppend(&name, " +", span.kernels.size() - 1);
      t.Annotate("kernels", span.kernels.size());
      for (size_t n = 0; n < std::min<size_t>(span.kernels.size(), 4); ++n) {
        t.Annotate(absl::StrCat("kernel ", n), ShortName(program.kernels[span.kernels[n]].name));
      }
    } else if (op.kind == OpKind::kComm) {
      const graph::Call& call = program.calls[op.a];
      const graph::Communicator& comm = graph.communicators[rank.comm[call.participant]];
      name = std::string(graph::CommOpName(call.op));
      // Of one group the calls run side by side, but a track shows one thing at a time: they are
      // nested by length.
      t.Annotate("communicator", comm.number);
      t.Annotate("ranks", comm.size());
      t.Annotate("bytes", call.count * engine::ElementBytes(call.dtype));
      t.Annotate("waits for others ns", static_cast<uint64_t>(i.met_ns - i.start_ns));
      if (call.call_site < program.strings.size())
        t.Annotate("call site", program.strings[call.call_site]);
      const auto [it, inserted] = flows.try_emplace(
          std::tuple(rank.comm[call.participant], rank.channel[op.a], op.b), flows.size() + 1);
      t.Flow(it->second);
    } else {
      name = HostName(program, sequence, op);
    }
    t.Slice(track, i.start_ns, end, name);
  }
  for (const MemoryCurve& curve : memory) {
    if (processes.count(curve.rank) == 0 || curve.bytes.empty()) continue;
    const uint64_t track = t.Counter(processes[curve.rank], "device memory");
    for (const auto& [at, bytes] : curve.bytes) t.Value(track, at, bytes);
  }
  return t.Take();
}

absl::Status WritePerfetto(const std::string& path, const Graph& graph, const Evaluated& evaluated,
                           const std::vector<MemoryCurve>& memory) {
  const std::string trace = PerfettoTrace(graph, evaluated, memory);
  const std::string temporary = path + ".tmp";
  const auto failed = [&](int error) {
    return WithHint(ErrnoStatus(error, "write " + path),
                    "`prism simulate DIR --timeline FILE` writes it elsewhere, --timeline none not "
                    "at all");
  };
  gzFile file = gzopen(temporary.c_str(), "wb6");
  if (file == nullptr) return failed(errno);
  size_t done = 0;
  while (done < trace.size()) {
    const auto part = static_cast<unsigned>(std::min<size_t>(trace.size() - done, 1 << 20));
    if (gzwrite(file, trace.data() + done, part) != static_cast<int>(part)) break;
    done += part;
  }
  const int error = errno;
  if (gzclose(file) != Z_OK || done < trace.size()) {
    remove(temporary.c_str());
    return failed(error == 0 ? EIO : error);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return failed(errno);
  return absl::OkStatus();
}

}  // namespace prism::report
