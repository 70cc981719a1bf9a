// Replicas: the job as it would be with more, or fewer, replicas of data parallelism.
//
// Which ranks are replicas of each other cannot be seen in a graph (a group that shards a model by
// tensors makes the same calls as one that shards a batch), so one communicator is named whose
// members are one rank of each. Its members' distance says how the ranks are numbered, and every
// other communicator then has one of two roles:
//   copied   it lies within a replica, or within a block of replicas that exchange messages
//   (experts
//            over several of them): every copy of its ranks has one of its own
//   joined   only collectives, of all replicas (or every n-th): it has members in every copy
// What a replica does stays as it is: its micro-batches, so the whole batch grows. Joined
// collectives keep what they move in all: a ReduceScatter's or AllGather's part of each member
// becomes smaller, and with it what lies between the two, the work on the rank's shard. How long
// that takes follows the line through what kernels of that name took by size in the job.
//
// Refused: a group that exchanges messages between all replicas. Of what it shards there would be
// several copies, to be kept equal by communications that the job does not have.
//
// Stateless; thread-safe.
//
//   PRISM_ASSIGN_OR_RETURN(graph, WithReplicas(graph, /*communicator=*/2, 2, /*gpus_per_node=*/8));
#ifndef PRISM_GRAPH_REPLICAS_H_
#define PRISM_GRAPH_REPLICAS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "src/graph/graph.h"

namespace prism::graph {

/// The job with `factor` times its replicas. New ranks are numbered as the job's are: after the
/// replicas that there were, within whatever lies outside them (pipeline stages). Measured times of
/// communications that lie otherwise on nodes of `gpus_per_node` are no longer known.
/// InvalidArgument: there is no such communicator, or its members are not evenly distant.
/// FailedPrecondition: this job cannot be changed so; says which communicator stands against it.
absl::StatusOr<Graph> WithReplicas(const Graph& graph, uint32_t communicator, uint32_t factor,
                                   uint32_t gpus_per_node);

/// The job without the replica (or block of such) that world rank `failed` is in. The others keep
/// their numbers and places. Errors as above; InvalidArgument: there is no such rank.
absl::StatusOr<Graph> WithoutReplicaOf(const Graph& graph, uint32_t communicator, uint32_t failed);

}  // namespace prism::graph

#endif  // PRISM_GRAPH_REPLICAS_H_
