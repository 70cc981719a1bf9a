// Local ranks: processes forked from prism, one a rank, each of which computes a text.
//
// When the call returns, none of them is left: they are killed as soon as one fails or prism is
// interrupted, and by the kernel should prism be killed. Call it before any thread is made and any
// CUDA library is initialised. Single-threaded.
//
//   PRISM_ASSIGN_OR_RETURN(LocalRanks ended, RunLocalRanks(2, [](uint32_t rank) { ... }));
//   if (ended.interrupted_by == 0) Use(ended.of_rank_0);
#ifndef PRISM_CLI_LOCAL_RANKS_H_
#define PRISM_CLI_LOCAL_RANKS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "src/base/status.h"

namespace prism::cli {

struct LocalRanks {
  std::string of_rank_0;
  int interrupted_by = 0;  // the signal that prism got, or 0
};

/// Runs `body` in `count` processes whose standard output is prism's standard error. Of ranks that
/// fail, one that does not blame another one (Aborted) gives the status.
absl::StatusOr<LocalRanks> RunLocalRanks(
    uint32_t count, const std::function<absl::StatusOr<std::string>(uint32_t rank)>& body);

}  // namespace prism::cli

#endif  // PRISM_CLI_LOCAL_RANKS_H_
