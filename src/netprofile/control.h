// Control: how the ranks of a profile agree among themselves, outside of what they measure. A star
// of TCP connections around rank 0.
//
// Owns its sockets. Every call is collective, and blocks until all have come; a rank that ended
// makes it fail with Aborted on the others. Single-threaded.
//
//   PRISM_ASSIGN_OR_RETURN(auto control, Control::Join({.rank = 1, .world = 2, .port = 29501}));
//   PRISM_ASSIGN_OR_RETURN(std::vector<std::string> hosts, control->Exchange(own_host));
#ifndef PRISM_NETPROFILE_CONTROL_H_
#define PRISM_NETPROFILE_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace prism::netprofile {

struct Rendezvous {
  uint32_t rank = 0, world = 1;
  std::string host = "127.0.0.1";  // of rank 0
  uint16_t port = 0;
  int listener = -1;  // rank 0: a socket that listens already; -1: it opens `port` itself
  std::chrono::seconds patience{120};
};

/// Opens a listening socket on this machine's own address at a free port.
absl::StatusOr<int> ListenOnLoopback(uint16_t* port);

class Control {
 public:
  static absl::StatusOr<std::unique_ptr<Control>> Join(const Rendezvous& rendezvous);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// Rank 0 gets what each rank gives, by rank; the others get nothing.
  absl::StatusOr<std::vector<std::string>> Gather(const std::string& mine);
  /// Everybody gets what rank 0 gives.
  absl::StatusOr<std::string> Broadcast(const std::string& of_rank_0);
  /// Everybody gets what each rank gives.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& mine);

 private:
  Control(uint32_t rank, uint32_t world) : rank_(rank), world_(world) {}
  absl::Status Send(uint32_t to, const std::string& text);
  absl::StatusOr<std::string> Receive(uint32_t from);

  const uint32_t rank_, world_;
  std::vector<int> sockets_;  // rank 0: by rank; the others: one
};

}  // namespace prism::netprofile

#endif  // PRISM_NETPROFILE_CONTROL_H_
