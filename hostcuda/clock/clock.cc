#include "hostcuda/clock/clock.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hostcuda/clock/virtual_clock.h"
#include "hostcuda/clock/wall_clock.h"

namespace hostcuda {
namespace {

class FreeClock final : public JobClock {
 public:
  uint64_t NowNs() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
  }
};

/// The value of the first of `names` that is set, as a number from 0 to `most`. False: it is none.
bool ReadNumber(const char* const (&names)[5], long most, int* value, std::string* error) {
  for (const char* name : names) {
    const char* text = getenv(name);
    if (text == nullptr || *text == '\0') continue;
    char* end = nullptr;
    const long number = strtol(text, &end, 10);
    if (*end != '\0' || number < 0 || number > most) {
      *error =
          std::string(name) + "=" + text + ": expected a number from 0 to " + std::to_string(most);
      return false;
    }
    *value = static_cast<int>(number);
    return true;
  }
  return true;
}

[[noreturn]] void Refuse(const std::string& message) {
  fprintf(stderr, "hostcuda: %s\n", message.c_str());
  _exit(125);
}

JobClock* Make() {
  const char* name = getenv("HOSTCUDA_CLOCK");
  if (name == nullptr || *name == '\0' || strcmp(name, "free") == 0) return new FreeClock;
  const bool is_wall = strcmp(name, "wall") == 0;
  if (!is_wall && strcmp(name, "virtual") != 0)
    Refuse(std::string("HOSTCUDA_CLOCK=") + name + ": expected free, virtual or wall");
  JobPlace place;
  std::string error;
  if (!ReadJobPlace(&place, &error)) Refuse(error);
  if (is_wall) return new WallClock(place);
  uint64_t report_after_s = 10;
  if (const char* text = getenv("HOSTCUDA_CLOCK_REPORT_S"); text != nullptr && *text != '\0')
    report_after_s = strtoull(text, nullptr, 10);
  return new VirtualClock(place, report_after_s * 1'000'000'000u);
}

}  // namespace

bool ReadJobPlace(JobPlace* place, std::string* error) {
  *place = JobPlace{};
  constexpr int kMost = static_cast<int>(kMaxClockMembers);
  if (!ReadNumber({"HOSTCUDA_PROCESS", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"},
                  kMost - 1, &place->rank, error) ||
      !ReadNumber(
          {"HOSTCUDA_PROCESSES", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE"},
          kMost, &place->processes, error))
    return false;
  // Only some ranks of a launcher's job may be in this session.
  const bool together =
      getenv("HOSTCUDA_PROCESSES") == nullptr || getenv("HOSTCUDA_PROCESS") != nullptr;
  if (together && place->processes > 0 && place->rank >= place->processes) {
    *error = "this process has rank " + std::to_string(place->rank) + " of " +
             std::to_string(place->processes) +
             " processes; set HOSTCUDA_PROCESS and HOSTCUDA_PROCESSES";
    return false;
  }
  return true;
}

JobClock& Clock() {
  // Never destroyed: the progress thread reads it while the process exits.
  static JobClock* const clock = Make();
  return *clock;
}

}  // namespace hostcuda
