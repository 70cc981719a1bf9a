// What a trace's writer holds back: its buffers, in a file beside the trace that is mapped shared,
// so that they survive the process, however it ends.
//
// TRACE.pending is a row of regions, each a whole number of pages: a PendingRegion, then room for
// the bytes of one unfinished chunk. The writer fills a region and publishes each whole element by
// one store to `filled`; a full region becomes a chunk of the trace and starts anew. A writer that
// ends by itself removes the file. Who finds one whose writer is gone (it holds a lock on it) moves
// what is there to the trace (recovery.cc). Only the process that writes and the one that recovers
// use it; its form may change with any build.
#ifndef PRISM_TRACE_PENDING_H_
#define PRISM_TRACE_PENDING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "src/trace/format.h"

namespace prism::trace {

inline constexpr char kPendingSuffix[] = ".pending";
inline constexpr uint32_t kPendingMagic = 0x444e4550;  // "PEND"
inline constexpr size_t kPendingPage = 4096;

struct PendingRegion {
  uint32_t magic;
  std::atomic<ChunkKind> kind;  // 0: not in use
  uint32_t sequence;
  uint32_t pages;  // with this header
  std::atomic<uint64_t> first;
  std::atomic<uint64_t> filled;  // elements << 32 | bytes
  uint64_t reserved[4];
};
static_assert(sizeof(PendingRegion) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// The buffer of one table or sequence. Not thread-safe. In memory alone where there is no file.
class PendingBuffer {
 public:
  PendingBuffer(ChunkKind kind, uint32_t sequence) : kind_(kind), sequence_(sequence) {}
  explicit PendingBuffer(ChunkKind kind) : PendingBuffer(kind, 0) {}
  ~PendingBuffer();
  PendingBuffer(const PendingBuffer&) = delete;
  PendingBuffer& operator=(const PendingBuffer&) = delete;

  ChunkKind kind() const { return kind_; }
  uint64_t first() const { return first_; }
  uint64_t count() const { return count_; }
  const char* data() const {
    return reinterpret_cast<const char*>(region_) + (region_ == nullptr ? 0 : sizeof *region_);
  }
  size_t bytes() const { return bytes_; }
  /// Of all elements ever added.
  uint64_t size() const { return first_ + count_; }

  /// Adds bytes of the next element.
  void Append(class PendingFile& file, const void* data, size_t bytes);
  /// Zeros up to a multiple of `alignment`.
  void Pad(class PendingFile& file, size_t alignment);
  /// Ends the element: from now on it is recovered.
  void Commit();
  /// Forgets the elements: they are in the trace.
  void Flushed();

 private:
  void Grow(class PendingFile& file, size_t bytes);
  size_t capacity() const {
    return region_ == nullptr ? 0 : region_->pages * kPendingPage - sizeof *region_;
  }

  const ChunkKind kind_;
  const uint32_t sequence_;
  uint64_t first_ = 0, count_ = 0;
  size_t bytes_ = 0;
  PendingRegion* region_ = nullptr;
};

/// Hands out regions. Thread-safe.
class PendingFile {
 public:
  ~PendingFile();

  /// Creates the file for the trace at `path`, locked. Without it regions are in memory: a trace is
  /// written all the same.
  void Open(const char* path);
  /// Removes the file; its regions stay mapped.
  void Remove();
  /// Lets go of the file and its lock without a trace: in a forked child.
  void Abandon();

  /// A zeroed region. Throws std::bad_alloc.
  PendingRegion* Map(uint32_t pages);

 private:
  std::atomic<int> fd_{-1}, lock_{-1};
  std::atomic<uint64_t> end_{0};
  char* path_ = nullptr;
};

}  // namespace prism::trace

#endif  // PRISM_TRACE_PENDING_H_
