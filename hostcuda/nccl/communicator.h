// Communicator: one rank's end of a communicator, and Launch, one grouped call on it.
//
// A launch is a task of one stream (or of several, when a group spans them): the driver polls it in
// stream order, it goes as far as its peers let it, and says whether it is done. Launches of one
// communicator run one after the other in the order of the calls, whatever their streams; within
// one, collectives run in order and messages concurrently. Nothing here blocks but Join,
// ExchangeSplit and WaitIdle.
//
// Algorithm. A collective is a sequence of steps; step s uses slot s % 4. Every rank writes its
// contribution to its own slot; when all have written, either every rank computes or copies what it
// needs from all slots, or (large reductions) rank r reduces the r-th share into the result slot
// and, when all shares are there, everybody copies the result. A message is announced by its
// receiver; then its sender writes it piece by piece to slots of its own and tells the receiver
// through its mailbox. A message that fits into its peer's FIFO beside those before it that are not
// announced is written without waiting, as NCCL does: so a small send completes before its receive
// has come. FIFOs are counts; a payload for which there are no slots is written when its receiver
// comes.
//
// Time. On the virtual clock a collective, once everything is exchanged, takes its time as a flow
// of the session's FlowTable; the member that notices first begins it, is woken at its end and
// rings for the others. A message is a flow that its sender begins and ends, from when it could be
// written.
//
// Failure. A mismatch of calls, the death or departure of a member that somebody waits for:
// recorded in the segment, so that all members report it (AsyncError). Pending launches then stay
// pending for `error_grace_ns`, in which a watchdog may report the error and abort, and fail after
// it.
//
// Threading: thread-safe; each communicator has one lock, held while a poll moves data. Nothing of
// the driver is called with it but doorbell_ring and now_ns.
#ifndef HOSTCUDA_NCCL_COMMUNICATOR_H_
#define HOSTCUDA_NCCL_COMMUNICATOR_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "hostcuda/nccl/communication_plan.h"
#include "hostcuda/nccl/flow_table.h"
#include "hostcuda/nccl/operation.h"
#include "hostcuda/nccl/platform.h"
#include "hostcuda/nccl/segment.h"
#include "hostcuda/nccl/status.h"

namespace hostnccl {

struct CommunicatorOptions {
  SegmentOptions segment;
  Platform platform;
  const LinkTopology* topology = nullptr;  // on the virtual clock, as `flows`; outlive everything
  FlowTable* flows = nullptr;
  uint64_t error_grace_ns = 5'000'000'000;
};

/// A communicator to be made out of an existing one.
struct Subgroup {
  std::string key;
  int ranks = 0;  // 0: this rank takes part in the split but gets none
  int rank = 0;
};

class Launch;

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  /// Returns when all ranks have joined. See Segment::Join.
  static Status Join(const CommunicatorOptions& options, const std::atomic<bool>& cancelled,
                     std::shared_ptr<Communicator>* out);
  ~Communicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Makes the next launch of this communicator out of validated operations; each of `streams`
  /// streams polls it.
  std::shared_ptr<Launch> NewLaunch(const std::vector<Operation>& operations, int streams);

  /// Returns the communicator's failure, success while there is none.
  Status AsyncError();

  /// Ends pending launches at once, without error on their streams, and tells the peers.
  void Stop(Departure how);
  /// Tells the peers that this rank calls no more.
  void Leave();
  bool stopped();

  /// Blocks until no launch is pending, or the communicator failed or was stopped.
  void WaitIdle();
  /// Blocks until every member has said its colour and key, and returns this rank's new group.
  /// Collective.
  Status ExchangeSplit(SplitChoice choice, const std::atomic<bool>& cancelled, Subgroup* out);
  /// Returns the group without the excluded ranks. Does not communicate: all remaining ranks pass
  /// the same list.
  Subgroup Without(const std::vector<int>& excluded);

 private:
  friend class Launch;

  struct Collective {
    const Operation* op = nullptr;
    uint64_t index = 0;  // of this communicator
    uint64_t element = 1;
    bool moves = false;
    bool shares = false;  // reduced in shares, else by whoever needs it
    uint64_t steps = 1;
    uint64_t step_elements = 0;  // of each rank's part, where there are parts
    uint64_t written = 0, reduced = 0, read = 0;
    bool takes_time = false;  // everything is exchanged
  };
  struct OutgoingMessage {
    const Operation* op;
    uint64_t offset = 0;
    bool checked = false;
    bool begun = false;  // it may be written
    uint64_t flow = 0;   // on the virtual clock
  };
  struct IncomingMessage {
    const Operation* op;
    uint64_t offset = 0;
  };
  struct Peer {
    std::deque<OutgoingMessage> sends;
    std::deque<IncomingMessage> receives;
    std::deque<Letter> ready;   // announced by the peer, for sends to come
    std::deque<Letter> early;   // pieces that came before their receive
    std::deque<uint64_t> fifo;  // steps of messages that have begun without an announcement
    uint64_t unannounced = 0;   // of these, written
    uint64_t sent = 0;          // flows of messages to it
    LinkPattern pattern;
    bool has_pattern = false;
  };
  /// A flow that this rank ends.
  struct OwnFlow {
    uint64_t flow = 0;
    uint32_t event = 0;
    int peer = -1;
  };
  struct Arrival {
    uint64_t flow;
    int from;
    uint64_t not_before_ns;
  };

  Communicator(const CommunicatorOptions& options, std::unique_ptr<Segment> segment);

