// Where device allocations lie.
//
// A caching allocator (PyTorch's) chooses among free blocks of one size by address; which it takes
// decides what it splits and with it the peak that the program reports. So addresses come in the
// order in which an H200's driver hands them out. The order is not documented; this one reproduces
// the allocator's history on an H200, request by request, for five programs of one device:
//
// - up to 32 MiB: the lowest hole of the newest 256 MiB region that has room; context creation has
//   used all but 32 MiB of the first region;
// - above: address space of their own;
// - regions and large allocations: the highest gap below everything that came before.
//
// Pure bookkeeping: maps nothing. Not thread-safe.
//
//   DeviceAddresses addresses;
//   const uintptr_t base = addresses.Take(20 << 20);
//   ...
//   addresses.GiveBack(base);

#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace hostcuda {

class DeviceAddresses {
 public:
  static constexpr uint64_t kUnitBytes = 2u << 20;
  static constexpr uint64_t kRegionBytes = 256u << 20;
  static constexpr uint64_t kLargestInRegionBytes = 32u << 20;
  static constexpr uint64_t kContextBytes = kRegionBytes - (32u << 20);
  // Far from where Linux, its loader and the sanitizers put things.
  static constexpr uintptr_t kLowest = uintptr_t{32} << 40;
  static constexpr uintptr_t kEnd = uintptr_t{80} << 40;

  /// Takes `bytes`, rounded up to whole units; 0 where there is no room.
  uintptr_t Take(uint64_t bytes);
  /// Gives back what Take answered with `base`; anything else is ignored.
  void GiveBack(uintptr_t base);

 private:
  struct Region {
    uintptr_t base = 0;
    uint64_t free_bytes = kRegionBytes;
    std::map<uintptr_t, uint64_t> taken;  // base -> bytes
  };

  uintptr_t TakeInRegion(Region& region, uint64_t bytes);
  uintptr_t TakeExtent(uint64_t bytes);
  bool AddRegion();

  std::vector<Region> regions_;            // oldest first; the first stays
  std::map<uintptr_t, uint64_t> extents_;  // regions and large allocations: base -> bytes
};

}  // namespace hostcuda
