// CallSite: which line of the user's program made a call.
//
// Reads the calling thread's own Python frames without the GIL (python_frames.h), which takes
// no lock and allocates nothing: NCCL is usually called with the GIL released, and taking it could
// deadlock with whoever holds it. Without an interpreter, names the innermost functions of the
// compiled program (native_frames.h). Thread-safe.
//
//   char text[512];
//   DescribeCaller(text, sizeof text);   // "train.py:12 in step < train.py:40 in main"
#ifndef PRISM_INTERPOSE_DRIVER_CALL_SITE_H_
#define PRISM_INTERPOSE_DRIVER_CALL_SITE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "src/interpose/driver/python_frames.h"

namespace prism::interpose {

/// Writes the innermost user frames, innermost first. Returns the length, 0 where nothing is known.
size_t DescribeCaller(char* text, size_t text_bytes);

/// Turns frames into that form. Frames of installed packages and of the standard library are left
/// out while a frame of the user's is there; at most three are kept.
std::string SummarizeFrames(const std::vector<PythonFrame>& frames);

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_CALL_SITE_H_
