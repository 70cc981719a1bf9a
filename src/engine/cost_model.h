// Cost model: durations of a graph's operations on a target, each with its source.
//
//   communication  a measured table (network_table.h) where it has the operation, measured or
//                  interpolated; else NCCL's formulas (communication_cost.h), modelled
//   products, convolutions, attention  roofline of the GPU by the shapes in the kernel's name
//                  (docs/reference/kernel-names.md), modelled
//   copies, sets   bytes over bandwidth, modelled
//   elementwise    grid x block x the bytes a thread moves by the types in the kernel's name,
//                  assumed
//   other kernels  grid x block x a stated number of bytes, assumed
//   host           the trace's own time, else calls x a stated time, assumed
// A duration that the trace has measured is used instead (by the engine).
//
// Calls of one ncclGroup on a stream: one message to and from every other member of a communicator
// is an all-to-all of their mean size; of other messages each takes as long as one of the size of
// all those of its direction together, which share the rank's links.
//
// Immutable; thread-safe.
//
//   CostModel model(target);
//   Durations d = model.DurationsOf(graph);
#ifndef PRISM_ENGINE_COST_MODEL_H_
#define PRISM_ENGINE_COST_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "src/engine/engine.h"
#include "src/engine/network_table.h"
#include "src/engine/target.h"

namespace prism::engine {

/// Factors on durations: what-if, ranges, shares.
struct Factors {
  double by_source[4] = {1, 1, 1, 1};  // by TimeSource
  double compute = 1;
  double communication = 1;
  double host = 1;
  /// On the bandwidth of links, both directions, by the number of the first one (PortLink,
  /// NicLink).
  std::map<uint32_t, double> bandwidth = {};
};

struct KernelTime {
  int64_t ns;
  TimeSource source;
};

/// Work of a kernel by its name, where the name says it; `type` is a part of that name and lives as
/// long.
struct KernelWork {
  double flops;
  double bytes;
  std::string_view type;  // of the inputs, "bf16"
  double tiles;           // independent 128 x 128 pieces of output; 0: not known
  double depth;           // of the sum in each
};
std::optional<KernelWork> ParseKernelWork(const graph::Kernel& kernel);

class CostModel {
 public:
  /// `network`: null for formulas alone.
  explicit CostModel(Target target, std::shared_ptr<const NetworkTable> network = nullptr)
      : target_(std::move(target)), network_(std::move(network)) {}

  const Target& target() const { return target_; }
  KernelTime TimeOf(const graph::Kernel& kernel) const;
  Durations DurationsOf(const graph::Graph& graph, const Factors& factors = {}) const;
  /// Whether communications have links that they share: the profile says which there are.
  bool shares_links() const { return network_ != nullptr && network_->profile().links.has_value(); }
  /// Numbers, in Durations::shares, of the two directions of a link are this and the next one: of
  /// the port of a world rank's GPU, of a NIC of a node. None: there is no such link.
  std::optional<uint32_t> PortLink(const graph::Graph& graph, uint32_t rank) const;
  std::optional<uint32_t> NicLink(const graph::Graph& graph, uint32_t node, uint32_t nic) const;
  /// What messages were measured to reach by a port, and by a NIC, where nodes are nearest; none:
  /// not known.
  std::optional<double> PortBytesPerS() const {
    return network_ == nullptr ? std::nullopt : network_->PortBytesPerS();
  }
  std::optional<double> NicBytesPerS() const {
    return network_ == nullptr ? std::nullopt : network_->NicBytesPerS();
  }

 private:
  /// What a rank sends or receives in one ncclGroup on a stream.
  struct Messages {
    uint64_t near_bytes = 0, far_bytes = 0;  // on the node, beyond it
    bool with_every_peer = false;            // one to and from each member of one communicator
  };
  std::vector<Messages> MessagesOf(const graph::Graph& graph, const graph::Rank& rank) const;
  NetworkTime CollectiveTime(const graph::Call& call, const Placement& at,
                             const LinkModel::Speed& speed) const;
  NetworkTime GroupedTime(const graph::Call& call, const Messages& messages,
                          const Placement& at) const;
  NetworkTime MessageTime(const graph::Call& call, uint32_t from, uint32_t to,
                          const LinkModel::Speed& speed) const;

  Target target_;
  std::shared_ptr<const NetworkTable> network_;
};

}  // namespace prism::engine

#endif  // PRISM_ENGINE_COST_MODEL_H_
