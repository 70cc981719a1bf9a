#include "src/trace/pending.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

namespace prism::trace {

PendingBuffer::~PendingBuffer() {
  if (region_ != nullptr) munmap(region_, region_->pages * kPendingPage);
}

void PendingBuffer::Append(PendingFile& file, const void* data, size_t bytes) {
  if (bytes_ + bytes > capacity()) Grow(file, bytes_ + bytes);
  std::memcpy(reinterpret_cast<char*>(region_) + sizeof *region_ + bytes_, data, bytes);
  bytes_ += bytes;
}

void PendingBuffer::Pad(PendingFile& file, size_t alignment) {
  static constexpr char kZeros[16] = {};
  Append(file, kZeros, (alignment - bytes_ % alignment) % alignment);
}

void PendingBuffer::Commit() {
  ++count_;
  region_->filled.store(count_ << 32 | bytes_, std::memory_order_release);
}

void PendingBuffer::Flushed() {
  first_ += count_;
  count_ = 0;
  bytes_ = 0;
  if (region_ == nullptr) return;
  // In this order: elements under a new number would be found twice.
  region_->filled.store(0, std::memory_order_release);
  region_->first.store(first_, std::memory_order_release);
}

void PendingBuffer::Grow(PendingFile& file, size_t bytes) {
  uint32_t pages = region_ == nullptr ? 1 : region_->pages * 2;
  while (pages * kPendingPage - sizeof *region_ < bytes) pages *= 2;
  PendingRegion* larger = file.Map(pages);
  larger->magic = kPendingMagic;
  larger->sequence = sequence_;
  larger->pages = pages;
  larger->first.store(first_, std::memory_order_relaxed);
  if (region_ != nullptr) {
    std::memcpy(reinterpret_cast<char*>(larger) + sizeof *larger,
                reinterpret_cast<const char*>(region_) + sizeof *region_, bytes_);
    larger->filled.store(region_->filled.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
  }
  larger->kind.store(kind_, std::memory_order_release);
  // Between these two stores both hold the same elements; recovery takes those of one.
  if (region_ != nullptr) {
    region_->kind.store(ChunkKind{}, std::memory_order_release);
    munmap(region_, region_->pages * kPendingPage);
  }
  region_ = larger;
}

PendingFile::~PendingFile() {
  Abandon();
  free(path_);
}

void PendingFile::Abandon() {
  for (std::atomic<int>* descriptor : {&fd_, &lock_}) {
    const int fd = descriptor->exchange(-1);
    if (fd >= 0) close(fd);
  }
}

void PendingFile::Open(const char* path) {
  char name[4096];
  const int length = snprintf(name, sizeof name, "%s%s", path, kPendingSuffix);
  if (length < 0 || static_cast<size_t>(length) >= sizeof name) return;
  unlink(name);  // of an earlier writer: the trace starts anew, too
  const int lock = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (lock < 0) return;
  lock_.store(lock);
  // Mapped through a second description: a forked child inherits the mappings, which would keep the
  // lock of theirs after the child has closed its descriptors.
  const int fd = open(name, O_RDWR | O_CLOEXEC);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  path_ = strdup(name);
  fd_.store(fd);
  if (fd < 0 || path_ == nullptr || fcntl(lock, F_OFD_SETLK, &whole) != 0) {
    unlink(name);
    Abandon();
  }
}

void PendingFile::Remove() {
  if (lock_.load() < 0) return;
  unlink(path_);
  Abandon();
}

PendingRegion* PendingFile::Map(uint32_t pages) {
  const size_t bytes = pages * kPendingPage;
  void* address = MAP_FAILED;
  if (const int fd = fd_.load(); fd >= 0) {
    const auto at = static_cast<off_t>(end_.fetch_add(bytes));
    // With its blocks: a store to a hole of a full disk would be a SIGBUS in the user's program.
    if (posix_fallocate(fd, at, static_cast<off_t>(bytes)) == 0) {
      address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    }
  }
  if (address == MAP_FAILED) {
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (address == MAP_FAILED) throw std::bad_alloc();
  return static_cast<PendingRegion*>(address);
}

}  // namespace prism::trace
