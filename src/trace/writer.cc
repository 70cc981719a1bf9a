#include "src/trace/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/trace/content_hash.h"
#include "src/trace/crc32c.h"
#include "src/trace/pending.h"

namespace prism::trace {
namespace {

constexpr size_t kBufferBytes = size_t{64} * 1024;
constexpr size_t kBufferNodes = (kBufferBytes - sizeof(PendingRegion)) / sizeof(Node);
constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kMaxStringBytes = size_t{64} * 1024;

// A span may grow without bound in a program that never communicates. It is cut after a kernel
// whose hash says so, never before kCutAfter kernels; a periodic launch sequence is thereby cut
// periodically.
constexpr size_t kCutAfter = 512;
constexpr uint64_t kCutMask = 0xff;
constexpr size_t kCutAlways = 4096;

// Sequences are found by number without a lock: blocks of pointers that never move.
constexpr size_t kBlock = 256;
constexpr size_t kBlocks = 256;

uint64_t SpanHash(const std::vector<uint32_t>& kernels, const std::vector<uint64_t>& kernel_hash) {
  uint64_t hash = kFnvOffset;
  for (uint32_t id : kernels) hash = ExtendSpanHash(hash, kernel_hash[id]);
  return hash;
}

struct BytesHash {
  size_t operator()(const KernelRecord& k) const { return Of(&k, sizeof(k)); }
  size_t operator()(const CallRecord& c) const { return Of(&c, sizeof(c)); }
  static size_t Of(const void* p, size_t n) {
    return std::hash<std::string_view>()({static_cast<const char*>(p), n});
  }
};
struct BytesEqual {
  template <typename T>
  bool operator()(const T& x, const T& y) const {
    return std::memcmp(&x, &y, sizeof(T)) == 0;
  }
};

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};

struct Sequence {
  Sequence(uint32_t n, SequenceKind k, uint64_t h)
      : number(n), kind(k), handle(h), nodes(ChunkKind::kNodes, n) {}

  std::mutex mutex;
  const uint32_t number;
  const SequenceKind kind;
  const uint64_t handle;
  bool sealed = false;
  PendingBuffer nodes;  // those that are not in the file yet

  // Streams: the open span (its node's index is size()), and the group of the last node.
  std::vector<uint32_t> open = {};
  Sequence* open_thread = nullptr;
  uint16_t last_group = 0;

  // Threads: what the thread has told since the last look at it, calls above kCall and nanoseconds
  // below; added without the lock, for it is every call's.
  static constexpr uint64_t kCall = uint64_t{1} << 44;
  std::atomic<uint64_t> told{0};
  // Host time since the last node; the span whose latest launch has no kEnqueueLast yet.
  uint64_t pending_ns = 0;
  uint32_t pending_calls = 0;
  uint32_t last_stream = kNone;
  uint32_t last_index = 0;
  uint64_t last_ns = 0;  // pending_ns at that launch
  uint32_t group_left = 0;
  uint16_t group = 0;

  uint64_t size() const { return nodes.size(); }
  void TakeTold() {
    const uint64_t taken = told.exchange(0, std::memory_order_relaxed);
    pending_ns += taken % kCall;
    pending_calls += static_cast<uint32_t>(taken / kCall);
  }
  void Tell(uint64_t ns, uint64_t calls) {
    constexpr uint64_t kShort = uint64_t{1} << 32;
    // Neither part may run into the other: each is taken at half of its range, and one addition is
    // less than 2^32 ns and one call.
    if (ns < kShort) {
      const uint64_t before = told.fetch_add(ns + calls * kCall, std::memory_order_relaxed);
      if (before % kCall < kCall / 2 && before / kCall < 1 << 19) return;
      ns = calls = 0;
    }
    std::lock_guard lock(mutex);
    TakeTold();
    pending_ns += ns;
    pending_calls += static_cast<uint32_t>(calls);
  }
};

struct ThreadSlot {
  uint64_t writer;
  uint32_t sequence;
};
thread_local ThreadSlot thread_slots[4];
thread_local unsigned thread_slot_next;
std::atomic<uint64_t> next_writer{1};

// Open writers, so that a forked child can be made inert: its copy of the buffers must not reach
// the parent's file.
struct OpenWriter {
  std::atomic<bool> open{false};
  PendingFile pending;
  OpenWriter* next = nullptr;
};
std::mutex registry_mutex;
OpenWriter* registry_head = nullptr;

void BeforeFork() { registry_mutex.lock(); }
void AfterForkInParent() { registry_mutex.unlock(); }
void AfterForkInChild() {
  for (OpenWriter* w = registry_head; w != nullptr; w = w->next) {
    w->open.store(false);
    w->pending.Abandon();
  }
  registry_head = nullptr;
  registry_mutex.unlock();
}

void Register(OpenWriter* writer) {
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  static_cast<void>(registered);
  std::lock_guard lock(registry_mutex);
  writer->next = registry_head;
  registry_head = writer;
}

void Unregister(OpenWriter* writer) {
  std::lock_guard lock(registry_mutex);
  for (OpenWriter** at = &registry_head; *at != nullptr; at = &(*at)->next) {
    if (*at == writer) {
      *at = writer->next;
      return;
    }
  }
}

}  // namespace

