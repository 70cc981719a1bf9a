// ProcAddress: answers cuGetProcAddress with our trampolines.
//
// The real driver decides whether a name exists in a version; its answer is then recognised among
// the functions that we wrap, by address. A driver may answer with other addresses than dlsym's;
// such an answer is recognised by name, version and kind of default stream. What we do not wrap is
// passed through as it is. Read-only after Build.
#ifndef PRISM_INTERPOSE_DRIVER_PROC_ADDRESS_H_
#define PRISM_INTERPOSE_DRIVER_PROC_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/interpose/forward_table.h"

namespace prism::interpose::driver {

/// "cuMemAlloc_v2_ptsz" is version 2 of "cuMemAlloc" with the per-thread default stream.
struct VersionedName {
  std::string_view base;
  int abi = 1;
  bool per_thread = false;
};
VersionedName SplitName(std::string_view name);

/// The CUDA version from which cuGetProcAddress answers a base name with this ABI; 0 where every
/// version does.
int FirstCudaVersion(std::string_view exported_name);

class ProcAddress {
 public:
  struct Counts {
    uint32_t by_address, by_name, passed;
  };

  void Build(const ForwardTable& table, const std::vector<uint32_t>& wrapped);
  /// What the program gets for the real driver's answer `real`.
  void* Answer(const char* symbol, void* real, int cuda_version, bool per_thread);
  Counts counts() const;

 private:
  const ForwardTable* table_ = nullptr;
  std::unordered_multimap<void*, uint32_t> by_address_;  // every export; wrapped or not
  std::vector<bool> wrapped_;
  std::unordered_multimap<std::string_view, uint32_t> by_base_;
  uint32_t by_address_count_ = 0, by_name_count_ = 0, passed_count_ = 0;
};

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_PROC_ADDRESS_H_
