// Coordinator: makes communicators, matches communication calls, executes them on the ranks'
// arenas, and says why a job can not go on.
//
// Owns the ranks' arenas and everything known about the job's communications. Knows no socket and
// no process: packets and events are handed in, answers leave through an Outbox, so a test can be
// the ranks. Single-threaded.
//
//   Coordinator coordinator(rules, &outbox);
//   coordinator.OnHello(client, hello, std::move(arena), now_ns);   // then OnPacket for everything
//   else coordinator.OnBells(now_ns);                                    // some rank's stream
//   reached a communication coordinator.Tick(now_ns, idle);                                 // a
//   few times a second if (coordinator.diagnosis() != nullptr) ...                     // Abort
//   went to all ranks; stop them
//
// A collective is the n-th call of every member on its communicator; a send is matched with the
// receive of the same number between two members. An operation is executed when it is due on all
// its participants; a group is released on a rank when all its operations are complete there, and
// not before.
#ifndef PRISM_COORDINATOR_COORDINATOR_H_
#define PRISM_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "src/base/status.h"
#include "src/coordinator/arena.h"
#include "src/coordinator/diagnosis.h"
#include "src/wire/protocol.h"

namespace prism::coordinator {

using ClientId = uint64_t;

class Outbox {
 public:
  virtual ~Outbox() = default;
  /// Sends `packet` (header.bytes long) to a client; may drop it when the client is gone.
  virtual void Send(ClientId client, const wire::Header* packet) = 0;
};

/// What every rank is told in its Welcome, and how patient the coordinator is.
struct JobRules {
  wire::Mode mode = wire::Mode::kCapture;
  uint32_t world = 0;  // 0: the first rank's Hello says it
  uint32_t devices = 1;
  uint32_t values = 0;
  uint64_t device_memory_bytes = 0;
  uint64_t context_bytes = 0;
  uint64_t exact_payload_bytes = UINT64_MAX;
  std::string device_name;
  std::string trace_directory;  // of rank-00000.prt; "": ranks write none
  int64_t end_grace_ns =
      300'000'000;  // from a failed end until it is the diagnosis: what else ended is collected
  int64_t exit_grace_ns = 1'000'000'000;  // from a clean end until the ranks that need it are told
  int64_t mismatch_grace_ns =
      500'000'000;  // from the first disagreement until the verdict: the others may come
  int64_t blocked_ns =
      2'000'000'000;  // a rank inside a communication is blocked after so long without progress
  int64_t patience_ns = 4'000'000'000;  // one outside of any; 0: never
  int64_t status_ns = 5'000'000'000;    // until a status line says who is awaited
};

/// What the supervisor sees of a rank's process.
struct Idleness {
  int64_t idle_ns = 0;       // for how long all its threads have slept without using the CPU
  bool timed_sleep = false;  // its main thread is in a sleep that ends by itself
};

class Coordinator {
 public:
  Coordinator(JobRules rules, Outbox* outbox);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Answers Welcome or Refuse. An error means that the rank was refused.
  absl::Status OnHello(ClientId client, const wire::Hello& hello, absl::StatusOr<Arena> arena,
                       int64_t now_ns);
  /// Any later packet, checked here. An error is a violation of the protocol, and is the diagnosis
  /// too.
  absl::Status OnPacket(ClientId client, std::string_view packet, int64_t now_ns);
  void OnDisconnect(ClientId client, int64_t now_ns);
  /// Looks for operations that have become due, and executes what can be.
  void OnBells(int64_t now_ns);

  /// The supervisor's view: processes that it started, and how they ended.
  void ExpectWorld(uint32_t world);
  void OnRankStarted(uint32_t rank, int pid);
  void OnRankEnded(uint32_t rank, const ProcessEnd& end, int64_t now_ns);

  /// Decides what only time can: ends, disagreements, blocked jobs. `idle` by world rank; ranks
  /// that are not in it run.
  void Tick(int64_t now_ns, const std::map<uint32_t, Idleness>& idle);
  /// Ends the job with a diagnosis that others found (a signal, a failed launch).
  void Fail(Diagnosis diagnosis);

