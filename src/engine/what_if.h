// What-if: a job with something slower or faster, or with more or less of it.
//
//   rank:3=1.3           all kernels of rank 3 take 1.3 times as long
//   host:3=0.5           the host work of rank 3 takes half as long
//   kernel:gemm=0.8      kernels with "gemm" in their names, on all ranks
//   communicator:2=1.5   what communicator 2 does, alone, takes 1.5 times as long
//   port:3=0.5           the port of rank 3's GPU has half its bandwidth
//   nic:1.0=0.5          the first NIC of node 1 has half its bandwidth
//   nic:1.0=24GB/s       it lets no more than that through
//   replicas:2=2         twice as many replicas of data parallelism, of which the members of
//                        communicator 2 are one rank each (graph/replicas.h)
//   failed:3.2           the job goes on without the replica of rank 3, of those
//   micro-batches=2      twice as many micro-batches in every step (graph/micro_batches.h)
//
// A link's bandwidth changes what a communication's bytes take on it, and with it which of NCCL's
// algorithms is the quickest; that needs links that are known (a profile of prism netprofile). A
// factor is on what messages between the nearest nodes were measured to reach; where switches let
// less through than NICs do, only the NIC's own figure says what it is then. The last three make
// another job of it, of which durations are then taken. Stateless; thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(const WhatIf what_if, ParseWhatIf("rank:3=1.3"));
//   PRISM_ASSIGN_OR_RETURN(const Durations d, DurationsIf({&what_if, 1}, graph, model));
#ifndef PRISM_ENGINE_WHAT_IF_H_
#define PRISM_ENGINE_WHAT_IF_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/engine/cost_model.h"
#include "src/engine/engine.h"
#include "src/engine/target.h"
#include "src/graph/graph.h"

namespace prism::engine {

struct WhatIf {
  enum class Kind {
    kRank,
    kHost,
    kKernel,
    kCommunicator,
    kPort,
    kNic,
    kReplicas,
    kFailed,
    kMicroBatches
  };
  Kind kind = Kind::kRank;
  uint32_t number = 0;        // world rank, communicator or node
  uint32_t nic = 0;           // of the node
  uint32_t communicator = 0;  // of replicas, one of which `number` fails
  std::string kernel;         // part of its name
  double factor = 1;          // of a duration, of a bandwidth, or of a number of replicas
  double bytes_per_s = 0;     // of a NIC, in place of a factor; 0: it is a factor

  /// Whether the job is another one, and not only slower or faster.
  bool changes_job() const { return kind >= Kind::kReplicas; }

  /// "kernels of rank 3 take 1.3 times as long"
  std::string Text() const;
};

/// InvalidArgument says what is wrong, and shows the forms.
absl::StatusOr<WhatIf> ParseWhatIf(const std::string& text);

/// Adds or removes replicas; `target` grows by the nodes that the job then needs. Nothing is done
/// for what-ifs of other kinds. Errors: graph/replicas.h.
absl::Status ChangeReplicas(const WhatIf& what_if, graph::Graph* graph, Target* target);

/// What `model` says of the graph with all of these; several changes of one thing multiply.
/// InvalidArgument: the job has no such rank, communicator, kernel or node. FailedPrecondition:
/// nothing is known of links. Nothing is done for what changes the job.
absl::StatusOr<Durations> DurationsIf(std::span<const WhatIf> what_ifs, const graph::Graph& graph,
                                      const CostModel& model, Factors factors = {});

}  // namespace prism::engine

#endif  // PRISM_ENGINE_WHAT_IF_H_
