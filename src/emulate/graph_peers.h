// GraphPeers: plays the ranks of a captured graph that have no process.
//
// Each communication of a sandbox rank is found in the graph by its communicator and number; the
// live engine says when its partners reach theirs. Times are those of the clock that the callers
// use (nanoseconds); peers start at 0 and meet the sandbox rank at the first communicator.
//
//   GraphPeers peers(std::move(graph), InstantPeers(graph, model.DurationsOf(graph)), {0});
//   coordinator::Coordinator coordinator(rules, &outbox, &peers);
#ifndef PRISM_EMULATE_GRAPH_PEERS_H_
#define PRISM_EMULATE_GRAPH_PEERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/coordinator/received_payloads.h"
#include "src/coordinator/virtual_peers.h"
#include "src/emulate/rules.h"
#include "src/engine/engine.h"
#include "src/graph/graph.h"

namespace prism::emulate {

/// `durations` for peers that do nothing but communicate: they are always there before the sandbox
/// rank, and a communication takes what it takes from when that one comes.
engine::Durations InstantPeers(engine::Durations durations);

class GraphPeers final : public coordinator::VirtualPeers {
 public:
  /// `sandbox`: world ranks that run for real.
  GraphPeers(graph::Graph graph, engine::Durations durations, const std::vector<uint32_t>& sandbox);

  absl::StatusOr<Group> Join(uint32_t rank, uint32_t size, uint32_t comm_rank,
                             int64_t now_ns) override;
  std::optional<Call> Collective(uint32_t comm, uint32_t member, uint64_t order) override;
  std::optional<Call> Message(uint32_t comm, uint32_t member, wire::Op op, uint32_t peer,
                              uint64_t order) override;
  void Arrive(uint32_t comm, uint32_t member, const wire::OpRecord& record, uint64_t order,
              uint64_t token, uint64_t group, int64_t now_ns) override;
  std::vector<Meeting> Advance(int64_t until_ns) override;
  int64_t NextNs() override { return live_->NextNs(); }
  std::string_view Received(uint32_t comm, uint32_t member, const wire::OpRecord& record,
                            uint64_t order, std::string_view brought,
                            std::string_view sent) override;

  /// What sandbox ranks were given in the captured job.
  void SetReceived(coordinator::ReceivedPayloads received) { received_ = std::move(received); }
  /// What they are given instead, where a rule says; outlives this object.
  void SetRules(Rules* rules) { rules_ = rules; }

  /// Communications of sandbox ranks so far, and messages among them of another size than in the
  /// graph.
  uint64_t visits() const { return visits_; }
  uint64_t resized() const { return resized_; }

 private:
  /// The calls that a rank makes, in order.
  struct Calls {
    std::vector<std::vector<uint32_t>> collectives;                       // [participant][order]
    std::map<std::pair<uint32_t, bool>, std::vector<uint32_t>> messages;  // [channel, is a send]
    std::set<uint32_t> end_early, begin_early;  // sends, before their receives come
  };
  const Calls& CallsOf(uint32_t rank);
  std::optional<uint32_t> Find(uint32_t comm, uint32_t member, wire::Op op, uint32_t peer,
                               uint64_t order);
  std::optional<Call> Describe(uint32_t comm, uint32_t member, std::optional<uint32_t> call) const;

  const graph::Graph graph_;
  const engine::Durations durations_;
  std::vector<uint8_t> outside_;                      // by index in graph_.ranks
  std::map<uint32_t, uint32_t> index_;                // world rank -> index
  std::map<uint32_t, std::set<uint32_t>> joined_;     // index -> participants
  std::map<uint32_t, std::unique_ptr<Calls>> calls_;  // by index
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> channels_;  // comm, from, to
  std::unique_ptr<engine::LiveEvaluation> live_;
  std::vector<Meeting> met_;  // what the graph does not know
  uint64_t visits_ = 0, resized_ = 0;
  coordinator::ReceivedPayloads received_;
  Rules* rules_ = nullptr;
};

}  // namespace prism::emulate

#endif  // PRISM_EMULATE_GRAPH_PEERS_H_
