// nccl-tests: network profiles from what all_reduce_perf and its siblings print.
//
// Takes the text of any number of runs, also several in one file and with mpirun's tags in front of
// the lines; results of the same operation, type, group and size are samples of one entry. Times
// are those of the out-of-place calls, which nccl-tests makes in a row. Plain; single-threaded.
//
//   NcclTests tests;
//   PRISM_RETURN_IF_ERROR(tests.Add("all_reduce_perf.txt", text));
//   PRISM_ASSIGN_OR_RETURN(engine::NetworkProfile profile, tests.Profile());
#ifndef PRISM_INTERCHANGE_NCCL_TESTS_H_
#define PRISM_INTERCHANGE_NCCL_TESTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "src/base/status.h"
#include "src/engine/network_profile.h"

namespace prism::interchange {

/// What the text may not say.
struct NcclTestsOptions {
  /// Where neither a line "Collective test starting" nor the file's name tells.
  std::optional<trace::CommOp> operation = {};
  /// Where no lines "Rank ... on HOST device" tell.
  std::optional<uint32_t> ranks = {};
  uint32_t nodes = 1;
};

class NcclTests {
 public:
  explicit NcclTests(NcclTestsOptions options = {}) : options_(options) {}

  /// `name` is the file's: it is in messages, and may tell the operation. InvalidArgument names the
  /// line that cannot be read; DataLoss: the test found wrong results.
  absl::Status Add(const std::string& name, std::string_view text);

  /// InvalidArgument: there were no results.
  absl::StatusOr<engine::NetworkProfile> Profile() const;

 private:
  using Key = std::tuple<trace::CommOp, std::optional<uint32_t>, uint32_t, uint32_t, uint64_t>;

  NcclTestsOptions options_;
  std::map<Key, std::vector<double>> samples_ns_;
  std::string gpu_, nccl_;
  uint32_t most_ranks_ = 0;
  std::vector<std::string> files_;
};

}  // namespace prism::interchange

#endif  // PRISM_INTERCHANGE_NCCL_TESTS_H_
