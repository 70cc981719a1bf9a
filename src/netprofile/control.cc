#include "src/netprofile/control.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "fmt/format.h"

namespace prism::netprofile {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kMagic[8] = {'P', 'R', 'I', 'S', 'M', 'N', 'P', '1'};
constexpr uint64_t kMaxMessage = uint64_t{256} << 20;
constexpr int kHelloPatienceMs = 5000;
constexpr std::chrono::milliseconds kRetry{50};

struct Hello {
  char magic[8];
  uint32_t rank, world;
};

bool WriteAll(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = recv(fd, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool Readable(int fd, std::chrono::milliseconds patience) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(std::max<int64_t>(patience.count(), 0))) > 0;
}

void NoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

absl::StatusOr<int> Listen(in_addr_t address, uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "socket");
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(address);
  own.sin_port = htons(*port);
  socklen_t length = sizeof own;
  if (bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    const absl::Status status = ErrnoStatus(errno, fmt::format("listen on port {}", *port));
    close(fd);
    return WithHint(status, "set MASTER_PORT so that the port above it is free");
  }
  *port = ntohs(own.sin_port);
  return fd;
}

// One attempt; -1: nobody listens there yet.
absl::StatusOr<int> Connect(const std::string& host, uint16_t port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
      error != 0) {
    return WithHint(
        absl::NotFoundError(fmt::format("rank 0's host '{}': {}", host, gai_strerror(error))),
        "MASTER_ADDR is the name or address of the node of rank 0");
  }
  int fd = -1;
  for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
    fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
      close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

}  // namespace

absl::StatusOr<int> ListenOnLoopback(uint16_t* port) {
  *port = 0;
  return Listen(INADDR_LOOPBACK, port);
}

absl::StatusOr<std::unique_ptr<Control>> Control::Join(const Rendezvous& r) {
  std::unique_ptr<Control> control(new Control(r.rank, r.world));
  const Clock::time_point deadline = Clock::now() + r.patience;
  const auto left = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  };
  if (r.rank != 0) {
    int fd = -1;
    while (fd < 0) {
      PRISM_ASSIGN_OR_RETURN(fd, Connect(r.host, r.port));
      if (fd >= 0) break;
      if (left().count() <= 0) {
        return WithHint(
            absl::DeadlineExceededError(fmt::format("rank {}: nobody answers at {}:{} for {} s",
                                                    r.rank, r.host, r.port, r.patience.count())),
            "is rank 0 started, and may its node be reached there (MASTER_ADDR, MASTER_PORT)?");
      }
      std::this_thread::sleep_for(kRetry);
    }
    NoDelay(fd);
    control->sockets_ = {fd};
    Hello hello{{}, r.rank, r.world};
    std::memcpy(hello.magic, kMagic, sizeof kMagic);
    if (!WriteAll(fd, &hello, sizeof hello))
      return absl::AbortedError(fmt::format("rank {}: rank 0 ended", r.rank));
    return control;
  }

  control->sockets_.assign(r.world, -1);
  int listener = r.listener;
  if (listener < 0) {
    uint16_t port = r.port;
    PRISM_ASSIGN_OR_RETURN(listener, Listen(INADDR_ANY, &port));
  }
  absl::Status problem;
  for (uint32_t joined = 1; joined < r.world && problem.ok();) {
    if (!Readable(listener, left())) {
      problem = WithHint(
          absl::DeadlineExceededError(fmt::format("{} of {} ranks have come within {} s", joined,
                                                  r.world, r.patience.count())),
          "start as many as WORLD_SIZE says, all with the same MASTER_ADDR and MASTER_PORT");
      break;
    }
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    Hello hello{};
    if (!Readable(fd, std::chrono::milliseconds(kHelloPatienceMs)) ||
        !ReadAll(fd, &hello, sizeof hello) ||
        std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0) {
      close(fd);  // somebody else's
      continue;
    }
    if (hello.world != r.world || hello.rank == 0 || hello.rank >= r.world ||
        control->sockets_[hello.rank] >= 0) {
      problem =
          WithHint(absl::InvalidArgumentError(fmt::format(
                       "a rank {} of {} came to a profile of {} ranks{}", hello.rank, hello.world,
                       r.world, hello.world == r.world ? ", once too often" : "")),
                   "RANK differs and WORLD_SIZE is the same for all of them");
      close(fd);
      break;
    }
    NoDelay(fd);
    control->sockets_[hello.rank] = fd;
    ++joined;
  }
  close(listener);
  if (!problem.ok()) return problem;
  return control;
}

Control::~Control() {
  for (const int fd : sockets_) {
    if (fd >= 0) close(fd);
  }
}

absl::Status Control::Send(uint32_t to, const std::string& text) {
  const int fd = rank_ == 0 ? sockets_[to] : sockets_[0];
  const uint64_t bytes = text.size();
  if (WriteAll(fd, &bytes, sizeof bytes) && WriteAll(fd, text.data(), text.size()))
    return absl::OkStatus();
  return absl::AbortedError(fmt::format("rank {} ended before it was done", to));
}

absl::StatusOr<std::string> Control::Receive(uint32_t from) {
  const int fd = rank_ == 0 ? sockets_[from] : sockets_[0];
  uint64_t bytes = 0;
  std::string text;
  if (ReadAll(fd, &bytes, sizeof bytes) && bytes <= kMaxMessage) {
    text.resize(bytes);
    if (ReadAll(fd, text.data(), bytes)) return text;
  }
  return absl::AbortedError(fmt::format("rank {} ended before it was done", from));
}

absl::StatusOr<std::vector<std::string>> Control::Gather(const std::string& mine) {
  std::vector<std::string> all;
  if (rank_ != 0) {
    PRISM_RETURN_IF_ERROR(Send(0, mine));
    return all;
  }
  all.push_back(mine);
  for (uint32_t rank = 1; rank < world_; ++rank) {
    PRISM_ASSIGN_OR_RETURN(std::string theirs, Receive(rank));
    all.push_back(std::move(theirs));
  }
  return all;
}

absl::StatusOr<std::string> Control::Broadcast(const std::string& of_rank_0) {
  if (rank_ != 0) return Receive(0);
  for (uint32_t rank = 1; rank < world_; ++rank) PRISM_RETURN_IF_ERROR(Send(rank, of_rank_0));
  return of_rank_0;
}

absl::StatusOr<std::vector<std::string>> Control::Exchange(const std::string& mine) {
  PRISM_ASSIGN_OR_RETURN(const std::vector<std::string> gathered, Gather(mine));
  std::string joined;
  for (const std::string& text : gathered) {
    const uint64_t bytes = text.size();
    joined.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    joined += text;
  }
  PRISM_ASSIGN_OR_RETURN(joined, Broadcast(joined));
  std::vector<std::string> all;
  for (size_t at = 0; at + sizeof(uint64_t) <= joined.size();) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, joined.data() + at, sizeof bytes);
    at += sizeof bytes;
    all.push_back(joined.substr(at, bytes));
    at += bytes;
  }
  if (all.size() != world_) return absl::InternalError("the ranks' answers do not fit together");
  return all;
}

}  // namespace prism::netprofile
