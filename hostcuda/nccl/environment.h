// The environment variables that hostnccl reads. docs: hostcuda/nccl/README.md lists them.
#ifndef HOSTCUDA_NCCL_ENVIRONMENT_H_
#define HOSTCUDA_NCCL_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace hostnccl {

/// Returns the variable as a number, with an optional suffix K, M or G; `otherwise` when it is
/// absent or not a number.
inline uint64_t EnvironmentNumber(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return otherwise;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 0);
  if (end == text) return otherwise;
  switch (*end) {
    case 0:
      return value;
    case 'k':
    case 'K':
      return value << 10;
    case 'm':
    case 'M':
      return value << 20;
    case 'g':
    case 'G':
      return value << 30;
    default:
      return otherwise;
  }
}

/// Returns the variable's text, or "" when it is absent.
inline const char* EnvironmentText(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_ENVIRONMENT_H_
