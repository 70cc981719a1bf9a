// The shim core: what prism's NCCL, runtime and NVML shims use of prism's driver shim, in the same
// process.
//
// Owner: libcuda.so.1 of prism. Others get it by cuGetExportTable(&kPrismCoreUuid): when that
// fails, the process is not under prism (or a stand-in was loaded before the shim), and they
// forward everything untouched. Thread-safe; no exceptions.
#ifndef PRISM_INTERPOSE_CORE_TABLE_H_
#define PRISM_INTERPOSE_CORE_TABLE_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "src/trace/writer.h"
#include "src/wire/protocol.h"

namespace prism::interpose {

inline constexpr uint32_t kCoreTableVersion = 2;
inline constexpr CUuuid kPrismCoreUuid = {
    {'p', 'r', 'i', 's', 'm', '-', 'c', 'o', 'r', 'e', '-', 't', 'a', 'b', 'l', '1'}};

/// A slot of the rank's arena. `host` is valid in this process and registered with CUDA.
struct ArenaSlot {
  void* host;
  uint64_t offset;
  uint64_t bytes;
};

/// The virtual devices that a rank may use: the target's, less what CUDA_VISIBLE_DEVICES hides.
struct VisibleDevices {
  uint32_t count;
  uint32_t own;  // the ordinal it was given; UINT32_MAX: any
};

struct CoreTable {
  size_t size;
  uint32_t version;

  wire::Mode (*mode)();
  uint32_t (*rank)();
  uint32_t (*world)();
  const wire::Welcome* (*welcome)();  // null outside capture and emulate
  /// Null when nothing is recorded. The writer's code is in the driver shim alone.
  trace::Writer* (*writer)();
  /// The writer's number of a stream, any of the legacy and per-thread handles too.
  uint32_t (*stream_number)(CUstream stream);

  /// Sends a packet; with `reply` waits for the answer (same request number) and copies up to
  /// reply_bytes of it. Returns the answer's size, 0 for no reply asked, or -1 when the controller
  /// is gone.
  int64_t (*request)(wire::Header* packet, void* reply, size_t reply_bytes);
  /// Calls back, on the service thread, for every Abort packet. At most 8 listeners.
  void (*on_abort)(void (*listener)(const wire::Abort*, void*), void* context);

  bool (*arena_take)(uint64_t bytes, ArenaSlot* slot);  // false: no memory
  void (*arena_give)(const ArenaSlot* slot);
  uint32_t (*word_take)();  // index of a free control word, zeroed
  void (*word_give)(uint32_t index);
  uint32_t* (*word)(uint32_t index);  // its address: valid for the host and for cuStreamWaitValue32
  void (*ring)();                     // bumps and wakes the bell

  /// Id of the caller's innermost user frames (Python's, else C's); told to the controller once.
  uint32_t (*call_site)();
  /// The same as a string of the writer.
  uint32_t (*call_site_string)(uint32_t id);

  /// Nodes of communications, for shims that do not contain the writer; nothing when nothing is
  /// recorded.
  void (*trace_communicator)(const trace::CommRecord* comm, const uint32_t* world_ranks,
                             bool waited);
  void (*trace_comm)(uint32_t stream, const trace::CallRecord* call, uint64_t sequence,
                     trace::ValueSource values);

  const VisibleDevices* (*visible_devices)();  // null where ordinals are the real ones

  /// Becomes the rank that the environment names first, if nothing has decided before.
  bool (*is_rank)();
  /// The real driver's function, past the wrappers; null where it has none.
  void* (*real)(const char* name);
  /// Notes a fidelity gap that this run met, each once.
  void (*gap)(const char* name);
  /// The ledger's view of a virtual ordinal (UINT32_MAX: the thread's current one); false: no limit
  /// is known.
  bool (*memory)(uint32_t ordinal, uint64_t* total_bytes, uint64_t* free_bytes);
  void (*set_current_ordinal)(uint32_t (*current)());  // who knows it: the runtime shim

  /// Takes (negative: gives back) device memory that the target's NCCL would hold and nothing here
  /// does, of communicator `comm` (0: of none). False: it does not fit, and nothing was taken.
  bool (*nccl_memory)(uint32_t ordinal, int64_t bytes, uint32_t comm);

  /// +1 before, -1 after a call of the real NCCL: what it asks of the driver meanwhile, on this
  /// thread, is no work of the program and is not traced, but its kernels are measured for the next
  /// trace_comm on their stream.
  void (*nccl_scope)(int change);
  /// Around a call of the real NCCL that enqueues on the stream: measures what it enqueues where
  /// its kernels are not launched through the driver's interface (on a virtual clock).
  void (*before_nccl_work)(CUstream stream);
  void (*after_nccl_work)(CUstream stream);

  // The driver's clock, where it is virtual (driver/driver_clock.h); else they do nothing.
  /// -1 before, +1 after calls of prism's own, which take no time.
  void (*charge)(int change);
  /// What the calling thread does in a library that is not there takes so long.
  void (*work)(uint64_t duration_ns);

  /// How often this process has updated its model's weights (driver/rounds.h).
  uint32_t (*round)();
};

}  // namespace prism::interpose

/// Makes this process the rank that its environment names (PRISM_RANK or a launcher's variable),
/// served by the controller at `socket`. Called by a zygote's child after fork, before user code.
/// Returns 0, or -1 after a line on stderr.
extern "C" int prism_rank_begin(const char* socket);

#endif  // PRISM_INTERPOSE_CORE_TABLE_H_
