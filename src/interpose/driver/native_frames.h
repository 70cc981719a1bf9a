// NativeFrames: which functions of a compiled program made a call.
//
// Names come from the images' own symbol tables, so a program need not export its functions; a
// stripped one is named by addresses, which addr2line takes. Each address is looked up once.
// Thread-safe.
//
//   NativeFrames(3);   // "trainer+0x1a2b in Average < trainer+0x3c4d in Step < trainer+0x5e in
//   main"
#ifndef PRISM_INTERPOSE_DRIVER_NATIVE_FRAMES_H_
#define PRISM_INTERPOSE_DRIVER_NATIVE_FRAMES_H_

#include <cstddef>
#include <string>

namespace prism::interpose {

/// The innermost frames of the calling thread outside of CUDA, NCCL, PyTorch and the language's
/// libraries, at most `most`, not beyond main(); "" where there are none.
std::string NativeFrames(size_t most);

/// A demangled name without parameters and anonymous namespaces: "Trainer::Average".
std::string ShortName(const char* symbol);

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_DRIVER_NATIVE_FRAMES_H_
