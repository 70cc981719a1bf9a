// Reads PrismTrace files by mapping them: nodes and records are used where they lie, nothing is
// parsed or copied.
//
// Owns the mapping; everything handed out points into it and lives as long as the Reader (moving it
// keeps pointers valid). Immutable after Open, so any number of threads may read. The file is not
// trusted: every offset, count, checksum and reference is checked before it is used, and whatever
// passes Open() can be walked without further checks.
//
//   absl::StatusOr<Reader> reader = Reader::Open("job/trace/rank-00000.prt");
//   if (!reader.ok()) return reader.status();
//   for (uint32_t s = 0; s < reader->sequences().size(); ++s)
//     for (const Node& node : reader->nodes(s)) ...
#ifndef PRISM_TRACE_READER_H_
#define PRISM_TRACE_READER_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/trace/format.h"

namespace prism::trace {

/// What is known about a file's end.
enum class Completeness {
  kSealed,    // the rank ended by itself and everything is here
  kLossy,     // sealed, but nodes could not be written (disk full)
  kUnsealed,  // whole chunks, no seal: the rank was killed, or is still running
  kTorn,      // the last chunk is cut off
  kDamaged,   // a bad chunk with good ones behind it, or contents that contradict each other
};
std::string_view CompletenessName(Completeness completeness);

/// The nodes of one sequence: an array in a few runs.
class NodeList {
 public:
  using Run = std::span<const Node>;

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Node;
    using difference_type = std::ptrdiff_t;
    using pointer = const Node*;
    using reference = const Node&;
    Iterator() = default;
    Iterator(const Run* run, const Run* end) : run_(run), end_(end) { Enter(); }
    reference operator*() const { return *at_; }
    pointer operator->() const { return at_; }
    Iterator& operator++() {
      if (++at_ == stop_) {
        ++run_;
        Enter();
      }
      return *this;
    }
    Iterator operator++(int) {
      Iterator old = *this;
      ++*this;
      return old;
    }
    friend bool operator==(const Iterator& x, const Iterator& y) { return x.at_ == y.at_; }

   private:
    void Enter() {
      at_ = run_ == end_ ? nullptr : run_->data();
      stop_ = run_ == end_ ? nullptr : run_->data() + run_->size();
    }
    const Run* run_ = nullptr;
    const Run* end_ = nullptr;
    const Node* at_ = nullptr;
    const Node* stop_ = nullptr;
  };

  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// Returns node `index`, which must be below size(). Logarithmic in the number of runs; iterate
  /// where speed matters.
  const Node& operator[](uint64_t index) const;
  Iterator begin() const { return {runs_.data(), runs_.data() + runs_.size()}; }
  Iterator end() const { return {}; }
  std::span<const Run> runs() const { return runs_; }

 private:
  friend class Reader;
  std::vector<Run> runs_;         // none empty
  std::vector<uint64_t> firsts_;  // index of each run's first node
  uint64_t size_ = 0;
};

struct Span {
  uint64_t hash = 0;
  std::span<const uint32_t> kernels;
};

struct Communicator {
  CommRecord record;
  std::span<const uint32_t> world_ranks;
};

/// Nanoseconds of nodes [first, first + ns.size()) of a sequence in one iteration.
struct Timing {
  uint32_t sequence;
  uint64_t first;
  std::span<const int64_t> ns;
};

struct ReadOptions {
  /// Accept what is readable of an unsealed, torn, lossy or damaged file; else it is DataLoss.
  bool allow_incomplete = false;
  /// Check payloads of node and timing chunks and the references in nodes now. Without it the
  /// caller calls CheckNodes() before it walks them; tables are always checked.
  bool check_nodes = true;
};

class Reader {
 public:
  /// Maps and indexes `path`. NotFound, PermissionDenied: the file; InvalidArgument: not a
  /// PrismTrace; FailedPrecondition: of a version that this build does not read; DataLoss:
  /// incomplete or damaged, with how much is readable.
  static absl::StatusOr<Reader> Open(const std::string& path, const ReadOptions& options = {});

  /// Moves what the writer of `path` held back when it was killed to the trace. Open() does it. OK
  /// too where there is nothing, or the writer lives.
  static absl::Status Recover(const std::string& path);

  Reader(Reader&&) = default;
  Reader& operator=(Reader&&) = default;

  const std::string& path() const { return path_; }
  uint32_t version() const { return header_.version; }
  uint32_t rank() const { return header_.rank; }
  uint32_t world() const { return header_.world; }
  uint64_t start_unix_ns() const { return header_.start_unix_ns; }
  uint64_t file_bytes() const { return size_; }
  uint64_t readable_bytes() const { return readable_; }

  Completeness completeness() const { return completeness_; }
  /// Says what is wrong, for people; empty when sealed.
  const std::string& problem() const { return problem_; }
  const std::optional<SealRecord>& seal() const { return seal_; }

  std::span<const SequenceRecord> sequences() const { return sequences_; }
  const NodeList& nodes(uint32_t sequence) const { return nodes_[sequence]; }
  uint64_t node_count() const { return node_count_; }

  /// Tables. An id that the table lacks gives "" or an empty span.
  size_t string_count() const { return strings_.size(); }
  std::string_view string(uint32_t id) const {
    return id < strings_.size() ? strings_[id] : std::string_view();
  }
  std::span<const KernelRecord> kernels() const { return kernels_; }
  size_t span_count() const { return spans_.size(); }
  Span span(uint32_t id) const { return id < spans_.size() ? spans_[id] : Span(); }
  std::span<const Communicator> communicators() const { return communicators_; }
  std::span<const CallRecord> calls() const { return calls_; }
  const std::vector<std::span<const MemoryRecord>>& memory() const { return memory_; }
  const std::vector<Timing>& timings() const { return timings_; }
  const std::vector<std::string_view>& meta() const { return meta_; }

  /// Checks the checksums of node and timing chunks and every reference in nodes. DataLoss names
  /// the place.
  absl::Status CheckNodes() const;

 private:
  struct Mapping;
  struct MappingDeleter {
    void operator()(Mapping* mapping) const;
  };

  Reader() = default;
  static absl::StatusOr<Reader> OpenAsIs(const std::string& path, const ReadOptions& options);
  absl::Status Index();
  absl::Status AddChunk(const ChunkHeader& chunk, const char* payload);
  uint64_t NextGoodChunk(uint64_t from) const;

  std::string path_;
  std::unique_ptr<Mapping, MappingDeleter> mapping_;
  const char* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t readable_ = 0;
  FileHeader header_{};
  Completeness completeness_ = Completeness::kUnsealed;
  std::string problem_;
  std::optional<SealRecord> seal_;

  std::vector<SequenceRecord> sequences_;
  std::vector<NodeList> nodes_;
  uint64_t node_count_ = 0;
  std::vector<std::string_view> strings_;
  std::vector<KernelRecord> kernels_;
  std::vector<Span> spans_;
  std::vector<Communicator> communicators_;
  std::vector<CallRecord> calls_;
  std::vector<std::span<const MemoryRecord>> memory_;
  std::vector<Timing> timings_;
  std::vector<std::string_view> meta_;
  std::vector<uint64_t> lazy_chunks_;  // offsets of node and timing chunks, unchecked payloads
};

}  // namespace prism::trace

#endif  // PRISM_TRACE_READER_H_
