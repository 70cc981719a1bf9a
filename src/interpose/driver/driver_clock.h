// DriverClock: the clock that the driver's times are times of.
//
// A GPU's driver keeps to this machine's. One that stands for a GPU may keep to a virtual clock
// (hostcuda's functions, found by name in the driver); then host time is read from it, what prism
// itself does takes none of it, and the controller takes part in it as a process with a number, so
// that it does not move while the controller has something to do.
//
// Thread-safe. Everything but NowNs does nothing where the clock is not virtual.
//
//   DriverClock::Find(library);                    // once, when the driver is open
//   const DriverClock::Uncharged scope;            // around calls of prism's own
//   const DriverClock::Held scope;                 // while the controller is to answer
#ifndef PRISM_INTERPOSE_DRIVER_DRIVER_CLOCK_H_
#define PRISM_INTERPOSE_DRIVER_DRIVER_CLOCK_H_

#include <cuda.h>
#include <time.h>

#include <cstdint>

namespace prism::interpose::driver {

class DriverClock {
 public:
  /// `library`: the real driver's, of dlopen.
  static void Find(void* library);
  static bool is_virtual() { return functions_.now != nullptr; }

  static uint64_t NowNs() {
    if (functions_.now != nullptr) return functions_.now();
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
  }
  /// This process's number on the clock, plus 1; 0: it has none.
  static uint32_t Number();
  /// Tells the process of that number, as Number() gives it, to look at what it was sent.
  static void Ring(uint32_t number) {
    if (functions_.now != nullptr && number != 0) functions_.ring(number - 1);
  }
  /// What the calling thread does in a library that is not there takes so long.
  static void Work(uint64_t duration_ns) {
    if (functions_.now != nullptr && duration_ns != 0) functions_.host_time(duration_ns);
  }
  static void Charge(int change) {
    if (functions_.now != nullptr) functions_.uncharged(-change);
  }

  /// What the work of a stream between two events (that have been reached) took, without the gaps
  /// in which the stream waited for the host; false where the driver cannot tell.
  static bool BusyTime(CUevent start, CUevent end, uint64_t* ns) {
    unsigned long long busy_ns = 0;
    if (functions_.now == nullptr || functions_.busy_time(start, end, &busy_ns) != 0) return false;
    *ns = busy_ns;
    return true;
  }

  /// The calling thread's calls, and what they enqueue, take no time.
  class Uncharged {
   public:
    Uncharged() { Charge(-1); }
    ~Uncharged() { Charge(1); }
    Uncharged(const Uncharged&) = delete;
    Uncharged& operator=(const Uncharged&) = delete;
  };
  /// The clock stands.
  class Held {
   public:
    explicit Held(bool held) : held_(held && functions_.now != nullptr) {
      if (held_) functions_.hold(1);
    }
    ~Held() {
      if (held_) functions_.hold(-1);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    const bool held_;
  };

 private:
  struct Functions {
    unsigned long long (*now)();  // null: not virtual
    int (*host_time)(unsigned long long duration_ns);
    int (*busy_time)(void* start, void* end, unsigned long long* ns);
    int (*uncharged)(int change);
    int (*hold)(int change);
    unsigned (*number)();
    int (*ring)(unsigned number);
  };
  static Functions functions_;
};

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_DRIVER_CLOCK_H_
