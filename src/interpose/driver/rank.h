// Rank: whether this process is a logical rank, which one, and what it then owns.
//
// A process becomes a rank once: by prism_rank_begin(), which a zygote's child calls before user
// code, or at the first cuInit (or question to NVML) of a program whose environment names a rank
// and a socket. Every other process is inert: a fork of a rank (a data loader's worker), a child
// that a rank spawned (a compiler), a program without the variables. Inert means that calls go to
// the real library untouched.
//
// Owns the connection, the arena, the ledger and the trace writer of the rank; they live until the
// process ends. Thread-safe.
#ifndef PRISM_INTERPOSE_DRIVER_RANK_H_
#define PRISM_INTERPOSE_DRIVER_RANK_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/interpose/driver/arena.h"
#include "src/interpose/driver/connection.h"
#include "src/interpose/driver/ledger.h"
#include "src/trace/writer.h"
#include "src/wire/protocol.h"

namespace prism::interpose {

enum class Role : uint32_t { kUndecided = 0, kInert = 1, kRank = 2, kRefused = 3 };

/// What wrappers have to do; zero in inert processes.
enum Observe : uint32_t {
  kObserveTrace = 1,     // write nodes
  kObserveTime = 2,      // measure host time
  kObserveLedger = 4,    // count device memory
  kObserveOrdinals = 8,  // virtual devices
  kObserveCounts = 16,   // PRISM_PROBE
};
extern std::atomic<uint32_t> g_observe;
inline uint32_t Observed() { return g_observe.load(std::memory_order_relaxed); }

/// True while the calling thread is in a call of the real NCCL (CoreTable::nccl_scope).
extern thread_local int t_nccl_depth;
inline bool InNccl() { return t_nccl_depth > 0; }

struct Identity {
  bool named = false;  // the environment names a rank
  uint32_t rank = 0, world = 1, local_rank = UINT32_MAX;
  const char* source = "";  // the variable that named it
};
Identity IdentityFromEnvironment();

/// What CUDA_VISIBLE_DEVICES (null: unset) leaves of `devices` devices: the ordinals in their new
/// order. As CUDA reads it: up to the first entry that is no device, or that is listed twice (then
/// none).
std::vector<uint32_t> ParseVisibleDevices(const char* text, uint32_t devices);

class Rank {
 public:
  static Rank& Get();

  /// Becomes the rank that the environment names, unless the role is decided already. Returns the
  /// role. A program that no variable names and that records by itself is rank 0 of 1, but only
  /// once it wants a context: launchers count devices and start the ranks.
  Role BeginFromEnvironment(bool wants_context = false);
  /// Before a context is made.
  void ContextWanted();
  /// Becomes a rank of the controller at `socket`. Returns false, having reported why, if it
  /// cannot.
  bool Begin(const char* socket);
  /// Ends the rank: ledger, seal, Bye. Called at exit; idempotent.
  void End(int exit_code);
  /// In a forked child.
  void Abandon();

  Role role() const { return role_.load(std::memory_order_acquire); }
  wire::Mode mode() const { return mode_; }
  const Identity& identity() const { return identity_; }
  const char* refusal() const { return refusal_; }
  /// Makes the process useless for CUDA, with a reason, and tells the controller.
  void Refuse(const char* reason);

  /// Null outside capture and emulate.
  const wire::Welcome* welcome() const { return welcomed_ ? &welcome_ : nullptr; }
  /// Null outside capture and emulate, and where the target has no devices.
  const VisibleDevices* visible_devices() const {
    return welcomed_ && visible_.count > 0 ? &visible_ : nullptr;
  }
  /// For the program's work: null inside NCCL.
  trace::Writer* writer() const { return InNccl() ? nullptr : memory_writer(); }
  /// For what is counted whoever asks for it.
  trace::Writer* memory_writer() const { return writer_.load(std::memory_order_acquire); }
  Connection& connection() { return connection_; }
  Arena& arena() { return arena_; }
  /// Of a virtual ordinal; those beyond the table share the last.
  Ledger& ledger(uint32_t ordinal) {
    return ledgers_[ordinal < kMaxDevices ? ordinal : kMaxDevices - 1];
  }
  /// The calling thread's current virtual ordinal, as far as anybody knows it.
  uint32_t CurrentOrdinal() const;
  void SetCurrentOrdinal(uint32_t (*current)()) {
    current_ordinal_.store(current, std::memory_order_release);
  }

  /// `begun`: called when ContextWanted has made the process a rank. `ending`: by End, before the
  /// trace is closed.
  void SetHooks(void (*begun)(), void (*ending)()) {
    begun_ = begun;
    ending_ = ending;
  }

  uint32_t CallSite();
  uint32_t CallSiteString(uint32_t id);
  void Gap(const char* name);
  void TellLedger(uint32_t ordinal, uint64_t failed_bytes);
  /// Counts memory that the target's NCCL would take (see CoreTable::nccl_memory).
  bool NcclMemory(uint32_t ordinal, int64_t bytes, uint32_t comm);
  /// Adds an object to the trace's description.
  void Describe(const std::string& json);

 private:
  static constexpr uint32_t kMaxDevices = 64;

  Rank() = default;
  bool BeginLocked(const char* socket);
  void StartTrace(const char* path);
  void Become();
  /// Tells the controller, by a file beside its socket, of a process that uses CUDA beside a rank.
  void TellUncaptured();

  std::mutex mutex_;  // becoming, ending
  std::atomic<Role> role_{Role::kUndecided};
  wire::Mode mode_ = wire::Mode::kPassthrough;
  Identity identity_;
  char refusal_[1200] = {};
  bool connected_ = false;
  bool welcomed_ = false;
  bool ended_ = false;
  wire::Welcome welcome_{};
  VisibleDevices visible_{0, UINT32_MAX};
  std::atomic<trace::Writer*> writer_{nullptr};
  Connection connection_;
  Arena arena_;
  std::array<Ledger, kMaxDevices> ledgers_;
  std::atomic<uint32_t (*)()> current_ordinal_{nullptr};
  void (*begun_)() = nullptr;
  void (*ending_)() = nullptr;
  int marker_ = -1;
  int pid_ = 0;
  int ancestor_ = 0;  // a rank that started this process, which therefore is none

  std::mutex sites_mutex_;
  std::unordered_map<std::string, uint32_t> sites_;
  std::vector<uint32_t> site_strings_;  // the writer's, by id - 1
  std::set<std::string> gaps_;

  std::mutex nccl_mutex_;
  int64_t nccl_bytes_ = 0, nccl_peak_bytes_ = 0;
};

/// Installs or removes the wrappers according to g_observe (shim.cc).
void PublishEntries();

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_RANK_H_
