// Diagnosis: why a job can not go on, said so that its author finds the line.
//
// From plain facts (who waits for whom, who is gone) to a sentence, the parties with what each
// expected and where, and a remedy. Owns no state; the coordinator supplies the facts. Thread-safe.
//
//   Diagnosis d = DiagnoseBlocked(waits, ranks);
//   d.Text();    "AllReduce #12 of communicator 1: rank 3 did not come\n  ranks 0-2,4-15 ..."
#ifndef PRISM_COORDINATOR_DIAGNOSIS_H_
#define PRISM_COORDINATOR_DIAGNOSIS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace prism::coordinator {

/// "0-2,4-15" of a set of ranks.
std::string RankList(std::vector<uint32_t> ranks);
/// "rank 3" or "ranks 0-2,4-15".
std::string Ranks(std::vector<uint32_t> ranks);

/// One side of a diagnosis: ranks that did or expected the same.
struct Party {
  std::vector<uint32_t> ranks;
  std::string text;       // "calls AllReduce float32 sum, 1000 elements"
  std::string call_site;  // "train.py:12 in step < train.py:40 in main"; "" where unknown
  /// Of parties that wait in different communications: which; else the diagnosis's.
  uint32_t comm = 0;
  uint64_t call = 0;
};

struct Diagnosis {
  std::string kind;  // mismatch | missing | cycle | blocked | raised | died | exited |
                     // communicator | interception | internal
  std::string headline;
  uint32_t comm = 0;                 // 0: none concerned
  std::vector<uint32_t> comm_ranks;  // world ranks of that communicator
  std::optional<uint64_t> call;      // n-th call (from 1) of the communicator, or between two ranks
  std::vector<Party> parties;
  std::string hint;

  std::string Text() const;
  nlohmann::ordered_json Json() const;
  /// What Json() wrote; members that are not there, or are something else, stay empty.
  static Diagnosis FromJson(const nlohmann::ordered_json& json);
};

/// How a rank's process ended.
struct ProcessEnd {
  int exit_code = -1;  // -1: unknown, or a signal
  int signal = 0;
  std::string error;  // last line of the traceback: "RuntimeError: x"
  std::string traceback;
  std::string call_site;  // innermost user frame of the traceback
  /// "exited with code 1", "was killed by SIGKILL (9)", "is gone".
  std::string Text() const;
  bool failed() const { return exit_code > 0 || signal != 0; }
};

struct RankState {
  enum class Life { kNotStarted, kStarted, kConnected, kGone };
  uint32_t rank = 0;
  Life life = Life::kNotStarted;
  ProcessEnd end;  // kGone
  std::string
      last_call;  // "AllReduce #11 of communicator 1 at train.py:12"; "" when it has made none
  int64_t idle_ns = 0;  // for how long it has not worked
  bool sleeps = false;  // in a sleep that ends by itself
  std::string where;    // innermost frames of the program; "" where unknown
};

/// A communication, or the making of a communicator, that at least one rank waits in.
struct Wait {
  enum class Kind { kCollective, kPointToPoint, kCommunicator };
  struct Member {
    uint32_t rank = 0;        // world rank
    bool called = false;      // the call was made
    bool waiting = false;     // the rank's stream (or its host, for a communicator) has reached it
    std::string expectation;  // "AllReduce float32 sum, 1000 elements"
    std::string call_site;
  };
  Kind kind = Kind::kCollective;
  std::string name;  // "AllReduce #12 of communicator 1"
  uint32_t comm = 0;
  std::vector<uint32_t> comm_ranks;
  uint64_t call = 0;
  std::vector<Member> members;
  int64_t since_ns = 0;  // when the first member began to wait
  // How many are awaited; fewer than the members not waiting where it is not known which of these
  // would come.
  size_t absent = SIZE_MAX;
};

/// Several ranks disagree about one call. `expectations` has one entry a rank that has called.
Diagnosis DiagnoseMismatch(const Wait& wait);
/// Nobody can go on: names a participant that does not come, or the cycle.
Diagnosis DiagnoseBlocked(const std::vector<Wait>& waits, const std::vector<RankState>& ranks);
/// A process ended while it was needed, or with a failure. `waits` may be empty.
Diagnosis DiagnoseEnd(const RankState& gone, const std::vector<Wait>& waits);
/// All ranks that live are blocked, and none of them in a communication.
Diagnosis DiagnoseIdle(const std::vector<RankState>& ranks);
/// "waiting for rank 3: ranks 0-2 wait in AllReduce #12 of communicator 1 at train.py:12; rank 3
/// sleeps at train.py:30"; "" without waits.
std::string StatusLine(const std::vector<Wait>& waits, const std::vector<RankState>& ranks);
/// Of a job in which no rank works or communicates: "rank 1 sleeps at train.py:30 (for 12 s); rank
/// 0 exited with code 0".
std::string IdleLine(const std::vector<RankState>& ranks);

}  // namespace prism::coordinator

#endif  // PRISM_COORDINATOR_DIAGNOSIS_H_
