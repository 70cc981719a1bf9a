// Server: the coordinator's socket. Accepts ranks, carries their packets, waits for their bells.
//
// Owns the socket's path (removed at the end), the connections and one thread for every 127 ranks
// that sleeps on their bell words with futex_waitv, or polls once a millisecond where the kernel
// has none. Everything else runs on the loop's thread.
//
//   EventLoop loop;
//   PRISM_ASSIGN_OR_RETURN(auto server, Server::Listen("/tmp/prism-x/socket", rules, &loop));
//   while (...) { loop.RunOnce(100); server->coordinator().Tick(now, idle); }
#ifndef PRISM_COORDINATOR_SERVER_H_
#define PRISM_COORDINATOR_SERVER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/event_loop.h"
#include "src/base/status.h"
#include "src/coordinator/coordinator.h"

namespace prism::coordinator {

/// Nanoseconds of the steady clock.
int64_t SteadyNowNs();

/// True when the kernel has futex_waitv (Linux 5.16).
bool HasFutexWaitv();

class Server final : private Outbox {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Listen(const std::string& path,
                                                        const JobRules& rules, EventLoop* loop,
                                                        VirtualPeers* peers = nullptr,
                                                        JobClock* clock = nullptr,
                                                        ReceivedWriter* received = nullptr);
  ~Server() override;

  Coordinator& coordinator() { return coordinator_; }
  const std::string& path() const { return path_; }
  /// Ranks that were refused, with the reason; the caller logs them.
  std::vector<std::string> TakeRefusals();

 private:
  class BellWaiter;
  struct Connection {
    int fd = -1;
    bool greeted = false;
    std::deque<std::string> unsent;  // only while the rank does not read
  };

  Server(std::string path, int listen_fd, const JobRules& rules, EventLoop* loop,
         VirtualPeers* peers, JobClock* clock, ReceivedWriter* received);
  void Send(ClientId client, const wire::Header* packet) override;
  void Accept();
  void Receive(ClientId client);
  void Disconnect(ClientId client);
  void WaitForBell(ClientId client);

  const std::string path_;
  const int listen_fd_;
  int wake_fd_ = -1;
  EventLoop* const loop_;
  std::map<ClientId, Connection> connections_;
  ClientId next_client_ = 1;
  std::vector<std::string> refusals_;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<BellWaiter>> waiters_;  // before the arenas they look at go
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_SERVER_H_