struct Writer::Impl : OpenWriter {
  const uint64_t id = next_writer.fetch_add(1, std::memory_order_relaxed);
  std::atomic<int> status{0};
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> written{0};  // nodes in the file
  std::atomic<uint32_t> next_group{0};
  std::atomic<TimeSource> host_source{TimeSource::kAssumed};
  std::atomic<size_t> cut_always{kCutAlways};
  void (*span_ended)(uint32_t stream, uint64_t node) = nullptr;  // set before the first node

  std::mutex file_mutex;
  int fd = -1;
  uint64_t file_end = 0;

  std::mutex table_mutex;  // before file_mutex, after a sequence's mutex
  PendingBuffer strings{ChunkKind::kStrings}, sequences{ChunkKind::kSequences},
      kernels{ChunkKind::kKernels}, spans{ChunkKind::kSpans}, comms{ChunkKind::kComms},
      calls{ChunkKind::kCalls};
  std::unordered_map<std::string, uint32_t, TextHash, std::equal_to<>> string_ids;
  std::unordered_map<KernelRecord, uint32_t, BytesHash, BytesEqual> kernel_ids;
  std::vector<uint64_t> kernel_hash;
  std::unordered_map<CallRecord, uint32_t, BytesHash, BytesEqual> call_ids;
  std::vector<uint32_t> call_group;
  std::unordered_multimap<uint64_t, uint32_t> span_ids;  // by hash
  std::vector<std::vector<uint32_t>> span_kernels;

  std::mutex memory_mutex;
  PendingBuffer memory{ChunkKind::kMemory};

  std::mutex sequence_mutex;  // growth only
  std::atomic<uint32_t> sequence_count{0};
  uint32_t stream_count = 0;
  std::atomic<Sequence**> blocks[kBlocks] = {};

  ~Impl() {
    for (auto& block : blocks) {
      Sequence** pointers = block.load(std::memory_order_relaxed);
      if (pointers == nullptr) continue;
      for (size_t i = 0; i < kBlock; ++i) delete pointers[i];
      delete[] pointers;
    }
  }

  Sequence* Find(uint32_t number) const {
    if (number >= sequence_count.load(std::memory_order_acquire)) return nullptr;
    return blocks[number / kBlock].load(std::memory_order_relaxed)[number % kBlock];
  }
  Sequence* FindStream(uint32_t number) const {
    Sequence* s = Find(number);
    return s != nullptr && s->kind == SequenceKind::kStream ? s : nullptr;
  }

  void Fail(int error) {
    int none = 0;
    status.compare_exchange_strong(none, error);
  }

