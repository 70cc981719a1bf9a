#include "examples/cpp/moe_trainer/rendezvous.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace moe_trainer {
namespace {

using namespace std::chrono_literals;

TEST(RendezvousTest, AValueSetLaterReachesEveryClientThatWaits) {
  StoreServer server(ListenOn("127.0.0.1", 0));
  std::string value("a\0b", 3);
  std::vector<std::string> got(8);
  std::vector<std::thread> clients;
  for (std::string& one : got)
    clients.emplace_back(
        [&] { one = StoreClient("127.0.0.1", server.port(), 60s).Get("moe_trainer/id"); });
  StoreClient("127.0.0.1", server.port(), 60s).Set("moe_trainer/id", value);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(got, std::vector<std::string>(8, value));
}

TEST(RendezvousTest, AClientOfNoServerIsToldWhereItLooked) {
  const int socket = ListenOn("127.0.0.1", 0);
  const int port = PortOf(socket);
  { StoreServer server(socket); }  // the port is free again
  try {
    StoreClient("127.0.0.1", port, 0s);
    FAIL() << "a store answers on a closed port";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(port)),
              std::string::npos);
    EXPECT_NE(std::string(error.what()).find("MASTER_PORT"), std::string::npos);
  }
}

TEST(RendezvousTest, AClientThatWaitsIsToldThatTheServerEnded) {
  auto server = std::make_unique<StoreServer>(ListenOn("127.0.0.1", 0));
  StoreClient client("127.0.0.1", server->port(), 60s);
  std::string message;
  std::thread waiting([&] {
    try {
      client.Get("never");
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
  });
  server.reset();
  waiting.join();
  EXPECT_NE(message.find("the store at 127.0.0.1"), std::string::npos);
}

}  // namespace
}  // namespace moe_trainer
