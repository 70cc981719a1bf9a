#include "src/base/event_loop.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace prism {

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}
EventLoop::~EventLoop() {
  if (epoll_ >= 0) close(epoll_);
}

void EventLoop::Add(int fd, std::function<void()> callback) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  const bool known = callbacks_.count(fd) != 0;
  epoll_ctl(epoll_, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
  callbacks_[fd] = std::make_shared<std::function<void()>>(std::move(callback));
}

void EventLoop::Remove(int fd) {
  if (callbacks_.erase(fd) != 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

bool EventLoop::RunOnce(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int ready = epoll_wait(epoll_, events.data(), events.size(), timeout_ms);
  for (int i = 0; i < ready; ++i) {
    // An earlier callback may have removed this one; the copy keeps one alive that removes itself.
    const auto found = callbacks_.find(events[static_cast<size_t>(i)].data.fd);
    if (found == callbacks_.end()) continue;
    const std::shared_ptr<std::function<void()>> callback = found->second;
    (*callback)();
  }
  return ready > 0;
}

}  // namespace prism
