#include "hostcuda/driver/options.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hostcuda {
namespace {

struct Option {
  const char* name;
  const char* accepts;
  const char* meaning;
  bool (*parse)(const char* text, DriverOptions& options);
};

bool IsNumber(const char* text, DriverOptions&) {
  return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

const Option kOptions[] = {
    {"HOSTCUDA_GPU", "h200, h100, a100 or b200 (default h200)",
     "the GPU that every device presents",
     [](const char* text, DriverOptions& o) {
       o.gpu = text;
       return o.gpu == "h200" || o.gpu == "h100" || o.gpu == "a100" || o.gpu == "b200";
     }},
    {"HOSTCUDA_DEVICES", "0 to 64 (default 8)", "how many devices there are",
     [](const char* text, DriverOptions& o) {
       char* end = nullptr;
       const long n = strtol(text, &end, 10);
       if (end == text || *end != '\0' || n < 0 || n > kMaxDevices) return false;
       o.devices = static_cast<int>(n);
       return true;
     }},
    {"HOSTCUDA_MEMORY", "bytes, or with KiB, MiB, GiB, TiB (default: as the GPU has)",
     "memory of a device",
     [](const char* text, DriverOptions& o) {
       return ParseBytes(text, &o.memory_bytes) && o.memory_bytes >= (64u << 20);
     }},
    {"HOSTCUDA_CONTEXT_MEMORY", "bytes, or with KiB, MiB, GiB (default 550MiB)",
     "device memory that a process's context takes on a device",
     [](const char* text, DriverOptions& o) { return ParseBytes(text, &o.context_bytes); }},
    {"HOSTCUDA_MEMORY_LIMIT", "1 or 0 (default 1)",
     "0: allocations are accounted but never refused (somebody else enforces the limit)",
     [](const char* text, DriverOptions& o) {
       o.memory_limit = text[0] == '1';
       return (text[0] == '0' || text[0] == '1') && text[1] == '\0';
     }},
    {"HOSTCUDA_VALUES", "none, control or cpu (default none)",
     "what is computed: nothing, what control flow needs, or everything",
     [](const char* text, DriverOptions& o) {
       if (strcmp(text, "none") == 0) {
         o.values = HOSTCUDA_VALUES_NONE;
       } else if (strcmp(text, "control") == 0) {
         o.values = HOSTCUDA_VALUES_CONTROL;
       } else if (strcmp(text, "cpu") == 0) {
         o.values = HOSTCUDA_VALUES_CPU;
       } else {
         return false;
       }
       return true;
     }},
    {"HOSTCUDA_COPY_LIMIT",
     "bytes, or with KiB, MiB, GiB (default 1MiB for none, 16MiB for control)",
     "largest copy or set that moves bytes with values none or control; larger ones are counted "
     "only",
     [](const char* text, DriverOptions& o) { return ParseBytes(text, &o.copy_limit_bytes); }},
    {"HOSTCUDA_CLOCK", "free, virtual or wall (default free)",
     "how time passes; free: kernels and copies take none; virtual: they take the time of a table, "
     "on one clock for all processes of the session; wall: they take it of this machine's clock",
     [](const char* text, DriverOptions&) {
       return strcmp(text, "free") == 0 || strcmp(text, "virtual") == 0 ||
              strcmp(text, "wall") == 0;
     }},
    {"HOSTCUDA_TIMES", "a JSON file (default: times by the GPU's figures)",
     "virtual and wall clock: how long kernels, copies and host calls take",
     [](const char* text, DriverOptions& o) {
       o.times = text;
       return true;
     }},
    {"HOSTCUDA_TIMES_DIGEST", "a file",
     "virtual clock: at its exit each process adds a line to it: which process it is, how many "
     "operations its streams did, and a hash of when each of them ended",
     [](const char* text, DriverOptions& o) {
       o.times_digest = text;
       return true;
     }},
    {"HOSTCUDA_PROCESS",
     "a number from 0 (default: RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID, PMI_RANK, else the order "
     "of starting)",
     "virtual clock: which process of the job this is", IsNumber},
    {"HOSTCUDA_PROCESSES",
     "a number (default: WORLD_SIZE, OMPI_COMM_WORLD_SIZE, SLURM_NTASKS, PMI_SIZE, else 0)",
     "virtual clock: it stands until so many processes have started CUDA", IsNumber},
    {"HOSTCUDA_CLOCK_REPORT_S", "seconds (default 10; 0: never)",
     "virtual clock: after standing for so long it says on stderr which thread holds it", IsNumber},
    {"HOSTCUDA_SESSION", "a file name (default: one session a user)",
     "processes of one session share the devices' memory and the doorbells",
     [](const char* text, DriverOptions& o) {
       o.session = text;
       return o.session.size() < 64 && o.session.find('/') == std::string::npos;
     }},
};

DriverOptions Parse() {
  DriverOptions options;
  bool copy_limit_given = false;
  for (const Option& option : kOptions) {
    const char* text = getenv(option.name);
    if (text == nullptr || *text == '\0') continue;
    if (!option.parse(text, options)) Die("%s=%s: expected %s", option.name, text, option.accepts);
    copy_limit_given |= strcmp(option.name, "HOSTCUDA_COPY_LIMIT") == 0;
  }
  if (!copy_limit_given && options.values == HOSTCUDA_VALUES_CONTROL)
    options.copy_limit_bytes = 16u << 20;
  if (options.values == HOSTCUDA_VALUES_CPU) options.copy_limit_bytes = UINT64_MAX;
  return options;
}

}  // namespace

const DriverOptions& Options() {
  static const DriverOptions* const options = new DriverOptions(Parse());
  return *options;
}

bool ParseBytes(const char* text, uint64_t* bytes) {
  char* end = nullptr;
  const double number = strtod(text, &end);
  if (end == text || !(number >= 0)) return false;
  int shift = 0;
  switch (*end) {
    case '\0':
      break;
    case 'k':
    case 'K':
      shift = 10;
      break;
    case 'm':
    case 'M':
      shift = 20;
      break;
    case 'g':
    case 'G':
      shift = 30;
      break;
    case 't':
    case 'T':
      shift = 40;
      break;
    default:
      return false;
  }
  if (shift != 0) {
    ++end;
    if (*end != '\0' && strcmp(end, "B") != 0 && strcmp(end, "iB") != 0) return false;
  }
  const double value = number * static_cast<double>(uint64_t{1} << shift);
  if (value >= 9.2e18) return false;
  *bytes = static_cast<uint64_t>(value);
  return true;
}

std::string OptionsMarkdown() {
  std::string rows = "| variable | accepts | meaning |\n|---|---|---|\n";
  for (const Option& option : kOptions) {
    rows += std::string("| `") + option.name + "` | " + option.accepts + " | " + option.meaning +
            " |\n";
  }
  return rows;
}

void Die(const char* format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  fprintf(stderr, "hostcuda: %s\n", message);
  _exit(125);
}

}  // namespace hostcuda