  // All of the following need mutex_.
  void Begin(Launch& launch);
  bool Advance(Launch& launch);  // returns whether anything changed
  bool Complete(const Launch& launch) const;
  void BeginCollective(const Operation& op);
  bool AdvanceCollective();
  bool ContributeCall();
  void WriteStep(uint64_t step);
  void ReduceStep(uint64_t step);
  void ReadStep(uint64_t step);
  void ReduceFrom(uint32_t slot, uint64_t offset, uint64_t elements, void* output);
  uint64_t StepElements(uint64_t step) const;
  bool Reached(std::atomic<uint64_t>& counter, uint64_t target) const;
  void Count(std::atomic<uint64_t>& counter, uint64_t target);
  void RunAlone(const Operation& op);
  bool AdvanceMessages();
  bool PostLetters();
  bool OpenMailbox();
  bool SendChunks();
  bool TakeChunk(const Letter& letter);
  bool TakeEarlyChunks(int from);
  bool SendEarly(int to, const OutgoingMessage& message);
  bool MessagesMove(const std::vector<Operation>& messages) const;
  void BeginMessages();
  void WriteChunk(const Operation& op, uint64_t offset, Letter* letter);
  bool OffTheClock() const;
  bool AdvanceFlow();
  bool AdvanceMessageFlows();
  bool AwaitLastArrival();
  uint64_t BeginFlow(const Plan& plan, double jitter, int peer, OwnFlow* out);
  void EndFlow(OwnFlow* own);
  void DropFlows();
  uint64_t BeginMessageFlow(int to, uint64_t bytes);
  void Arrives(int from, uint64_t flow);
  bool Departed(int rank);
  bool CheckMessage(int from, const Letter& sent, int to, const Letter& expected);
  bool CheckDepartures();
  void Tick(uint64_t wall_ns);
  void WakeAtWallTime(uint64_t wall_ns, uint64_t* wake_at_ns) const;
  void Finished(uint64_t ticket);
  void Fail(const Status& failure);
  bool Failed();
  void Back(const void* begin, uint64_t bytes);
  void Ring(int rank);
  void RingAll(bool waiting_only);

  const Platform platform_;
  const LinkTopology* const topology_;
  FlowTable* const flows_;
  const uint64_t error_grace_ns_;
  const uint64_t report_after_ns_;
  const std::string key_;
  std::unique_ptr<Segment> segment_;
  const int rank_;
  const int ranks_;

  std::mutex mutex_;
  std::condition_variable idle_;
  uint64_t next_ticket_ = 0;
  uint64_t running_ticket_ = 0;        // all before are finished
  std::set<uint64_t> finished_early_;  // dropped before their turn
  bool stopped_ = false;
  Status failure_;
  uint64_t failed_since_ns_ = 0;
  uint64_t next_tick_ns_ = 0;
  uint64_t waiting_since_ns_ = 0;
  bool wait_reported_ = false;

  Collective collective_;
  uint64_t collectives_ = 0;
  uint64_t steps_ = 0;  // of earlier collectives
  std::array<uint64_t, kStepSlots> reduced_target_{};
  std::vector<const void*> inputs_;
  std::vector<uint64_t> scalars_;

  std::unordered_map<int, Peer> peers_;
  std::deque<std::pair<int, Letter>> letters_;  // to be posted, with their destination
  std::set<int> sendable_;                      // peers with a send that may be written
  MessageSlots slots_;
  uint64_t mailbox_head_ = 0;
  uint64_t messages_left_ = 0;
  bool messages_move_ = true;  // those that this launch sends

  // On the virtual clock.
  uint64_t now_ns_ = 0;        // of this poll
  uint64_t flow_wake_ns_ = 0;  // when this rank wants to look at flows of members that have gone
  uint64_t begun_ns_ = 0;      // the launch
  uint64_t number_ = 0;        // of the communicator in its job
  OwnFlow own_;                // the collective's
  std::vector<OwnFlow> outgoing_;
  std::vector<Arrival> arrivals_;
  std::vector<uint32_t> free_events_;
  std::vector<Place> places_;
  std::map<std::pair<OpKind, int>, std::vector<LinkPattern>> patterns_;  // by kind and root

  std::mutex host_mutex_;  // splits and shrinks, in call order
  uint32_t splits_ = 0;
  uint32_t shrinks_ = 0;
};

/// One grouped call on one communicator.
class Launch {
 public:
  enum class Poll { kDone, kPending, kFailed };

  Launch(std::shared_ptr<Communicator> communicator, const std::vector<Operation>& operations,
         int streams, uint64_t ticket);

  /// Goes on as far as possible. `stream` is 0 .. streams - 1; *wake_at_ns is lowered to when it
  /// wants to be polled at the latest.
  /// `now_ns`, *wake_at_ns: the job's clock.
  Poll Advance(int stream, uint64_t now_ns, uint64_t* wake_at_ns);
  /// Says that `stream` will not poll any more. A launch that all streams dropped unfinished breaks
  /// the communicator.
  void Release(int stream);

 private:
  friend class Communicator;

  const std::shared_ptr<Communicator> communicator_;
  std::vector<Operation> collectives_, messages_;
  const uint64_t ticket_;
  std::vector<bool> arrived_;
  int arrivals_ = 0;
  int released_ = 0;
  bool begun_ = false;
  bool finished_ = false;
  bool failed_ = false;
  size_t next_collective_ = 0;
};

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_COMMUNICATOR_H_
