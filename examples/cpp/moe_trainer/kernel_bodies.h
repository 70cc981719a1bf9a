// What the kernels compute, as C++ functions on float: the CPU bodies under --real.
//
// Matrices are row-major. Every sum goes over ascending indices from zero, one accumulator each;
// `accumulate` adds the finished sum. Stateless, thread-safe.
#ifndef MOE_TRAINER_KERNEL_BODIES_H_
#define MOE_TRAINER_KERNEL_BODIES_H_

#include <cstdint>

namespace moe_trainer {

/// Bits of a product's form.
inline constexpr int kTransposeA = 1;  // a is stored inner x rows
inline constexpr int kTransposeB = 2;  // b is stored columns x inner
inline constexpr int kAccumulate = 4;  // c += a b

/// c (rows x columns) = a b.
void GemmBody(float* c, const float* a, const float* b, int rows, int columns, int inner, int form);

/// out[i] = table[tokens[i]].
void EmbedBody(float* out, const float* table, const int* tokens, int rows, int hidden);
/// table_gradient[tokens[i]] += gradient[i].
void EmbedGradientBody(float* table_gradient, const float* gradient, const int* tokens, int rows,
                       int hidden);

/// Causal attention of one sequence. qkv: sequence x (heads x (q, k, v) x size).
void AttentionBody(float* out, const float* qkv, int sequence, int heads, int size);
void AttentionGradientBody(float* qkv_gradient, const float* out_gradient, const float* qkv,
                           int sequence, int heads, int size);

/// out = a + b.
void AddBody(float* out, const float* a, const float* b, int64_t count);
/// out = x sigmoid(x).
void SiluBody(float* out, const float* x, int64_t count);
/// gradient *= silu'(x).
void SiluGradientBody(float* gradient, const float* x, int64_t count);

/// Chooses each row's `top_k` largest logits, to which `popularity` is added; of equal ones the
/// lower expert. experts_of, gates: rows x top_k in the order of choice. counts: of each expert's
/// rows. positions: where the row's copy lies when all copies are sorted by (expert, row).
void RouteBody(float* gates, int* experts_of, int* positions, int* counts, const float* logits,
               const float* popularity, int rows, int experts, int top_k);
/// logit_gradients (rows x experts), zero for experts that were not chosen.
void RouteGradientBody(float* logit_gradients, const float* gate_gradients, const float* gates,
                       const int* experts_of, int rows, int experts, int top_k);

/// out[positions[i][slot]] = in[i].
void DispatchBody(float* out, const float* in, const int* positions, int rows, int top_k,
                  int width);
/// out[i] = in[i] + sum over slots of gates[i][slot] returned[positions[i][slot]].
void CombineBody(float* out, const float* in, const float* returned, const float* gates,
                 const int* positions, int rows, int top_k, int width);
/// Of CombineBody: the gradients of the returned rows and of the gates.
void CombineGradientBody(float* returned_gradient, float* gate_gradients, const float* out_gradient,
                         const float* returned, const float* gates, const int* positions, int rows,
                         int top_k, int width);
/// Of DispatchBody: gradient[i] = base[i] + sum over slots of dispatched[positions[i][slot]].
void DispatchGradientBody(float* gradient, const float* base, const float* dispatched,
                          const int* positions, int rows, int top_k, int width);

/// Rows that came by (source, expert) put in the order (expert, source), or back (`inverse`).
/// counts: sources x experts.
void GroupRowsBody(float* out, const float* in, const int* counts, int sources, int experts,
                   int width, int inverse);
/// Rows of expert e (grouped, see above) times weights[e]; kTransposeB: times its transpose.
void ExpertGemmBody(float* c, const float* a, const float* weights, const int* counts, int sources,
                    int experts, int columns, int inner, int form);
/// gradients[e] (rows x columns) += a_e^T b_e over the rows of expert e.
void ExpertWeightGradientBody(float* gradients, const float* a, const float* b, const int* counts,
                              int sources, int experts, int rows, int columns);

/// Cross-entropy: loss[0] += sum over rows of scale * -log softmax(logits[i])[targets[i]]; logits
/// become their gradient.
void CrossEntropyBody(float* loss, float* logits, const int* targets, int rows, int classes,
                      float scale);

/// velocity = momentum velocity + gradient; parameter -= learning_rate velocity.
void SgdBody(float* parameters, float* velocity, const float* gradients, int64_t count,
             float learning_rate, float momentum);

/// Routing of --timed: counts drawn with the seed (see routing.h).
void DrawCountsBody(int* counts, uint64_t seed, int step, int layer, int micro_batch,
                    int token_rank, int rows, int experts, int top_k, double imbalance);

}  // namespace moe_trainer

#endif  // MOE_TRAINER_KERNEL_BODIES_H_
