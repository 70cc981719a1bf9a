// Tests with several processes: a test starts this same binary again in a role and talks to it by a
// pipe.
//
//   Role peer("open_memory", &handle, sizeof handle);   // runs RegisterRole's function in a fresh
//   process EXPECT_EQ(peer.Wait(), 0);
//
// The binary's main calls RunRole first. All processes of a test share a session of their own
// (HOSTCUDA_SESSION).
#ifndef HOSTCUDA_DRIVER_TESTING_ROLES_H_
#define HOSTCUDA_DRIVER_TESTING_ROLES_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

namespace hostcuda::testing {

using RoleFunction = int (*)(int in, int out);

inline std::map<std::string, RoleFunction>& Roles() {
  static std::map<std::string, RoleFunction> roles;
  return roles;
}

struct RegisterRole {
  RegisterRole(const char* name, RoleFunction function) { Roles()[name] = function; }
};

/// Runs the role that the command line names and exits; else gives the process a session of its
/// own.
inline void RunRole(int argc, char** argv) {
  if (argc >= 2 && strncmp(argv[1], "--role=", 7) == 0) {
    const auto role = Roles().find(argv[1] + 7);
    if (role == Roles().end()) _exit(99);
    exit(role->second(3, 4));
  }
  setenv("HOSTCUDA_SESSION", ("test-" + std::to_string(getpid())).c_str(), 1);
}

class Role {
 public:
  explicit Role(const char* name) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 103);
      dup2(from[1], 104);
      dup2(103, 3);
      dup2(104, 4);
      for (int fd = 5; fd < 256; ++fd) close(fd);
      const std::string argument = std::string("--role=") + name;
      execl("/proc/self/exe", "test", argument.c_str(), nullptr);
      _exit(98);
    }
    close(to[0]);
    close(from[1]);
    in_ = from[0];
    out_ = to[1];
  }
  ~Role() {
    close(in_);
    close(out_);
    if (pid_ > 0) Wait();
  }
  template <class T>
  void Send(const T& value) {
    if (write(out_, &value, sizeof value) != sizeof value) abort();
  }
  /// False at the end of the role's output.
  template <class T>
  bool Receive(T* value) {
    return read(in_, value, sizeof *value) == static_cast<ssize_t>(sizeof *value);
  }
  /// Exit code, or 128 + signal.
  int Wait() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int pid() const { return pid_; }

 private:
  int pid_ = -1, in_ = -1, out_ = -1;
};

}  // namespace hostcuda::testing

#endif  // HOSTCUDA_DRIVER_TESTING_ROLES_H_
