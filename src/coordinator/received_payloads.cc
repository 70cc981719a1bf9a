#include "src/coordinator/received_payloads.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status.h"

namespace prism::coordinator {
namespace {

constexpr char kMagic[8] = {'P', 'R', 'I', 'S', 'M', 'R', 'C', 'V'};
constexpr uint32_t kVersion = 1;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
};
struct PayloadRecord {
  uint32_t rank, comm, op;
  int32_t peer;
  uint64_t order;
  uint32_t bytes;
  uint32_t brought;
};

uint32_t Hash(std::string_view bytes) {  // FNV-1a, 32 bits
  uint32_t hash = 0x811c9dc5;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193;
  return hash;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReceivedWriter>> ReceivedWriter::Create(const std::string& path) {
  FILE* const file = fopen(path.c_str(), "wbe");
  if (file == nullptr) return ErrnoStatus(errno, "create " + path);
  FileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  fwrite(&header, sizeof header, 1, file);
  return std::unique_ptr<ReceivedWriter>(new ReceivedWriter(path, file));
}

ReceivedWriter::~ReceivedWriter() {
  if (file_ != nullptr) fclose(file_);
}

void ReceivedWriter::Add(const PayloadKey& key, std::string_view brought, std::string_view bytes) {
  const PayloadRecord record{key.rank,     key.comm,  static_cast<uint32_t>(key.op),
                             key.peer,     key.order, static_cast<uint32_t>(bytes.size()),
                             Hash(brought)};
  fwrite(&record, sizeof record, 1, file_);
  fwrite(bytes.data(), 1, bytes.size(), file_);
}

absl::Status ReceivedWriter::Close() {
  const bool failed = ferror(file_) != 0;
  const bool closed = fclose(std::exchange(file_, nullptr)) == 0;
  if (!failed && closed) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": is the disk full?"));
}

absl::StatusOr<ReceivedPayloads> ReceivedPayloads::Load(const std::string& path,
                                                        const std::set<uint32_t>& ranks) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "rbe"), &fclose);
  if (file == nullptr) {
    return errno == ENOENT ? absl::NotFoundError(absl::StrCat("there is no ", path))
                           : ErrnoStatus(errno, "open " + path);
  }
  FileHeader header{};
  if (fread(&header, sizeof header, 1, file.get()) != 1 ||
      std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    return absl::DataLossError(absl::StrCat(path, " is no file of received payloads"));
  }
  if (header.version != kVersion) {
    return WithHint(absl::FailedPreconditionError(absl::StrCat(
                        path, " has version ", header.version, ", this prism reads ", kVersion)),
                    "capture the job again");
  }
  ReceivedPayloads all;
  PayloadRecord record{};
  std::string bytes;
  for (size_t count = 0;; ++count) {
    const size_t read = fread(&record, 1, sizeof record, file.get());
    if (read == 0) break;
    bytes.resize(record.bytes <= kReceivedPayloadBytes ? record.bytes : 0);
    if (read != sizeof record || record.op >= wire::kOpCount || bytes.size() != record.bytes ||
        fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
      return absl::DataLossError(absl::StrCat(path, ": payload ", count, " is damaged"));
    }
    if (ranks.count(record.rank) == 0) continue;
    all.payloads_[{record.rank, record.comm, static_cast<wire::Op>(record.op), record.peer,
                   record.order}] = {record.brought, bytes};
  }
  if (feof(file.get()) == 0) return ErrnoStatus(errno, "read " + path);
  return all;
}

std::string_view ReceivedPayloads::Find(const PayloadKey& key, std::string_view brought) const {
  const auto found = payloads_.find(key);
  if (found == payloads_.end() || found->second.brought != Hash(brought)) return {};
  return found->second.bytes;
}

std::string_view ReceivedPayloads::FindAny(const PayloadKey& key) const {
  const auto found = payloads_.find(key);
  return found == payloads_.end() ? std::string_view() : found->second.bytes;
}

}  // namespace prism::coordinator
