// Moves what a writer held back when its process was killed to its trace (pending.h).
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/trace/crc32c.h"
#include "src/trace/pending.h"
#include "src/trace/reader.h"

namespace prism::trace {
namespace {

struct Piece {
  ChunkKind kind;
  uint32_t sequence;
  uint64_t first, count;
  const char* data;
  size_t bytes;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

bool ReadAll(int fd, std::vector<char>* bytes) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return false;
  bytes->resize(static_cast<size_t>(st.st_size));
  size_t done = 0;
  while (done < bytes->size()) {
    const ssize_t n =
        pread(fd, bytes->data() + done, bytes->size() - done, static_cast<off_t>(done));
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

// The fullest region of each table and sequence, in the order in which the trace must have them.
std::vector<Piece> Pieces(const std::vector<char>& file) {
  std::map<std::pair<ChunkKind, uint32_t>, Piece> found;
  for (size_t at = 0; at + sizeof(PendingRegion) <= file.size();) {
    const auto* region = reinterpret_cast<const PendingRegion*>(file.data() + at);
    if (region->magic != kPendingMagic || region->pages == 0) {
      at += kPendingPage;  // handed out, and not used before the end
      continue;
    }
    const size_t size = region->pages * kPendingPage;
    const uint64_t filled = region->filled.load(std::memory_order_relaxed);
    const Piece piece{
        region->kind.load(std::memory_order_relaxed),  region->sequence,
        region->first.load(std::memory_order_relaxed), filled >> 32,
        file.data() + at + sizeof(PendingRegion),      static_cast<size_t>(filled & UINT32_MAX)};
    if (piece.kind != ChunkKind{} && piece.count > 0 && at + size <= file.size() &&
        piece.bytes <= size - sizeof(PendingRegion)) {
      Piece& best = found.try_emplace({piece.kind, piece.sequence}, piece).first->second;
      if (piece.first + piece.count > best.first + best.count) best = piece;
    }
    at += size;
  }
  std::vector<Piece> pieces;
  for (const ChunkKind table : {ChunkKind::kStrings, ChunkKind::kSequences, ChunkKind::kKernels,
                                ChunkKind::kSpans, ChunkKind::kComms, ChunkKind::kCalls}) {
    if (const auto it = found.find({table, 0}); it != found.end()) pieces.push_back(it->second);
  }
  for (const auto& [key, piece] : found) {
    if (key.first == ChunkKind::kNodes) pieces.push_back(piece);
  }
  if (const auto it = found.find({ChunkKind::kMemory, 0}); it != found.end()) {
    pieces.push_back(it->second);
  }
  return pieces;
}

uint64_t Held(const Reader& trace, const Piece& piece) {
  switch (piece.kind) {
    case ChunkKind::kStrings:
      return trace.string_count();
    case ChunkKind::kSequences:
      return trace.sequences().size();
    case ChunkKind::kKernels:
      return trace.kernels().size();
    case ChunkKind::kSpans:
      return trace.span_count();
    case ChunkKind::kComms:
      return trace.communicators().size();
    case ChunkKind::kCalls:
      return trace.calls().size();
    case ChunkKind::kNodes:
      return piece.sequence < trace.sequences().size() ? trace.nodes(piece.sequence).size() : 0;
    case ChunkKind::kMemory: {
      uint64_t records = 0;
      for (const auto& chunk : trace.memory()) records += chunk.size();
      return records;
    }
    default:
      return 0;
  }
}

void AppendChunk(std::string* out, const Piece& piece) {
  ChunkHeader header{kChunkMagic,
                     piece.kind,
                     piece.sequence,
                     ExtendCrc32c(0, piece.data, piece.bytes),
                     piece.first,
                     piece.count,
                     piece.bytes,
                     0,
                     0};
  header.header_crc32c = ExtendCrc32c(0, &header, sizeof header);
  out->append(reinterpret_cast<const char*>(&header), sizeof header);
  out->append(piece.data, piece.bytes);
  out->append((kChunkAlignment - piece.bytes % kChunkAlignment) % kChunkAlignment, '\0');
}

}  // namespace

absl::Status Reader::Recover(const std::string& path) {
  const std::string pending_path = absl::StrCat(path, kPendingSuffix);
  const Descriptor pending(open(pending_path.c_str(), O_RDWR | O_CLOEXEC));
  if (pending.get() < 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        pending_path, ": ", strerror(errno), ": what was buffered when the rank died stays there"));
  }
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  // Its writer lives, or somebody else recovers it.
  if (fcntl(pending.get(), F_OFD_SETLK, &lock) != 0) return absl::OkStatus();
  std::vector<char> file;
  if (!ReadAll(pending.get(), &file)) {
    return absl::DataLossError(absl::StrCat(pending_path, " cannot be read: ", strerror(errno)));
  }

  uint64_t readable = 0;
  std::string chunks;
  {
    auto trace = OpenAsIs(path, {.allow_incomplete = true, .check_nodes = false});
    if (!trace.ok()) return trace.status();
    if (trace->completeness() == Completeness::kDamaged) return absl::OkStatus();
    if (trace->completeness() == Completeness::kSealed) {  // killed after its last chunk
      unlink(pending_path.c_str());
      return absl::OkStatus();
    }
    readable = trace->readable_bytes();
    uint64_t sequences = trace->sequences().size();
    for (const Piece& piece : Pieces(file)) {
      // The trace has it: killed between writing the chunk and emptying the buffer. Or it lacks
      // what comes before: its disk was full.
      if (piece.first != Held(*trace, piece)) continue;
      if (piece.kind == ChunkKind::kNodes && piece.sequence >= sequences) continue;
      if (piece.kind == ChunkKind::kSequences) sequences += piece.count;
      AppendChunk(&chunks, piece);
    }
  }
  const Descriptor out(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (out.get() < 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": ", strerror(errno)));
  }
  // A chunk that was being written is in the buffers still.
  if (ftruncate(out.get(), static_cast<off_t>(readable)) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": ", strerror(errno)));
  }
  size_t done = 0;
  while (done < chunks.size()) {
    const ssize_t n = pwrite(out.get(), chunks.data() + done, chunks.size() - done,
                             static_cast<off_t>(readable + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::DataLossError(absl::StrCat(path, ": ", strerror(errno)));
    done += static_cast<size_t>(n);
  }
  unlink(pending_path.c_str());
  return absl::OkStatus();
}

}  // namespace prism::trace
