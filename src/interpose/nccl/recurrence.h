// Recurrence: which large payloads a member of a communicator still exchanges, and what it gets in
// place of the others (exchange policy "control", docs/design/0017-exchange-policies.md).
//
// A large call recurs if its like (operation, type, reduction, root or peer; of collectives also
// the size, to a power of two) has moved in an earlier round, that is, before the last update of
// the weights (driver/rounds.h). The members of a communicator make the same calls in the same
// rounds, so they decide alike without a word; where one has no rounds of its own, the controller
// does without the payload. What was received last while it moved is kept: of a call the first
// kKeptBytes, of a process kKeptTotalBytes, of the first call of a unit onwards.
//
// Owned by a communicator. Thread-safe.
//
//   const Recurrence::Place place = recurrence.Begin(core.round(), record);   // of a unit
//   if (recurrence.Recurs(place, record)) source = recurrence.Find(place, record);
#ifndef PRISM_INTERPOSE_NCCL_RECURRENCE_H_
#define PRISM_INTERPOSE_NCCL_RECURRENCE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "src/interpose/core_table.h"
#include "src/wire/protocol.h"

namespace prism::interpose::nccl {

class Recurrence {
 public:
  static constexpr uint64_t kKeptBytes = uint64_t{1} << 20;
  static constexpr uint64_t kKeptTotalBytes = uint64_t{64} << 20;
  static constexpr size_t kSignatures = 4096;  // of a communicator; others always move

  /// What a unit is, by its first call: the operation (messages are one) and of a collective the
  /// size, to a power of two.
  using Kind = std::pair<wire::Op, int>;
  /// Where in its round a unit is: the how-manieth of its kind. So what a set-up communicates
  /// otherwise than a step does not displace the step's calls.
  struct Place {
    uint32_t round;
    Kind kind;
    uint32_t ordinal;
  };
  struct Kept {
    wire::Op op;
    uint32_t round;
    uint64_t bytes;
    ArenaSlot slot;
  };

  Recurrence() = default;
  ~Recurrence();
  Recurrence(const Recurrence&) = delete;
  Recurrence& operator=(const Recurrence&) = delete;

  /// Places the next unit, which begins with `record`; rounds never fall.
  Place Begin(uint32_t round, const wire::OpRecord& record);
  /// Whether a large call's payload need not move. It is noted as seen.
  bool Recurs(const Place& place, const wire::OpRecord& record);
  /// Where to keep what a call that moves, the unit's `index`-th, receives; lives as long as this
  /// object. Null: nothing is received, or there is no room.
  const Kept* Keep(const CoreTable& core, const Place& place, size_t index,
                   const wire::OpRecord& record);
  /// What was kept of the unit at the same place of an earlier round: for a message that of its
  /// peer, else of another. Null: nothing.
  const Kept* Find(const Place& place, size_t index, const wire::OpRecord& record) const;

 private:
  using Signature = std::tuple<wire::Op, uint32_t, uint32_t, int32_t, int>;
  static int64_t KeyOf(size_t index, const wire::OpRecord& record);

  mutable std::mutex mutex_;
  uint32_t round_ = 0;
  std::map<Kind, uint32_t> units_;  // of this round
  std::map<Signature, uint32_t> first_round_;
  std::map<std::pair<Kind, uint32_t>, std::map<int64_t, Kept>> kept_;  // by kind and ordinal, key
  const CoreTable* core_ = nullptr;                                    // of what is kept
};

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_RECURRENCE_H_
