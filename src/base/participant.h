// Participant: who takes part in a communication.
//
// A rank is not a process: nccl-tests, JAX and ncclCommInitAll drive several devices, and so
// several members of one communicator, from one process. Everything that matches, counts or
// diagnoses communications is keyed by participant.
#ifndef PRISM_BASE_PARTICIPANT_H_
#define PRISM_BASE_PARTICIPANT_H_

#include <compare>
#include <cstdint>

namespace prism {

struct Participant {
  uint32_t process =
      0;  // index of the process in the job; equals the world rank where every process is one rank
  uint32_t comm = 0;    // job-wide communicator number, never reused; 0 is none
  uint32_t rank = 0;    // position in the communicator
  uint32_t device = 0;  // virtual ordinal in the process

  friend auto operator<=>(const Participant&, const Participant&) = default;
};

}  // namespace prism

#endif  // PRISM_BASE_PARTICIPANT_H_
