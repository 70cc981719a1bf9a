#include "src/coordinator/arena.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <utility>

#include "fmt/format.h"
#include "src/wire/protocol.h"

namespace prism::coordinator {

absl::StatusOr<Arena> Arena::Map(int fd, uint64_t bytes) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "fstat of a rank's arena");
  if (bytes < wire::kControlBytes || static_cast<uint64_t>(status.st_size) < bytes) {
    return absl::InvalidArgumentError(
        fmt::format("a rank's arena has {} bytes, its Hello says {}", status.st_size, bytes));
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    return ErrnoStatus(errno, fmt::format("mmap of a rank's arena of {} bytes", bytes));
  // A core dump of the controller must not hold the payloads of all ranks.
  madvise(base, bytes, MADV_DONTDUMP);
  Arena arena;
  arena.base_ = static_cast<std::byte*>(base);
  arena.bytes_ = bytes;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

bool Arena::HoldsPayload(uint64_t offset, uint64_t bytes) const {
  return offset >= wire::kControlBytes && offset <= bytes_ && bytes <= bytes_ - offset;
}

uint32_t* Arena::word(uint32_t index) const { return reinterpret_cast<uint32_t*>(base_) + index; }

uint32_t Arena::Load(uint32_t index) const {
  return std::atomic_ref<uint32_t>(*word(index)).load(std::memory_order_acquire);
}

void Arena::StoreAndWake(uint32_t index, uint32_t value) const {
  std::atomic_ref<uint32_t>(*word(index)).store(value, std::memory_order_release);
  syscall(SYS_futex, word(index), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace prism::coordinator
