#include "src/interpose/driver/call_site.h"

#include <dlfcn.h>
#include <unwind.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace prism::interpose {
namespace {

constexpr size_t kMaxFrames = 3;

bool IsPlumbing(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* base = slash == nullptr ? path : slash + 1;
  for (const char* name : {"libnccl", "libcuda", "libtorch", "libc10", "libc.so", "libpython"}) {
    if (strncmp(base, name, strlen(name)) == 0) return true;
  }
  return false;
}

/// A program's frame as "library in function"; empty for a frame of CUDA, NCCL or PyTorch.
std::string DescribeFrame(uintptr_t address) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(address - 1), &info) == 0 || info.dli_fname == nullptr ||
      IsPlumbing(info.dli_fname)) {
    return {};
  }
  const char* slash = strrchr(info.dli_fname, '/');
  char text[256];
  if (info.dli_sname != nullptr) {
    snprintf(text, sizeof text, "%s in %s", slash == nullptr ? info.dli_fname : slash + 1,
             info.dli_sname);
  } else {
    snprintf(text, sizeof text, "%s+0x%zx", slash == nullptr ? info.dli_fname : slash + 1,
             address - reinterpret_cast<uintptr_t>(info.dli_fbase));
  }
  return text;
}

_Unwind_Reason_Code Visit(_Unwind_Context* context, void* argument) {
  // dladdr searches the symbols of the whole library, which takes a millisecond in PyTorch's.
  static std::mutex mutex;
  static auto* known = new std::unordered_map<uintptr_t, std::string>;
  auto* found = static_cast<std::string*>(argument);
  const auto address = static_cast<uintptr_t>(_Unwind_GetIP(context));
  std::lock_guard lock(mutex);
  const auto [place, is_new] = known->try_emplace(address);
  if (is_new) place->second = DescribeFrame(address);
  *found = place->second;
  return found->empty() ? _URC_NO_REASON : _URC_END_OF_STACK;
}

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
  if (found.empty()) {
    _Unwind_Backtrace(&Visit, &found);
  }
  const size_t length = std::min(found.size(), text_bytes - 1);
  memcpy(text, found.data(), length);
  text[length] = 0;
  return length;
}

}  // namespace prism::interpose
