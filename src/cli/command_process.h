// Command process: the user's command as a child of prism, with everything that descends from it.
//
// Owns the command from its start until nothing of it is left: its process group, what prism was
// told by signals, its output where that is kept, the orphans that it leaves (prism adopts them),
// and the guard that ends them all should prism be killed. Single-threaded; waits in the caller's
// event loop.
//
//   CommandProcess command(&loop);
//   command.TakeSignals([&](int signal) { command.Signal(signal); });
//   PRISM_RETURN_IF_ERROR(command.Start({.words = {"/usr/bin/true"}, .environment = {}}));
//   while (!command.ended()) loop.RunOnce(250);
//   command.EndLeftovers();
//   return command.exit_code();
#ifndef PRISM_CLI_COMMAND_PROCESS_H_
#define PRISM_CLI_COMMAND_PROCESS_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/base/event_loop.h"
#include "src/base/status.h"
#include "src/cli/guard.h"

namespace prism::cli {

struct CommandOptions {
  std::vector<std::string> words;                  // the first is an absolute path
  std::map<std::string, std::string> environment;  // what differs from prism's own
  /// Folder of stdout.log and stderr.log, made if need be; "": output is not read at all.
  std::string log_folder;
  bool shown = true;  // with a log folder: pass output on to prism's own
  /// A process group of its own, which reads no terminal. Without one the terminal interrupts the
  /// command together with prism.
  bool own_group = true;
};

class CommandProcess {
 public:
  explicit CommandProcess(EventLoop* loop);
  ~CommandProcess();
  CommandProcess(const CommandProcess&) = delete;
  CommandProcess& operator=(const CommandProcess&) = delete;

  /// From now on an interrupt, a termination and a hang-up of prism call `stop` once instead of
  /// ending it, with the signal that the command is to get: 0 where the terminal has sent it
  /// already. The next one kills the command with all that descends from it. Call it before any
  /// thread is made: they inherit the mask.
  void TakeSignals(std::function<void(int signal)> stop);
  /// Is called when the command has ended, before ended() is seen.
  void OnEnd(std::function<void()> callback) { on_end_ = std::move(callback); }

  /// Guard::Start; before any thread is made.
  void StartGuard(const std::string& mark, const std::string& runtime_folder) {
    guard_.Start(mark, runtime_folder);
  }
  absl::Status Start(const CommandOptions& options);

  pid_t pid() const { return child_; }
  bool ended() const { return ended_; }
  bool was_signalled() const;
  /// As a shell tells it: 128 and the signal that ended it, else its code.
  int exit_code() const;
  /// The signal that prism got, or 0.
  int interrupted_by() const { return interrupted_by_; }
  bool killed() const { return killed_; }

  /// The command and all that descends from it.
  std::vector<int> Descendants() const;
  /// Sends a signal to the command's group, without one of its own to all of Descendants().
  void Signal(int number);
  /// Kills the command and all that descends from it.
  void Kill();
  /// Output is shown only, from now on.
  void StopLogging();
  /// Reads what is still in the pipes.
  void Drain();
  /// Ends what the command left running: asks for half a second, then kills.
  void EndLeftovers();

 private:
  struct Pump {
    int from = -1;
    int terminal = -1;
    int log = -1;
  };
  void AddPump(int from, int terminal, const std::string& log);
  void Drain(Pump& pump);
  void OnSignals();
  void Reap();

  EventLoop* const loop_;
  Guard guard_;
  bool own_group_ = true;
  std::function<void(int)> stop_;
  std::function<void()> on_end_;
  std::map<int, Pump> pumps_;
  sigset_t old_mask_{};
  struct sigaction old_pipe_action_ {};
  rlimit old_files_{};
  int signal_fd_ = -1;
  pid_t child_ = -1;
  int child_fd_ = -1;  // is readable when it has ended
  bool ended_ = false;
  int status_ = 0;
  bool killed_ = false;
  int interrupted_by_ = 0;
};

}  // namespace prism::cli

#endif  // PRISM_CLI_COMMAND_PROCESS_H_
