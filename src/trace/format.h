// PrismTrace v1: what one rank did. Reference page: docs/reference/prismtrace.md.
//
// A rank has sequences: one for each stream and one for each host thread that called CUDA or NCCL.
// A sequence is an array of 12-byte nodes. Everything longer is in a table and stored once: a
// training loop repeats itself, so a million nodes share a few hundred table entries.
//
// File: FileHeader, then chunks. A chunk is ChunkHeader + payload, 16-byte aligned, CRC-32C over
// header and payload. Chunks are only ever appended; a torn tail (short chunk, wrong CRC) ends the
// readable part, and a file without a kSeal chunk is `incomplete`. A table entry is in an earlier
// chunk than the first node or entry that names it. Readers map the file and index the chunks;
// nodes are used in place. Little-endian.
//
// Host sequences order the work: a stream node can not start before the host node that enqueued it
// (kEnqueue) has ended, and nodes of one stream are enqueued in their order, whichever threads do
// it. Times are separate (kTiming chunks), so re-timing does not rewrite structure.
#ifndef PRISM_TRACE_FORMAT_H_
#define PRISM_TRACE_FORMAT_H_

#include <cstdint>

namespace prism::trace {

inline constexpr char kMagic[8] = {'P', 'R', 'I', 'S', 'M', 'T', 'R', '1'};
inline constexpr uint32_t kFormatVersion = 1;

enum class NodeKind : uint8_t {
  // Streams
  kSpan = 1,  // a: span (table). b: kernels in it. Kernels, copies and sets between two other
              // nodes, enqueued by one
              // thread.
  kComm = 2,  // a: call (table). b: sequence in the communicator (collectives) or with the peer
  // (send/receive). detail: 0, or equal for the consecutive nodes of one ncclGroup on this stream.
  kRecord = 3,  // a: event. b: version (n-th record of this event in the process).
  kWait = 4,    // a: event. b: version waited for; 0: never recorded, does not wait.
  kHostFunc = 5,
  kValueWrite = 6,
  kValueWait = 7,
  // Host threads
  kHost = 16,  // a: number of API calls that took part (launches and the rest). b: nanoseconds of
               // host time; longer times
               // are several nodes.
  kEnqueue = 17,  // a: stream sequence. b: index of the node in it. Spans: the node's first
                  // enqueue. Groups: the
                  // group's first node; the others follow with it.
  kSync = 18,  // a: stream sequence; b: nodes of it that must be complete. kEvent and kQueryTrue:
               // a: event, b: version. kHandoff: a: thread sequence, b: nodes of it.
               // detail: SyncKind.
  kCommInit = 19,  // a: communicator (job-wide number). Returns when all members have come
                   // (blocking), in order.
  kMark = 20,      // a: string. detail: MarkKind. Ranges of NVTX, steps, profiler start and stop.
  kEnqueueLast = 21,  // as kEnqueue, for a span of several kernels: after its last one was enqueued
};

enum class SyncKind : uint16_t {
  kStream = 0,
  kEvent = 1,
  kDevice = 2,
  kQueryTrue = 3,
  kCopy = 4,
  kHandoff = 5,  // threads that take turns: this one goes on after what the other one did
};
enum class MarkKind : uint16_t { kRangePush = 0, kRangePop = 1, kInstant = 2, kStep = 3 };

// Where a duration or a value came from. Two bits each in Node::provenance.
enum class TimeSource : uint8_t { kAssumed = 0, kModelled = 1, kInterpolated = 2, kMeasured = 3 };
enum class ValueSource : uint8_t { kGenerated = 0, kRecorded = 1, kMirrored = 2, kExact = 3 };

struct Node {
  NodeKind kind;
  uint8_t provenance;  // TimeSource | ValueSource << 2
  uint16_t detail;
  uint32_t a;
  uint32_t b;
};
static_assert(sizeof(Node) == 12 && alignof(Node) == 4);

inline constexpr TimeSource TimeSourceOf(const Node& node) {
  return static_cast<TimeSource>(node.provenance & 3);
}
inline constexpr ValueSource ValueSourceOf(const Node& node) {
  return static_cast<ValueSource>(node.provenance >> 2 & 3);
}
inline constexpr uint8_t Provenance(TimeSource time, ValueSource value = ValueSource::kGenerated) {
  return static_cast<uint8_t>(static_cast<uint8_t>(time) | static_cast<uint8_t>(value) << 2);
}

enum class ChunkKind : uint32_t {
  kNodes = 1,      // ChunkHeader::sequence says whose; count nodes
  kStrings = 2,    // count strings: uint32 length + bytes, not terminated, unpadded; ids continue
                   // from earlier chunks
  kSequences = 3,  // count SequenceRecord
  kKernels = 4,    // count KernelRecord
  kSpans = 5,      // count spans: SpanHeader + uint32 kernel ids, each span padded to 8 bytes
  kComms = 6,      // count communicators: CommRecord + uint32 world ranks, each padded to 8 bytes
  kCalls = 7,      // count CallRecord
  kMemory = 8,     // count MemoryRecord
  kTiming = 9,  // count int64 nanoseconds for nodes [first, first + count) of `sequence`; one chunk
                // an iteration
  kMeta = 10,   // one JSON object: command line, versions, target, environment, fidelity gaps.
                // Members of later ones replace those of earlier ones.
  kSeal = 11,   // SealRecord: the rank ended by itself and everything is here
};

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_crc32c;  // of this struct with this member 0
  uint32_t rank, world;
  uint64_t start_unix_ns;
  uint64_t reserved[4];
};
static_assert(sizeof(FileHeader) == 64);