  /// Null while the job is healthy.
  const Diagnosis* diagnosis() const { return diagnosis_ ? &*diagnosis_ : nullptr; }
  /// Who is awaited, when somebody has waited for status_ns; "" otherwise.
  std::string Status(int64_t now_ns) const;

  /// When a rank last said something, or reached a communication.
  int64_t last_activity_ns() const { return last_activity_ns_; }
  uint32_t world() const { return rules_.world; }
  /// Process of each rank that is connected, or was started.
  std::map<uint32_t, int> Processes() const;
  bool EverConnected() const { return !clients_.empty(); }
  uint64_t operations() const { return operations_; }
  /// The matching table: communicators, what ran on them, how much memory moved, peaks of the
  /// ranks' ledgers.
  nlohmann::ordered_json Matching() const;
  /// The arena of a connected client, for whoever waits for its bell; null when unknown.
  const Arena* ArenaOf(ClientId client) const;

 private:
  struct Client;
  struct Post;
  struct OpRef;
  struct Slot;
  struct Transfer;
  struct Communicator;
  struct Joiner;
  struct PendingComm;
  struct PendingSplit;
  struct Totals;

  template <typename T>
  static const T* As(std::string_view packet);
  absl::Status OnCommCreate(Client& client, const wire::CommCreate& packet, int64_t now_ns);
  absl::Status OnCommSplit(Client& client, const wire::CommSplit& packet, std::string_view bytes,
                           int64_t now_ns);
  absl::Status OnCommClose(Client& client, const wire::CommClose& packet);
  absl::Status OnOpPost(Client& client, const wire::OpPost& packet, std::string_view bytes,
                        int64_t now_ns);
  absl::StatusOr<uint32_t> MemberOf(const Communicator& comm, const Client& client,
                                    uint32_t comm_rank) const;
  absl::Status CheckRecord(const Client& client, const Communicator& comm, uint32_t member,
                           const wire::OpRecord& record) const;
  Communicator& NewCommunicator(const std::vector<Joiner>& members, uint32_t parent,
                                std::string origin);
  void AnswerReady(const Communicator& comm);
  void BecomeDue(const std::shared_ptr<Post>& post, int64_t now_ns);
  void TryCollective(Communicator& comm, uint64_t call);
  void TryTransfer(Communicator& comm, uint32_t source, uint32_t destination, uint64_t call);
  void Complete(const OpRef& ref);
  void JudgeMismatches(int64_t now_ns, bool at_once);
  std::vector<Wait> Waits() const;
  Wait WaitOf(const Communicator& comm, uint64_t call, const Slot& slot) const;
  Wait WaitOf(const Communicator& comm, uint32_t source, uint32_t destination, uint64_t call,
              const Transfer& transfer) const;
  std::vector<RankState> RankStates() const;
  std::string SiteOf(ClientId client, uint32_t site) const;
  std::string Expectation(const wire::OpRecord& record) const;
  void Refuse(ClientId client, uint64_t request, const std::string& reason);

  JobRules rules_;
  Outbox* const outbox_;
  std::map<ClientId, std::unique_ptr<Client>> clients_;
  std::map<std::string, std::unique_ptr<PendingComm>> pending_comms_;
  std::map<uint32_t, std::unique_ptr<Communicator>> comms_;
  std::map<uint32_t, RankState> ranks_;
  std::map<uint32_t, int> pids_;
  std::map<uint32_t, int64_t> gone_ns_;
  std::map<uint32_t, uint32_t> incarnations_;
  std::map<uint32_t, wire::Ledger> ledgers_;
  std::optional<Diagnosis> diagnosis_;
  std::set<std::pair<uint32_t, uint64_t>> disagreements_;  // communicator, call
  int64_t oldest_wait_ns_ = 0;  // since when somebody waits; 0: nobody does
  uint64_t operations_ = 0;
  int64_t last_activity_ns_ = 0;
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_COORDINATOR_H_
