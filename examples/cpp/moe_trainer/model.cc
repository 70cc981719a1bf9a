#include "examples/cpp/moe_trainer/model.h"

#include <cmath>

#include "examples/cpp/moe_trainer/random.h"

namespace moe_trainer {

int RowsOf(const Model& model, Role role) {
  switch (role) {
    case Role::kEmbedding:
      return model.vocabulary;
    case Role::kExpertDown:
      return model.expert_hidden;
    default:
      return model.hidden;
  }
}

int ColumnsOf(const Model& model, Role role) {
  switch (role) {
    case Role::kQkv:
      return 3 * model.hidden;
    case Role::kRouter:
      return model.experts;
    case Role::kExpertUp:
      return model.expert_hidden;
    case Role::kHead:
      return model.vocabulary;
    default:
      return model.hidden;
  }
}

std::string NameOf(const Matrix& matrix) {
  const std::string layer = "layers." + std::to_string(matrix.layer) + ".";
  const std::string expert = layer + "experts." + std::to_string(matrix.expert) + ".";
  switch (matrix.role) {
    case Role::kEmbedding:
      return "embedding";
    case Role::kQkv:
      return layer + "qkv";
    case Role::kProjection:
      return layer + "projection";
    case Role::kRouter:
      return layer + "router";
    case Role::kExpertUp:
      return expert + "up";
    case Role::kExpertDown:
      return expert + "down";
    case Role::kHead:
      return "head";
  }
  return "";
}

float InitialValue(const Model& model, const Matrix& matrix, int row, int column) {
  const double uniform =
      Uniform(model.seed, Stream::kParameter,
              {static_cast<uint64_t>(matrix.role), static_cast<uint64_t>(matrix.layer),
               static_cast<uint64_t>(matrix.expert), static_cast<uint64_t>(row),
               static_cast<uint64_t>(column)});
  const double scale =
      matrix.role == Role::kEmbedding ? 1 : 1 / std::sqrt(RowsOf(model, matrix.role));
  return static_cast<float>(scale * (2 * uniform - 1));
}

int TokenAt(const Model& model, int step, int sample, int position) {
  const uint64_t bits = Bits(model.seed, Stream::kToken,
                             {static_cast<uint64_t>(step), static_cast<uint64_t>(sample),
                              static_cast<uint64_t>(position)});
  return static_cast<int>(bits % static_cast<uint64_t>(model.vocabulary));
}

int TargetOf(const Model& model, int token) { return (3 * token + 1) % model.vocabulary; }

float PopularityOf(const Model& model, int layer, int expert) {
  return static_cast<float>(model.imbalance *
                            Normal(model.seed, Stream::kPopularity,
                                   {static_cast<uint64_t>(layer), static_cast<uint64_t>(expert)}));
}

}  // namespace moe_trainer
