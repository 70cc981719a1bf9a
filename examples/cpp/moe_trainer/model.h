// What is trained: sizes, initial parameters, data. The definition that the program and its
// reference have in common; how it is computed is each one's own.
//
// A decoder: embedding; layers of causal attention and of a mixture of experts, each added to its
// input; a head with cross-entropy. Tokens choose `top_k` experts by value: the largest logits, the
// lower expert where equal, weighted by the softmax of the chosen. Experts are silu between two
// matrices. No normalization and no bias. Trained by SGD with momentum.
//
// Everything is keyed by the global position of a value, so it does not depend on how many
// processes share the work. Stateless, thread-safe.
#ifndef MOE_TRAINER_MODEL_H_
#define MOE_TRAINER_MODEL_H_

#include <cstdint>
#include <string>

namespace moe_trainer {

struct Model {
  int layers = 4, hidden = 64, heads = 4, expert_hidden = 128, experts = 8, top_k = 2;
  int sequence = 32, vocabulary = 64;
  int micro_batches = 4;  // of each data-parallel rank, one sequence each
  double imbalance = 0;   // standard deviation of the experts' log popularity
  float learning_rate = 0.05f, momentum = 0.9f;
  uint64_t seed = 1;

  int head_size() const { return hidden / heads; }
};

enum class Role { kEmbedding, kQkv, kProjection, kRouter, kExpertUp, kExpertDown, kHead };

/// A matrix of the model. Shapes: embedding vocabulary x hidden; qkv hidden x 3 hidden, its columns
/// ordered by head, then q, k, v; projection hidden x hidden; router hidden x experts; expert up
/// hidden x expert_hidden, down expert_hidden x hidden; head hidden x vocabulary.
struct Matrix {
  Role role = Role::kEmbedding;
  int layer = 0, expert = 0;
};
int RowsOf(const Model& model, Role role);
int ColumnsOf(const Model& model, Role role);
/// "embedding", "layers.3.qkv", "layers.3.experts.5.up", "head".
std::string NameOf(const Matrix& matrix);
/// Uniform in (-s, s), s = 1 / sqrt(rows); the embedding in (-1, 1).
float InitialValue(const Model& model, const Matrix& matrix, int row, int column);

/// The token at `position` of a sequence. `sample` counts the sequences of a step: data rank *
/// micro_batches + micro-batch.
int TokenAt(const Model& model, int step, int sample, int position);
/// What is to be predicted there: a fixed function of the token, so it can be learnt.
int TargetOf(const Model& model, int token);

/// How popular an expert is: added to its logit. Normal with the model's imbalance.
float PopularityOf(const Model& model, int layer, int expert);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_MODEL_H_
