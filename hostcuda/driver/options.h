// The driver's options: one table (name, default, meaning) that yields parsing, checking and the
// reference page.
//
// Read once from the environment, at the first use; a value that cannot be read ends the process
// with code 125 after one line that names the variable, its value and what is accepted.
// Thread-safe, immutable afterwards.
//
//   uint64_t limit = hostcuda::Options().copy_limit_bytes;
#ifndef HOSTCUDA_DRIVER_OPTIONS_H_
#define HOSTCUDA_DRIVER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "hostcuda/internal_table.h"

namespace hostcuda {

inline constexpr int kMaxDevices = 64;

struct DriverOptions {
  std::string gpu = "h200";             // HOSTCUDA_GPU
  int devices = 8;                      // HOSTCUDA_DEVICES
  uint64_t memory_bytes = 0;            // HOSTCUDA_MEMORY; 0: as the GPU has
  uint64_t context_bytes = 550u << 20;  // HOSTCUDA_CONTEXT_MEMORY
  bool memory_limit = true;  // HOSTCUDA_MEMORY_LIMIT: 0 leaves the limit to somebody else
  HostcudaValues values = HOSTCUDA_VALUES_NONE;  // HOSTCUDA_VALUES
  uint64_t copy_limit_bytes = 1u << 20;          // HOSTCUDA_COPY_LIMIT
  std::string session;                           // HOSTCUDA_SESSION
  std::string times;                             // HOSTCUDA_TIMES
  std::string times_digest;                      // HOSTCUDA_TIMES_DIGEST
};

/// The process's options.
const DriverOptions& Options();

/// Parses "1048576", "64KiB", "1MiB", "141GiB" (K, KB and KiB all mean 1024). False where it is
/// none of these.
bool ParseBytes(const char* text, uint64_t* bytes);

/// Writes the option table as Markdown rows: the reference page is generated from it.
std::string OptionsMarkdown();

/// Ends the process with code 125 after "hostcuda: <message>" on stderr.
[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_OPTIONS_H_
