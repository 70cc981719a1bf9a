// CopyAs: the trace of a rank that does what another one does.
//
// Equivalent ranks differ in who they are and whom they talk to, so one of them is run and the
// others are copies of its trace: same nodes, tables and times, other rank, communicators and
// peers. Stateless.
//
//   RankIdentity other = {.rank = 3, .comms = {{1, {5, 1, {2, 3}}}}, .peers = {{{1, 1}, 0}}};
//   PRISM_RETURN_IF_ERROR(CopyAs(trace_of_rank_0, other, "job/trace/rank-00003.prt"));
#ifndef PRISM_TRACE_COPY_AS_H_
#define PRISM_TRACE_COPY_AS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "src/trace/reader.h"

namespace prism::trace {

/// Who the copy is, told by what the source's trace says.
struct RankIdentity {
  struct Membership {
    uint32_t comm;  // job-wide number
    uint32_t rank;
    std::vector<uint32_t> world_ranks;
  };
  uint32_t rank = 0;
  std::map<uint32_t, Membership> comms = {};                   // by the source's number
  std::map<std::pair<uint32_t, int32_t>, int32_t> peers = {};  // (source's number, root or peer)
  std::map<uint32_t, uint32_t> devices = {};                   // virtual ordinals; others stay
};

/// Writes `path`. InvalidArgument: the identity lacks a communicator or peer that the source names,
/// or one has another size; DataLoss: the source is not sealed; others: the file.
absl::Status CopyAs(const Reader& source, const RankIdentity& identity, const std::string& path);

}  // namespace prism::trace

#endif  // PRISM_TRACE_COPY_AS_H_
