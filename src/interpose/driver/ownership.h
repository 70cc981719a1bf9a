// Ownership of physical memory: every device allocation of a rank goes through here.
//
// First form: the rank owns. The real driver allocates in the rank's own process, the ledger
// counts, and the target's limit holds. A later form lets the controller create the memory and the
// rank map it; callers stay as they are. Thread-safe.
//
//   Ownership::Get().Allocate(bytes, [&] { return real(address, bytes); }, address);
#ifndef PRISM_INTERPOSE_DRIVER_OWNERSHIP_H_
#define PRISM_INTERPOSE_DRIVER_OWNERSHIP_H_

#include <cuda.h>

#include <cstdint>
#include <functional>

namespace prism::interpose::driver {

class Ownership {
 public:
  using DriverCall = std::function<CUresult()>;

  virtual ~Ownership() = default;

  /// Device memory of `bytes` on the thread's current device; `allocate` makes the driver's call,
  /// which sets *address.
  virtual CUresult Allocate(uint64_t bytes, const DriverCall& allocate,
                            const CUdeviceptr* address) = 0;
  virtual CUresult Free(CUdeviceptr address, const DriverCall& free) = 0;

  /// Physical memory without an address (VMM), of a virtual ordinal. It lives until its last handle
  /// is released and its last mapping undone.
  virtual CUresult Create(uint32_t ordinal, uint64_t bytes, const DriverCall& create,
                          const CUmemGenericAllocationHandle* handle) = 0;
  virtual void Retained(CUmemGenericAllocationHandle handle) = 0;
  virtual CUresult Release(CUmemGenericAllocationHandle handle, const DriverCall& release) = 0;
  virtual CUresult Map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle,
                       const DriverCall& map) = 0;
  virtual CUresult Unmap(CUdeviceptr address, uint64_t bytes, const DriverCall& unmap) = 0;

  /// Whether an address lies in memory that was allocated or mapped through here.
  virtual bool Contains(CUdeviceptr address) const = 0;

  static Ownership& Get();
};

}  // namespace prism::interpose::driver

#endif  // PRISM_INTERPOSE_DRIVER_OWNERSHIP_H_
