// Program: what one rank does, compiled from its trace so that it can be walked at speed and
// shared.
//
// The operations of a stream are its trace's nodes, one to one; those of a thread are its nodes but
// for two kinds that say nothing about order or time: counts of calls without a time, and
// successful event queries (a query does not wait; how many succeed depends on the machine that
// captured). Every reference is resolved: an event wait names a slot instead of (event, version), a
// call names a participant instead of a job-wide communicator. Ranks whose programs are equal but
// for communicator numbers, peers and the names of threads share one; what differs is in
// RankBinding. Immutable once compiled, but for AddSlot; any number of threads may read.
//
// A slot is the completion time of one operation that somebody waits for: an event's record, the
// last operation before a synchronization or of another thread before it hands over, a probe.
#ifndef PRISM_GRAPH_PROGRAM_H_
#define PRISM_GRAPH_PROGRAM_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/trace/reader.h"

namespace prism::graph {

inline constexpr uint32_t kNone = UINT32_MAX;

enum class OpKind : uint8_t {
  kNothing,  // completes with the operation before it
  kSpan,     // stream. a: span. b: kernels. flag kHasLast: a kEnqueueLast follows
  kComm,  // stream. a: call. b: sequence (collectives) or order in the channel. detail: operations
          // of its group on this stream, itself included (the first), or 0 (the others)
  kWait,  // stream or thread. a: slot
  kHost,  // thread. b: nanoseconds
  kEnqueue,      // thread. a: stream sequence. b: operation of it
  kEnqueueLast,  // thread. a, b: as kEnqueue. detail: nanoseconds since the last launch
  kCommInit,     // thread. a: participant
  kMark,         // thread. a: string. detail: trace::MarkKind
};

struct Op {
  OpKind kind;
  uint8_t flags;
  uint16_t detail;
  uint32_t a;
  uint32_t b;
  uint32_t slot;  // kNone, or where its completion time goes
};
static_assert(sizeof(Op) == 16);
inline constexpr uint8_t kHasLast = 1;

struct Program;
struct Call;
/// True for a group of sends (`first` is its first operation, others follow) that NCCL's FIFOs take
/// before the receives come. That they may be full of earlier ones is left out.
bool EndsEarly(const Program& program, const Op* first);

/// Whether a call may begin without its receive: a send that NCCL's FIFO for its peer can hold.
bool BeginsEarly(const Call& call);
/// Of the trace::kEarlySendSteps of that FIFO, what a message takes; at least one.
uint64_t FifoSteps(const Call& call);

struct Sequence {
  trace::SequenceKind kind;
  uint32_t device;  // among those of streams, by first appearance
  int32_t priority;
  std::string name;
  std::vector<Op> ops;
  std::vector<uint8_t> provenance;  // of each node, as in the trace
};

struct Kernel {
  std::string name;
  trace::KernelKind kind;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint64_t bytes;
  uint32_t parameters = trace::kParametersUnknown;
};

struct Span {
  uint64_t hash;
  std::vector<uint32_t> kernels;
};

/// This rank's (or one of its devices') membership of a communicator.
struct Participant {
  uint32_t size;
  uint32_t device;       // in RankBinding::devices
  uint32_t collectives;  // of it in the program
  bool has_init;         // the program contains its kCommInit
};

struct Call {
  uint32_t participant;
  trace::CommOp op;
  uint32_t dtype;
  uint32_t reduction;
  uint64_t count;
  uint64_t bytes;
  uint32_t group;
  uint32_t call_site;  // string, or kNone
};

inline bool IsCollective(trace::CommOp op) { return op < trace::CommOp::kSend; }
std::string_view CommOpName(trace::CommOp op);

/// A place in a program: the completion of one operation.
struct Place {
  uint32_t sequence = kNone;
  uint32_t op = 0;
};

/// A stream operation (the first of a group), and the operation of a thread that enqueues it.
struct Enqueue {
  Place unit;
  Place by;
};

struct Program {
  std::vector<Sequence> sequences;  // numbered as in the trace that was compiled; see SequenceOf()
  std::vector<Kernel> kernels;
  std::vector<Span> spans;
  std::vector<Participant> participants;
  std::vector<Call> calls;
  std::vector<std::string> strings;  // that marks and calls name
  uint32_t slots = 0;
  uint64_t op_count = 0;
  bool host_timed = false;  // the trace says how long the host took between its visible calls
  uint32_t truncated = 0;   // nodes left out at the ends of the streams of an incomplete trace

  /// Gives the operation at `place` a slot, if it has none, and returns it.
  uint32_t AddSlot(Place place);
  /// Enqueues of the threads in an order in which they can have happened: what "the sequence of a
  /// rank's communications" means. Deterministic; equal for repeating work.
  std::vector<Place> EnqueueOrder() const;
  /// The same, with who enqueues.
  std::vector<Enqueue> Enqueues() const;
};

/// What a rank has of its own.
struct RankBinding {
  std::vector<uint32_t> devices;  // of participants, by first appearance: virtual ordinals
  std::vector<uint32_t> comm;     // of each participant: job-wide number
  std::vector<uint32_t> comm_rank;
  std::vector<std::vector<uint32_t>> world_ranks;
  std::vector<int32_t>
      peer;  // of each call: root or peer, in the communicator; -1 where there is none
  uint64_t channel_bytes = 0;  // modelled memory of all its communicators
};

/// Compiles a trace. DataLoss: it contradicts itself (a node enqueued twice or never); with
/// `allow_incomplete` streams end before the first node that was not enqueued.
absl::StatusOr<Program> Compile(const trace::Reader& trace, bool allow_incomplete);

/// Finds participants and calls of a trace, in the order that Compile() numbers them.
absl::StatusOr<RankBinding> Bind(const trace::Reader& trace);

/// Index of the first operation at or after node `node` of a thread's sequence.
uint32_t OpAtNode(const trace::NodeList& thread, uint64_t node);

/// Hash over what two traces that compile to the same program usually have in common, without a
/// look at their nodes.
uint64_t TraceHash(const trace::Reader& trace);
/// Tells, without compiling, that two traces compile to the same program. False says nothing.
bool SameTrace(const trace::Reader& x, const trace::Reader& y);

/// `peers`: PeerPattern() of the trace, which programs that are shared must have in common.
uint64_t ProgramHash(const Program& program, const std::vector<uint32_t>& peers);
/// Threads that do nothing (that only ask whether events are done, say) may be others, or none.
bool SameProgram(const Program& x, const Program& y);

/// What sequence `sequence` of a trace is in the program that the trace shares; kNone: a thread
/// that does nothing.
uint32_t SequenceOf(const Program& program, const trace::Reader& trace, uint32_t sequence);

/// Of each call of the trace, which of its communicator's peers it names, counted by first
/// appearance; kNone for collectives.
std::vector<uint32_t> PeerPattern(const trace::Reader& trace);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_PROGRAM_H_
