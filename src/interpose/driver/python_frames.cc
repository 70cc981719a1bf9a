#include "src/interpose/driver/python_frames.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace prism::interpose {
namespace {

constexpr size_t kTracebackBytes = 16 * 1024;
constexpr size_t kMaxFrames = 100;  // as many as the crash handler prints
constexpr int kAgreementsNeeded = 5;

struct Interpreter {
  int (*is_initialized)();
  void* (*this_thread_state)();
  void (*dump_traceback)(int descriptor, void* thread_state);
  int (*line_of)(void* code, int byte_offset);  // PyCode_Addr2Line: reads tables only
  const char* code_type;
  unsigned long version;  // 0x030b07f0

  bool usable() const {
    return is_initialized != nullptr && this_thread_state != nullptr && dump_traceback != nullptr;
  }
};

const Interpreter& Python() {
  static const Interpreter found = [] {
    Interpreter python{};
    const auto load = [](auto*& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
    };
    load(python.is_initialized, "Py_IsInitialized");
    load(python.this_thread_state, "PyGILState_GetThisThreadState");
    load(python.dump_traceback, "_Py_DumpTraceback");
    load(python.line_of, "PyCode_Addr2Line");
    load(python.code_type, "PyCode_Type");
    const unsigned long* version = nullptr;
    load(version, "Py_Version");
    python.version = version == nullptr ? 0 : *version;
    return python;
  }();
  return found;
}

// Offsets in CPython's structures, of release builds. Equal in all releases of a minor version.
struct Layout {
  size_t state_cframe;  // PyThreadState.cframe
  size_t cframe_frame;  // _PyCFrame.current_frame
  size_t frame_code;    // _PyInterpreterFrame.f_code
  size_t frame_previous;
  size_t frame_instruction;  // prev_instr
  size_t frame_owner;
  int owner_c_stack;  // a frame of the evaluation loop itself; -1: there are none
  size_t code_filename, code_name;
  size_t text_data;  // of a compact ASCII string
};
constexpr Layout kLayout311 = {56, 8, 32, 48, 56, 69, -1, 112, 120, 48};
constexpr Layout kLayout312 = {56, 0, 0, 8, 56, 70, 3, 112, 120, 40};
constexpr size_t kTextLength = 16, kTextState = 32;  // PyASCIIObject
constexpr uint32_t kCompactAscii = (1u << 5) | (1u << 6);
constexpr size_t kTypeBasicSize = 32;  // PyTypeObject.tp_basicsize

const Layout* LayoutOf(unsigned long version) {
  switch (version >> 16) {
    case 0x030b:
      return &kLayout311;
    case 0x030c:
      return &kLayout312;
    default:
      return nullptr;
  }
}

/// Copies memory of this process; `kChecked` survives an address that is none.
template <bool kChecked>
bool Copy(const char* from, void* to, size_t bytes) {
  if constexpr (kChecked) {
    iovec local{to, bytes};
    iovec remote{const_cast<char*>(from), bytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
  } else {
    memcpy(to, from, bytes);
    return true;
  }
}

template <bool kChecked>
bool ReadText(const Layout& layout, const char* object, std::string* text) {
  size_t length = 0;
  uint32_t state = 0;
  if (!Copy<kChecked>(object + kTextLength, &length, sizeof length) ||
      !Copy<kChecked>(object + kTextState, &state, sizeof state) ||
      (state & kCompactAscii) != kCompactAscii || length > 4096) {
    return false;
  }
  text->resize(length);
  return Copy<kChecked>(object + layout.text_data, text->data(), length);
}

/// False when something is not as expected: the caller then asks the crash handler.
template <bool kChecked>
bool WalkFrames(const Interpreter& python, const Layout& layout, const char* thread_state,
                std::vector<PythonFrame>* frames) {
  const char *cframe = nullptr, *frame = nullptr;
  size_t code_bytes = 0;
  memcpy(&code_bytes, python.code_type + kTypeBasicSize, sizeof code_bytes);
  if (!Copy<kChecked>(thread_state + layout.state_cframe, &cframe, sizeof cframe) ||
      !Copy<kChecked>(cframe + layout.cframe_frame, &frame, sizeof frame)) {
    return false;
  }
  while (frame != nullptr && frames->size() < kMaxFrames) {
    char *code = nullptr, *instruction = nullptr;
    const char* previous = nullptr;
    char owner = 0;
    if (!Copy<kChecked>(frame + layout.frame_code, &code, sizeof code) ||
        !Copy<kChecked>(frame + layout.frame_instruction, &instruction, sizeof instruction) ||
        !Copy<kChecked>(frame + layout.frame_previous, &previous, sizeof previous) ||
        !Copy<kChecked>(frame + layout.frame_owner, &owner, sizeof owner)) {
      return false;
    }
    frame = previous;
    if (owner == layout.owner_c_stack) continue;
    const char *filename = nullptr, *name = nullptr;
    PythonFrame found;
    if (!Copy<kChecked>(code + layout.code_filename, &filename, sizeof filename) ||
        !Copy<kChecked>(code + layout.code_name, &name, sizeof name) ||
        !ReadText<kChecked>(layout, filename, &found.path) ||
        !ReadText<kChecked>(layout, name, &found.function)) {
      return false;
    }
    found.line = python.line_of(code, static_cast<int>(instruction - (code + code_bytes)));
    frames->push_back(std::move(found));
  }
  return true;
}

bool AskCrashHandler(const Interpreter& python, void* thread_state,
                     std::vector<PythonFrame>* frames) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  static int descriptor = -1;
  static pid_t owner = 0;
  if (owner != getpid()) {  // a forked child would share the parent's file offset
    descriptor = memfd_create("prism-call-site", MFD_CLOEXEC);
    owner = getpid();
  }
  if (descriptor < 0 || lseek(descriptor, 0, SEEK_SET) != 0 || ftruncate(descriptor, 0) != 0) {
    return false;
  }
  python.dump_traceback(descriptor, thread_state);
  std::string traceback(kTracebackBytes, '\0');
  const ssize_t size = pread(descriptor, traceback.data(), traceback.size(), 0);
  if (size <= 0) return false;
  *frames = ParseTraceback(std::string_view(traceback).substr(0, static_cast<size_t>(size)));
  return true;
}

}  // namespace

