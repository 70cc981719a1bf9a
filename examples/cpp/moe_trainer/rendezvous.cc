#include "examples/cpp/moe_trainer/rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace moe_trainer {
namespace {

// PyTorch's TCPStore: a byte that names the request, then strings of a 64-bit length and bytes.
enum class Request : char { kValidate = 0, kSet = 1, kGet = 3, kWait = 6 };
constexpr uint32_t kMagic = 0x3C85F7CE;
constexpr char kStopWaiting = 0;

template <class T>
std::string Plain(T value) {
  std::string bytes(sizeof value, '\0');
  memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string Text(const std::string& text) { return Plain<uint64_t>(text.size()) + text; }

bool ReadAll(int socket, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t n = recv(socket, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool WriteAll(int socket, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ReadText(int socket, std::string* text) {
  constexpr uint64_t kLongest = 1 << 20;
  uint64_t bytes = 0;
  if (!ReadAll(socket, &bytes, sizeof bytes) || bytes > kLongest) return false;
  text->resize(bytes);
  return ReadAll(socket, text->data(), bytes);
}

sockaddr_in Resolve(const std::string& address, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    throw std::runtime_error("MASTER_ADDR '" + address + "' has no address: " +
                             gai_strerror(error) + "; set it to the host of rank 0");
  sockaddr_in result;
  memcpy(&result, found->ai_addr, sizeof result);
  freeaddrinfo(found);
  return result;
}

}  // namespace

int ListenOn(const std::string& address, int port) {
  const sockaddr_in where = Resolve(address, port);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0 ||
      listen(socket, 1024) != 0) {
    const std::string why = strerror(errno);
    close(socket);
    throw std::runtime_error("cannot listen on " + address + ":" + std::to_string(port) + ": " +
                             why + "; set MASTER_PORT to a free port");
  }
  return socket;
}

int PortOf(int socket) {
  sockaddr_in where{};
  socklen_t bytes = sizeof where;
  getsockname(socket, reinterpret_cast<sockaddr*>(&where), &bytes);
  return ntohs(where.sin_port);
}

StoreServer::StoreServer(int listening_socket) : socket_(listening_socket) {
  acceptor_ = std::thread([this] { Accept(); });
}

StoreServer::~StoreServer() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    for (const int client : clients_) shutdown(client, SHUT_RDWR);
  }
  changed_.notify_all();
  shutdown(socket_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  for (const int client : clients_) close(client);
  close(socket_);
}

void StoreServer::Accept() {
  while (true) {
    const int client = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    std::lock_guard lock(mutex_);
    if (closing_) {
      if (client >= 0) close(client);
      return;
    }
    if (client < 0) continue;
    clients_.push_back(client);
    threads_.emplace_back([this, client] { Serve(client); });
  }
}

void StoreServer::Serve(int client) {
  Request request;
  while (ReadAll(client, &request, 1)) {
    std::string key, value;
    uint32_t magic = 0;
    uint64_t keys = 0;
    switch (request) {
      case Request::kValidate:
        if (!ReadAll(client, &magic, sizeof magic) || magic != kMagic) return;
        break;
      case Request::kSet: {
        if (!ReadText(client, &key) || !ReadText(client, &value)) return;
        std::lock_guard lock(mutex_);
        values_[key] = value;
        changed_.notify_all();
        break;
      }
      case Request::kGet: {
        if (!ReadText(client, &key)) return;
        std::unique_lock lock(mutex_);
        value = values_[key];
        lock.unlock();
        if (!WriteAll(client, Text(value))) return;
        break;
      }
      case Request::kWait: {
        if (!ReadAll(client, &keys, sizeof keys) || keys != 1 || !ReadText(client, &key)) return;
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || values_.count(key) != 0; });
        if (closing_) return;
        lock.unlock();
        if (!WriteAll(client, Plain(kStopWaiting))) return;
        break;
      }
      default:
        return;
    }
  }
}

StoreClient::StoreClient(const std::string& address, int port, std::chrono::seconds timeout)
    : name_(address + ":" + std::to_string(port)) {
  const sockaddr_in where = Resolve(address, port);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0) break;
    const std::string why = strerror(errno);
    close(socket_);
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("no store answers at " + name_ + ": " + why +
                               "; is rank 0 running, and are MASTER_ADDR and MASTER_PORT its?");
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const timeval limit = {static_cast<time_t>(timeout.count()), 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  Write(Plain(Request::kValidate) + Plain(kMagic));
}

StoreClient::~StoreClient() { close(socket_); }

void StoreClient::Write(const std::string& bytes) {
  if (!WriteAll(socket_, bytes))
    throw std::runtime_error("the store at " + name_ + " is gone: did rank 0 end?");
}

std::string StoreClient::Read(size_t bytes) {
  std::string data(bytes, '\0');
  if (!ReadAll(socket_, data.data(), bytes))
    throw std::runtime_error(
        "the store at " + name_ +
        " gave no answer in time: did a rank end, or is the world size wrong?");
  return data;
}

// torch's own clients put a slash before each key; whoever lists the keys lists those alone.
void StoreClient::Set(const std::string& key, const std::string& value) {
  Write(Plain(Request::kSet) + Text("/" + key) + Text(value));
}

std::string StoreClient::Get(const std::string& key) {
  Write(Plain(Request::kWait) + Plain<uint64_t>(1) + Text("/" + key));
  if (Read(1)[0] != kStopWaiting)
    throw std::runtime_error("the store at " + name_ + " cancelled the wait for '" + key + "'");
  Write(Plain(Request::kGet) + Text("/" + key));
  uint64_t bytes = 0;
  memcpy(&bytes, Read(sizeof bytes).data(), sizeof bytes);
  return Read(bytes);
}

}  // namespace moe_trainer