  // Appends one chunk. After the first failure nothing more is written: a sequence must not have
  // holes.
  bool WriteChunk(ChunkKind kind, uint32_t sequence, uint64_t first, uint64_t count,
                  const void* data, size_t bytes) {
    std::lock_guard lock(file_mutex);
    if (fd < 0 || (status.load(std::memory_order_relaxed) != 0 && kind != ChunkKind::kSeal))
      return false;
    ChunkHeader header{kChunkMagic, kind, sequence, ExtendCrc32c(0, data, bytes), first, count,
                       bytes,       0,    0};
    header.header_crc32c = ExtendCrc32c(0, &header, sizeof(header));
    static const char zeros[kChunkAlignment] = {};
    const size_t padding = (kChunkAlignment - bytes % kChunkAlignment) % kChunkAlignment;
    iovec parts[3] = {{&header, sizeof(header)},
                      {const_cast<void*>(data), bytes},
                      {const_cast<char*>(zeros), padding}};
    const size_t total = sizeof(header) + bytes + padding;
    size_t done = 0;
    iovec* part = parts;
    int left = 3;
    while (done < total) {
      const ssize_t n = writev(fd, part, left);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        Fail(n < 0 ? errno : ENOSPC);
        // What is there of the chunk would look like a torn tail in front of the seal.
        if (ftruncate(fd, static_cast<off_t>(file_end)) == 0) {
          lseek(fd, static_cast<off_t>(file_end), SEEK_SET);
        }
        return false;
      }
      done += static_cast<size_t>(n);
      auto skip = static_cast<size_t>(n);
      while (left > 0 && skip >= part->iov_len) {
        skip -= part->iov_len;
        ++part;
        --left;
      }
      if (left > 0) {
        part->iov_base = static_cast<char*>(part->iov_base) + skip;
        part->iov_len -= skip;
      }
    }
    file_end += total;
    return true;
  }

  void FlushTable(PendingBuffer& table) {
    if (table.count() == 0) return;
    WriteChunk(table.kind(), 0, table.first(), table.count(), table.data(), table.bytes());
    table.Flushed();
  }

  void FlushTables() {
    std::lock_guard lock(table_mutex);
    for (PendingBuffer* table : {&strings, &sequences, &kernels, &spans, &comms, &calls})
      FlushTable(*table);
  }

  void FlushMemory() {
    std::lock_guard lock(memory_mutex);
    FlushTable(memory);
  }

  // The functions below want the sequence's mutex held.

  void FlushSequence(Sequence& s) {
    const uint64_t count = s.nodes.count();
    if (count == 0) return;
    FlushTables();
    const bool done = WriteChunk(ChunkKind::kNodes, s.number, s.nodes.first(), count,
                                 s.nodes.data(), s.nodes.bytes());
    (done ? written : dropped).fetch_add(count, std::memory_order_relaxed);
    s.nodes.Flushed();
  }

  void Append(Sequence& s, NodeKind kind, uint32_t a, uint32_t b, uint16_t detail = 0,
              ValueSource values = ValueSource::kGenerated) {
    if (s.sealed) return;
    const bool timed = kind == NodeKind::kHost || kind == NodeKind::kEnqueueLast;
    const TimeSource source =
        timed ? host_source.load(std::memory_order_relaxed) : TimeSource::kAssumed;
    const Node node{kind, Provenance(source, values), detail, a, b};
    s.nodes.Append(pending, &node, sizeof(node));
    s.nodes.Commit();
    if (s.nodes.count() >= kBufferNodes) FlushSequence(s);
  }

  void FlushHostTime(Sequence& thread) {
    thread.TakeTold();
    while (thread.pending_ns > 0 || thread.pending_calls > 0) {
      const auto ns = static_cast<uint32_t>(std::min<uint64_t>(thread.pending_ns, UINT32_MAX));
      Append(thread, NodeKind::kHost, thread.pending_calls, ns);
      thread.pending_calls = 0;
      thread.pending_ns -= ns;
    }
  }

  void MarkLastLaunch(Sequence& thread) {
    if (thread.last_stream == kNone) return;
    thread.TakeTold();
    // The node comes behind all of the time and says how long ago the launch was; where it cannot,
    // it comes before the rest of the time.
    const uint64_t since = thread.pending_ns - std::min(thread.pending_ns, thread.last_ns);
    const uint64_t behind = since > UINT16_MAX ? since : 0;
    thread.pending_ns -= behind;
    FlushHostTime(thread);
    Append(thread, NodeKind::kEnqueueLast, thread.last_stream, thread.last_index,
           static_cast<uint16_t>(since - behind));
    thread.pending_ns = behind;
    thread.last_stream = kNone;
  }

  void AppendHost(Sequence& thread, NodeKind kind, uint32_t a, uint32_t b, uint16_t detail = 0) {
    std::lock_guard lock(thread.mutex);
    // Neither orders work: a span that is still open goes on behind them.
    const bool passive =
        kind == NodeKind::kMark ||
        (kind == NodeKind::kSync && detail == static_cast<uint16_t>(SyncKind::kQueryTrue));
    if (!passive) MarkLastLaunch(thread);
    FlushHostTime(thread);
    if (passive) thread.last_ns = 0;
    Append(thread, kind, a, b, detail);
  }

  uint32_t InternSpan(const std::vector<uint32_t>& ids) {
    std::lock_guard lock(table_mutex);
    const uint64_t hash = SpanHash(ids, kernel_hash);
    auto [from, to] = span_ids.equal_range(hash);
    for (auto it = from; it != to; ++it) {
      if (span_kernels[it->second] == ids) return it->second;
    }
    const auto span = static_cast<uint32_t>(span_kernels.size());
    span_kernels.push_back(ids);
    span_ids.emplace(hash, span);
    const SpanHeader header{hash, static_cast<uint32_t>(ids.size()), 0};
    spans.Append(pending, &header, sizeof(header));
    spans.Append(pending, ids.data(), ids.size() * sizeof(uint32_t));
    spans.Pad(pending, 8);
    spans.Commit();
    return span;
  }

  void CloseSpan(Sequence& stream) {
    if (stream.open.empty()) return;
    {
      std::lock_guard lock(stream.open_thread->mutex);
      if (stream.open_thread->last_stream == stream.number &&
          stream.open_thread->last_index == stream.size()) {
        MarkLastLaunch(*stream.open_thread);
      }
    }
    const uint32_t span = InternSpan(stream.open);
    if (span_ended != nullptr && !stream.sealed) span_ended(stream.number, stream.size());
    Append(stream, NodeKind::kSpan, span, static_cast<uint32_t>(stream.open.size()));
    stream.last_group = 0;
    stream.open.clear();
    stream.open_thread = nullptr;
  }

  Sequence* AddSequence(SequenceRecord record, std::string_view name) {
    record.name = InternString(name);
    std::lock_guard lock(sequence_mutex);
    const uint32_t number = sequence_count.load(std::memory_order_relaxed);
    if (number >= kBlock * kBlocks) {
      Fail(ENOSPC);
      return nullptr;
    }
    if (record.kind == SequenceKind::kStream) record.handle = stream_count++;
    Sequence** block = blocks[number / kBlock].load(std::memory_order_relaxed);
    if (block == nullptr) {
      block = new Sequence*[kBlock]();
      blocks[number / kBlock].store(block, std::memory_order_relaxed);
    }
    auto* s = new Sequence(number, record.kind, record.handle);
    block[number % kBlock] = s;
    {
      std::lock_guard table_lock(table_mutex);
      sequences.Append(pending, &record, sizeof(record));
      sequences.Commit();
    }
    sequence_count.store(number + 1, std::memory_order_release);
    return s;
  }

  uint32_t InternString(std::string_view text) {
    std::lock_guard lock(table_mutex);
    return InternStringLocked(text);
  }

  uint32_t InternStringLocked(std::string_view text) {
    text = text.substr(0, kMaxStringBytes);
    if (auto it = string_ids.find(text); it != string_ids.end()) return it->second;
    const auto number = static_cast<uint32_t>(string_ids.size());
    string_ids.emplace(text, number);
    const auto length = static_cast<uint32_t>(text.size());
    strings.Append(pending, &length, sizeof(length));
    strings.Append(pending, text.data(), text.size());
    strings.Commit();
    return number;
  }

  Sequence* Thread() {
    for (const ThreadSlot& slot : thread_slots) {
      if (slot.writer == id) return Find(slot.sequence);
    }
    const auto tid = static_cast<uint64_t>(syscall(SYS_gettid));
    Sequence* found = nullptr;
    for (uint32_t i = 0; found == nullptr && i < sequence_count.load(std::memory_order_acquire);
         ++i) {
      Sequence* s = Find(i);
      if (s->kind == SequenceKind::kThread && s->handle == tid) found = s;
    }
    if (found == nullptr) {
      char name[17] = {};
      prctl(PR_GET_NAME, name);
      found = AddSequence({SequenceKind::kThread, 0, 0, 0, tid}, name);
      if (found == nullptr) return nullptr;
    }
    thread_slots[thread_slot_next++ % 4] = {id, found->number};
    return found;
  }

  // A node of `stream` that is not a span, with its kEnqueue.
  void StreamNode(Sequence& stream, Sequence& thread, NodeKind kind, uint32_t a, uint32_t b,
                  uint16_t detail = 0, ValueSource values = ValueSource::kGenerated) {
    std::lock_guard lock(stream.mutex);
    CloseSpan(stream);
    const auto index = static_cast<uint32_t>(stream.size());
    const bool follows = detail != 0 && detail == stream.last_group;
    Append(stream, kind, a, b, detail, values);
    stream.last_group = detail;
    if (!follows) AppendHost(thread, NodeKind::kEnqueue, stream.number, index);
  }

  void SyncStreamNode(Sequence& stream, Sequence& thread, SyncKind kind) {
    std::lock_guard lock(stream.mutex);
    CloseSpan(stream);
    if (stream.size() == 0) return;
    AppendHost(thread, NodeKind::kSync, stream.number, static_cast<uint32_t>(stream.size()),
               static_cast<uint16_t>(kind));
  }

  /// True where a launch from `thread` does not extend the stream's open span.
  bool Cuts(const Sequence& stream, const Sequence* thread) {
    if (stream.open_thread != thread ||
        stream.open.size() >= cut_always.load(std::memory_order_relaxed))
      return true;
    if (stream.open.size() < kCutAfter) return false;
    std::lock_guard lock(table_mutex);
    // The high half: FNV's low bits of short differences repeat.
    return (kernel_hash[stream.open.back()] >> 32 & kCutMask) == 0;
  }

  void CloseSpans() {
    for (uint32_t i = 0; i < sequence_count.load(std::memory_order_acquire); ++i) {
      Sequence* s = Find(i);
      if (s->kind != SequenceKind::kStream) continue;
      std::lock_guard lock(s->mutex);
      CloseSpan(*s);
    }
  }

  void FlushAll(bool seal) {
    if (seal) CloseSpans();
    // Streams first: a host node then never names a stream node that the file lacks.
    for (SequenceKind kind : {SequenceKind::kStream, SequenceKind::kThread}) {
      for (uint32_t i = 0; i < sequence_count.load(std::memory_order_acquire); ++i) {
        Sequence* s = Find(i);
        if (s->kind != kind) continue;
        std::lock_guard lock(s->mutex);
        if (s->kind == SequenceKind::kThread && seal) FlushHostTime(*s);
        FlushSequence(*s);
        if (seal) s->sealed = true;
      }
    }
    FlushTables();
    FlushMemory();
  }
};

