// Device memory: host memory that is reserved, not touched, backed by one sparse memfd a process so
// that other processes can map it. Also the map of every address range that CUDA knows of: device,
// pinned, registered, reserved.
//
// Accounting is the real driver's: allocations above 1 MiB are whole 2 MiB pages, smaller ones
// share 2 MiB pages. Freed pages go back to the system at once. Device memory does not survive a
// fork. Thread-safe.
//
//   uintptr_t p;
//   if (memory.Allocate(context, bytes, MemoryKind::kDevice, 0, &p) == CUDA_ERROR_OUT_OF_MEMORY)
//   ...
#ifndef HOSTCUDA_DRIVER_DEVICE_MEMORY_H_
#define HOSTCUDA_DRIVER_DEVICE_MEMORY_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "hostcuda/driver/device_addresses.h"
#include "hostcuda/driver/options.h"

namespace hostcuda {

class Context;

inline constexpr uint64_t kPageBytes = 2u << 20;

enum class MemoryKind { kDevice, kManaged, kPinned, kRegistered, kMapped, kImported };

struct MemoryRange {
  uintptr_t base = 0;
  uint64_t bytes = 0;  // as asked for
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  Context* context = nullptr;
  unsigned flags = 0;  // host memory: as given by the caller
  uint64_t id = 0;     // buffer id, unique in the process
  int fd = -1;         // file and offset behind it; -1: private memory
  uint64_t offset = 0;
  bool accessible = true;     // kMapped: after cuMemSetAccess
  uint64_t mapped_bytes = 0;  // length of the host mapping; 0: part of a shared page
  uintptr_t mapped_base = 0;

  bool on_device() const { return kind != MemoryKind::kPinned && kind != MemoryKind::kRegistered; }
};

/// Physical memory of the virtual memory management calls.
struct Physical {
  static constexpr uint32_t kMagic = 0x50485953;
  uint32_t magic = kMagic;
  int fd = -1;
  uint64_t offset = 0, bytes = 0;
  int device = 0;
  bool host = false;      // CU_MEM_LOCATION_TYPE_HOST*: not charged to a device
  bool imported = false;  // charged by the process that made it
  CUmemAllocationProp properties = {};
  int references = 1;  // handle and mappings
  int handles = 1;
  uint32_t record = 0;  // entry of the file's directory; 0: never exported
};

/// An event between processes: complete when int32(completed - recorded) >= 0. Whoever completes it
/// wakes sleepers.
struct SharedEvent {
  uint64_t magic;
  std::atomic<uint32_t> recorded;
  std::atomic<uint32_t> completed;
  uint64_t reserved[6];
};
static_assert(sizeof(SharedEvent) == 64);

class DeviceMemory {
 public:
  static DeviceMemory* Create(std::string* error);

  CUresult Allocate(Context* context, uint64_t bytes, MemoryKind kind, unsigned flags,
                    uintptr_t* address);
  /// Memory of a module's global: part of what the context was charged for, never freed.
  CUresult AllocateGlobal(Context* context, uint64_t bytes, uintptr_t* address);
  /// Frees an allocation by its base address. `pinned`: the caller means host memory.
  CUresult Free(uintptr_t address, bool pinned);
  CUresult Register(Context* context, uintptr_t address, uint64_t bytes, unsigned flags);
  CUresult Unregister(uintptr_t address);
  /// Frees what a destroyed context still holds.
  void FreeContext(Context* context);

  /// The range that holds `address`; false where CUDA does not know it.
  bool Find(uintptr_t address, MemoryRange* range) const;
  /// True where a copy or set of [address, address + bytes) is legal; host memory that CUDA does
  /// not know is legal.
  bool Accessible(uintptr_t address, uint64_t bytes) const;

  // Virtual memory management.
  CUresult Reserve(uint64_t bytes, uint64_t alignment, uintptr_t hint, uintptr_t* address);
  CUresult Unreserve(uintptr_t address, uint64_t bytes);
  CUresult CreatePhysical(uint64_t bytes, const CUmemAllocationProp& properties,
                          Physical** physical);
  CUresult ReleasePhysical(Physical* physical);
  CUresult Map(uintptr_t address, uint64_t bytes, uint64_t offset, Physical* physical);
  CUresult Unmap(uintptr_t address, uint64_t bytes);
  CUresult SetAccess(uintptr_t address, uint64_t bytes, bool readable, bool writable);
  CUresult GetAccess(uintptr_t address, CUmemAccess_flags* flags) const;
  Physical* PhysicalAt(uintptr_t address);

  // Between processes. An exported file descriptor's position names an entry of the directory at
  // the file's start.
  CUresult Export(Physical* physical, int* fd);
  CUresult Import(int fd, Physical** physical);
  CUresult GetIpcHandle(uintptr_t address, CUipcMemHandle* handle);
  CUresult OpenIpcHandle(Context* context, const CUipcMemHandle& handle, uintptr_t* address);
  CUresult CloseIpcHandle(uintptr_t address);

  /// The words of an event that several processes use, in this process's file; null where there is
  /// no room.
  SharedEvent* CreateSharedEvent(CUipcEventHandle* handle);
  CUresult OpenSharedEvent(const CUipcEventHandle& handle, SharedEvent** event);

  /// Zeroes [address, +bytes) by giving its whole pages back; true where that was possible (private
  /// to this process).
  bool ZeroByRelease(uintptr_t address, uint64_t bytes);
  /// Copies out of device memory without touching pages that nobody wrote.
  void CopyOutSparse(void* destination, uintptr_t source, uint64_t bytes);

 private:
  struct Page {  // a 2 MiB page shared by small allocations
    uintptr_t base;
    uint64_t offset;
    int device;
    MemoryKind kind;
    std::map<uint64_t, uint64_t> holes;  // offset -> bytes
  };
  struct Reservation {
    uint64_t bytes;
  };

  DeviceMemory() = default;
  // With mutex_ held.
  uintptr_t MapFresh(uint64_t bytes, uint64_t* offset);
  uintptr_t ReserveInOrder(uint64_t bytes);
  CUresult AllocateSmall(Context* context, uint64_t bytes, MemoryKind kind, uintptr_t* address);
  void Drop(std::map<uintptr_t, MemoryRange>::iterator range);
  void DropReference(Physical* physical);
  uint64_t TakeOffset(uint64_t bytes);
  CUresult ImportFile(int pid, uint64_t start_time, int fd, uint64_t inode, int* own);
  const MemoryRange* FindLocked(uintptr_t address) const;

  mutable std::shared_mutex mutex_;
  int fd_ = -1;
  uint64_t next_offset_ = 0;
  DeviceAddresses addresses_;
  uint64_t next_id_ = 1;
  uint32_t next_record_ = 1;
  std::map<uintptr_t, MemoryRange> ranges_;
  std::map<uintptr_t, uint64_t> reservations_;
  std::map<uintptr_t, Physical*> mappings_;
  std::map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::map<uint64_t, int> imported_files_;  // inode -> descriptor
  char* directory_ = nullptr;  // this file's directory, mapped at the first shared event
};

}  // namespace hostcuda

#endif  // HOSTCUDA_DRIVER_DEVICE_MEMORY_H_
