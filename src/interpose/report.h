// Report: prism's voice inside the user's process. One line on stderr, by write(2); stdout belongs
// to the user.
//
//   Report("cannot reach the controller at %s: %s", path, strerror(error));   // "prism[rank 3]:
//   cannot reach ..."
#ifndef PRISM_INTERPOSE_REPORT_H_
#define PRISM_INTERPOSE_REPORT_H_

#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace prism::interpose {

__attribute__((format(printf, 1, 2))) inline void Report(const char* format, ...) {
  char line[2048];
  int length = snprintf(line, sizeof line, "prism[%d]: ", static_cast<int>(getpid()));
  va_list arguments;
  va_start(arguments, format);
  const int written = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
  va_end(arguments);
  if (written > 0) length += written;
  if (length > static_cast<int>(sizeof line) - 2) length = sizeof line - 2;
  line[length++] = '\n';
  if (write(STDERR_FILENO, line, length) < 0) {
    // Nobody listens: there is nothing better to do in a process that is not ours.
  }
}

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_REPORT_H_