namespace {

// Runs `body`; memory exhaustion in the user's process becomes a failed trace, never an exception
// in the user's program.
template <typename ImplPtr, typename Body>
void Guard(const ImplPtr& impl, Body&& body) noexcept {
  if (impl == nullptr || !impl->open.load(std::memory_order_acquire)) return;
  try {
    body();
  } catch (...) {
    impl->Fail(ENOMEM);
    impl->dropped.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

Writer::Writer() : impl_(new (std::nothrow) Impl) {}

Writer::~Writer() {
  if (impl_ == nullptr) return;
  Guard(impl_, [&] { impl_->FlushAll(false); });
  Unregister(impl_.get());
  if (is_open()) impl_->pending.Remove();
  if (impl_->fd >= 0) close(impl_->fd);
}

int Writer::Open(const char* path, uint32_t rank, uint32_t world) {
  if (impl_ == nullptr) return ENOMEM;
  std::lock_guard lock(impl_->file_mutex);
  if (impl_->fd >= 0) return EBUSY;
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    const int error = errno;
    impl_->Fail(error);
    return error;
  }
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kFormatVersion;
  header.rank = rank;
  header.world = world;
  header.start_unix_ns =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  header.header_crc32c = ExtendCrc32c(0, &header, sizeof(header));
  const ssize_t n = write(fd, &header, sizeof(header));
  if (n != static_cast<ssize_t>(sizeof(header))) {
    const int error = n < 0 ? errno : ENOSPC;
    close(fd);
    impl_->Fail(error);
    return error;
  }
  impl_->fd = fd;
  impl_->file_end = sizeof(header);
  impl_->pending.Open(path);
  Register(impl_.get());
  impl_->open.store(true, std::memory_order_release);
  return 0;
}

bool Writer::is_open() const {
  return impl_ != nullptr && impl_->open.load(std::memory_order_acquire);
}
int Writer::status() const { return impl_ == nullptr ? ENOMEM : impl_->status.load(); }

uint32_t Writer::AddStream(uint32_t device, int priority, std::string_view name) {
  uint32_t number = kNone;
  Guard(impl_, [&] {
    if (Sequence* s = impl_->AddSequence({SequenceKind::kStream, device, priority, 0, 0}, name)) {
      number = s->number;
    }
  });
  return number;
}

uint32_t Writer::ThisThread() {
  uint32_t number = kNone;
  Guard(impl_, [&] {
    if (Sequence* s = impl_->Thread()) number = s->number;
  });
  return number;
}

void Writer::SetHostTimeSource(TimeSource source) {
  if (impl_ != nullptr) impl_->host_source.store(source, std::memory_order_relaxed);
}

void Writer::CutEveryLaunch() {
  if (impl_ != nullptr) impl_->cut_always.store(1, std::memory_order_relaxed);
}

uint32_t Writer::String(std::string_view text) {
  uint32_t number = kNone;
  Guard(impl_, [&] { number = impl_->InternString(text); });
  return number;
}

uint32_t Writer::Kernel(KernelKind kind, std::string_view name, const uint32_t grid[3],
                        const uint32_t block[3], uint32_t shared_bytes, uint64_t bytes,
                        uint32_t parameters) {
  uint32_t number = kNone;
  Guard(impl_, [&] {
    name = name.substr(0, kMaxStringBytes);
    KernelRecord record{};
    record.kind = kind;
    for (int i = 0; i < 3; ++i) {
      record.grid[i] = grid != nullptr ? grid[i] : 0;
      record.block[i] = block != nullptr ? block[i] : 0;
    }
    record.shared_bytes = shared_bytes;
    record.parameters = parameters;
    record.bytes = bytes;
    std::lock_guard lock(impl_->table_mutex);
    record.name = impl_->InternStringLocked(name);
    const auto [it, inserted] =
        impl_->kernel_ids.emplace(record, static_cast<uint32_t>(impl_->kernel_hash.size()));
    if (inserted) {
      impl_->kernel_hash.push_back(KernelHash(name, record));
      impl_->kernels.Append(impl_->pending, &record, sizeof(record));
      impl_->kernels.Commit();
    }
    number = it->second;
  });
  return number;
}

uint32_t Writer::Call(const CallRecord& call) {
  uint32_t number = kNone;
  Guard(impl_, [&] {
    std::lock_guard lock(impl_->table_mutex);
    const auto [it, inserted] =
        impl_->call_ids.emplace(call, static_cast<uint32_t>(impl_->call_group.size()));
    if (inserted) {
      impl_->call_group.push_back(call.group);
      impl_->calls.Append(impl_->pending, &call, sizeof(call));
      impl_->calls.Commit();
    }
    number = it->second;
  });
  return number;
}

void Writer::Communicator(const CommRecord& comm, const uint32_t* world_ranks) {
  Guard(impl_, [&] {
    std::lock_guard lock(impl_->table_mutex);
    impl_->comms.Append(impl_->pending, &comm, sizeof(comm));
    impl_->comms.Append(impl_->pending, world_ranks, comm.size * sizeof(uint32_t));
    impl_->comms.Pad(impl_->pending, 8);
    impl_->comms.Commit();
  });
}

void Writer::Launch(uint32_t stream_number, uint32_t kernel) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream == nullptr || thread == nullptr || kernel == kNone) {
      impl_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    std::lock_guard lock(stream->mutex);
    if (!stream->open.empty() && impl_->Cuts(*stream, thread)) impl_->CloseSpan(*stream);
    const auto index = static_cast<uint32_t>(stream->size());
    if (stream->open.empty()) {
      stream->open.push_back(kernel);
      stream->open_thread = thread;
      impl_->AppendHost(*thread, NodeKind::kEnqueue, stream->number, index);
      return;
    }
    stream->open.push_back(kernel);
    std::lock_guard thread_lock(thread->mutex);
    if (thread->last_stream != stream->number || thread->last_index != index) {
      impl_->MarkLastLaunch(*thread);
    }
    thread->last_stream = stream->number;
    thread->last_index = index;
    thread->TakeTold();
    thread->last_ns = thread->pending_ns;
  });
}

