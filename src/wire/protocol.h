// The contract between the controller and the preloaded shims of a logical rank.
//
// Plain structs over a unix SOCK_SEQPACKET socket (one message a packet, file descriptors by
// SCM_RIGHTS) plus one shared-memory arena a rank. Both sides are built from this header;
// kProtocolVersion is stored in every Hello and in every trace, and a mismatch is refused. No
// dependency but libc: the shims include it.
//
// Life of a rank
//   rank -> Hello (+ fd of its arena)          controller -> Welcome | Refuse
//   rank -> CommCreate / CommSplit             controller -> CommReady when all members have come |
//   CommError rank -> OpPost (a group of operations, in host order, at the call)
//           stream: [copy-out to arena] host function stores arrival word, rings the bell   (the
//           operation is due)
//   controller matches, executes on the arena, stores the release word, FUTEX_WAKEs it
//           stream: cuStreamWaitValue32(release word, >=) [copy-in from arena]
//   controller -> Abort (a communicator, or all): pending and later calls return ncclRemoteError /
//   ncclSystemError rank -> Bye, or end of file: the rank is gone (the controller also learns the
//   exit status from its parent)
#ifndef PRISM_WIRE_PROTOCOL_H_
#define PRISM_WIRE_PROTOCOL_H_

#include <cstdint>

