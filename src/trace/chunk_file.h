// ChunkFile: writes a PrismTrace chunk by chunk, for who makes a trace of others. The order of
// format.h is the caller's to keep.
//
//   ChunkFile out(path, header);
//   out.Add(ChunkKind::kStrings, 0, 0, 1, payload);
//   PRISM_RETURN_IF_ERROR(out.Close());
#ifndef PRISM_TRACE_CHUNK_FILE_H_
#define PRISM_TRACE_CHUNK_FILE_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "src/trace/format.h"

namespace prism::trace {

class ChunkFile {
 public:
  /// Creates `path`, or empties it. `header` gets its checksum here.
  ChunkFile(const std::string& path, FileHeader header);

  void Add(ChunkKind kind, uint32_t sequence, uint64_t first, uint64_t count,
           std::string_view payload);
  /// Unavailable: something could not be written.
  absl::Status Close();

 private:
  const std::string path_;
  std::ofstream file_;
};

}  // namespace prism::trace

#endif  // PRISM_TRACE_CHUNK_FILE_H_
