// The session: what hostcuda's processes of one user share. One small file in /dev/shm holds, for
// every process, its doorbell and what it has allocated on each device, and the virtual clock.
//
// A process joins at cuInit and leaves at exit; the last one removes the file. A killed process's
// entry (process id and start time) is reaped by whoever needs its memory or its place. Every
// member holds a read lock on the file (F_OFD_SETLK), so a file that can be locked for writing has
// lost all of them: who makes a new session removes it. Charges are made under one robust mutex.
// Thread-safe. After fork the child is not a member: the driver refuses CUDA there.
//
//   Session* s = Session::Join(&error);
//   if (s->Charge(device, bytes, limit)) ... s->Discharge(device, bytes);
#ifndef HOSTCUDA_DRIVER_SESSION_H_
#define HOSTCUDA_DRIVER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "hostcuda/clock/proc_state.h"
#include "hostcuda/driver/options.h"

namespace hostcuda {

struct ClockSegment;
struct SessionSegment;

class Session {
 public:
  static constexpr uint32_t kMaxProcesses = 4096;

  /// Joins the session `name` in `directory` ("/dev/shm"); null, and a message with the remedy,
  /// where that fails.
  static Session* Join(const std::string& directory, const std::string& name, std::string* error);
  /// Gives back everything this process holds; the last process removes the file. Called once, at
  /// exit.
  void Leave();

  /// Index of this process's doorbell.
  uint32_t self() const { return self_; }
  /// Where the virtual clock of this session lives.
  ClockSegment* clock();
  std::atomic<uint32_t>* Doorbell(uint32_t index);
  /// Counts threads asleep on the doorbell, so that ringing costs no system call where there is
  /// none.
  std::atomic<uint32_t>* Sleepers(uint32_t index);
  void Ring(uint32_t index);

  /// Adds `bytes` to this process's account of `device`; false where all processes together would
  /// exceed `limit`.
  bool Charge(int device, uint64_t bytes, uint64_t limit);
  void Discharge(int device, uint64_t bytes);
  /// What all live processes hold on `device`.
  uint64_t Used(int device);
  uint64_t UsedByThisProcess(int device);

  struct Holder {
    int pid;
    uint64_t bytes;
  };
  /// Removes the files of this user's sessions whose processes were all killed; returns how many.
  static int SweepStale(const std::string& directory);
  /// Who holds memory on `device`, read without joining: empty where the session has no file.
  static std::vector<Holder> Holders(const std::string& directory, const std::string& name,
                                     int device);

  /// Drops the entries of processes that no longer exist.
  void Reap();

 private:
  Session() = default;
  void Lock();
  void Unlock();
  void ReapLocked(bool thorough);
  bool ReapIsDueLocked() const;

  SessionSegment* segment_ = nullptr;
  uint32_t self_ = 0;
  int fd_ = -1;
  int pid_ = 0;
  std::string path_;
  std::atomic<bool> left_{
      false};  // exit handlers after ours may still free memory: then nothing is accounted
};

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_SESSION_H_
