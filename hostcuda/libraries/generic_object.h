// A handle of a library whose calls are generated: it remembers the stream, the pointer mode and
// named scalars.
//
// Ownership: made by HostcudaCreate, freed by HostcudaDestroy; what it was made from is copied, not
// referenced. Hand-written handles that generated calls get too (cublasHandle_t) derive from it.
// Threading: as the real handles: one thread at a time for each handle.
#ifndef HOSTCUDA_LIBRARIES_GENERIC_OBJECT_H_
#define HOSTCUDA_LIBRARIES_GENERIC_OBJECT_H_

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hostcuda {

struct GenericObject {
  static constexpr uint64_t kMagic = 0x686f7374637564ull;  // "hostcud"; a destroyed object has none
  static constexpr int kHostPointers = 0;                  // CUBLAS_POINTER_MODE_HOST and its like

  struct Attribute {
    std::string name;
    int64_t value;  // the bits of a double if floating
    bool floating;
  };

  uint64_t magic = kMagic;
  CUstream stream = nullptr;
  int pointer_mode = kHostPointers;
  std::vector<Attribute> attributes;
  // What a hand-written descriptor adds to the names of kernels that take it ("f32_8x64x56x56");
  // attributes are not used then.
  std::string summary;

  ~GenericObject() { magic = 0; }

  const Attribute* Find(std::string_view name) const {
    for (const Attribute& a : attributes) {
      if (a.name == name) return &a;
    }
    return nullptr;
  }
  void Set(std::string_view name, int64_t value, bool floating = false) {
    for (Attribute& a : attributes) {
      if (a.name == name) {
        a.value = value;
        a.floating = floating;
        return;
      }
    }
    attributes.push_back({std::string(name), value, floating});
  }
};

}  // namespace hostcuda

#endif  // HOSTCUDA_LIBRARIES_GENERIC_OBJECT_H_