std::vector<PythonFrame> ParseTraceback(std::string_view traceback) {
  std::vector<PythonFrame> frames;
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
    const size_t number_at = path_end + kLine.size();
    const size_t in = line.find(kIn, number_at);
    if (in == std::string_view::npos) continue;
    PythonFrame frame;
    frame.path = line.substr(kFile.size(), path_end - kFile.size());
    frame.function = line.substr(in + kIn.size());
    std::from_chars(line.data() + number_at, line.data() + in, frame.line);
    frames.push_back(std::move(frame));
  }
  return frames;
}

bool ReadPythonFrames(std::vector<PythonFrame>* frames) {
  const Interpreter& python = Python();
  if (!python.usable() || python.is_initialized() == 0) return false;
  void* state = python.this_thread_state();
  if (state == nullptr) return false;
  static const Layout* const layout =
      python.line_of != nullptr && python.code_type != nullptr ? LayoutOf(python.version) : nullptr;
  static std::atomic<int> agreements{0};  // negative: they disagreed, once is enough
  if (layout != nullptr && agreements.load(std::memory_order_relaxed) >= kAgreementsNeeded) {
    if (WalkFrames<false>(python, *layout, static_cast<const char*>(state), frames)) return true;
    frames->clear();
  }
  if (!AskCrashHandler(python, state, frames)) return false;
  const int agreed = agreements.load(std::memory_order_relaxed);
  if (layout != nullptr && agreed >= 0 && agreed < kAgreementsNeeded && frames->size() > 1) {
    std::vector<PythonFrame> walked;
    const bool equal =
        WalkFrames<true>(python, *layout, static_cast<const char*>(state), &walked) &&
        walked == *frames;
    agreements.store(equal ? agreed + 1 : -1, std::memory_order_relaxed);
  }
  return true;
}

}  // namespace prism::interpose
