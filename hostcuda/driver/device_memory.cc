#include "hostcuda/driver/device_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hostcuda/driver/context.h"
#include "hostcuda/driver/driver.h"
#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/options.h"
#include "hostcuda/driver/session.h"

namespace hostcuda {
namespace {

constexpr uint64_t kSmallBytes = 1u << 20;  // up to here allocations share pages
constexpr uint64_t kSmallAlignment = 512;
constexpr uint64_t kHostPageBytes = 4096;
constexpr uint64_t kFileBytes = uint64_t{1} << 60;  // sparse: nothing exists until it is written
constexpr uint64_t kDirectoryBytes = kPageBytes;
constexpr uint64_t kRecordMagic = 0x64726f6365724348;
constexpr uint32_t kIpcMagic = 0x43504948;
constexpr uint32_t kIpcEventMagic = 0x45504948;
constexpr uint64_t kSharedEventMagic = 0x746e657665644348;

/// An entry of the directory at the start of a process's file: what an exported descriptor stands
/// for.
struct ExportRecord {
  uint64_t magic;
  uint64_t offset;
  uint64_t bytes;
  int32_t device;
  int32_t host;
  uint64_t reserved[4];
};
static_assert(sizeof(ExportRecord) == 64);
constexpr uint32_t kRecords = kDirectoryBytes / sizeof(ExportRecord);

struct IpcHandle {
  uint32_t magic;
  int32_t pid;
  uint64_t start_time;
  int32_t fd;
  int32_t device;
  uint64_t offset;  // of the mapped pages
  uint64_t bytes;   // of the mapped pages
  uint64_t inside;  // where in them the allocation starts
  uint64_t size;    // of the allocation
  uint64_t inode;
};
static_assert(sizeof(IpcHandle) <= sizeof(CUipcMemHandle) &&
              sizeof(IpcHandle) <= sizeof(CUipcEventHandle));

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/// Reserves `bytes` of address space aligned to `alignment`; 0 where there is none.
uintptr_t ReserveAligned(uint64_t bytes, uint64_t alignment) {
  const uint64_t slack = alignment > kHostPageBytes ? alignment : 0;
  void* raw =
      mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return 0;
  const uintptr_t start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t base = RoundUp(start, alignment);
  if (base > start) munmap(raw, base - start);
  const uintptr_t end = start + bytes + slack;
  if (end > base + bytes) munmap(reinterpret_cast<void*>(base + bytes), end - (base + bytes));
  return base;
}

bool MapFile(uintptr_t address, uint64_t bytes, int protection, int fd, uint64_t offset) {
  void* target = reinterpret_cast<void*>(address);
  if (mmap(target, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    return false;
  }
  // As with a GPU, a forked child has no device memory; otherwise it would write into its parent's.
  madvise(target, bytes, MADV_DONTFORK);
  return true;
}

void MapNothing(uintptr_t address, uint64_t bytes) {
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    Die("cannot unmap %llu bytes of device memory: %s; raise vm.max_map_count",
        static_cast<unsigned long long>(bytes), strerror(errno));
  }
}

void ReleasePages(int fd, uint64_t offset, uint64_t bytes) {
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace

DeviceMemory* DeviceMemory::Create(std::string* error) {
  const int fd = memfd_create("hostcuda-device-memory", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kFileBytes)) != 0) {
    *error = std::string("cannot create the device memory (memfd_create): ") + strerror(errno);
    if (fd >= 0) close(fd);
    return nullptr;
  }
  auto* memory = new DeviceMemory;
  memory->fd_ = fd;
  memory->next_offset_ = kDirectoryBytes;
  return memory;
}

uint64_t DeviceMemory::TakeOffset(uint64_t bytes) {
  // Offsets are never used twice: the file is sparse and 2^60 bytes long.
  const uint64_t offset = next_offset_;
  next_offset_ += RoundUp(bytes, kPageBytes);
  return offset;
}

uintptr_t DeviceMemory::ReserveInOrder(uint64_t bytes) {
  if (const uintptr_t base = addresses_.Take(bytes)) {
    void* const wanted = reinterpret_cast<void*>(base);
    // Linux takes the hint where nothing is mapped. Not so if somebody else is there, or a
    // sanitizer wants that address: then it stays taken.
    void* const got =
        mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == wanted) return base;
    if (got != MAP_FAILED) munmap(got, bytes);
  }
  return ReserveAligned(bytes, kPageBytes);
}

