// Rules: which value an emulated rank is given by which communication, from a file
// (docs/reference/rules.md). With them the rank needs neither its peers nor what they sent.
//
// Not thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(Rules rules, Rules::Load("rules.json", /*rank=*/3));
//   std::optional<std::string_view> given = rules.Give(call);
//   // none: no rule says; empty: of the rank's own data
//   PRISM_RETURN_IF_ERROR(rules.status());
#ifndef PRISM_EMULATE_RULES_H_
#define PRISM_EMULATE_RULES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/coordinator/received_payloads.h"
#include "src/emulate/router.h"
#include "src/wire/protocol.h"

namespace prism::emulate {

class Rules {
 public:
  struct Call {
    uint32_t comm;    // job-wide number
    uint32_t size;    // of the communicator
    uint32_t member;  // that receives
    wire::OpRecord record;
    uint64_t order;         // collectives: of the communicator; messages: from this peer
    std::string_view sent;  // all-to-alls, and all messages of the group: what goes to each member
  };

  /// `rank`: of the world, whose recorded payloads are wanted. InvalidArgument: the file is no such
  /// file; the message names the place, the value and the remedy.
  static absl::StatusOr<Rules> Load(const std::string& path, uint32_t rank);
  static absl::StatusOr<Rules> Parse(const nlohmann::json& json, const std::string& name,
                                     const std::string& folder, uint32_t rank);

  /// What a call gives: out_bytes bytes, empty where it is to be made of the rank's own data, none
  /// where no rule says. Valid until the next call.
  std::optional<std::string_view> Give(const Call& call);
  /// A rule that could not be followed, the first one.
  const absl::Status& status() const { return status_; }
  /// Payloads that rules have given.
  uint64_t given() const { return given_; }
  /// The largest payload that a rule may give.
  uint64_t largest_bytes() const;

 private:
  struct Noise {
    uint64_t seed = 0;
    double mean = 0, deviation = 1;
  };
  struct Rule {
    std::set<wire::Op> operations;  // empty: all
    std::set<uint32_t> types;
    std::optional<uint32_t> comm, size;
    std::pair<uint64_t, uint64_t> bytes{0, UINT64_MAX}, calls{0, UINT64_MAX};
    enum class What { kOwn, kZeros, kNoise, kRecorded, kRouter } what = What::kOwn;
    Noise noise;
    std::shared_ptr<const coordinator::ReceivedPayloads> recorded;
    std::shared_ptr<MockRouter> router;
  };
  static absl::StatusOr<Rule> ParseRule(const nlohmann::json& json, const std::string& where,
                                        const std::string& folder, uint32_t rank);
  static absl::Status ParseGive(const nlohmann::json& json, const std::string& where,
                                const std::string& folder, uint32_t rank, Rule* rule);
  static bool Matches(const Rule& rule, const Call& call);
  bool FillNoise(const Rule& rule, const Call& call);
  bool FillRecorded(const Rule& rule, const Call& call);
  absl::StatusOr<bool> FillRouted(const Rule& rule, const Call& call);

  std::vector<Rule> rules_;
  uint32_t rank_ = 0;
  std::string bytes_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> exchanges_;  // communicator, source: so far
  absl::Status status_ = absl::OkStatus();
  uint64_t given_ = 0;
};

}  // namespace prism::emulate

#endif  // PRISM_EMULATE_RULES_H_
