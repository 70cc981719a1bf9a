// Status: how hostnccl's core reports a failure; the codes are NCCL's.
//
// No exception crosses the library's boundary and no third-party type may enter a foreign process,
// hence not absl's.
//
//   Status s = Error(Code::kInvalidUsage, "rank %d joined twice", rank);
//   if (!s.ok()) return s;
#ifndef HOSTCUDA_NCCL_STATUS_H_
#define HOSTCUDA_NCCL_STATUS_H_

#include <cstdarg>
#include <cstdio>
#include <string>

namespace hostnccl {

/// Numbered like ncclResult_t.
enum class Code : int {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

struct [[nodiscard]] Status {
  Code code = Code::kSuccess;
  std::string message;  // what, the value, the remedy; empty on success

  bool ok() const { return code == Code::kSuccess; }
};

/// Returns a failure with a printf-formatted message.
[[gnu::format(printf, 2, 3)]] inline Status Error(Code code, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return Status{code, text};
}

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_STATUS_H_
