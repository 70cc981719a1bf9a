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
//
// Emulation: with VirtualPeers most members have no process. What they pass to a call is known as
// soon as a real rank makes it (so a rank that deviates is diagnosed as in the real job), and a
// group is released when they say that it ends; Advance() does it, NextRelease() tells when.
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
#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/coordinator/arena.h"
#include "src/coordinator/diagnosis.h"
#include "src/coordinator/received_payloads.h"
#include "src/coordinator/virtual_peers.h"
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
  uint32_t welcome_flags = 0;  // wire::WelcomeFlags
  uint32_t clock_number = 0;   // wire::Welcome
  uint32_t call_ns = 0;
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
  bool outside = false;      // something outside of the job may wake it: input, network, a timer
  std::string where = {};    // innermost frames of its program; "" where unknown
};

class Coordinator {
 public:
  /// `peers` may be null: every rank is real. `received`, if not null: where to keep small payloads
  /// of ranks that are real. `clock`: of the times at which peers come; null: they
  /// are those that the calls are given.
  Coordinator(JobRules rules, Outbox* outbox, VirtualPeers* peers = nullptr,
              JobClock* clock = nullptr, ReceivedWriter* received = nullptr);
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

  /// Emulation: when the next group is to be released, on the peers' clock; INT64_MAX: none is
  /// known.
  int64_t NextReleaseNs() const;
  /// Releases the groups whose end has come.
  void ReleaseDue(int64_t now_ns);

  /// The supervisor's view: processes that it started, and how they ended.
  void ExpectWorld(uint32_t world);
  void OnRankStarted(uint32_t rank, int pid);
  void OnRankEnded(uint32_t rank, const ProcessEnd& end, int64_t now_ns);

  /// A process that counted as this rank has turned out to be what starts the ranks: it is heard no
  /// more, and its trace is nobody's.
  void Release(uint32_t rank);

  /// Decides what only time can: ends, disagreements, blocked jobs. `idle` by world rank; ranks
  /// that are not in it run.
  void Tick(int64_t now_ns, const std::map<uint32_t, Idleness>& idle);
  /// Ends the job with a diagnosis that others found (a signal, a failed launch).
  void Fail(Diagnosis diagnosis);

  /// Null while the job is healthy.
  const Diagnosis* diagnosis() const { return diagnosis_ ? &*diagnosis_ : nullptr; }
  /// Ranks that wait in a communication, or for a communicator.
  std::set<uint32_t> WaitingRanks() const;
  /// Who is awaited, when somebody has waited for status_ns, or who sleeps or is blocked, when
  /// nobody has worked for so long; "" otherwise.
  std::string Status(int64_t now_ns) const;

  /// When a rank last said something, or reached a communication.
  int64_t last_activity_ns() const { return last_activity_ns_; }
  uint32_t world() const { return rules_.world; }
  /// Process of each rank that is connected, or was started.
  std::map<uint32_t, int> Processes() const;
  bool EverConnected() const { return !clients_.empty(); }
  /// The traces that the ranks were told to write, by path, with their ranks.
  const std::map<std::string, uint32_t>& Traces() const { return traces_; }
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

  /// What a member brings to its call, as far as it moves.
  static std::string_view BroughtBy(const OpRef& ref);
  /// Keeps what a member is given by its call, if it is small.
  void Keep(const Communicator& comm, const OpRef& ref);
  /// The peers' time.
  int64_t PlayedNs(int64_t now_ns) const { return clock_ == nullptr ? now_ns : clock_->NowNs(); }
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
  /// `number` 0: the next one.
  Communicator& NewCommunicator(const std::vector<Joiner>& members, uint32_t parent,
                                std::string origin, uint32_t number = 0);
  void AnswerReady(const Communicator& comm);
  void BecomeDue(const std::shared_ptr<Post>& post, int64_t now_ns);
  void TryCollective(Communicator& comm, uint64_t call);
  void TryTransfer(Communicator& comm, uint32_t source, uint32_t destination, uint64_t call);
  void Complete(const OpRef& ref);
  // Emulation
  Client& Virtual(uint32_t rank);
  absl::Status JoinVirtual(Client& client, const Joiner& self, uint32_t size, uint32_t comm_rank,
                           uint32_t parent, std::string origin);
  bool CallVirtual(Communicator& comm, uint32_t member, uint64_t call, const OpRef& ref);
  void PlayPeers();
  void Exchange(Communicator& comm, const OpRef& ref);
  /// Gives a member of a collective, whose payload is in its arena, what the others would give if
  /// they brought what it did. False: nothing is brought, or it moves within the arena alone.
  bool FillFromOwn(const Communicator& comm, const OpRef& ref);
  static std::string SentBy(const Post& post, uint32_t comm);
  void MirrorMessages(Post& post);
  void JudgeMismatches(int64_t now_ns, bool at_once);
  std::vector<Wait> Waits() const;
  Wait WaitOf(const Communicator& comm, uint64_t call, const Slot& slot) const;
  Wait WaitOf(const Communicator& comm, uint32_t source, uint32_t destination, uint64_t call,
              const Transfer& transfer) const;
  std::vector<RankState> RankStates() const;
  bool IsBlocked(const Idleness& idleness, bool waits, bool any_waits) const;
  std::string SiteOf(ClientId client, uint32_t site) const;
  std::string Expectation(const wire::OpRecord& record) const;
  void Refuse(ClientId client, uint64_t request, const std::string& reason);

  JobRules rules_;
  Outbox* const outbox_;
  VirtualPeers* const peers_;
  JobClock* const clock_;
  ReceivedWriter* const received_;
  std::map<uint32_t, std::unique_ptr<Client>> virtual_;     // by rank
  std::map<uint64_t, OpRef> visits_;                        // by token: not met yet
  std::multimap<int64_t, std::shared_ptr<Post>> releases_;  // by when
  uint64_t next_token_ = 1;
  std::map<ClientId, std::unique_ptr<Client>> clients_;
  std::map<std::string, std::unique_ptr<PendingComm>> pending_comms_;
  std::map<uint32_t, std::unique_ptr<Communicator>> comms_;
  std::map<uint32_t, RankState> ranks_;
  std::map<uint32_t, int> pids_;
  std::map<uint32_t, int64_t> gone_ns_;
  std::map<uint32_t, int64_t> released_ns_;  // when a rank's stream went on last
  std::map<uint32_t, uint32_t> incarnations_;
  std::map<std::string, uint32_t> traces_;
  std::map<uint32_t, wire::Ledger> ledgers_;
  std::map<uint32_t, Idleness> idle_;  // as of the last Tick
  std::optional<Diagnosis> diagnosis_;
  std::set<std::pair<uint32_t, uint64_t>> disagreements_;  // communicator, call
  uint64_t operations_ = 0;
  int64_t last_activity_ns_ = 0;
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_COORDINATOR_H_
