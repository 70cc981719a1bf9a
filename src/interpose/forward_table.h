// ForwardTable: what a shim's exported names lead to.
//
// Every exported name is a trampoline (generate.py) that jumps through `entry`. Once the real
// library is open an entry is either the real function (nothing of prism in the way) or a wrapper.
// Entries change at run time, when a process becomes a rank, by one aligned store each; pointers
// handed out by cuGetProcAddress are trampolines, so they follow.
//
// Threading: Open is called under the shim's own lock; Install and Forward are single stores and
// may race with calls.
//
//   ForwardTable table({prism_driver_names, prism_driver_exported, prism_driver_entry,
//   prism_driver_real,
//                       driver::kSymbolCount, &prism_driver_missing});
//   table.Open("/usr/lib/libcuda.so.1", error, sizeof error);
//   table.Install(driver::k_cuMemAlloc_v2, wrapper);
#ifndef PRISM_INTERPOSE_FORWARD_TABLE_H_
#define PRISM_INTERPOSE_FORWARD_TABLE_H_

#include <cstddef>
#include <cstdint>

namespace prism::interpose {

class ForwardTable {
 public:
  struct Symbols {
    const char* const* names;
    void* const* exported;
    void** entry;
    void** real;
    uint32_t count;
    void (*missing)();
  };

  constexpr explicit ForwardTable(const Symbols& symbols) : symbols_(symbols) {}

  /// Opens `path` (absolute) and looks every name up, absent ones become `missing`. Entries stay as
  /// they are: the shim publishes them, so that no call slips by between. On failure every entry is
  /// `missing`, and `error` says why.
  bool Open(const char* path, char* error, size_t error_bytes);
  /// Points every entry at `missing`: there is nothing to forward to.
  void Close();

  void Install(uint32_t index, void* wrapper);
  void Forward(uint32_t index);

  void* library() const { return library_; }
  uint32_t count() const { return symbols_.count; }
  const char* name(uint32_t index) const { return symbols_.names[index]; }
  void* real(uint32_t index) const { return symbols_.real[index]; }
  void* exported(uint32_t index) const { return symbols_.exported[index]; }
  bool has(uint32_t index) const {
    return symbols_.real[index] != reinterpret_cast<void*>(symbols_.missing);
  }
  /// Index of a name, or count().
  uint32_t Find(const char* name) const;

 private:
  Symbols symbols_;
  void* library_ = nullptr;
};

/// The C entry of a wrapper `R Wrapper(Route, A...)`. A Route says how it was called (which
/// exported name, and whether that name's default stream is the per-thread one) and calls the real
/// function; Scope sees every call's begin and end.
template <class Route, class Scope, auto kWrapper, uint32_t kIndex, bool kPerThread>
struct Thunk;
template <class Route, class Scope, class R, class... A, R (*kWrapper)(Route, A...),
          uint32_t kIndex, bool kPerThread>
struct Thunk<Route, Scope, kWrapper, kIndex, kPerThread> {
  static R Entry(A... arguments) noexcept {
    Scope scope(kIndex);
    return kWrapper(Route{kIndex, kPerThread}, arguments...);
  }
};

struct Wrapper {
  uint32_t index;
  bool always;  // also in processes that are no rank
  void* entry;
};

}  // namespace prism::interpose

#endif  // PRISM_INTERPOSE_FORWARD_TABLE_H_
