#include "src/trace/chunk_file.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "src/trace/crc32c.h"

namespace prism::trace {
namespace {

template <class Header>
void Sign(Header* header) {
  header->header_crc32c = 0;
  header->header_crc32c = ExtendCrc32c(0, header, sizeof *header);
}

}  // namespace

ChunkFile::ChunkFile(const std::string& path, FileHeader header)
    : path_(path), file_(path, std::ios::binary | std::ios::trunc) {
  Sign(&header);
  file_.write(reinterpret_cast<const char*>(&header), sizeof header);
}

void ChunkFile::Add(ChunkKind kind, uint32_t sequence, uint64_t first, uint64_t count,
                    std::string_view payload) {
  static constexpr char kZeros[kChunkAlignment] = {};
  ChunkHeader chunk{
      kChunkMagic,    kind, sequence, ExtendCrc32c(0, payload.data(), payload.size()), first, count,
      payload.size(), 0,    0};
  Sign(&chunk);
  file_.write(reinterpret_cast<const char*>(&chunk), sizeof chunk);
  file_.write(payload.data(), static_cast<std::streamsize>(payload.size()));
  const size_t padding = (kChunkAlignment - payload.size() % kChunkAlignment) % kChunkAlignment;
  file_.write(kZeros, static_cast<std::streamsize>(padding));
}

absl::Status ChunkFile::Close() {
  file_.close();
  if (file_) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path_, ": ", std::strerror(errno)));
}

}  // namespace prism::trace
