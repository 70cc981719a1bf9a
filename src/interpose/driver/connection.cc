#include "src/interpose/driver/connection.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "src/interpose/report.h"

namespace prism::interpose {
namespace {

// The controller may be busy accepting a thousand ranks.
constexpr int kWelcomeTimeoutMs = 120 * 1000;
constexpr int kSocketBufferBytes = 1 << 20;

bool SendWithDescriptor(int socket, const void* bytes, size_t size, int descriptor) {
  iovec part{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size);
}

}  // namespace

bool Connection::Open(const char* path, const wire::Hello& hello, int arena_fd,
                      wire::Welcome* welcome, char* reason, size_t reason_bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = strlen(path);
  if (length >= sizeof address.sun_path) {
    snprintf(
        reason, reason_bytes,
        "the controller's socket path has %zu characters, at most %zu fit: use a job directory "
        "with a shorter path (%s)",
        length, sizeof address.sun_path - 1, path);
    return false;
  }
  memcpy(address.sun_path, path, length);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    snprintf(reason, reason_bytes, "no socket: %s", strerror(errno));
    return false;
  }
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
  int connected;
  do {
    connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (connected != 0 && errno == EINTR);
  if (connected != 0) {
    snprintf(reason, reason_bytes,
             "cannot reach the controller at %s: %s (is `prism capture` still running?)", path,
             strerror(errno));
    close(fd);
    return false;
  }
  if (!SendWithDescriptor(fd, &hello, sizeof hello, arena_fd)) {
    snprintf(reason, reason_bytes, "the controller at %s does not take a hello: %s", path,
             strerror(errno));
    close(fd);
    return false;
  }
  auto packet = std::make_unique_for_overwrite<char[]>(wire::kMaxPacketBytes);
  pollfd readable{fd, POLLIN, 0};
  int ready;
  do {
    ready = poll(&readable, 1, kWelcomeTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  const ssize_t size = ready == 1 ? recv(fd, packet.get(), wire::kMaxPacketBytes, 0) : -1;
  wire::Header header{};
  if (size >= static_cast<ssize_t>(sizeof header)) memcpy(&header, packet.get(), sizeof header);
  if (header.type == wire::Message::kRefuse) {
    wire::Refuse refuse{};
    memcpy(&refuse, packet.get(),
           size < static_cast<ssize_t>(sizeof refuse) ? size : sizeof refuse);
    refuse.reason[sizeof refuse.reason - 1] = 0;
    snprintf(reason, reason_bytes, "the controller refuses this rank: %s", refuse.reason);
    close(fd);
    return false;
  }
  if (header.type != wire::Message::kWelcome || size < static_cast<ssize_t>(sizeof *welcome)) {
    snprintf(reason, reason_bytes,
             "the controller at %s answered %s instead of a welcome (protocol version here: %u)",
             path, ready == 0 ? "nothing within 120 s" : "something else", wire::kProtocolVersion);
    close(fd);
    return false;
  }
  memcpy(welcome, packet.get(), sizeof *welcome);
  socket_ = fd;
  alive_.store(true, std::memory_order_release);

  // Signals of the user's program must not be delivered to our thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 512 * 1024);
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, &Connection::Serve, this);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    snprintf(reason, reason_bytes, "no service thread: %s", strerror(error));
    alive_.store(false, std::memory_order_release);
    close(fd);
    socket_ = -1;
    return false;
  }
  pthread_setname_np(thread, "prism-service");
  return true;
}

bool Connection::Send(const void* packet, size_t bytes) {
  return alive() && SendWithDescriptor(socket_, packet, bytes, -1);
}

int64_t Connection::Request(wire::Header* packet, void* reply, size_t reply_bytes) {
  if (reply == nullptr) return Send(packet, packet->bytes) ? 0 : -1;
  Waiter waiter{next_request_.fetch_add(1, std::memory_order_relaxed), reply, reply_bytes, kPending,
                nullptr};
  packet->request = waiter.request;
  std::unique_lock lock(mutex_);
  waiter.next = waiters_;
  waiters_ = &waiter;
  lock.unlock();
  const bool sent = Send(packet, packet->bytes);
  lock.lock();
  if (sent) {
    answered_.wait(lock, [&] { return waiter.result != kPending || !alive() || aborted_; });
  }
  for (Waiter** link = &waiters_; *link != nullptr; link = &(*link)->next) {
    if (*link == &waiter) {
      *link = waiter.next;
      break;
    }
  }
  return waiter.result == kPending ? -1 : waiter.result;
}

void Connection::OnAbort(AbortListener listener, void* context) {
  std::lock_guard lock(mutex_);
  if (listener_count_ == kMaxListeners) {
    Report("more than %d abort listeners: one is not called", kMaxListeners);
    return;
  }
  listeners_[listener_count_] = listener;
  contexts_[listener_count_++] = context;
}

void* Connection::Serve(void* self) {
  static_cast<Connection*>(self)->ServeLoop();
  return nullptr;
}

void Connection::ServeLoop() {
  auto packet = std::make_unique_for_overwrite<char[]>(wire::kMaxPacketBytes);
  for (;;) {
    const ssize_t size = recv(socket_, packet.get(), wire::kMaxPacketBytes, 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < static_cast<ssize_t>(sizeof(wire::Header))) break;
    Deliver(reinterpret_cast<const wire::Header*>(packet.get()), size);
  }
  Lost();
}

void Connection::Deliver(const wire::Header* packet, size_t bytes) {
  if (packet->type == wire::Message::kAbort) {
    wire::Abort abort{};
    memcpy(&abort, packet, bytes < sizeof abort ? bytes : sizeof abort);
    abort.reason[sizeof abort.reason - 1] = 0;
    AbortListener listeners[kMaxListeners];
    void* contexts[kMaxListeners];
    int count;
    {
      std::lock_guard lock(mutex_);
      if (abort.comm == 0) {
        aborted_ = true;
        answered_.notify_all();
      }
      count = listener_count_;
      memcpy(listeners, listeners_, sizeof listeners);
      memcpy(contexts, contexts_, sizeof contexts);
    }
    for (int i = 0; i < count; ++i) listeners[i](&abort, contexts[i]);
    return;
  }
  std::lock_guard lock(mutex_);
  for (Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
    if (waiter->request == packet->request && waiter->result == kPending) {
      memcpy(waiter->reply, packet, bytes < waiter->reply_bytes ? bytes : waiter->reply_bytes);
      waiter->result = static_cast<int64_t>(bytes);
      answered_.notify_all();
      return;
    }
  }
}

void Connection::Lost() {
  {
    std::lock_guard lock(mutex_);
    alive_.store(false, std::memory_order_release);
    answered_.notify_all();
  }
  wire::Abort abort{};
  abort.header = {wire::Message::kAbort, sizeof abort, 0};
  abort.comm = 0;
  abort.nccl_result = 2;  // ncclSystemError
  snprintf(abort.reason, sizeof abort.reason, "the controller is gone");
  Deliver(&abort.header, sizeof abort);
}

void Connection::Abandon() {
  alive_.store(false, std::memory_order_release);
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

}  // namespace prism::interpose