namespace prism::wire {

inline constexpr uint32_t kProtocolVersion = 2;

// Environment that the controller sets for every process of a job.
inline constexpr char kEnvSocket[] =
    "PRISM_SOCKET";  // path of the controller's socket; absent: shims are inert
// A process that descends from a rank and uses CUDA by itself says so in a file of this name and
// its number, beside the socket: "ANCESTOR WORLD COMMAND", the command's words ended by NULs.
inline constexpr char kUncapturedPrefix[] = "uncaptured-";
inline constexpr char kEnvRank[] =
    "PRISM_RANK";  // overrides RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID
inline constexpr char kEnvMode[] = "PRISM_MODE";  // passthrough | record | capture | emulate
inline constexpr char kEnvRealDriver[] =
    "PRISM_REAL_LIBCUDA";  // absolute path of what the shims forward to
inline constexpr char kEnvRealRuntime[] = "PRISM_REAL_LIBCUDART";
inline constexpr char kEnvRealNvml[] =
    "PRISM_REAL_LIBNVML";  // empty: there is none, NVML is answered by the shim
inline constexpr char kEnvRealDevices[] =
    "PRISM_REAL_DEVICES";  // CUDA_VISIBLE_DEVICES of the real driver; the user's is the target's
inline constexpr char kEnvRealNccl[] = "PRISM_REAL_LIBNCCL";  // only where the mode needs it
inline constexpr char kEnvTraceDir[] =
    "PRISM_TRACE_DIR";  // where record and passthrough write without a controller
inline constexpr char kEnvRecordTimes[] =
    "PRISM_RECORD_TIMES";  // 0: record structure only (where nothing has a clock)

inline constexpr char kEnvKernelParameters[] =
    "PRISM_KERNEL_PARAMETERS";  // 1: launches are also told apart by their scalar parameters

enum class Mode : uint32_t { kPassthrough = 0, kRecord = 1, kCapture = 2, kEmulate = 3 };

enum class Message : uint32_t {
  kHello = 1,
  kWelcome = 2,
  kRefuse = 3,
  kCommCreate = 4,
  kCommSplit = 5,
  kCommReady = 6,
  kCommError = 7,
  kCommClose = 8,
  kOpPost = 9,
  kCallSite = 10,
  kAbort = 11,
  kBye = 12,
  kLedger = 13,
};

// Every packet starts with this. `request` pairs a question with its answer; 0 where none is
// awaited.
struct Header {
  Message type;
  uint32_t bytes;  // of the whole packet
  uint64_t request;
};

inline constexpr uint32_t kMaxPacketBytes = 128 * 1024;
inline constexpr uint32_t kUniqueIdBytes = 128;  // NCCL_UNIQUE_ID_BYTES

struct Hello {
  Header header;
  uint32_t version;
  int32_t pid;
  uint32_t rank;
  uint32_t world;
  uint32_t local_rank;  // UINT32_MAX where the environment does not say
  uint32_t reserved;
  uint64_t arena_bytes;  // virtual size of the arena whose fd travels with this message
};

enum WelcomeFlags : uint32_t {
  kMirrorPayloads = 1,       // what does not move is filled from the rank's own data
  kMeasure = 2,              // emulate: spans and host time are measured
  kStandInKernels = 4,       // emulate: a kernel stands for NCCL's, else the stream waits
  kHoldStreams = 8,          // emulate: idle streams are held while a measured span is enqueued
  kMoveUntilRecurring = 16,  // what is above exact_payload_bytes moves until it recurs
};

struct Welcome {
  Header header;
  Mode mode;
  uint32_t devices;  // virtual ordinals this rank sees
  uint32_t device;   // the one it was given; -1 (UINT32_MAX) if it may choose any
  uint32_t values;   // HostcudaValues numbering: none, control, cpu; ignored on a real GPU
  uint64_t device_memory_bytes;  // of the target: the ledger's limit
  uint64_t context_bytes;        // what a context of the target takes from it
  uint64_t exact_payload_bytes;  // payloads up to this size really move; larger ones do not, or not
                                 // any more (kMoveUntilRecurring)
  uint32_t flags;                // WelcomeFlags
  uint32_t clock_number;  // of the controller on the driver's virtual clock, plus 1; 0: it has none
  uint32_t call_ns;       // what a communication's call takes on that clock
  uint32_t reserved;
  char device_name[64];  // "NVIDIA H200"
  char trace_path[512];  // file this rank writes
};

struct Refuse {
  Header header;
  char reason[1024];
};

enum CommFlags : uint32_t { kCommNonBlocking = 1, kCommShrink = 2 };

struct CommCreate {
  Header header;
  uint8_t unique_id[kUniqueIdBytes];
  uint32_t size;
  uint32_t rank;  // in the communicator
  uint32_t device;
  uint32_t flags;
  uint32_t call_site;
  uint32_t reserved;
};

// Split (color < 0: takes part, gets none), and shrink (kCommShrink) as a split whose excluded
// ranks do not call.
struct CommSplit {
  Header header;
  uint32_t parent;
  int32_t color;
  int32_t key;
  uint32_t split_index;  // how many splits of this parent came before, on this rank
  uint32_t flags;
  uint32_t call_site;
  uint32_t parent_rank;  // of the calling member; matters where one process holds several members
                         // of the parent
  uint32_t excluded;     // kCommShrink: number of ranks of the parent that do not call
  // uint32_t excluded_ranks[excluded] follows
};

struct CommReady {
  Header header;
  uint32_t comm;  // job-wide number; 0: none (split without colour)
  uint32_t size;
  uint32_t rank;
  uint32_t reserved;
  // uint32_t world_ranks[size] follows
};

struct CommError {
  Header header;
  uint32_t comm;
  int32_t nccl_result;
  char reason[1024];
};

enum class CloseKind : uint32_t { kFinalize = 0, kDestroy = 1, kAbort = 2 };

struct CommClose {
  Header header;
  uint32_t comm;
  CloseKind kind;
  uint32_t comm_rank;  // of the closing member; matters where one process holds several members
  uint32_t reserved;
};

// Operations keep NCCL's meaning; data types and reductions keep nccl.h's numbers.
enum class Op : uint32_t {
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
inline constexpr uint32_t kOpCount = 10;

enum OpFlags : uint32_t {
  kOpPayload = 1,  // input was copied to the arena, output is awaited there
  kOpInPlace = 2,
};

inline constexpr uint32_t kRedOpPreMulSum =
    100;  // scalar in OpRecord::scalar_bits, of the operation's type

struct OpRecord {
  uint32_t comm;
  Op op;
  uint32_t dtype;      // ncclDataType_t
  uint32_t reduction;  // ncclRedOp_t, or kRedOpPreMulSum
  int32_t peer;        // root, or peer of send/receive; -1 where there is none
  uint32_t flags;
  uint64_t count;  // as passed to NCCL
  uint64_t
      sequence;  // collectives: n-th of this communicator; send/receive: n-th to or from this peer
  uint64_t scalar_bits;
  uint64_t in_offset, in_bytes;    // in the rank's arena; valid with kOpPayload
  uint64_t out_offset, out_bytes;  // in_bytes/out_bytes are always the true payload sizes
  uint32_t call_site;
  uint32_t stream;     // trace's stream number
  uint32_t comm_rank;  // of the calling member; matters where one process holds several members
                       // (ncclCommInitAll)
  uint32_t reserved;
};

enum PostFlags : uint32_t {
  // The rank's stream keeps the time itself: the controller releases as soon as it knows the end,
  // by storing how long after the arrival it is, in units of kPacedUnitNs, 1 at least.
  kPostPaced = 1,
};
inline constexpr int64_t kPacedUnitNs = 64;

// A group (ncclGroupStart..End, or one call) is one unit of arrival and release: its operations
// progress together.
struct OpPost {
  Header header;
  uint32_t operations;
  uint32_t arrival_word, arrival_value;  // due when int32(word - value) >= 0
  uint32_t release_word,
      release_value;  // stored by the controller when all operations are complete for this rank
  uint32_t flags;     // PostFlags
  uint32_t met_word;  // kPostPaced: stored before the release word: when the last one came
  uint32_t reserved;
  // OpRecord records[operations] follows
};

struct CallSite {
  Header header;
  uint32_t id;  // per rank
  uint32_t text_bytes;
  // char text[text_bytes] follows: innermost user frames, "file.py:12 in train_step", innermost
  // first, joined by " < "
};

struct Abort {
  Header header;
  uint32_t comm;  // 0: all
  int32_t nccl_result;
  char reason[4096];
};

// Sent at every new peak of more than 1 % and at exit.
struct Ledger {
  Header header;
  uint64_t allocated_bytes, peak_bytes,
      failed_bytes;  // failed: size of the allocation that did not fit, else 0
  uint32_t device;
  uint32_t allocations;
};

struct Bye {
  Header header;
  int32_t exit_code;  // -1 where unknown
  uint32_t reserved;
};

// The arena: one memfd a rank, created by the rank, mapped by the controller, sparse (only touched
// pages exist). [0, kControlBytes) 32-bit words; the rest payload slots, handed out by the rank.
inline constexpr uint64_t kArenaBytes = uint64_t{1}
                                        << 36;  // virtual: 1,024 ranks fit the address space
inline constexpr uint64_t kControlBytes = uint64_t{64} << 10;
inline constexpr uint32_t kControlWords = kControlBytes / 4;
// Word 0 of the rank's control page: bumped and FUTEX_WAKEd by the rank's host functions after
// every arrival. The controller waits on all ranks' bells with FUTEX_WAITV (or polls where the
// kernel has none).
inline constexpr uint32_t kBellWord = 0;
// The rank's number on the driver's virtual clock, plus 1; 0: none. Whoever releases it rings it.
inline constexpr uint32_t kClockNumberWord = 1;
inline constexpr uint32_t kFirstFreeWord = 16;

}  // namespace prism::wire

#endif  // PRISM_WIRE_PROTOCOL_H_
