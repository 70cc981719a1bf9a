#include "src/interpose/driver/arena.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <cstdio>
#include <cstring>

#include "src/interpose/report.h"

namespace prism::interpose {

bool Arena::Create(uint64_t bytes, char* reason, size_t reason_bytes) {
  const int fd = memfd_create("prism-arena", MFD_CLOEXEC);
  if (fd < 0) {
    snprintf(reason, reason_bytes, "no shared memory for the arena: %s", strerror(errno));
    return false;
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    snprintf(reason, reason_bytes, "an arena of %llu bytes is refused: %s",
             static_cast<unsigned long long>(bytes), strerror(errno));
    close(fd);
    return false;
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    snprintf(reason, reason_bytes,
             "the arena of %llu bytes of address space cannot be mapped: %s (is `ulimit -v` set?)",
             static_cast<unsigned long long>(bytes), strerror(errno));
    close(fd);
    return false;
  }
  // A child forked by the user (a data loader) must not inherit 64 GiB of shared mapping.
  madvise(base, bytes, MADV_DONTFORK);
  madvise(base, bytes, MADV_DONTDUMP);
  fd_ = fd;
  base_ = static_cast<char*>(base);
  bytes_ = bytes;
  return true;
}

void Arena::Abandon() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  base_ = nullptr;  // not mapped here: MADV_DONTFORK
}

bool Arena::Take(uint64_t bytes, ArenaSlot* slot) {
  if (base_ == nullptr || bytes > bytes_) return false;
  uint64_t size = bytes <= (uint64_t{1} << kSmallestClass) ? uint64_t{1} << kSmallestClass
                                                           : std::bit_ceil(bytes);
  const int size_class = std::countr_zero(size);
  std::lock_guard lock(mutex_);
  if (!free_[size_class].empty()) {
    const uint64_t offset = free_[size_class].back();
    free_[size_class].pop_back();
    *slot = {base_ + offset, offset, size};
    return true;
  }
  uint64_t offset = next_;
  if (register_ != nullptr && offset + size > registered_) {
    // A copy must not cross two registrations, so a slot lies in one; what is left of the last part
    // stays unused.
    const uint64_t start = registered_;
    const uint64_t part = (size + kRegisterStep - 1) / kRegisterStep * kRegisterStep;
    if (start + part > bytes_) return false;
    if (!register_(base_ + start, part)) {
      Report("the arena is not registered with CUDA: copies of payloads hold the host");
      register_ = nullptr;
    } else {
      registered_ = start + part;
      offset = start;
    }
  }
  if (offset + size > bytes_) return false;
  next_ = offset + size;
  *slot = {base_ + offset, offset, size};
  return true;
}

void Arena::Give(const ArenaSlot& slot) {
  std::lock_guard lock(mutex_);
  free_[std::countr_zero(slot.bytes)].push_back(slot.offset);
}

uint32_t Arena::WordTake() {
  std::unique_lock lock(word_mutex_);
  if (!words_registered_) {
    words_registered_ = true;
    if (register_ != nullptr && !register_(base_, wire::kControlBytes)) {
      Report("the control words are not registered with CUDA: streams cannot wait on them");
    }
  }
  word_given_.wait(lock, [&] { return !free_words_.empty() || next_word_ < wire::kControlWords; });
  uint32_t index;
  if (!free_words_.empty()) {
    index = free_words_.back();
    free_words_.pop_back();
  } else {
    index = next_word_++;
  }
  __atomic_store_n(Word(index), 0u, __ATOMIC_RELEASE);
  return index;
}

void Arena::WordGive(uint32_t index) {
  std::lock_guard lock(word_mutex_);
  free_words_.push_back(index);
  word_given_.notify_one();
}

void Arena::Ring() {
  uint32_t* bell = Word(wire::kBellWord);
  __atomic_fetch_add(bell, 1u, __ATOMIC_ACQ_REL);
  syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace prism::interpose
