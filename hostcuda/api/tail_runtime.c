#include "hostcuda/api/tail_runtime.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// One write(2), so that lines of concurrent processes do not mix; stdio of the user's process is
// not touched.
static void Say(const char* line, int length, int capacity) {
  if (length < 0) return;
  if (length >= capacity) length = capacity - 1;
  ssize_t written = write(STDERR_FILENO, line, (size_t)length);
  (void)written;
}

int HostcudaUnsupported(struct HostcudaTailCall* call) {
  if (!__atomic_exchange_n(&call->announced, 1, __ATOMIC_RELAXED)) {
    char line[512];
    int n = snprintf(line, sizeof line, "hostcuda: %s: %s is not implemented: it returns %s (%d)\n",
                     call->library->soname, call->function, call->library->not_supported_name,
                     call->library->not_supported);
    Say(line, n, sizeof line);
  }
  return call->library->not_supported;
}

void HostcudaUnimplemented(struct HostcudaTailCall* call) {
  char line[512];
  int n = snprintf(line, sizeof line,
                   "hostcuda: %s: %s is not implemented and has no status to return: the process "
                   "ends with 125\n",
                   call->library->soname, call->function);
  Say(line, n, sizeof line);
  _exit(125);
}
