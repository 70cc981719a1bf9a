// Whole jobs of processes that speak the wire protocol: forked ranks, real sockets, real futexes.
#include "src/coordinator/server.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "src/coordinator/arithmetic.h"
#include "src/coordinator/liveness.h"

namespace prism::coordinator {
namespace {

using testing::HasSubstr;
using wire::Message;
using wire::Op;

constexpr uint64_t kArena = wire::kControlBytes + (1 << 20);
constexpr int64_t kSecond = 1'000'000'000;

// The rank's side, as a shim has it. Lives in a forked process; exits with 70 + something when the
// protocol disappoints it.
class WireRank {
 public:
  WireRank(const std::string& path, uint32_t rank, uint32_t world) {
    const int memory = memfd_create("arena", MFD_CLOEXEC);
    if (ftruncate(memory, kArena) != 0) _exit(70);
    base_ =
        static_cast<char*>(mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
    socket_ = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    // The server comes after the ranks: until it listens, there is no path or nobody behind it.
    for (int i = 0;
         connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0; ++i) {
      if (i == 1000) _exit(71);
      usleep(10'000);
    }
    wire::Hello hello{};
    hello.header = {Message::kHello, sizeof hello, 1};
    hello.version = wire::kProtocolVersion;
    hello.pid = getpid();
    hello.rank = rank;
    hello.world = world;
    hello.arena_bytes = kArena;
    iovec data{&hello, sizeof hello};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &memory, sizeof memory);
    if (sendmsg(socket_, &message, 0) != sizeof hello) _exit(72);
    if (Receive().type != Message::kWelcome) _exit(73);
  }

  uint32_t Create(char id, uint32_t comm_rank, uint32_t size) {
    wire::CommCreate create{};
    create.header = {Message::kCommCreate, sizeof create, 2};
    std::memset(create.unique_id, id, sizeof create.unique_id);
    create.size = size;
    create.rank = comm_rank;
    Send(&create.header);
    if (Receive().type != Message::kCommReady) _exit(74);
    wire::CommReady ready;
    std::memcpy(&ready, buffer_, sizeof ready);
    return ready.comm;
  }

  // An all-reduce of `count` int32 in place; returns the first element.
  int32_t AllReduce(uint32_t comm, uint64_t count, int32_t value, bool wait = true) {
    auto* payload = reinterpret_cast<int32_t*>(base_ + wire::kControlBytes);
    for (uint64_t i = 0; i < count; ++i) payload[i] = value;
    wire::OpRecord record{};
    record.comm = comm;
    record.op = Op::kAllReduce;
    record.dtype = static_cast<uint32_t>(DataType::kInt32);
    record.peer = -1;
    record.flags = wire::kOpPayload;
    record.count = count;
    record.in_offset = record.out_offset = wire::kControlBytes;
    record.in_bytes = record.out_bytes = count * 4;
    Post(record);
    if (wait) Wait();
    return payload[0];
  }

  void Post(const wire::OpRecord& record) {
    struct {
      wire::OpPost post;
      wire::OpRecord record;
    } packet{};
    packet.post.header = {Message::kOpPost, sizeof packet, 0};
    packet.post.operations = 1;
    packet.post.arrival_word = wire::kFirstFreeWord;
    packet.post.release_word = wire::kFirstFreeWord + 1;
    packet.post.arrival_value = packet.post.release_value = ++value_;
    packet.record = record;
    Send(&packet.post.header);
    word(wire::kFirstFreeWord).store(value_);
    word(wire::kBellWord).fetch_add(1);
    syscall(SYS_futex, base_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void Wait() {
    while (!Reached(word(wire::kFirstFreeWord + 1).load(), value_)) {
      const uint32_t now = word(wire::kFirstFreeWord + 1).load();
      if (Reached(now, value_)) return;
      syscall(SYS_futex, base_ + 4 * (wire::kFirstFreeWord + 1), FUTEX_WAIT, now, nullptr, nullptr,
              0);
    }
  }
  wire::Header Receive() {
    const ssize_t n = recv(socket_, buffer_, sizeof buffer_, 0);
    if (n < static_cast<ssize_t>(sizeof(wire::Header))) _exit(75);
    wire::Header header;
    std::memcpy(&header, buffer_, sizeof header);
    return header;
  }

 private:
  std::atomic_ref<uint32_t> word(uint32_t index) {
    return std::atomic_ref<uint32_t>(reinterpret_cast<uint32_t*>(base_)[index]);
  }
  void Send(const wire::Header* packet) {
    if (send(socket_, packet, packet->bytes, 0) != static_cast<ssize_t>(packet->bytes)) _exit(76);
  }
  char* base_ = nullptr;
  int socket_ = -1;
  uint32_t value_ = 0;
  char buffer_[wire::kMaxPacketBytes];
};

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    char name[] = "/tmp/prism-server-test-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/socket";
  }
  ~ServerTest() override {
    server_.reset();
    EXPECT_NE(access(path_.c_str(), F_OK), 0) << "the socket is left";
    rmdir(folder_.c_str());
  }
  // Ranks are forked before the server has threads.
  void Run(uint32_t world, const std::function<int(WireRank&, uint32_t)>& rank_main,
           int64_t seconds) {
    for (uint32_t rank = 0; rank < world; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        auto* wire_rank = new WireRank(path_, rank, world);
        _exit(rank_main(*wire_rank, rank));
      }
      pids_[rank] = pid;
    }
    auto server = Server::Listen(path_, {}, &loop_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    for (const auto& [rank, pid] : pids_) server_->coordinator().OnRankStarted(rank, pid);
    const int64_t end_ns = SteadyNowNs() + seconds * kSecond;
    int64_t tick_ns = 0;
    std::map<uint32_t, int> running = pids_;
    while (!running.empty() && SteadyNowNs() < end_ns &&
           server_->coordinator().diagnosis() == nullptr) {
      loop_.RunOnce(20);
      for (auto it = running.begin(); it != running.end();) {
        int status = 0;
        if (waitpid(it->second, &status, WNOHANG) == 0) {
          ++it;
          continue;
        }
        ProcessEnd end;
        if (WIFSIGNALED(status)) {
          end.signal = WTERMSIG(status);
        } else {
          end.exit_code = WEXITSTATUS(status);
        }
        codes_[it->first] = end.exit_code;
        server_->coordinator().OnRankEnded(it->first, end, SteadyNowNs());
        it = running.erase(it);
      }
      if (SteadyNowNs() - tick_ns > kSecond / 4) {
        tick_ns = SteadyNowNs();
        server_->coordinator().Tick(tick_ns, liveness_.Sample(server_->coordinator().Processes(),
                                                              {}, /*look_outside=*/false, tick_ns));
      }
    }
    for (const auto& [rank, pid] : running) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  std::string folder_, path_;
  EventLoop loop_;
  std::unique_ptr<Server> server_;
  Liveness liveness_;
  std::map<uint32_t, int> pids_;
  std::map<uint32_t, int> codes_;
};

TEST_F(ServerTest, ManyCollectivesOfSeveralProcesses) {
  Run(
      4,
      [](WireRank& rank, uint32_t number) {
        const uint32_t comm = rank.Create('a', number, 4);
        const uint32_t half = rank.Create(static_cast<char>('b' + number / 2), number % 2, 2);
        for (int i = 0; i < 200; ++i) {
          if (rank.AllReduce(comm, 1000, static_cast<int32_t>(number) + i) != 6 + 4 * i) return 1;
          if (rank.AllReduce(half, 10, static_cast<int32_t>(number)) != (number < 2 ? 1 : 5))
            return 2;
        }
        return 0;
      },
      60);
  ASSERT_EQ(server_->coordinator().diagnosis(), nullptr)
      << server_->coordinator().diagnosis()->Text();
  EXPECT_EQ(codes_, (std::map<uint32_t, int>{{0, 0}, {1, 0}, {2, 0}, {3, 0}}));
  EXPECT_EQ(server_->coordinator().operations(), 600u);
}

TEST_F(ServerTest, MoreRanksThanOneWaiterHasBells) {
  constexpr uint32_t kWorld = 140;
  Run(
      kWorld,
      [](WireRank& rank, uint32_t number) {
        const uint32_t comm = rank.Create('a', number, kWorld);
        for (int i = 0; i < 3; ++i) {
          if (rank.AllReduce(comm, 1, 1) != static_cast<int32_t>(kWorld)) return 1;
        }
        return 0;
      },
      120);
  ASSERT_EQ(server_->coordinator().diagnosis(), nullptr)
      << server_->coordinator().diagnosis()->Text();
  EXPECT_EQ(codes_.size(), kWorld);
  for (const auto& [rank, code] : codes_) EXPECT_EQ(code, 0) << rank;
}

TEST_F(ServerTest, KilledRankIsNamedAndTheOthersAreToldToStop) {
  const int64_t start_ns = SteadyNowNs();
  Run(
      3,
      [](WireRank& rank, uint32_t number) {
        const uint32_t comm = rank.Create('a', number, 3);
        rank.AllReduce(comm, 1, 1);
        if (number == 1) raise(SIGKILL);
        rank.AllReduce(comm, 1, 1, /*wait=*/false);
        return rank.Receive().type == Message::kAbort ? 0 : 1;
      },
      30);
  ASSERT_NE(server_->coordinator().diagnosis(), nullptr);
  EXPECT_EQ(server_->coordinator().diagnosis()->kind, "died");
  EXPECT_THAT(
      server_->coordinator().diagnosis()->headline,
      HasSubstr("rank 1 was killed by SIGKILL (9), while AllReduce #2 of communicator 1 needs it"));
  EXPECT_LT(SteadyNowNs() - start_ns, 10 * kSecond);
}

TEST_F(ServerTest, BlockedRankIsFoundByItsSilence) {
  const int64_t start_ns = SteadyNowNs();
  Run(
      2,
      [](WireRank& rank, uint32_t number) {
        const uint32_t comm = rank.Create('a', number, 2);
        if (number == 1) rank.Receive();  // waits for a message that nobody sends
        rank.AllReduce(comm, 1, 1);
        return 0;
      },
      30);
  ASSERT_NE(server_->coordinator().diagnosis(), nullptr);
  EXPECT_EQ(server_->coordinator().diagnosis()->headline,
            "AllReduce #1 of communicator 1: rank 1 did not come");
  EXPECT_LT(SteadyNowNs() - start_ns, 8 * kSecond);
}

TEST_F(ServerTest, AWatchdogThatWakesUpDoesNotHideThatARankIsBlocked) {
  Run(
      2,
      [](WireRank& rank, uint32_t number) {
        const uint32_t comm = rank.Create('a', number, 2);
        if (number == 1) {
          if (fork() == 0) _exit(0);
          for (int i = 0; i < 400; ++i) {
            struct timespec nap {
              0, 50'000'000
            };
            // poll, not nanosleep: what a thread in a timed wait on a condition looks like
            syscall(SYS_ppoll, nullptr, 0, &nap, nullptr, 0);
          }
        }
        rank.AllReduce(comm, 1, 1);
        return 0;
      },
      15);
  ASSERT_NE(server_->coordinator().diagnosis(), nullptr);
  EXPECT_EQ(server_->coordinator().diagnosis()->kind, "missing");
}

TEST_F(ServerTest, RankThatComputesIsAwaited) {
  Run(
      2,
      [](WireRank& rank, uint32_t number) {
        const uint32_t comm = rank.Create('a', number, 2);
        if (number == 1) {
          const int64_t end_ns = SteadyNowNs() + 6 * kSecond;
          while (SteadyNowNs() < end_ns) {
          }
        }
        rank.AllReduce(comm, 1, 1);
        return 0;
      },
      30);
  ASSERT_EQ(server_->coordinator().diagnosis(), nullptr)
      << server_->coordinator().diagnosis()->Text();
  EXPECT_EQ(codes_.size(), 2u);
}

TEST(ServerPathTest, LongPathSaysWhatToDo) {
  EventLoop loop;
  const auto server = Server::Listen("/tmp/" + std::string(200, 'x'), {}, &loop);
  EXPECT_THAT(HintOf(server.status()), HasSubstr("TMPDIR"));
}

}  // namespace
}  // namespace prism::coordinator
