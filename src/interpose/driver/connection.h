// Connection: a rank's socket to the controller.
//
// Owns the socket and the service thread, which hands answers to whoever waits for them and Abort
// packets to listeners. Thread-safe. A forked child calls Abandon(): it closes its copy of the
// socket and never uses the rest.
//
//   Connection connection;
//   connection.Open("/run/prism/job.sock", hello, arena_fd, &welcome, reason, sizeof reason);
//   connection.Request(&packet.header, &answer, sizeof answer);
#ifndef PRISM_INTERPOSE_DRIVER_CONNECTION_H_
#define PRISM_INTERPOSE_DRIVER_CONNECTION_H_

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "src/wire/protocol.h"

namespace prism::interpose {

class Connection {
 public:
  using AbortListener = void (*)(const wire::Abort*, void*);

  /// Connects, sends `hello` with `arena_fd`, and waits for Welcome. False: `reason` says what
  /// happened.
  bool Open(const char* path, const wire::Hello& hello, int arena_fd, wire::Welcome* welcome,
            char* reason, size_t reason_bytes);

  /// Sends `packet`; with `reply`, waits for the packet that answers it and copies up to
  /// `reply_bytes` of it. Returns the answer's size, 0 where none was asked for, -1 when the
  /// controller is gone or has aborted the job.
  int64_t Request(wire::Header* packet, void* reply, size_t reply_bytes);

  void OnAbort(AbortListener listener, void* context);
  bool alive() const { return alive_.load(std::memory_order_acquire); }

  /// In a forked child: closes the inherited socket. Touches no lock, as another thread of the
  /// parent may have held it.
  void Abandon();

 private:
  struct Waiter {
    uint64_t request;
    void* reply;
    size_t reply_bytes;
    int64_t result;  // size of the answer; kPending
    Waiter* next;
  };
  static constexpr int64_t kPending = -2;
  static constexpr int kMaxListeners = 8;

  static void* Serve(void* self);
  void ServeLoop();
  bool Send(const void* packet, size_t bytes);
  void Deliver(const wire::Header* packet, size_t bytes);
  void Lost();

  int socket_ = -1;
  std::atomic<bool> alive_{false};
  std::atomic<uint64_t> next_request_{1};
  bool aborted_ = false;  // the whole job: nobody answers any more
  std::mutex mutex_;      // waiters_, listeners
  std::condition_variable answered_;
  Waiter* waiters_ = nullptr;
  AbortListener listeners_[kMaxListeners] = {};
  void* contexts_[kMaxListeners] = {};
  int listener_count_ = 0;
};

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_CONNECTION_H_