uintptr_t DeviceMemory::MapFresh(uint64_t bytes, uint64_t* offset) {
  const uintptr_t base = ReserveInOrder(bytes);
  if (base == 0) return 0;
  *offset = TakeOffset(bytes);
  if (MapFile(base, bytes, PROT_READ | PROT_WRITE, fd_, *offset)) return base;
  munmap(reinterpret_cast<void*>(base), bytes);
  addresses_.GiveBack(base);
  return 0;
}

CUresult DeviceMemory::Allocate(Context* context, uint64_t bytes, MemoryKind kind, unsigned flags,
                                uintptr_t* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > (uint64_t{1} << 46)) return CUDA_ERROR_OUT_OF_MEMORY;
  Driver& driver = *Driver::Get();
  MemoryRange range;
  range.bytes = bytes;
  range.kind = kind;
  range.device = context->device;
  range.context = context;
  range.flags = flags;
  if (kind == MemoryKind::kPinned) {
    range.mapped_bytes = RoundUp(bytes, kHostPageBytes);
    void* pages = mmap(nullptr, range.mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    range.base = range.mapped_base = reinterpret_cast<uintptr_t>(pages);
    std::unique_lock lock(mutex_);
    range.id = next_id_++;
    ranges_[range.base] = range;
    *address = range.base;
    return CUDA_SUCCESS;
  }
  if (bytes <= kSmallBytes) {
    std::unique_lock lock(mutex_);
    return AllocateSmall(context, bytes, kind, address);
  }
  const uint64_t charged = RoundUp(bytes, kPageBytes);
  if (!driver.Charge(context->device, charged)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::unique_lock lock(mutex_);
  range.mapped_bytes = charged;
  range.base = range.mapped_base = MapFresh(charged, &range.offset);
  if (range.base == 0) {
    lock.unlock();
    driver.Discharge(context->device, charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  range.fd = fd_;
  range.id = next_id_++;
  ranges_[range.base] = range;
  *address = range.base;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::AllocateGlobal(Context* context, uint64_t bytes, uintptr_t* address) {
  std::unique_lock lock(mutex_);
  MemoryRange range;
  range.bytes = bytes;
  range.kind = MemoryKind::kDevice;
  range.device = context->device;
  range.mapped_bytes = RoundUp(bytes, kHostPageBytes);
  range.base = range.mapped_base = MapFresh(range.mapped_bytes, &range.offset);
  if (range.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  range.fd = fd_;
  range.id = next_id_++;
  ranges_[range.base] = range;
  *address = range.base;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::AllocateSmall(Context* context, uint64_t bytes, MemoryKind kind,
                                     uintptr_t* address) {
  const uint64_t need = RoundUp(bytes, kSmallAlignment);
  Page* page = nullptr;
  std::map<uint64_t, uint64_t>::iterator hole;
  for (auto& [base, candidate] : pages_) {
    if (candidate->device != context->device || candidate->kind != kind) continue;
    hole = std::find_if(candidate->holes.begin(), candidate->holes.end(),
                        [&](const auto& h) { return h.second >= need; });
    if (hole != candidate->holes.end()) {
      page = candidate.get();
      break;
    }
  }
  if (page == nullptr) {
    if (!Driver::Get()->Charge(context->device, kPageBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    auto fresh = std::make_unique<Page>();
    fresh->base = MapFresh(kPageBytes, &fresh->offset);
    if (fresh->base == 0) {
      Driver::Get()->Discharge(context->device, kPageBytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->device = context->device;
    fresh->kind = kind;
    fresh->holes[0] = kPageBytes;
    page = fresh.get();
    hole = page->holes.begin();
    pages_[page->base] = std::move(fresh);
  }
  const auto [start, length] = *hole;
  page->holes.erase(hole);
  if (length > need) page->holes[start + need] = length - need;
  MemoryRange range;
  range.base = page->base + start;
  range.bytes = bytes;
  range.kind = kind;
  range.device = context->device;
  range.context = context;
  range.id = next_id_++;
  range.fd = fd_;
  range.offset = page->offset + start;
  range.mapped_base = page->base;
  ranges_[range.base] = range;
  *address = range.base;
  return CUDA_SUCCESS;
}

void DeviceMemory::Drop(std::map<uintptr_t, MemoryRange>::iterator at) {
  const MemoryRange range = at->second;
  ranges_.erase(at);
  switch (range.kind) {
    case MemoryKind::kRegistered:
      return;
    case MemoryKind::kPinned:
    case MemoryKind::kImported:
      munmap(reinterpret_cast<void*>(range.mapped_base), range.mapped_bytes);
      return;
    case MemoryKind::kMapped:
      return;  // Unmap's business
    case MemoryKind::kDevice:
    case MemoryKind::kManaged:
      break;
  }
  if (range.mapped_bytes != 0) {
    munmap(reinterpret_cast<void*>(range.mapped_base), range.mapped_bytes);
    addresses_.GiveBack(range.mapped_base);
    ReleasePages(range.fd, range.offset, range.mapped_bytes);
    Driver::Get()->Discharge(range.device, range.mapped_bytes);
    return;
  }
  const auto found = pages_.find(range.mapped_base);
  Page& page = *found->second;
  uint64_t start = range.base - page.base, length = RoundUp(range.bytes, kSmallAlignment);
  auto next = page.holes.lower_bound(start);
  if (next != page.holes.end() && next->first == start + length) {
    length += next->second;
    next = page.holes.erase(next);
  }
  if (next != page.holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == start) {
      start = before->first;
      length += before->second;
    }
  }
  page.holes[start] = length;
  if (length != kPageBytes) return;
  munmap(reinterpret_cast<void*>(page.base), kPageBytes);
  addresses_.GiveBack(page.base);
  ReleasePages(fd_, page.offset, kPageBytes);
  Driver::Get()->Discharge(page.device, kPageBytes);
  pages_.erase(found);
}

CUresult DeviceMemory::Free(uintptr_t address, bool pinned) {
  std::unique_lock lock(mutex_);
  const auto at = ranges_.find(address);
  if (at == ranges_.end()) return CUDA_ERROR_INVALID_VALUE;
  const MemoryKind kind = at->second.kind;
  if (pinned ? kind != MemoryKind::kPinned
             : kind != MemoryKind::kDevice && kind != MemoryKind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (at->second.context == nullptr) return CUDA_ERROR_INVALID_VALUE;  // a module's global
  Drop(at);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::Register(Context* context, uintptr_t address, uint64_t bytes,
                                unsigned flags) {
  if (address == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  auto after = ranges_.lower_bound(address + bytes);
  if (after != ranges_.begin()) {
    const MemoryRange& before = std::prev(after)->second;
    if (before.base + before.bytes > address) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  MemoryRange range;
  range.base = address;
  range.bytes = bytes;
  range.kind = MemoryKind::kRegistered;
  range.device = context->device;
  range.context = context;
  range.flags = flags;
  range.id = next_id_++;
  ranges_[address] = range;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::Unregister(uintptr_t address) {
  std::unique_lock lock(mutex_);
  const auto at = ranges_.find(address);
  if (at == ranges_.end() || at->second.kind != MemoryKind::kRegistered)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  ranges_.erase(at);
  return CUDA_SUCCESS;
}

void DeviceMemory::FreeContext(Context* context) {
  std::unique_lock lock(mutex_);
  for (auto at = ranges_.begin(); at != ranges_.end();) {
    const auto next = std::next(at);
    if (at->second.context == context && at->second.kind != MemoryKind::kMapped) Drop(at);
    at = next;
  }
}

const MemoryRange* DeviceMemory::FindLocked(uintptr_t address) const {
  auto at = ranges_.upper_bound(address);
  if (at == ranges_.begin()) return nullptr;
  --at;
  const MemoryRange& range = at->second;
  return address < range.base + range.bytes ? &range : nullptr;
}

bool DeviceMemory::Find(uintptr_t address, MemoryRange* range) const {
  std::shared_lock lock(mutex_);
  const MemoryRange* found = FindLocked(address);
  if (found == nullptr) return false;
  *range = *found;
  return true;
}

bool DeviceMemory::Accessible(uintptr_t address, uint64_t bytes) const {
  std::shared_lock lock(mutex_);
  const uintptr_t end = address + bytes;
  for (uintptr_t at = address; at < end;) {
    const MemoryRange* range = FindLocked(at);
    if (range == nullptr) {
      // Host memory of the program, unless it lies in reserved addresses, where it is a hole.
      auto reserved = reservations_.upper_bound(at);
      if (reserved != reservations_.begin()) {
        --reserved;
        if (at < reserved->first + reserved->second) return false;
      }
      return at == address || !FindLocked(at - 1)->on_device();
    }
    if (!range->accessible) return false;
    at = range->base + range->bytes;
  }
  return true;
}

CUresult DeviceMemory::Reserve(uint64_t bytes, uint64_t alignment, uintptr_t hint,
                               uintptr_t* address) {
  if (bytes == 0 || bytes % kPageBytes != 0 || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  uintptr_t base = 0;
  if (hint != 0 && hint % kPageBytes == 0) {
    void* wanted = mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (wanted != MAP_FAILED && wanted != reinterpret_cast<void*>(hint)) munmap(wanted, bytes);
    if (wanted == reinterpret_cast<void*>(hint)) base = hint;
  }
  if (base == 0) base = ReserveAligned(bytes, std::max(alignment, kPageBytes));
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::unique_lock lock(mutex_);
  reservations_[base] = bytes;
  *address = base;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::Unreserve(uintptr_t address, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const auto at = reservations_.find(address);
  if (at == reservations_.end() || at->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(at);
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::CreatePhysical(uint64_t bytes, const CUmemAllocationProp& properties,
                                      Physical** physical) {
  if (bytes == 0 || bytes % kPageBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool host = properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  const int device = host ? 0 : properties.location.id;
  if (!host && !Driver::Get()->Charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* made = new Physical;
  made->bytes = bytes;
  made->device = device;
  made->host = host;
  made->properties = properties;
  made->fd = fd_;
  std::unique_lock lock(mutex_);
  made->offset = TakeOffset(bytes);
  *physical = made;
  return CUDA_SUCCESS;
}

void DeviceMemory::DropReference(Physical* physical) {
  if (--physical->references > 0) return;
  if (!physical->imported) {
    // Exported memory may still be mapped elsewhere, or its descriptor be under way: its pages live
    // as long as the file.
    if (physical->record == 0) ReleasePages(physical->fd, physical->offset, physical->bytes);
    if (!physical->host) Driver::Get()->Discharge(physical->device, physical->bytes);
  }
  physical->magic = 0;
  delete physical;
}

CUresult DeviceMemory::ReleasePhysical(Physical* physical) {
  std::unique_lock lock(mutex_);
  if (physical->handles == 0) return CUDA_ERROR_INVALID_VALUE;
  --physical->handles;
  DropReference(physical);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::Map(uintptr_t address, uint64_t bytes, uint64_t offset, Physical* physical) {
  if (bytes == 0 || address % kPageBytes != 0 || bytes % kPageBytes != 0 ||
      offset + bytes > physical->bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::unique_lock lock(mutex_);
  auto reserved = reservations_.upper_bound(address);
  if (reserved == reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --reserved;
  if (address + bytes > reserved->first + reserved->second) return CUDA_ERROR_INVALID_VALUE;
  auto after = ranges_.lower_bound(address + bytes);
  if (after != ranges_.begin()) {
    const MemoryRange& before = std::prev(after)->second;
    if (before.base + before.bytes > address) return CUDA_ERROR_ALREADY_MAPPED;
  }
  if (!MapFile(address, bytes, PROT_NONE, physical->fd, physical->offset + offset))
    return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.base = range.mapped_base = address;
  range.bytes = range.mapped_bytes = bytes;
  range.kind = MemoryKind::kMapped;
  range.device = physical->device;
  range.context = CurrentContext();
  range.id = next_id_++;
  range.fd = physical->fd;
  range.offset = physical->offset + offset;
  range.accessible = false;
  ranges_[address] = range;
  mappings_[address] = physical;
  ++physical->references;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::Unmap(uintptr_t address, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  // The range must cover whole mappings, without holes.
  for (uintptr_t at = address; at < address + bytes;) {
    const auto mapping = ranges_.find(at);
    if (mapping == ranges_.end() || mapping->second.kind != MemoryKind::kMapped ||
        at + mapping->second.bytes > address + bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    at += mapping->second.bytes;
  }
  MapNothing(address, bytes);
  for (uintptr_t at = address; at < address + bytes;) {
    const auto mapping = ranges_.find(at);
    const uint64_t length = mapping->second.bytes;
    ranges_.erase(mapping);
    const auto owner = mappings_.find(at);
    DropReference(owner->second);
    mappings_.erase(owner);
    at += length;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::SetAccess(uintptr_t address, uint64_t bytes, bool readable, bool writable) {
  std::unique_lock lock(mutex_);
  for (uintptr_t at = address; at < address + bytes;) {
    const auto mapping = ranges_.find(at);
    if (mapping == ranges_.end() || mapping->second.kind != MemoryKind::kMapped)
      return CUDA_ERROR_INVALID_VALUE;
    at += mapping->second.bytes;
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : readable ? PROT_READ : PROT_NONE;
  if (mprotect(reinterpret_cast<void*>(address), bytes, protection) != 0)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (uintptr_t at = address; at < address + bytes;) {
    MemoryRange& range = ranges_.find(at)->second;
    range.accessible = readable;
    range.flags = writable   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                  : readable ? CU_MEM_ACCESS_FLAGS_PROT_READ
                             : 0;
    at += range.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::GetAccess(uintptr_t address, CUmemAccess_flags* flags) const {
  std::shared_lock lock(mutex_);
  const MemoryRange* range = FindLocked(address);
  if (range == nullptr || range->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  *flags = static_cast<CUmemAccess_flags>(range->flags);
  return CUDA_SUCCESS;
}

Physical* DeviceMemory::PhysicalAt(uintptr_t address) {
  std::unique_lock lock(mutex_);
  const MemoryRange* range = FindLocked(address);
  if (range == nullptr || range->kind != MemoryKind::kMapped) return nullptr;
  Physical* physical = mappings_.find(range->base)->second;
  ++physical->references;
  ++physical->handles;
  return physical;
}

CUresult DeviceMemory::Export(Physical* physical, int* fd) {
  std::unique_lock lock(mutex_);
  if (physical->imported) return CUDA_ERROR_INVALID_VALUE;
  if (physical->record == 0) {
    if (next_record_ == kRecords) return CUDA_ERROR_OUT_OF_MEMORY;
    ExportRecord record = {};
    record.magic = kRecordMagic;
    record.offset = physical->offset;
    record.bytes = physical->bytes;
    record.device = physical->host ? 0 : PhysicalDevice(physical->device);
    record.host = physical->host ? 1 : 0;
    if (pwrite(fd_, &record, sizeof record, static_cast<off_t>(next_record_ * sizeof record)) !=
        sizeof record)
      return CUDA_ERROR_OUT_OF_MEMORY;
    physical->record = next_record_++;
  }
  // A second open file: its position travels with the descriptor and says which memory it stands
  // for.
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd_);
  const int exported = open(path, O_RDWR | O_CLOEXEC);
  if (exported < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  lseek(exported, static_cast<off_t>(physical->record * sizeof(ExportRecord)), SEEK_SET);
  *fd = exported;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::Import(int fd, Physical** physical) {
  const off_t position = lseek(fd, 0, SEEK_CUR);
  ExportRecord record;
  struct stat status;
  if (position < 0 || fstat(fd, &status) != 0 ||
      pread(fd, &record, sizeof record, position) != sizeof record ||
      record.magic != kRecordMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A device that this process does not see: its memory is mapped all the same, under the first
  // ordinal.
  record.device = record.host != 0 ? 0 : std::max(VisibleOrdinal(record.device), 0);
  std::unique_lock lock(mutex_);
  auto file = imported_files_.find(status.st_ino);
  if (file == imported_files_.end()) {
    // Not a duplicate: that would share the position, which means something in `fd`.
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int own = open(path, O_RDWR | O_CLOEXEC);
    if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    file = imported_files_.emplace(status.st_ino, own).first;
  }
  auto* made = new Physical;
  made->fd = file->second;
  made->offset = record.offset;
  made->bytes = record.bytes;
  made->device = record.device;
  made->host = record.host != 0;
  made->imported = true;
  made->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  made->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  made->properties.location.id = record.device;
  *physical = made;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::GetIpcHandle(uintptr_t address, CUipcMemHandle* handle) {
  MemoryRange range;
  if (!Find(address, &range) || range.kind != MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
  struct stat status;
  if (fstat(fd_, &status) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  IpcHandle own = {};
  own.magic = kIpcMagic;
  own.pid = getpid();
  own.start_time = ProcessStartTime(own.pid);
  own.fd = range.fd;
  own.device = PhysicalDevice(range.device);
  own.inside = range.base - range.mapped_base;
  own.offset = range.offset - own.inside;
  own.bytes = range.mapped_bytes != 0 ? range.mapped_bytes : kPageBytes;
  own.size = range.bytes;
  own.inode = status.st_ino;
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &own, sizeof own);
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::ImportFile(int pid, uint64_t start_time, int fd, uint64_t inode, int* own) {
  auto file = imported_files_.find(inode);
  if (file == imported_files_.end()) {
    if (ProcessStartTime(pid) != start_time) return CUDA_ERROR_INVALID_VALUE;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    const int opened = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (opened < 0 || fstat(opened, &status) != 0 || status.st_ino != inode) {
      if (opened >= 0) close(opened);
      return CUDA_ERROR_INVALID_VALUE;
    }
    file = imported_files_.emplace(inode, opened).first;
  }
  *own = file->second;
  return CUDA_SUCCESS;
}

SharedEvent* DeviceMemory::CreateSharedEvent(CUipcEventHandle* handle) {
  std::unique_lock lock(mutex_);
  struct stat status;
  if (next_record_ == kRecords || fstat(fd_, &status) != 0) return nullptr;
  if (directory_ == nullptr) {
    void* mapped = mmap(nullptr, kDirectoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (mapped == MAP_FAILED) return nullptr;
    directory_ = static_cast<char*>(mapped);
  }
  const uint64_t offset = uint64_t{next_record_++} * sizeof(SharedEvent);
  auto* event = reinterpret_cast<SharedEvent*>(directory_ + offset);
  event->magic = kSharedEventMagic;
  IpcHandle own = {};
  own.magic = kIpcEventMagic;
  own.pid = getpid();
  own.start_time = ProcessStartTime(own.pid);
  own.fd = fd_;
  own.offset = offset;
  own.inode = status.st_ino;
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &own, sizeof own);
  return event;
}

CUresult DeviceMemory::OpenSharedEvent(const CUipcEventHandle& handle, SharedEvent** event) {
  IpcHandle own;
  memcpy(&own, &handle, sizeof own);
  if (own.magic != kIpcEventMagic || own.offset >= kDirectoryBytes) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(mutex_);
  int fd = -1;
  if (const CUresult found = ImportFile(own.pid, own.start_time, own.fd, own.inode, &fd);
      found != CUDA_SUCCESS)
    return found;
  const uint64_t page = own.offset / kHostPageBytes * kHostPageBytes;
  void* mapped = mmap(nullptr, kHostPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      static_cast<off_t>(page));
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* opened = reinterpret_cast<SharedEvent*>(static_cast<char*>(mapped) + (own.offset - page));
  if (opened->magic != kSharedEventMagic) {
    munmap(mapped, kHostPageBytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  *event = opened;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::OpenIpcHandle(Context* context, const CUipcMemHandle& handle,
                                     uintptr_t* address) {
  IpcHandle own;
  memcpy(&own, &handle, sizeof own);
  if (own.magic != kIpcMagic) return CUDA_ERROR_INVALID_VALUE;
  if (own.pid == getpid())
    return CUDA_ERROR_INVALID_CONTEXT;  // as the real driver: not in the same process
  if (VisibleOrdinal(own.device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  std::unique_lock lock(mutex_);
  int fd = -1;
  if (const CUresult found = ImportFile(own.pid, own.start_time, own.fd, own.inode, &fd);
      found != CUDA_SUCCESS)
    return found;
  const uintptr_t base = ReserveAligned(own.bytes, kPageBytes);
  if (base == 0 || !MapFile(base, own.bytes, PROT_READ | PROT_WRITE, fd, own.offset))
    return CUDA_ERROR_OUT_OF_MEMORY;
  MemoryRange range;
  range.base = base + own.inside;
  range.bytes = own.size;
  range.kind = MemoryKind::kImported;
  range.device = VisibleOrdinal(own.device);
  range.context = context;
  range.id = next_id_++;
  range.fd = fd;
  range.offset = own.offset + own.inside;
  range.mapped_base = base;
  range.mapped_bytes = own.bytes;
  ranges_[range.base] = range;
  *address = range.base;
  return CUDA_SUCCESS;
}

CUresult DeviceMemory::CloseIpcHandle(uintptr_t address) {
  std::unique_lock lock(mutex_);
  const auto at = ranges_.find(address);
  if (at == ranges_.end() || at->second.kind != MemoryKind::kImported)
    return CUDA_ERROR_INVALID_VALUE;
  Drop(at);
  return CUDA_SUCCESS;
}

bool DeviceMemory::ZeroByRelease(uintptr_t address, uint64_t bytes) {
  MemoryRange range;
  if (!Find(address, &range) || range.fd < 0 || !range.accessible) return false;
  if (address + bytes > range.base + range.bytes) return false;
  const uintptr_t first = RoundUp(address, kHostPageBytes),
                  last = (address + bytes) / kHostPageBytes * kHostPageBytes;
  if (first >= last) return false;
  if (fallocate(range.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(range.offset + (first - range.base)),
                static_cast<off_t>(last - first)) != 0) {
    return false;
  }
  memset(reinterpret_cast<void*>(address), 0, first - address);
  memset(reinterpret_cast<void*>(last), 0, address + bytes - last);
  return true;
}

void DeviceMemory::CopyOutSparse(void* destination, uintptr_t source, uint64_t bytes) {
  MemoryRange range;
  if (!Find(source, &range) || range.fd < 0 || source + bytes > range.base + range.bytes) {
    memmove(destination, reinterpret_cast<const void*>(source), bytes);
    return;
  }
  char* out = static_cast<char*>(destination);
  const uint64_t start = range.offset + (source - range.base), end = start + bytes;
  for (uint64_t at = start; at < end;) {
    off_t data = lseek(range.fd, static_cast<off_t>(at), SEEK_DATA);
    const uint64_t hole_end = data < 0 ? end : std::min<uint64_t>(end, static_cast<uint64_t>(data));
    memset(out + (at - start), 0, hole_end - at);
    if (hole_end == end) return;
    const off_t hole = lseek(range.fd, data, SEEK_HOLE);
    const uint64_t data_end = hole < 0 ? end : std::min<uint64_t>(end, static_cast<uint64_t>(hole));
    memcpy(out + (hole_end - start), reinterpret_cast<const void*>(source + (hole_end - start)),
           data_end - hole_end);
    at = data_end;
  }
}

}  // namespace hostcuda