void Writer::Comm(uint32_t stream_number, uint32_t call, uint64_t sequence, ValueSource values) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    uint32_t group = 0;
    {
      std::lock_guard lock(impl_->table_mutex);
      group = call < impl_->call_group.size() ? impl_->call_group[call] : 0;
    }
    if (stream == nullptr || thread == nullptr || group == 0 || sequence > UINT32_MAX) {
      impl_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    uint16_t detail = 0;
    if (group > 1) {
      std::lock_guard lock(thread->mutex);
      if (thread->group_left == 0) {
        thread->group_left = group;
        thread->group =
            static_cast<uint16_t>(1 + impl_->next_group.fetch_add(1) % (UINT16_MAX - 1));
      }
      --thread->group_left;
      detail = thread->group;
    }
    impl_->StreamNode(*stream, *thread, NodeKind::kComm, call, static_cast<uint32_t>(sequence),
                      detail, values);
  });
}

void Writer::Record(uint32_t stream_number, uint32_t event, uint64_t version) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream == nullptr || thread == nullptr || version > UINT32_MAX) {
      impl_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    impl_->StreamNode(*stream, *thread, NodeKind::kRecord, event, static_cast<uint32_t>(version));
  });
}

void Writer::Wait(uint32_t stream_number, uint32_t event, uint64_t version) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream == nullptr || thread == nullptr || version > UINT32_MAX) {
      impl_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    impl_->StreamNode(*stream, *thread, NodeKind::kWait, event, static_cast<uint32_t>(version));
  });
}

