#include "src/coordinator/server.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "src/base/log.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace prism::coordinator {
namespace {

// linux/futex.h of the build machine may be older than the kernel.
struct FutexWaiter {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr uint32_t kFutex32 = 2;
constexpr size_t kMaxWaiters = 128;

long FutexWaitv(const std::vector<FutexWaiter>& waiters, const timespec* deadline) {
  return syscall(SYS_futex_waitv, waiters.data(), waiters.size(), 0, deadline, CLOCK_MONOTONIC);
}

void Wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool HasFutexWaitv() {
  static const bool has = [] {
    // The value differs on purpose: a kernel that knows the call answers EAGAIN.
    uint32_t word = 1;
    const std::vector<FutexWaiter> waiters{{0, reinterpret_cast<uint64_t>(&word), kFutex32, 0}};
    return FutexWaitv(waiters, nullptr) == -1 && errno == EAGAIN;
  }();
  return has;
}

// Sleeps on up to 127 bells and one word of its own, and makes the loop's descriptor readable when
// a bell has rung.
class Server::BellWaiter {
 public:
  static constexpr size_t kBells = kMaxWaiters - 1;

  explicit BellWaiter(int wake_fd) : wake_fd_(wake_fd), thread_([this] { Run(); }) {}
  ~BellWaiter() {
    stop_.store(true);
    Nudge();
    thread_.join();
  }
  bool full() const { return bells_.size() >= kBells; }
  void Add(uint32_t* bell) {
    {
      const std::lock_guard lock(mutex_);
      bells_.push_back(bell);
    }
    Nudge();
  }

 private:
  void Nudge() {
    changes_.fetch_add(1);
    Wake(&changes_);
  }

  void Run() {
    std::vector<uint32_t*> bells;
    std::vector<uint32_t> seen;
    std::vector<FutexWaiter> waiters;
    while (!stop_.load()) {
      const uint32_t changes = changes_.load();
      {
        const std::lock_guard lock(mutex_);
        bells = bells_;
      }
      // A new bell counts as rung: its owner may have rung before it was looked at.
      bool rung = seen.size() < bells.size();
      seen.resize(bells.size(), 0);
      for (size_t i = 0; i < bells.size(); ++i) {
        const uint32_t value = std::atomic_ref<uint32_t>(*bells[i]).load(std::memory_order_acquire);
        rung |= value != seen[i];
        seen[i] = value;
      }
      if (rung) {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof one);
      }
      if (!HasFutexWaitv()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      waiters.assign(1, {changes, reinterpret_cast<uint64_t>(&changes_), kFutex32, 0});
      for (size_t i = 0; i < bells.size(); ++i) {
        waiters.push_back({seen[i], reinterpret_cast<uint64_t>(bells[i]), kFutex32, 0});
      }
      FutexWaitv(waiters, nullptr);
    }
  }

