#include "hostcuda/driver/device_addresses.h"

#include <algorithm>

namespace hostcuda {

uintptr_t DeviceAddresses::TakeInRegion(Region& region, uint64_t bytes) {
  if (region.free_bytes < bytes) return 0;
  uintptr_t hole = region.base;
  for (const auto& [base, length] : region.taken) {
    if (base - hole >= bytes) break;
    hole = base + length;
  }
  if (hole + bytes > region.base + kRegionBytes) return 0;
  region.taken[hole] = bytes;
  region.free_bytes -= bytes;
  return hole;
}

uintptr_t DeviceAddresses::TakeExtent(uint64_t bytes) {
  uintptr_t top = kEnd;
  for (auto extent = extents_.rbegin(); extent != extents_.rend(); ++extent) {
    if (top - (extent->first + extent->second) >= bytes) break;
    top = extent->first;
  }
  if (top - kLowest < bytes) return 0;
  extents_[top - bytes] = bytes;
  return top - bytes;
}

bool DeviceAddresses::AddRegion() {
  Region region;
  region.base = TakeExtent(kRegionBytes);
  if (region.base == 0) return false;
  if (regions_.empty()) TakeInRegion(region, kContextBytes);
  regions_.push_back(std::move(region));
  return true;
}

uintptr_t DeviceAddresses::Take(uint64_t bytes) {
  if (bytes == 0 || bytes > kEnd - kLowest) return 0;
  bytes = (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  if (regions_.empty() && !AddRegion()) return 0;
  if (bytes > kLargestInRegionBytes) return TakeExtent(bytes);
  for (auto region = regions_.rbegin(); region != regions_.rend(); ++region) {
    if (const uintptr_t base = TakeInRegion(*region, bytes)) return base;
  }
  return AddRegion() ? TakeInRegion(regions_.back(), bytes) : 0;
}

void DeviceAddresses::GiveBack(uintptr_t base) {
  const auto region = std::find_if(regions_.begin(), regions_.end(), [&](const Region& candidate) {
    return base >= candidate.base && base - candidate.base < kRegionBytes;
  });
  if (region == regions_.end()) {
    extents_.erase(base);
    return;
  }
  const auto taken = region->taken.find(base);
  if (taken == region->taken.end()) return;
  region->free_bytes += taken->second;
  region->taken.erase(taken);
  if (!region->taken.empty()) return;
  extents_.erase(region->base);
  regions_.erase(region);
}

}  // namespace hostcuda