void Writer::StreamNode(uint32_t stream_number, NodeKind kind) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream == nullptr || thread == nullptr) {
      impl_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    impl_->StreamNode(*stream, *thread, kind, 0, 0);
  });
}

void Writer::EndSpan(uint32_t stream_number) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    if (stream == nullptr) return;
    std::lock_guard lock(stream->mutex);
    impl_->CloseSpan(*stream);
  });
}

bool Writer::BeginsSpan(uint32_t stream_number) {
  bool begins = false;
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream == nullptr || thread == nullptr) return;
    std::lock_guard lock(stream->mutex);
    if (!stream->open.empty() && impl_->Cuts(*stream, thread)) impl_->CloseSpan(*stream);
    begins = stream->open.empty();
  });
  return begins;
}

void Writer::OnSpanEnd(void (*ended)(uint32_t stream, uint64_t node)) {
  if (impl_ != nullptr) impl_->span_ended = ended;
}

uint64_t Writer::NextNode(uint32_t stream_number) {
  uint64_t next = 0;
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    if (stream == nullptr) return;
    std::lock_guard lock(stream->mutex);
    next = stream->size();
  });
  return next;
}

void Writer::HostTime(uint64_t ns) {
  Guard(impl_, [&] {
    if (Sequence* thread = impl_->Thread()) thread->Tell(ns, 0);
  });
}

