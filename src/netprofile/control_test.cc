#include "src/netprofile/control.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prism::netprofile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Runs `body` as each rank of a star of threads.
void AsRanks(uint32_t world, const std::function<void(uint32_t rank, Control* control)>& body) {
  uint16_t port = 0;
  const auto listener = ListenOnLoopback(&port);
  ASSERT_TRUE(listener.ok());
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto control = Control::Join(
          {.rank = rank, .world = world, .port = port, .listener = rank == 0 ? *listener : -1});
      ASSERT_TRUE(control.ok()) << control.status();
      body(rank, control->get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int ConnectTo(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(port);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

TEST(ControlTest, EverybodyGetsWhatEachGives) {
  AsRanks(4, [](uint32_t rank, Control* control) {
    const auto all = control->Exchange(std::string(rank, 'x'));
    ASSERT_TRUE(all.ok());
    EXPECT_THAT(*all, ElementsAre("", "x", "xx", "xxx"));
  });
}

TEST(ControlTest, GatherIsForRankZero) {
  AsRanks(3, [](uint32_t rank, Control* control) {
    const std::string large(3'000'000, static_cast<char>('a' + rank));
    const auto all = control->Gather(large);
    ASSERT_TRUE(all.ok());
    if (rank != 0) {
      EXPECT_THAT(*all, IsEmpty());
      return;
    }
    ASSERT_EQ(all->size(), 3u);
    for (uint32_t r = 0; r < 3; ++r)
      EXPECT_EQ(all->at(r), std::string(3'000'000, static_cast<char>('a' + r)));
  });
}

TEST(ControlTest, RankThatEndsAbortsTheOthers) {
  AsRanks(3, [](uint32_t rank, Control* control) {
    if (rank == 2) return;  // its end closes its connection
    const auto all = control->Exchange("here");
    EXPECT_EQ(all.status().code(), absl::StatusCode::kAborted) << rank;
    if (rank == 0) {
      EXPECT_THAT(all.status().ToString(), HasSubstr("rank 2"));
    }
  });
}

TEST(ControlTest, StrangersAreTurnedAway) {
  uint16_t port = 0;
  const auto listener = ListenOnLoopback(&port);
  ASSERT_TRUE(listener.ok());
  const int stranger = ConnectTo(port);
  ASSERT_GT(send(stranger, "GET / HTTP/1.1\r\n\r\n", 18, 0), 0);
  std::thread other([&] {
    const auto control = Control::Join({.rank = 1, .world = 2, .port = port});
    ASSERT_TRUE(control.ok());
    EXPECT_THAT(*(*control)->Exchange("b"), ElementsAre("a", "b"));
  });
  const auto control = Control::Join({.rank = 0, .world = 2, .port = port, .listener = *listener});
  ASSERT_TRUE(control.ok()) << control.status();
  EXPECT_THAT(*(*control)->Exchange("a"), ElementsAre("a", "b"));
  other.join();
  close(stranger);
}

TEST(ControlTest, RanksOfAnotherJobAreAnError) {
  uint16_t port = 0;
  const auto listener = ListenOnLoopback(&port);
  ASSERT_TRUE(listener.ok());
  std::thread other(
      [&] { EXPECT_TRUE(Control::Join({.rank = 1, .world = 3, .port = port}).ok()); });
  const auto control = Control::Join({.rank = 0, .world = 2, .port = port, .listener = *listener});
  EXPECT_THAT(control.status().ToString(), HasSubstr("a rank 1 of 3 came to a profile of 2 ranks"));
  other.join();
}

TEST(ControlTest, NobodyThereIsSaidSo) {
  uint16_t port = 0;
  const auto listener = ListenOnLoopback(&port);
  ASSERT_TRUE(listener.ok());
  close(*listener);
  const auto control =
      Control::Join({.rank = 1, .world = 2, .port = port, .patience = std::chrono::seconds(0)});
  EXPECT_EQ(control.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(HintOf(control.status()), HasSubstr("MASTER_ADDR"));
}

TEST(ControlTest, MissingRanksAreCounted) {
  uint16_t port = 0;
  const auto listener = ListenOnLoopback(&port);
  ASSERT_TRUE(listener.ok());
  const auto control = Control::Join({.rank = 0,
                                      .world = 2,
                                      .port = port,
                                      .listener = *listener,
                                      .patience = std::chrono::seconds(0)});
  EXPECT_THAT(control.status().ToString(), HasSubstr("1 of 2 ranks have come"));
}

}  // namespace
}  // namespace prism::netprofile
