// Pieces of work that do not depend on each other, on several threads.
//
//   std::vector<Outcome> outcomes(draws);
//   PRISM_RETURN_IF_ERROR(InParallel(draws, 0, [&](size_t i) { ... outcomes[i] = ... }));
#ifndef PRISM_BASE_PARALLEL_H_
#define PRISM_BASE_PARALLEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace prism {

/// Calls work(0) to work(count - 1) on at most `threads` threads, of which the caller's is one;
/// what is done with a number must not depend on another's. Returns the failure of the least number
/// that failed; numbers after a failure may be left out. 0 threads: as many as the machine runs at
/// once.
absl::Status InParallel(size_t count, uint32_t threads,
                        const std::function<absl::Status(size_t)>& work);

}  // namespace prism

#endif  // PRISM_BASE_PARALLEL_H_
