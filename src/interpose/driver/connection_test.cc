// A rank's connection to a controller that is a thread of the test.
#include "src/interpose/driver/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace prism::interpose {
namespace {

class Controller {
 public:
  explicit Controller(std::function<void(int)> serve) {
    path_ = "/tmp/prism-connection-test-" + std::to_string(getpid());
    unlink(path_.c_str());
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.c_str(), path_.size());
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const int fd = accept(listener_, nullptr, nullptr);
      wire::Hello hello{};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      iovec part{&hello, sizeof hello};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      EXPECT_EQ(recvmsg(fd, &message, 0), static_cast<ssize_t>(sizeof hello));
      EXPECT_EQ(hello.version, wire::kProtocolVersion);
      const cmsghdr* header = CMSG_FIRSTHDR(&message);
      ASSERT_NE(header, nullptr);
      int arena;
      memcpy(&arena, CMSG_DATA(header), sizeof arena);
      close(arena);
      serve(fd);
      close(fd);
    });
  }
  ~Controller() {
    thread_.join();
    close(listener_);
    unlink(path_.c_str());
  }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
  int listener_;
  std::thread thread_;
};

void SendWelcome(int fd) {
  wire::Welcome welcome{};
  welcome.header = {wire::Message::kWelcome, sizeof welcome, 0};
  welcome.mode = wire::Mode::kCapture;
  welcome.devices = 8;
  ASSERT_EQ(send(fd, &welcome, sizeof welcome, 0), static_cast<ssize_t>(sizeof welcome));
}

bool Open(Connection& connection, const char* path, std::string* reason = nullptr) {
  wire::Hello hello{};
  hello.header = {wire::Message::kHello, sizeof hello, 0};
  hello.version = wire::kProtocolVersion;
  wire::Welcome welcome{};
  char text[512] = {};
  const bool opened = connection.Open(path, hello, STDIN_FILENO, &welcome, text, sizeof text);
  if (reason != nullptr) *reason = text;
  if (opened) {
    EXPECT_EQ(welcome.devices, 8u);
  }
  return opened;
}

wire::CommCreate Question(uint32_t rank) {
  wire::CommCreate packet{};
  packet.header = {wire::Message::kCommCreate, sizeof packet, 0};
  packet.rank = rank;
  return packet;
}

void Answer(int fd, const wire::CommCreate& question) {
  wire::CommReady ready{};
  ready.header = {wire::Message::kCommReady, sizeof ready, question.header.request};
  ready.comm = question.rank + 100;
  ASSERT_EQ(send(fd, &ready, sizeof ready, 0), static_cast<ssize_t>(sizeof ready));
}

// A connection's service thread uses it for as long as the process lives.
Connection& Leaked() {
  static auto& connections = *new std::vector<std::unique_ptr<Connection>>;
  return *connections.emplace_back(std::make_unique<Connection>());
}

TEST(ConnectionTest, AnswersFindTheirQuestionsInAnyOrder) {
  constexpr int kQuestions = 8;
  auto& connection = Leaked();
  Controller controller([](int fd) {
    SendWelcome(fd);
    std::vector<wire::CommCreate> questions(kQuestions);
    for (auto& question : questions) recv(fd, &question, sizeof question, 0);
    for (auto question = questions.rbegin(); question != questions.rend(); ++question) {
      Answer(fd, *question);
    }
  });
  ASSERT_TRUE(Open(connection, controller.path()));
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kQuestions; ++i) {
    threads.emplace_back([&connection, i] {
      wire::CommCreate question = Question(i);
      wire::CommReady ready{};
      EXPECT_EQ(connection.Request(&question.header, &ready, sizeof ready),
                static_cast<int64_t>(sizeof ready));
      EXPECT_EQ(ready.comm, i + 100);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ConnectionTest, RefusalIsTheReason) {
  auto& connection = Leaked();
  Controller controller([](int fd) {
    wire::Refuse refuse{};
    refuse.header = {wire::Message::kRefuse, sizeof refuse, 0};
    strcpy(refuse.reason, "rank 3 is taken");
    send(fd, &refuse, sizeof refuse, 0);
  });
  std::string reason;
  EXPECT_FALSE(Open(connection, controller.path(), &reason));
  EXPECT_NE(reason.find("rank 3 is taken"), std::string::npos) << reason;
}

TEST(ConnectionTest, LostControllerEndsWaitingAndTellsListeners) {
  auto& connection = Leaked();
  static std::atomic<int> told{0};
  Controller controller([](int fd) {
    SendWelcome(fd);
    wire::CommCreate question;
    recv(fd, &question, sizeof question, 0);  // and leaves without an answer
  });
  ASSERT_TRUE(Open(connection, controller.path()));
  connection.OnAbort(
      [](const wire::Abort* abort, void*) {
        EXPECT_EQ(abort->comm, 0u);
        ++told;
      },
      nullptr);
  wire::CommCreate question = Question(0);
  wire::CommReady ready{};
  EXPECT_EQ(connection.Request(&question.header, &ready, sizeof ready), -1);
  while (told == 0) std::this_thread::yield();
  EXPECT_EQ(connection.Request(&question.header, &ready, sizeof ready), -1);
  EXPECT_FALSE(connection.alive());
}

TEST(ConnectionTest, AbortOfTheJobEndsWaiting) {
  auto& connection = Leaked();
  std::atomic<bool> done{false};
  Controller controller([&done](int fd) {
    SendWelcome(fd);
    wire::CommCreate question;
    recv(fd, &question, sizeof question, 0);
    auto abort = std::make_unique<wire::Abort>();
    abort->header = {wire::Message::kAbort, sizeof(wire::Abort), 0};
    send(fd, abort.get(), sizeof *abort, 0);
    while (!done) std::this_thread::yield();
  });
  ASSERT_TRUE(Open(connection, controller.path()));
  wire::CommCreate question = Question(0);
  wire::CommReady ready{};
  EXPECT_EQ(connection.Request(&question.header, &ready, sizeof ready), -1);
  EXPECT_TRUE(connection.alive());
  done = true;
}

TEST(ConnectionTest, TooLongPathSaysHowLongItMayBe) {
  auto& connection = Leaked();
  std::string reason;
  EXPECT_FALSE(Open(connection, ("/tmp/" + std::string(200, 'x')).c_str(), &reason));
  EXPECT_NE(reason.find("at most 107 fit"), std::string::npos) << reason;
}

}  // namespace
}  // namespace prism::interpose
