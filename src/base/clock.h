// JobClock: the clock that a job's times are times of.
//
// A GPU's are this machine's. Ranks on a virtual clock have to be told when something was stored
// for them, or the clock would pass it by.
#ifndef PRISM_BASE_CLOCK_H_
#define PRISM_BASE_CLOCK_H_

#include <cstdint>

namespace prism {

class JobClock {
 public:
  virtual ~JobClock() = default;
  /// Nanoseconds since the clock's epoch; never decreases.
  virtual int64_t NowNs() const = 0;
  /// Something was stored for the process of that number (wire::kClockNumberWord).
  virtual void Ring(uint32_t number) = 0;
};

}  // namespace prism

#endif  // PRISM_BASE_CLOCK_H_
