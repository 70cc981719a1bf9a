#include "src/trace/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/trace/crc32c.h"

namespace prism::trace {
namespace {

constexpr uint32_t kOldestVersion = 1;
constexpr uint32_t kNone = UINT32_MAX;
// A sequence costs memory in the reader before any node of it is seen: a bound for hostile files,
// far above the writer's.
constexpr uint64_t kMaxSequences = 1 << 20;

absl::Status ErrnoStatus(int error, const std::string& path) {
  const std::string text = absl::StrCat(path, ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

uint64_t Padded(uint64_t bytes) {
  return (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
}

// The chunk at `offset` if its header is whole, right, and its payload inside the file.
bool GoodHeader(const char* data, uint64_t size, uint64_t offset, ChunkHeader* chunk) {
  if (offset > size || size - offset < sizeof(ChunkHeader)) return false;
  std::memcpy(chunk, data + offset, sizeof(ChunkHeader));
  if (chunk->magic != kChunkMagic) return false;
  ChunkHeader zeroed = *chunk;
  zeroed.header_crc32c = 0;
  if (ExtendCrc32c(0, &zeroed, sizeof(zeroed)) != chunk->header_crc32c) return false;
  return chunk->bytes <= size - offset - sizeof(ChunkHeader);
}

bool GoodPayload(const ChunkHeader& chunk, const char* payload) {
  return ExtendCrc32c(0, payload, chunk.bytes) == chunk.crc32c;
}

bool IsLazy(ChunkKind kind) { return kind == ChunkKind::kNodes || kind == ChunkKind::kTiming; }

std::string KindName(ChunkKind kind) {
  switch (kind) {
    case ChunkKind::kNodes:
      return "nodes";
    case ChunkKind::kStrings:
      return "strings";
    case ChunkKind::kSequences:
      return "sequences";
    case ChunkKind::kKernels:
      return "kernels";
    case ChunkKind::kSpans:
      return "spans";
    case ChunkKind::kComms:
      return "communicators";
    case ChunkKind::kCalls:
      return "calls";
    case ChunkKind::kMemory:
      return "memory";
    case ChunkKind::kTiming:
      return "timing";
    case ChunkKind::kMeta:
      return "meta";
    case ChunkKind::kSeal:
      return "seal";
  }
  return absl::StrCat("kind ", static_cast<uint32_t>(kind));
}

absl::Status Contradiction(const ChunkHeader& chunk, std::string_view what) {
  return absl::DataLossError(absl::StrCat("chunk of ", KindName(chunk.kind), ": ",
                                          absl::string_view(what.data(), what.size())));
}

}  // namespace

std::string_view CompletenessName(Completeness completeness) {
  switch (completeness) {
    case Completeness::kSealed:
      return "sealed";
    case Completeness::kLossy:
      return "lossy";
    case Completeness::kUnsealed:
      return "incomplete";
    case Completeness::kTorn:
      return "torn";
    case Completeness::kDamaged:
      return "damaged";
  }
  return "unknown";
}

const Node& NodeList::operator[](uint64_t index) const {
  const auto run = std::upper_bound(firsts_.begin(), firsts_.end(), index) - firsts_.begin() - 1;
  const auto r = static_cast<size_t>(run);
  return runs_[r][index - firsts_[r]];
}

struct Reader::Mapping {
  void* address;
  size_t bytes;
};

void Reader::MappingDeleter::operator()(Mapping* mapping) const {
  munmap(mapping->address, mapping->bytes);
  delete mapping;
}

absl::StatusOr<Reader> Reader::Open(const std::string& path, const ReadOptions& options) {
  const absl::Status recovered = Recover(path);
  absl::StatusOr<Reader> reader = OpenAsIs(path, options);
  if (reader.ok() && !recovered.ok()) {
    absl::StrAppend(&reader->problem_, reader->problem_.empty() ? "" : "; ", recovered.message());
  }
  return reader;
}

absl::StatusOr<Reader> Reader::OpenAsIs(const std::string& path, const ReadOptions& options) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, path);
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const auto size = static_cast<uint64_t>(st.st_size);
  if (size < sizeof(FileHeader)) {
    char start[sizeof(kMagic)] = {};
    const ssize_t n = pread(fd, start, sizeof(start), 0);
    close(fd);
    const auto got = static_cast<size_t>(std::max<ssize_t>(n, 0));
    if (std::memcmp(start, kMagic, std::min(got, sizeof(kMagic))) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a PrismTrace"));
    }
    return absl::DataLossError(absl::StrCat(
        path, ": only ", size, " bytes, the header alone has ", sizeof(FileHeader),
        ": the rank died before it wrote anything, or the file was cut; nothing is readable"));
  }
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (address == MAP_FAILED) return ErrnoStatus(error, path);

  Reader reader;
  reader.path_ = path;
  reader.mapping_.reset(new Mapping{address, size});
  reader.data_ = static_cast<const char*>(address);
  reader.size_ = size;
  std::memcpy(&reader.header_, reader.data_, sizeof(FileHeader));
  if (std::memcmp(reader.header_.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a PrismTrace"));
  }
  FileHeader zeroed = reader.header_;
  zeroed.header_crc32c = 0;
  if (ExtendCrc32c(0, &zeroed, sizeof(zeroed)) != reader.header_.header_crc32c) {
    return absl::DataLossError(
        absl::StrCat(path, ": the file header is damaged (checksum); nothing is readable"));
  }
  if (reader.header_.version < kOldestVersion || reader.header_.version > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": PrismTrace version ", reader.header_.version, "; this prism reads versions ",
        kOldestVersion, " to ", kFormatVersion, ": use the prism that wrote it, or capture again"));
  }
  if (absl::Status status = reader.Index(); !status.ok()) return status;
  if (options.check_nodes) {
    if (absl::Status status = reader.CheckNodes(); !status.ok()) return status;
  }
  if (!options.allow_incomplete && reader.completeness_ != Completeness::kSealed) {
    return absl::DataLossError(absl::StrCat(path, ": ", reader.problem_));
  }
  return reader;
}

absl::Status Reader::Index() {
  uint64_t offset = sizeof(FileHeader);
  readable_ = offset;
  bool sealed = false;
  while (offset < size_) {
    ChunkHeader chunk;
    const bool good = GoodHeader(data_, size_, offset, &chunk) &&
                      (IsLazy(chunk.kind) || GoodPayload(chunk, data_ + offset + sizeof(chunk)));
    if (!good) {
      const uint64_t next = NextGoodChunk(offset + kChunkAlignment);
      completeness_ = next != 0 || sealed ? Completeness::kDamaged : Completeness::kTorn;
      problem_ = completeness_ == Completeness::kTorn
                     ? absl::StrCat("torn at byte ", offset, " of ", size_,
                                    ": the rank was killed while it wrote")
                     : absl::StrCat("damaged at byte ", offset, " of ", size_,
                                    ": a chunk fails its checksum");
      break;
    }
    const char* payload = data_ + offset + sizeof(chunk);
    // A file that contradicts itself behind good checksums is not cut off but wrong: nothing in it
    // can be trusted.
    if (absl::Status status = AddChunk(chunk, payload); !status.ok()) {
      return absl::DataLossError(absl::StrCat(path_, ": at byte ", offset, ": ", status.message()));
    }
    sealed = sealed || chunk.kind == ChunkKind::kSeal;
    if (IsLazy(chunk.kind)) lazy_chunks_.push_back(offset);
    // The last chunk's padding may be missing.
    offset = std::min(offset + sizeof(chunk) + Padded(chunk.bytes), size_);
    readable_ = offset;
  }
  if (problem_.empty()) {
    if (!sealed) {
      completeness_ = Completeness::kUnsealed;
      problem_ = "incomplete: it has no seal; the rank was killed, or is still running";
    } else if (seal_->dropped > 0) {
      completeness_ = Completeness::kLossy;
      problem_ = absl::StrCat(seal_->dropped, " nodes could not be written (disk full?)");
    } else if (seal_->nodes != node_count_) {
      completeness_ = Completeness::kDamaged;
      problem_ =
          absl::StrCat("the seal counts ", seal_->nodes, " nodes, the file has ", node_count_);
    } else {
      completeness_ = Completeness::kSealed;
    }
  }
  if (completeness_ != Completeness::kSealed) {
    absl::StrAppend(&problem_, "; readable: ", node_count_, " nodes in ", sequences_.size(),
                    " sequences (", readable_, " of ", size_, " bytes)");
  }
  return absl::OkStatus();
}

// Offset of the first whole chunk at or after `from`; 0: none.
uint64_t Reader::NextGoodChunk(uint64_t from) const {
  for (uint64_t at = Padded(from); at < size_; at += kChunkAlignment) {
    ChunkHeader chunk;
    if (GoodHeader(data_, size_, at, &chunk) && GoodPayload(chunk, data_ + at + sizeof(chunk)))
      return at;
  }
  return 0;
}

absl::Status Reader::AddChunk(const ChunkHeader& chunk, const char* payload) {
  // Fixed-size records: count and bytes must agree; division, as the product may overflow.
  const auto records_of = [&](uint64_t record) {
    return chunk.bytes % record == 0 && chunk.bytes / record == chunk.count;
  };
  const auto copy_records = [&](auto& table) -> absl::Status {
    using Record = typename std::remove_reference_t<decltype(table)>::value_type;
    if (!records_of(sizeof(Record))) return Contradiction(chunk, "size and count disagree");
    if (chunk.first != table.size())
      return Contradiction(chunk, "does not continue the one before");
    const size_t at = table.size();
    if (chunk.count == 0) return absl::OkStatus();
    table.resize(at + chunk.count);
    std::memcpy(&table[at], payload, chunk.bytes);
    return absl::OkStatus();
  };
  const auto check_string = [&](uint32_t id) { return id < strings_.size(); };

  switch (chunk.kind) {
    case ChunkKind::kNodes: {
      if (chunk.sequence >= sequences_.size())
        return Contradiction(chunk, "of an unknown sequence");
      NodeList& list = nodes_[chunk.sequence];
      if (!records_of(sizeof(Node))) return Contradiction(chunk, "size and count disagree");
      if (chunk.first != list.size_)
        return Contradiction(chunk, "does not continue the one before");
      if (chunk.count == 0) break;
      list.runs_.emplace_back(reinterpret_cast<const Node*>(payload), chunk.count);
      list.firsts_.push_back(chunk.first);
      list.size_ += chunk.count;
      node_count_ += chunk.count;
      break;
    }
    case ChunkKind::kStrings: {
      if (chunk.first != strings_.size())
        return Contradiction(chunk, "does not continue the one before");
      uint64_t at = 0;
      for (uint64_t i = 0; i < chunk.count; ++i) {
        uint32_t length;
        if (chunk.bytes - at < sizeof(length)) return Contradiction(chunk, "ends inside a string");
        std::memcpy(&length, payload + at, sizeof(length));
        at += sizeof(length);
        if (chunk.bytes - at < length) return Contradiction(chunk, "ends inside a string");
        strings_.emplace_back(payload + at, length);
        at += length;
      }
      if (at != chunk.bytes) return Contradiction(chunk, "size and count disagree");
      break;
    }
    case ChunkKind::kSequences: {
      const size_t before = sequences_.size();
      if (chunk.count > kMaxSequences) return Contradiction(chunk, "too many");
      if (absl::Status status = copy_records(sequences_); !status.ok()) return status;
      for (size_t i = before; i < sequences_.size(); ++i) {
        if (!check_string(sequences_[i].name))
          return Contradiction(chunk, "names an unknown string");
        if (sequences_[i].kind != SequenceKind::kStream &&
            sequences_[i].kind != SequenceKind::kThread) {
          return Contradiction(chunk, "neither a stream nor a thread");
        }
      }
      nodes_.resize(sequences_.size());
      break;
    }
    case ChunkKind::kKernels: {
      const size_t before = kernels_.size();
      if (absl::Status status = copy_records(kernels_); !status.ok()) return status;
      for (size_t i = before; i < kernels_.size(); ++i) {
        if (!check_string(kernels_[i].name)) return Contradiction(chunk, "names an unknown string");
        if (kernels_[i].kind > KernelKind::kGraph)
          return Contradiction(chunk, "of an unknown kind");
      }
      break;
    }
    case ChunkKind::kSpans: {
      if (chunk.first != spans_.size())
        return Contradiction(chunk, "does not continue the one before");
      uint64_t at = 0;
      for (uint64_t i = 0; i < chunk.count; ++i) {
        SpanHeader span;
        if (chunk.bytes - at < sizeof(span)) return Contradiction(chunk, "ends inside a span");
        std::memcpy(&span, payload + at, sizeof(span));
        at += sizeof(span);
        const uint64_t bytes = (uint64_t{span.kernels} + 1) / 2 * 8;
        if (chunk.bytes - at < bytes) return Contradiction(chunk, "ends inside a span");
        const std::span<const uint32_t> ids(reinterpret_cast<const uint32_t*>(payload + at),
                                            span.kernels);
        for (uint32_t id : ids) {
          if (id >= kernels_.size()) return Contradiction(chunk, "names an unknown kernel");
        }
        spans_.push_back({span.hash, ids});
        at += bytes;
      }
      if (at != chunk.bytes) return Contradiction(chunk, "size and count disagree");
      break;
    }
    case ChunkKind::kComms: {
      if (chunk.first != communicators_.size()) {
        return Contradiction(chunk, "does not continue the one before");
      }
      uint64_t at = 0;
      for (uint64_t i = 0; i < chunk.count; ++i) {
        CommRecord record;
        if (chunk.bytes - at < sizeof(record))
          return Contradiction(chunk, "ends inside a communicator");
        std::memcpy(&record, payload + at, sizeof(record));
        at += sizeof(record);
        const uint64_t bytes = (uint64_t{record.size} + 1) / 2 * 8;
        if (chunk.bytes - at < bytes) return Contradiction(chunk, "ends inside a communicator");
        if (record.rank >= record.size)
          return Contradiction(chunk, "rank outside the communicator");
        communicators_.push_back(
            {record, {reinterpret_cast<const uint32_t*>(payload + at), record.size}});
        for (uint32_t rank : communicators_.back().world_ranks) {
          if (rank >= header_.world && rank != kUnknownRank)
            return Contradiction(chunk, "world rank outside the job");
        }
        at += bytes;
      }
      if (at != chunk.bytes) return Contradiction(chunk, "size and count disagree");
      break;
    }
    case ChunkKind::kCalls: {
      const size_t before = calls_.size();
      if (absl::Status status = copy_records(calls_); !status.ok()) return status;
      for (size_t i = before; i < calls_.size(); ++i) {
        if (calls_[i].op >= kCommOpCount) return Contradiction(chunk, "of an unknown operation");
        if (calls_[i].call_site != kNone && !check_string(calls_[i].call_site)) {
          return Contradiction(chunk, "names an unknown string");
        }
      }
      break;
    }
    case ChunkKind::kMemory:
      if (!records_of(sizeof(MemoryRecord))) return Contradiction(chunk, "size and count disagree");
      memory_.emplace_back(reinterpret_cast<const MemoryRecord*>(payload), chunk.count);
      for (const MemoryRecord& m : memory_.back()) {
        if (m.thread >= sequences_.size()) return Contradiction(chunk, "of an unknown sequence");
        if (m.kind > MemoryKind::kModelled) return Contradiction(chunk, "of an unknown kind");
      }
      break;
    case ChunkKind::kTiming:
      if (!records_of(sizeof(int64_t))) return Contradiction(chunk, "size and count disagree");
      if (chunk.sequence >= sequences_.size())
        return Contradiction(chunk, "of an unknown sequence");
      timings_.push_back(
          {chunk.sequence, chunk.first, {reinterpret_cast<const int64_t*>(payload), chunk.count}});
      break;
    case ChunkKind::kMeta:
      meta_.emplace_back(payload, chunk.bytes);
      break;
    case ChunkKind::kSeal: {
      SealRecord seal;
      if (chunk.bytes != sizeof(seal)) return Contradiction(chunk, "size and count disagree");
      std::memcpy(&seal, payload, sizeof(seal));
      seal_ = seal;
      break;
    }
    default:
      // Of a later minor addition: readers skip what they do not know, nothing refers to it.
      break;
  }
  return absl::OkStatus();
}

absl::Status Reader::CheckNodes() const {
  const auto fail = [&](uint64_t offset, std::string_view what) {
    return absl::DataLossError(absl::StrCat(path_, ": damaged at byte ", offset, " of ", size_,
                                            ": ", absl::string_view(what.data(), what.size())));
  };
  const bool whole = completeness_ == Completeness::kSealed;
  const auto is_stream = [&](uint32_t s) {
    return s < sequences_.size() && sequences_[s].kind == SequenceKind::kStream;
  };
  for (uint64_t offset : lazy_chunks_) {
    ChunkHeader chunk;
    std::memcpy(&chunk, data_ + offset, sizeof(chunk));
    const char* payload = data_ + offset + sizeof(chunk);
    if (!GoodPayload(chunk, payload)) return fail(offset, "a chunk of nodes fails its checksum");
    if (chunk.kind == ChunkKind::kTiming) {
      if (chunk.first > nodes_[chunk.sequence].size() ||
          chunk.count > nodes_[chunk.sequence].size() - chunk.first) {
        return fail(offset, "timing of nodes that are not there");
      }
      continue;
    }
    const bool on_stream = sequences_[chunk.sequence].kind == SequenceKind::kStream;
    const auto* nodes = reinterpret_cast<const Node*>(payload);
    for (uint64_t i = 0; i < chunk.count; ++i) {
      const Node& n = nodes[i];
      bool good = false;
      switch (n.kind) {
        case NodeKind::kSpan:
          good = on_stream && n.a < spans_.size();
          break;
        case NodeKind::kComm:
          good = on_stream && n.a < calls_.size();
          break;
        case NodeKind::kRecord:
        case NodeKind::kWait:
        case NodeKind::kHostFunc:
        case NodeKind::kValueWrite:
        case NodeKind::kValueWait:
          good = on_stream;
          break;
        case NodeKind::kHost:
        case NodeKind::kCommInit:
          good = !on_stream;
          break;
        case NodeKind::kMark:
          good = !on_stream && n.a < strings_.size() &&
                 n.detail <= static_cast<uint16_t>(MarkKind::kStep);
          break;
        case NodeKind::kEnqueue:
        case NodeKind::kEnqueueLast:
          // Of an incomplete file the stream's last nodes may be missing.
          good = !on_stream && is_stream(n.a) && (!whole || n.b < nodes_[n.a].size());
          break;
        case NodeKind::kSync:
          switch (static_cast<SyncKind>(n.detail)) {
            case SyncKind::kStream:
            case SyncKind::kDevice:
            case SyncKind::kCopy:
              good = !on_stream && is_stream(n.a) && (!whole || n.b <= nodes_[n.a].size());
              break;
            case SyncKind::kEvent:
            case SyncKind::kQueryTrue:
              good = !on_stream;
              break;
            case SyncKind::kHandoff:
              good = !on_stream && n.a < sequences_.size() && !is_stream(n.a) &&
                     n.a != chunk.sequence && (!whole || n.b <= nodes_[n.a].size());
              break;
          }
          break;
      }
      if (!good) {
        return fail(offset, absl::StrCat("node ", chunk.first + i, " of sequence ", chunk.sequence,
                                         " (kind ", static_cast<int>(n.kind), ", a ", n.a, ", b ",
                                         n.b, ") names nothing"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace prism::trace