  const int wake_fd_;
  std::atomic<uint32_t> changes_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<uint32_t*> bells_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Listen(const std::string& path,
                                                       const JobRules& rules, EventLoop* loop,
                                                       VirtualPeers* peers, JobClock* clock,
                                                       ReceivedWriter* received) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return WithHint(absl::InvalidArgumentError(
                        fmt::format("the socket's path has {} letters, {} is the most: {}",
                                    path.size(), sizeof address.sun_path - 1, path)),
                    "set TMPDIR to a shorter directory");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ErrnoStatus(errno, "socket");
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const absl::Status status = ErrnoStatus(errno, "bind " + path);
    close(fd);
    return status;
  }
  return std::unique_ptr<Server>(new Server(path, fd, rules, loop, peers, clock, received));
}

Server::Server(std::string path, int listen_fd, const JobRules& rules, EventLoop* loop,
               VirtualPeers* peers, JobClock* clock, ReceivedWriter* received)
    : path_(std::move(path)),
      listen_fd_(listen_fd),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      loop_(loop),
      coordinator_(rules, this, peers, clock, received) {
  loop_->Add(listen_fd_, [this] { Accept(); });
  loop_->Add(wake_fd_, [this] {
    uint64_t count;
    [[maybe_unused]] const ssize_t read_bytes = read(wake_fd_, &count, sizeof count);
    coordinator_.OnBells(SteadyNowNs());
  });
}

Server::~Server() {
  waiters_.clear();
  loop_->Remove(listen_fd_);
  loop_->Remove(wake_fd_);
  for (const auto& [client, connection] : connections_) {
    loop_->Remove(connection.fd);
    close(connection.fd);
  }
  close(listen_fd_);
  close(wake_fd_);
  unlink(path_.c_str());
}

std::vector<std::string> Server::TakeRefusals() { return std::exchange(refusals_, {}); }

void Server::Accept() {
  while (true) {
    const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    const ClientId client = next_client_++;
    connections_[client].fd = fd;
    loop_->Add(fd, [this, client] { Receive(client); });
  }
}

void Server::Receive(ClientId client) {
  std::vector<char> buffer(wire::kMaxPacketBytes);
  while (connections_.count(client) != 0) {
    Connection& connection = connections_[client];
    iovec data{buffer.data(), buffer.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t received = recvmsg(connection.fd, &message, MSG_CMSG_CLOEXEC);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return;
    int passed = -1;
    for (cmsghdr* part = received >= 0 ? CMSG_FIRSTHDR(&message) : nullptr; part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
        if (passed < 0) {
          passed = fd;
        } else {
          close(fd);
        }
      }
    }
    if (received <= 0) {
      Disconnect(client);
      return;
    }
    const std::string_view packet(buffer.data(), static_cast<size_t>(received));
    const int64_t now_ns = SteadyNowNs();
    if (!connection.greeted) {
      wire::Hello hello;
      absl::Status status =
          absl::InvalidArgumentError("a connection that does not begin with Hello");
      if (packet.size() == sizeof hello && (message.msg_flags & MSG_TRUNC) == 0) {
        std::memcpy(&hello, packet.data(), sizeof hello);
        if (hello.header.type == wire::Message::kHello) {
          absl::StatusOr<Arena> arena =
              passed < 0 ? absl::InvalidArgumentError("Hello came without the arena's descriptor")
                         : Arena::Map(passed, hello.arena_bytes);
          status = coordinator_.OnHello(client, hello, std::move(arena), now_ns);
        }
      }
      if (status.ok()) {
        connections_[client].greeted = true;
        WaitForBell(client);
      } else {
        refusals_.emplace_back(status.message());
      }
    } else if (const absl::Status status = coordinator_.OnPacket(client, packet, now_ns);
               !status.ok()) {
      spdlog::debug("client {}: {}", client, std::string(status.message()));
    }
    if (passed >= 0) close(passed);
  }
}

void Server::WaitForBell(ClientId client) {
  if (waiters_.empty() || waiters_.back()->full())
    waiters_.push_back(std::make_unique<BellWaiter>(wake_fd_));
  waiters_.back()->Add(coordinator_.ArenaOf(client)->word(wire::kBellWord));
}

void Server::Disconnect(ClientId client) {
  const auto found = connections_.find(client);
  if (found == connections_.end()) return;
  loop_->Remove(found->second.fd);
  close(found->second.fd);
  connections_.erase(found);
  coordinator_.OnDisconnect(client, SteadyNowNs());
}

void Server::Send(ClientId client, const wire::Header* packet) {
  const auto found = connections_.find(client);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.unsent.emplace_back(reinterpret_cast<const char*>(packet), packet->bytes);
  while (!connection.unsent.empty()) {
    const std::string& next = connection.unsent.front();
    const ssize_t sent = send(connection.fd, next.data(), next.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // What does not fit goes with the next packet; a rank that never reads is found by its silence.
    if (sent < 0 && errno == EAGAIN) return;
    connection.unsent.pop_front();
  }
}

}  // namespace prism::coordinator
