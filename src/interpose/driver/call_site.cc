#include "src/interpose/driver/call_site.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/interpose/driver/native_frames.h"

namespace prism::interpose {
namespace {

constexpr size_t kMaxFrames = 3;

}  // namespace

std::string SummarizeFrames(const std::vector<PythonFrame>& frames) {
  const auto is_users = [](const PythonFrame& frame) {
    return frame.path.find("/site-packages/") == std::string::npos &&
           frame.path.find("/dist-packages/") == std::string::npos &&
           frame.path.find("/python/prism/") == std::string::npos &&  // runs the user's program
           frame.path.find("/lib/python3") == std::string::npos && frame.path[0] != '<';
  };
  const bool any_user = std::any_of(frames.begin(), frames.end(), is_users);
  std::string text;
  size_t kept = 0;
  for (const PythonFrame& frame : frames) {
    if (any_user && !is_users(frame)) continue;
    if (kept++ > 0) text += " < ";
    const size_t slash = frame.path.rfind('/');
    text.append(frame.path, slash == std::string::npos ? 0 : slash + 1);
    text += ":" + std::to_string(frame.line) + " in " + frame.function;
    if (kept == kMaxFrames) break;
  }
  return text;
}

size_t DescribeCaller(char* text, size_t text_bytes) {
  std::string found;
  if (std::vector<PythonFrame> frames; ReadPythonFrames(&frames)) found = SummarizeFrames(frames);
  if (found.empty()) found = NativeFrames(kMaxFrames);
  const size_t length = std::min(found.size(), text_bytes - 1);
  memcpy(text, found.data(), length);
  text[length] = 0;
  return length;
}

}  // namespace prism::interpose
