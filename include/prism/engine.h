/// The engine: when everything in a graph happens on a target.
///
///   auto target = prism::engine::ParseTarget("h200x8:2");
///   auto outcome = prism::Evaluate(*graph, *target);
///   printf("%.3f ms\n", outcome->finish_ns / 1e6);
///
/// For durations of your own (measured, or a what-if) fill engine::Durations and call
/// engine::Evaluate; contracts are in src/engine/{engine,cost_model,target}.h. Deterministic; one
/// evaluation uses one thread, several share nothing.
#ifndef PRISM_INCLUDE_ENGINE_H_
#define PRISM_INCLUDE_ENGINE_H_

#include "src/engine/cost_model.h"
#include "src/engine/engine.h"
#include "src/engine/target.h"

namespace prism {

/// Evaluates a job with modelled durations. FailedPrecondition names operations that can never
/// complete.
inline absl::StatusOr<engine::Outcome> Evaluate(const graph::Graph& graph,
                                                const engine::Target& target,
                                                const engine::Options& options = {}) {
  return engine::Evaluate(graph, engine::CostModel(target).DurationsOf(graph), options);
}

}  // namespace prism

#endif  // PRISM_INCLUDE_ENGINE_H_
