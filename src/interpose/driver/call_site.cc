#include "src/interpose/driver/call_site.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

namespace prism::interpose {
namespace {

constexpr size_t kMaxFrames = 3;
constexpr size_t kTracebackBytes = 16 * 1024;

struct Interpreter {
  int (*is_initialized)();
  void* (*this_thread_state)();
  void (*dump_traceback)(int descriptor, void* thread_state);

  bool usable() const {
    return is_initialized != nullptr && this_thread_state != nullptr && dump_traceback != nullptr;
  }
};

Interpreter FindInterpreter() {
  Interpreter found{};
  found.is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  found.this_thread_state =
      reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  found.dump_traceback =
      reinterpret_cast<void (*)(int, void*)>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  return found;
}

std::string PythonFrames() {
  static const Interpreter python = FindInterpreter();
  if (!python.usable() || python.is_initialized() == 0) return {};
  void* state = python.this_thread_state();
  if (state == nullptr) return {};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  static int descriptor = -1;
  static pid_t owner = 0;
  if (owner != getpid()) {  // a forked child would share the parent's file offset
    descriptor = memfd_create("prism-call-site", MFD_CLOEXEC);
    owner = getpid();
  }
  if (descriptor < 0 || lseek(descriptor, 0, SEEK_SET) != 0 || ftruncate(descriptor, 0) != 0) {
    return {};
  }
  python.dump_traceback(descriptor, state);
  std::string traceback(kTracebackBytes, '\0');
  const ssize_t size = pread(descriptor, traceback.data(), traceback.size(), 0);
  if (size <= 0) return {};
  traceback.resize(size);
  return SummarizeTraceback(traceback);
}

struct NativeWalk {
  std::string text;
};

bool IsPlumbing(const char* path) {
  const char* slash = strrchr(path, '/');
  const char* base = slash == nullptr ? path : slash + 1;
  for (const char* name : {"libnccl", "libcuda", "libtorch", "libc10", "libc.so", "libpython"}) {
    if (strncmp(base, name, strlen(name)) == 0) return true;
  }
  return false;
}

_Unwind_Reason_Code Visit(_Unwind_Context* context, void* argument) {
  auto* walk = static_cast<NativeWalk*>(argument);
  const auto address = static_cast<uintptr_t>(_Unwind_GetIP(context));
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(address - 1), &info) == 0 || info.dli_fname == nullptr ||
      IsPlumbing(info.dli_fname)) {
    return _URC_NO_REASON;
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
  walk->text = text;
  return _URC_END_OF_STACK;
}

}  // namespace

std::string SummarizeTraceback(std::string_view traceback) {
  struct Frame {
    std::string text;
    bool user;
  };
  std::vector<Frame> frames;
  size_t start = 0;
  while (start < traceback.size()) {
    size_t end = traceback.find('\n', start);
    if (end == std::string_view::npos) end = traceback.size();
    const std::string_view line = traceback.substr(start, end - start);
    start = end + 1;
    constexpr std::string_view kFile = "  File \"", kLine = "\", line ", kIn = " in ";
    if (line.substr(0, kFile.size()) != kFile) continue;
    const size_t path_end = line.find(kLine, kFile.size());
    if (path_end == std::string_view::npos) continue;
    const std::string_view path = line.substr(kFile.size(), path_end - kFile.size());
    const size_t in = line.find(kIn, path_end + kLine.size());
    if (in == std::string_view::npos) continue;
    const std::string_view number =
        line.substr(path_end + kLine.size(), in - path_end - kLine.size());
    const size_t slash = path.rfind('/');
    Frame frame;
    frame.text = std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
    frame.text.append(":").append(number).append(line.substr(in));
    frame.user =
        path.find("/site-packages/") == std::string_view::npos &&
        path.find("/dist-packages/") == std::string_view::npos &&
        path.find("/python/prism/") == std::string_view::npos &&  // runs the user's program
        path.find("/lib/python3") == std::string_view::npos && path[0] != '<';
    frames.push_back(std::move(frame));
  }
  const bool any_user =
      std::any_of(frames.begin(), frames.end(), [](const Frame& f) { return f.user; });
  std::string text;
  size_t kept = 0;
  for (const Frame& frame : frames) {
    if (any_user && !frame.user) continue;
    if (kept++ > 0) text += " < ";
    text += frame.text;
    if (kept == kMaxFrames) break;
  }
  return text;
}

size_t DescribeCaller(char* text, size_t text_bytes) {
  std::string found = PythonFrames();
  if (found.empty()) {
    NativeWalk walk;
    _Unwind_Backtrace(&Visit, &walk);
    found = std::move(walk.text);
  }
  const size_t length = std::min(found.size(), text_bytes - 1);
  memcpy(text, found.data(), length);
  text[length] = 0;
  return length;
}

}  // namespace prism::interpose
