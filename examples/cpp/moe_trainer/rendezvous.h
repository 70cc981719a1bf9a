// A key-value store over TCP, by which the ranks agree on NCCL's unique id.
//
// It speaks the part of PyTorch's TCPStore protocol that this takes, because under torchrun the
// launcher itself listens at MASTER_PORT; elsewhere rank 0 serves it. Values stay until the server
// ends. Client calls block up to the timeout and throw std::runtime_error that names the address.
//
//   StoreServer server(ListenOn("127.0.0.1", 0));           // rank 0, or the launcher
//   StoreClient store("127.0.0.1", server.port(), 60s);
//   store.Set("id", bytes);  std::string same = store.Get("id");
#ifndef MOE_TRAINER_RENDEZVOUS_H_
#define MOE_TRAINER_RENDEZVOUS_H_

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace moe_trainer {

/// A listening socket; port 0 takes a free one. Throws.
int ListenOn(const std::string& address, int port);
int PortOf(int socket);

/// Serves clients of a listening socket, which it owns, each on a thread of its own, until it is
/// destroyed.
class StoreServer {
 public:
  explicit StoreServer(int listening_socket);
  ~StoreServer();
  int port() const { return PortOf(socket_); }

 private:
  void Accept();
  void Serve(int client);

  int socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::map<std::string, std::string> values_;
  std::vector<int> clients_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

/// Not thread-safe.
class StoreClient {
 public:
  StoreClient(const std::string& address, int port, std::chrono::seconds timeout);
  ~StoreClient();
  void Set(const std::string& key, const std::string& value);
  /// Waits until somebody has set it.
  std::string Get(const std::string& key);

 private:
  void Write(const std::string& bytes);
  std::string Read(size_t bytes);

  std::string name_;
  int socket_ = -1;
};

}  // namespace moe_trainer

#endif  // MOE_TRAINER_RENDEZVOUS_H_
