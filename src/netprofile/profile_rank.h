// Profile rank: one rank of `prism netprofile`. Makes a communicator with the others, measures, and
// on rank 0 puts together what all have measured.
//
// How a call is measured. The stream is held (by a wait for a word in host memory) until everything
// is enqueued, so host time is in no figure. Then, on the stream: a barrier of its own group, by
// which all start within a few microseconds; an event; the calls; an event. One call between
// the events is an isolated one, several make the time of a call in a row. Of ranks that all wait
// for each other the one that came last has waited for nobody, so the least of them counts; where
// data flows one way only (broadcast, reduce, send) the longest does, for it ends last.
//
// Opens the driver and NCCL (libraries.h) and keeps them. One call a process; single-threaded.
//
//   PRISM_ASSIGN_OR_RETURN(std::optional<engine::NetworkProfile> profile, ProfileAsRank(options));
#ifndef PRISM_NETPROFILE_PROFILE_RANK_H_
#define PRISM_NETPROFILE_PROFILE_RANK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/engine/network_profile.h"
#include "src/netprofile/control.h"

namespace prism::netprofile {

/// Of each of the first `nodes` the first rank and every `stride`-th after it, `ranks_per_node` in
/// all. nodes 0: the first `ranks_per_node` ranks, wherever they are.
struct GroupShape {
  uint32_t nodes = 0;
  uint32_t ranks_per_node = 0;
  uint32_t stride = 1;
};

struct Plan {
  uint64_t least_bytes = 1 << 10, most_bytes = uint64_t{1} << 30;
  double factor = 2;
  std::vector<trace::CommOp> operations;
  std::vector<uint32_t> types;     // of reductions
  std::vector<GroupShape> groups;  // besides the world
  uint32_t iterations = 20;        // calls in a row, at most: fewer where they are long
  uint32_t repeats = 20;

  std::vector<uint64_t> Sizes() const;
};

/// Parses "1KiB:1GiB:2".
absl::Status ParseSizes(const std::string& text, Plan* plan);
/// Parses "2,4,2x8,2x4/2": a number of ranks, or nodes x ranks a node, every so many-th of them.
absl::StatusOr<std::vector<GroupShape>> ParseGroups(const std::string& text);

struct RankOptions {
  Plan plan;
  Rendezvous rendezvous;
  std::optional<uint32_t> local_rank;  // none: the machine shows this process one GPU
  uint32_t local_world = 1;            // ranks on this machine, as far as known
  std::string driver, nccl, nvml;      // libraries; nvml may be ""
  std::string device;                  // "cuda", "host"
};

/// The profile on rank 0, nothing on the others. Aborted: another rank failed, and says why.
absl::StatusOr<std::optional<engine::NetworkProfile>> ProfileAsRank(const RankOptions& options);

}  // namespace prism::netprofile

#endif  // PRISM_NETPROFILE_PROFILE_RANK_H_
