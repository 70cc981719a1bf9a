// PythonFrames: the calling thread's own Python frames, without the GIL.
//
// Two ways. The interpreter's crash handler prints any thread's frames without a lock or an
// allocation, in 100 us of CPU for 25 frames: one write a word. Reading the frames directly takes 2
// us, but needs the layout of CPython 3.11 and 3.12; it is used only after it gave the same frames
// as the crash handler several times in this process. A thread's frames are its own: they do not
// change while it is in here, and the code objects that they hold live.
// CPython exports the crash handler in 3.11 and 3.12; with others there are no frames.
//
//   std::vector<PythonFrame> frames;
//   if (ReadPythonFrames(&frames)) ...   // innermost first
#ifndef PRISM_INTERPOSE_DRIVER_PYTHON_FRAMES_H_
#define PRISM_INTERPOSE_DRIVER_PYTHON_FRAMES_H_

#include <string>
#include <string_view>
#include <vector>

namespace prism::interpose {

struct PythonFrame {
  std::string path, function;
  int line = 0;

  friend bool operator==(const PythonFrame&, const PythonFrame&) = default;
};

/// False where the process has no interpreter, or the thread no frame.
bool ReadPythonFrames(std::vector<PythonFrame>* frames);

/// Frames of a traceback as the crash handler prints it.
std::vector<PythonFrame> ParseTraceback(std::string_view traceback);

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_PYTHON_FRAMES_H_
