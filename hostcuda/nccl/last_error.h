// The text behind ncclGetLastError, and NCCL_DEBUG's warnings. Thread-safe.
#ifndef HOSTCUDA_NCCL_LAST_ERROR_H_
#define HOSTCUDA_NCCL_LAST_ERROR_H_

#include <nccl.h>

#include "hostcuda/nccl/status.h"

namespace hostnccl {

/// Remembers a failure's message, prints it to stderr when NCCL_DEBUG asks for warnings, and
/// returns its code.
ncclResult_t Report(const Status& status);

/// Returns the last message; valid until the thread's next call.
const char* LastError();

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_LAST_ERROR_H_
