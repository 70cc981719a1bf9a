// VirtualPeers: the ranks of an emulated job that have no process.
//
// The coordinator asks it who the members of a communicator are, what each of them passes to a
// call, and when a communication that a real rank has reached meets the others. Implementations
// play a captured graph (src/emulate/graph_peers.h). Used by one thread.
#ifndef PRISM_COORDINATOR_VIRTUAL_PEERS_H_
#define PRISM_COORDINATOR_VIRTUAL_PEERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/wire/protocol.h"

namespace prism::coordinator {

class VirtualPeers {
 public:
  struct Group {
    uint32_t comm;    // names it in the other calls
    uint32_t number;  // job-wide, in the job that is played
    std::vector<uint32_t> world_ranks;
    uint32_t rank;  // of who makes it
  };
  struct Call {
    wire::OpRecord record{};  // operation, type, reduction, peer, count
    std::string call_site;
  };
  /// A communication of a real rank that has everybody it needs.
  struct Meeting {
    uint64_t token;
    int64_t met_ns;  // when the last one came
    int64_t end_ns;
  };

  virtual ~VirtualPeers() = default;
  /// The communicator that `rank` makes next, as rank `comm_rank` of `size` (0: it does not say, a
  /// split). FailedPrecondition: in the job that is played it makes another one there, or none.
  virtual absl::StatusOr<Group> Join(uint32_t rank, uint32_t size, uint32_t comm_rank,
                                     int64_t now_ns) = 0;
  /// What member `member` passes to its `order`-th collective (from 0); none: it makes fewer.
  virtual std::optional<Call> Collective(uint32_t comm, uint32_t member, uint64_t order) = 0;
  /// The same of its `order`-th message to (kSend) or from (kRecv) `peer`.
  virtual std::optional<Call> Message(uint32_t comm, uint32_t member, wire::Op op, uint32_t peer,
                                      uint64_t order) = 0;
  /// What the real rank that is `member`, and brings `brought`, is given by its call; empty: nobody
  /// knows. `sent`: an all-to-all's input, or what the messages of its group send, by peer. Valid
  /// until the next call.
  virtual std::string_view Received(uint32_t /*comm*/, uint32_t /*member*/,
                                    const wire::OpRecord& /*record*/, uint64_t /*order*/,
                                    std::string_view /*brought*/, std::string_view /*sent*/) {
    return {};
  }
  /// The stream of the real rank that is `member` has reached a communication. It waits for all of
  /// a group together.
  virtual void Arrive(uint32_t comm, uint32_t member, const wire::OpRecord& record, uint64_t order,
                      uint64_t token, uint64_t group, int64_t now_ns) = 0;
  /// What has met since the last call, where peers have come as far as `until_ns`: INT64_MAX if the
  /// real ranks' clock cannot be waited for, and an end must be known at the meeting.
  virtual std::vector<Meeting> Advance(int64_t until_ns) = 0;
  /// To when Advance() has to be called next for what real ranks wait for; INT64_MAX: for nothing.
  virtual int64_t NextNs() { return INT64_MAX; }
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_VIRTUAL_PEERS_H_
