#include "hostcuda/nccl/last_error.h"

#include <strings.h>
#include <unistd.h>

#include <mutex>

#include "hostcuda/nccl/environment.h"

namespace hostnccl {
namespace {

struct Last {
  std::mutex mutex;
  std::string text;
};

Last& Global() {
  static Last* const last = new Last;  // threads of the driver may outlive static destruction
  return *last;
}

bool WarningsWanted() {
  const char* level = EnvironmentText("NCCL_DEBUG");
  return strcasecmp(level, "WARN") == 0 || strcasecmp(level, "INFO") == 0 ||
         strcasecmp(level, "TRACE") == 0;
}

}  // namespace

ncclResult_t Report(const Status& status) {
  if (status.ok() || status.code == Code::kInProgress)
    return static_cast<ncclResult_t>(status.code);
  Last& last = Global();
  {
    std::lock_guard lock(last.mutex);
    last.text = status.message;
  }
  if (WarningsWanted()) {
    fprintf(stderr, "%d:%d NCCL WARN %s\n", getpid(), gettid(), status.message.c_str());
  }
  return static_cast<ncclResult_t>(status.code);
}

const char* LastError() {
  static thread_local std::string copy;
  Last& last = Global();
  std::lock_guard lock(last.mutex);
  copy = last.text;
  return copy.c_str();
}

}  // namespace hostnccl
