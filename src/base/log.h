// Logging: what prism says about its own work, on stderr. Data goes to stdout and never through
// here.
//
// The function that decides that something is an error logs or returns it; its callers stay silent.
// Thread-safe after InitLog, which main calls once. Never used inside the user's process (the shims
// depend on libc alone).
//
//   InitLog({.verbosity = 1});
//   spdlog::info("16 ranks on h200x8:2");
#ifndef PRISM_BASE_LOG_H_
#define PRISM_BASE_LOG_H_

#include <string_view>

#include "spdlog/spdlog.h"

namespace prism {

struct LogOptions {
  int verbosity = 0;  // -1: warnings and errors; 0: also information; 1: debug; 2: trace
};

/// Makes the default spdlog logger write to stderr: "prism: text", levels above information named.
void InitLog(const LogOptions& options);

/// Tells whether escape sequences are welcome on a descriptor: a terminal, and neither NO_COLOR nor
/// TERM=dumb.
bool ColorWanted(int fd);

}  // namespace prism

#endif  // PRISM_BASE_LOG_H_
