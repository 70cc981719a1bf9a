// EventLoop: one thread waits for many descriptors and calls back. The controller's sockets, pipes
// and signals meet here.
//
// Owns its epoll descriptor, not the descriptors that are added. Single-threaded. A callback may
// add and remove descriptors, its own too.
//
//   EventLoop loop;
//   loop.Add(listen_fd, [&] { Accept(); });
//   while (!done) loop.RunOnce(250);
#ifndef PRISM_BASE_EVENT_LOOP_H_
#define PRISM_BASE_EVENT_LOOP_H_

#include <functional>
#include <map>
#include <memory>

namespace prism {

class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Calls `callback` whenever `fd` is readable or hung up. An earlier callback of the descriptor
  /// is replaced.
  void Add(int fd, std::function<void()> callback);
  void Remove(int fd);
  /// Waits up to `timeout_ms` and runs the callbacks of what is ready. False: nothing was.
  bool RunOnce(int timeout_ms);

 private:
  int epoll_ = -1;
  std::map<int, std::shared_ptr<std::function<void()>>> callbacks_;
};

}  // namespace prism

#endif  // PRISM_BASE_EVENT_LOOP_H_
