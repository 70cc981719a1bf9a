// Received payloads: what ranks of a captured job were given by its communications, as far as it is
// small. Programs read sizes, splits and flags from it; an emulation answers with it, so that a
// rank takes the same turns.
//
// A file of the job directory: "PRISMRCV", a version and a reserved word, then one record a
// payload: PayloadRecord and its bytes. Little-endian. The writer appends, and is used by one
// thread; what is loaded is immutable.
//
//   PRISM_ASSIGN_OR_RETURN(auto writer, ReceivedWriter::Create(job + "/received.bin"));
//   writer->Add({.rank = 3, .comm = 1, .op = wire::Op::kAllReduce, .order = 7}, input, output);
//   PRISM_ASSIGN_OR_RETURN(auto received, ReceivedPayloads::Load(path, {3}));
//   std::string_view output = received.Find(key, input);
#ifndef PRISM_COORDINATOR_RECEIVED_PAYLOADS_H_
#define PRISM_COORDINATOR_RECEIVED_PAYLOADS_H_

#include <compare>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "src/wire/protocol.h"

namespace prism::coordinator {

/// Larger payloads are not kept, and do not pass through an emulation's controller: what programs
/// read on the host (sizes, splits, pickled objects) is smaller.
inline constexpr uint64_t kReceivedPayloadBytes = 4096;

/// Its name in a job directory.
inline constexpr char kReceivedFile[] = "received.bin";

struct PayloadKey {
  uint32_t rank = 0;  // of the world
  uint32_t comm = 0;  // job-wide number
  wire::Op op = wire::Op::kAllReduce;
  int32_t peer = -1;   // messages: rank of the sender in the communicator
  uint64_t order = 0;  // collectives: of the communicator; messages: from this peer
  auto operator<=>(const PayloadKey&) const = default;
};

class ReceivedWriter {
 public:
  static absl::StatusOr<std::unique_ptr<ReceivedWriter>> Create(const std::string& path);
  ~ReceivedWriter();
  ReceivedWriter(const ReceivedWriter&) = delete;
  ReceivedWriter& operator=(const ReceivedWriter&) = delete;

  /// `brought`: what the rank itself brought to the call.
  void Add(const PayloadKey& key, std::string_view brought, std::string_view bytes);
  /// Unavailable: some of it could not be written.
  absl::Status Close();

 private:
  ReceivedWriter(std::string path, FILE* file) : path_(std::move(path)), file_(file) {}
  const std::string path_;
  FILE* file_;
};

class ReceivedPayloads {
 public:
  /// Those of `ranks`. NotFound: there is no such file; DataLoss: it is damaged.
  static absl::StatusOr<ReceivedPayloads> Load(const std::string& path,
                                               const std::set<uint32_t>& ranks);

  /// Empty: nothing is known, or the rank brought something else to the call: then it has left the
  /// captured job's path, and what it was given there does not fit. Valid as long as this object.
  std::string_view Find(const PayloadKey& key, std::string_view brought) const;
  /// The same whatever the rank brought.
  std::string_view FindAny(const PayloadKey& key) const;
  size_t size() const { return payloads_.size(); }

 private:
  struct Payload {
    uint32_t brought;  // a hash
    std::string bytes;
  };
  std::map<PayloadKey, Payload> payloads_;
};

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_RECEIVED_PAYLOADS_H_
