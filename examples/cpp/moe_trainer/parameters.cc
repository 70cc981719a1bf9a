#include "examples/cpp/moe_trainer/parameters.h"

namespace moe_trainer {

Group GroupOf(Domain domain) {
  switch (domain) {
    case Domain::kDense:
      return Group::kData;
    case Domain::kExperts:
      return Group::kExpertData;
    case Domain::kReplicated:
      return Group::kStage;
  }
  return Group::kStage;
}

namespace {

std::vector<Shard>& ShardsOf(Unit& unit, Domain domain) {
  return unit.shards[static_cast<int>(domain)];
}

Shard Whole(const Model& model, const Matrix& matrix) {
  return {.matrix = matrix,
          .rows = RowsOf(model, matrix.role),
          .columns = ColumnsOf(model, matrix.role)};
}

Unit LayerUnit(const Model& model, const Parallelism& sizes, const Place& place, int layer) {
  Unit unit;
  unit.layer = layer;
  Shard qkv = Whole(model, {Role::kQkv, layer});
  qkv.columns /= sizes.tensor;
  qkv.column = place.tensor * qkv.columns;
  Shard projection = Whole(model, {Role::kProjection, layer});
  projection.rows /= sizes.tensor;
  projection.row = place.tensor * projection.rows;
  ShardsOf(unit, Domain::kDense) = {qkv, projection};
  ShardsOf(unit, Domain::kReplicated) = {Whole(model, {Role::kRouter, layer})};
  const int experts = model.experts / sizes.expert;
  for (const Role role : {Role::kExpertUp, Role::kExpertDown})
    for (int i = 0; i < experts; ++i)
      ShardsOf(unit, Domain::kExperts)
          .push_back(Whole(model, {role, layer, place.expert_rank * experts + i}));
  return unit;
}

Unit PlainUnit(const Model& model, Unit::Kind kind, Role role) {
  Unit unit;
  unit.kind = kind;
  ShardsOf(unit, Domain::kReplicated) = {Whole(model, {role})};
  return unit;
}

}  // namespace

ParameterLayout LayOutParameters(const Model& model, const Parallelism& sizes, const Place& place,
                                 size_t bucket_elements) {
  ParameterLayout layout;
  const int parts = sizes.pipeline * sizes.interleave;
  const int layers = model.layers / parts;
  for (int chunk = 0; chunk < sizes.interleave; ++chunk) {
    const int part = chunk * sizes.pipeline + place.stage;
    auto& units = layout.chunks.emplace_back();
    if (part == 0) units.push_back(PlainUnit(model, Unit::Kind::kEmbedding, Role::kEmbedding));
    for (int i = 0; i < layers; ++i)
      units.push_back(LayerUnit(model, sizes, place, part * layers + i));
    if (part == parts - 1) units.push_back(PlainUnit(model, Unit::Kind::kHead, Role::kHead));
  }
  // Backward order: the last chunk first, units from the last.
  for (int chunk = sizes.interleave - 1; chunk >= 0; --chunk) {
    auto& units = layout.chunks[static_cast<size_t>(chunk)];
    Bucket open[kDomains];
    const auto close = [&](int domain) {
      Bucket& bucket = open[domain];
      if (bucket.elements == 0) return;
      const auto ranks = static_cast<size_t>(SizeOf(sizes, GroupOf(bucket.domain)));
      bucket.elements = (bucket.elements + ranks - 1) / ranks * ranks;
      layout.elements[domain] = bucket.begin + bucket.elements;
      layout.buckets.push_back(bucket);
      bucket = {};
    };
    for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
      for (int domain = 0; domain < kDomains; ++domain) {
        auto& shards = units[static_cast<size_t>(unit)].shards[domain];
        if (shards.empty()) continue;
        Bucket& bucket = open[domain];
        if (bucket.elements == 0) {
          bucket = {.domain = static_cast<Domain>(domain),
                    .begin = layout.elements[domain],
                    .chunk = chunk,
                    .last_unit = unit};
        }
        for (Shard& shard : shards) {
          shard.offset = bucket.begin + bucket.elements;
          bucket.elements += shard.elements();
        }
        bucket.first_unit = unit;
        if (bucket.elements >= bucket_elements) close(domain);
      }
    }
    for (int domain = 0; domain < kDomains; ++domain) close(domain);
  }
  return layout;
}

}  // namespace moe_trainer