struct ChunkHeader {
  uint32_t magic;  // kChunkMagic
  ChunkKind kind;
  uint32_t sequence;
  uint32_t crc32c;  // of the payload
  uint64_t first;   // index of the first element in its table or sequence
  uint64_t count;
  uint64_t bytes;          // payload without padding
  uint32_t header_crc32c;  // of this struct with this member 0: payloads can be checked when they
                           // are needed
  uint32_t reserved;
};
static_assert(sizeof(ChunkHeader) == 48);
inline constexpr uint32_t kChunkMagic = 0x4b4e4843;  // "CHNK"
inline constexpr uint32_t kChunkAlignment = 16;

enum class SequenceKind : uint32_t { kStream = 0, kThread = 1 };
struct SequenceRecord {
  SequenceKind kind;
  uint32_t device;   // virtual ordinal; threads: 0
  int32_t priority;  // stream priority
  uint32_t name;     // string
  uint64_t handle;   // thread id, or the stream's number in creation order
};
static_assert(sizeof(SequenceRecord) == 24);

enum class KernelKind : uint32_t { kKernel = 0, kCopy = 1, kSet = 2, kGraph = 3 };
// KernelRecord::parameters: nobody has looked, and launches that are alike but for these came with
// too many of them. Other values are hashes.
inline constexpr uint32_t kParametersUnknown = 0, kParametersVary = 1;
// One distinct launch: equal name, grid, block, shared memory and, where known, parameters.
struct KernelRecord {
  uint32_t name;  // string; copies: "HtoD", "DtoH", "DtoD", "PtoP"
  KernelKind kind;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t parameters;  // hash of the kernel's parameters without pointers
  uint64_t bytes;       // copies and sets; 0 for kernels
};
static_assert(sizeof(KernelRecord) == 48);

// Content hashes are FNV-1a 64, equal across ranks and runs: a kernel's over its name, then kind,
// grid, block, shared_bytes (uint32 each, little-endian) and bytes (uint64), not its parameters,
// which may change from step to step; a span's over its kernels' hashes, a 64-bit word a step.
inline constexpr uint64_t kFnvOffset = 0xcbf29ce484222325;
inline constexpr uint64_t kFnvPrime = 0x100000001b3;

struct SpanHeader {
  uint64_t hash;
  uint32_t kernels;  // number of ids that follow
  uint32_t reserved;
};
static_assert(sizeof(SpanHeader) == 16);

inline constexpr uint32_t kUnknownRank = 0xffffffff;

struct CommRecord {
  uint32_t comm;  // job-wide number (wire::CommReady)
  uint32_t size;
  uint32_t rank;
  uint32_t device;
  uint64_t channel_bytes;  // modelled device memory that NCCL takes when it is made; connections
                           // are memory records of kind kModelled
  // uint32_t world_ranks[size] follows; kUnknownRank where the rank does not know the member
};
static_assert(sizeof(CommRecord) == 24);

// The numbers of wire::Op.
enum class CommOp : uint32_t {
  kAllReduce = 0,
  kReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kAllToAll = 5,
  kGather = 6,
  kScatter = 7,
  kSend = 8,
  kRecv = 9,
};
inline constexpr uint32_t kCommOpCount = 10;

// A send of up to this payload ends when NCCL's FIFO has taken it, whether or not its receive has
// come; a group that also receives, and what no longer fits beside earlier sends to the same peer,
// waits.
inline constexpr uint64_t kEarlySendBytes = uint64_t{4} << 20;  // NCCL_BUFFSIZE's default
inline constexpr uint64_t kEarlySendSteps = 8;                  // of these, as NCCL_STEPS

// One distinct communication call.
struct CallRecord {
  uint32_t comm;   // job-wide number
  uint32_t op;     // CommOp
  uint32_t dtype;  // ncclDataType_t
  uint32_t reduction;
  int32_t peer;        // root, or peer of send/receive; -1 where there is none
  uint32_t call_site;  // string
  uint64_t count;      // as passed to NCCL
  uint64_t bytes;      // payload this rank contributes
  uint32_t group;      // number of calls in the ncclGroup it was part of; 1 without a group
  uint32_t reserved;
};
static_assert(sizeof(CallRecord) == 48);

enum class MemoryKind : uint32_t { kDevice = 0, kPinned = 1, kReserve = 2, kModelled = 3 };
struct MemoryRecord {
  uint32_t thread;  // sequence
  MemoryKind kind;
  uint64_t host_node;  // allocations happened before this node of the thread
  int64_t bytes;       // negative: freed
  uint64_t address;
};
static_assert(sizeof(MemoryRecord) == 32);

struct SealRecord {
  uint64_t nodes;    // in all sequences
  uint64_t dropped;  // nodes that could not be written (disk full)
  int64_t exit_code;
};
static_assert(sizeof(SealRecord) == 24);

}  // namespace prism::trace

#endif  // PRISM_TRACE_FORMAT_H_