void Writer::HostCall(uint64_t ns) {
  Guard(impl_, [&] {
    if (Sequence* thread = impl_->Thread()) thread->Tell(ns, 1);
  });
}

void Writer::SyncStream(uint32_t stream_number) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream != nullptr && thread != nullptr) {
      impl_->SyncStreamNode(*stream, *thread, SyncKind::kStream);
    }
  });
}

void Writer::SyncCopy(uint32_t stream_number) {
  Guard(impl_, [&] {
    Sequence* stream = impl_->FindStream(stream_number);
    Sequence* thread = impl_->Thread();
    if (stream != nullptr && thread != nullptr) {
      impl_->SyncStreamNode(*stream, *thread, SyncKind::kCopy);
    }
  });
}

void Writer::SyncDevice() {
  Guard(impl_, [&] {
    Sequence* thread = impl_->Thread();
    if (thread == nullptr) return;
    for (uint32_t i = 0; i < impl_->sequence_count.load(std::memory_order_acquire); ++i) {
      Sequence* s = impl_->Find(i);
      if (s->kind == SequenceKind::kStream) impl_->SyncStreamNode(*s, *thread, SyncKind::kDevice);
    }
  });
}

void Writer::SyncEvent(uint32_t event, uint64_t version, bool query) {
  Guard(impl_, [&] {
    Sequence* thread = impl_->Thread();
    if (thread == nullptr || version > UINT32_MAX) {
      impl_->dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    impl_->AppendHost(*thread, NodeKind::kSync, event, static_cast<uint32_t>(version),
                      static_cast<uint16_t>(query ? SyncKind::kQueryTrue : SyncKind::kEvent));
  });
}

void Writer::Handoff(uint32_t thread_number) {
  Guard(impl_, [&] {
    Sequence* other = impl_->Find(thread_number);
    Sequence* thread = impl_->Thread();
    if (other == nullptr || thread == nullptr || other == thread ||
        other->kind != SequenceKind::kThread) {
      return;
    }
    uint64_t done = 0;
    {
      // One thread's mutex at a time: two threads may name each other at once.
      std::lock_guard lock(other->mutex);
      impl_->MarkLastLaunch(*other);
      impl_->FlushHostTime(*other);
      done = other->size();
    }
    if (done == 0) return;
    impl_->AppendHost(*thread, NodeKind::kSync, other->number, static_cast<uint32_t>(done),
                      static_cast<uint16_t>(SyncKind::kHandoff));
  });
}

void Writer::CommInit(uint32_t comm) {
  Guard(impl_, [&] {
    if (Sequence* thread = impl_->Thread())
      impl_->AppendHost(*thread, NodeKind::kCommInit, comm, 0);
  });
}

void Writer::Mark(MarkKind kind, std::string_view text) {
  Guard(impl_, [&] {
    if (Sequence* thread = impl_->Thread()) {
      impl_->AppendHost(*thread, NodeKind::kMark, impl_->InternString(text), 0,
                        static_cast<uint16_t>(kind));
    }
  });
}

void Writer::Memory(MemoryKind kind, int64_t bytes, uint64_t address) {
  Guard(impl_, [&] {
    Sequence* thread = impl_->Thread();
    if (thread == nullptr) return;
    MemoryRecord record{thread->number, kind, 0, bytes, address};
    {
      std::lock_guard lock(thread->mutex);
      record.host_node = thread->size();
    }
    bool full = false;
    {
      std::lock_guard lock(impl_->memory_mutex);
      impl_->memory.Append(impl_->pending, &record, sizeof(record));
      impl_->memory.Commit();
      full = impl_->memory.bytes() >= kBufferBytes;
    }
    if (full) {
      impl_->FlushTables();  // the thread's own record comes first
      impl_->FlushMemory();
    }
  });
}

void Writer::Timing(uint32_t sequence, uint64_t first_node, const int64_t* ns, size_t count) {
  Guard(impl_, [&] {
    impl_->FlushTables();
    impl_->WriteChunk(ChunkKind::kTiming, sequence, first_node, count, ns, count * sizeof(int64_t));
  });
}

void Writer::Meta(std::string_view json) {
  Guard(impl_, [&] { impl_->WriteChunk(ChunkKind::kMeta, 0, 0, 1, json.data(), json.size()); });
}

void Writer::Flush() {
  Guard(impl_, [&] { impl_->FlushAll(false); });
}

void Writer::FlushForDeath() {
  Guard(impl_, [&] {
    impl_->CloseSpans();
    impl_->FlushAll(false);
  });
}

int Writer::Close(int64_t exit_code) {
  if (impl_ == nullptr) return ENOMEM;
  Guard(impl_, [&] {
    impl_->FlushAll(true);
    impl_->open.store(false, std::memory_order_release);
    const SealRecord seal{impl_->written.load(), impl_->dropped.load(), exit_code};
    impl_->WriteChunk(ChunkKind::kSeal, 0, 0, 1, &seal, sizeof(seal));
    impl_->pending.Remove();
  });
  return impl_->status.load();
}

}  // namespace prism::trace
