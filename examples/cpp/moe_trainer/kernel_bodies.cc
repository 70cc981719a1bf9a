#include "examples/cpp/moe_trainer/kernel_bodies.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "examples/cpp/moe_trainer/routing.h"

namespace moe_trainer {
namespace {

size_t Size(int n) { return static_cast<size_t>(n); }

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float Dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

int RowsOfExpert(const int* counts, int sources, int experts, int expert) {
  int rows = 0;
  for (int source = 0; source < sources; ++source) rows += counts[source * experts + expert];
  return rows;
}

/// weights[j] for j <= i: softmax of q_i . k_j / sqrt(size).
void AttentionWeights(const float* q, const float* keys, int64_t stride, int i, int size,
                      std::vector<float>& weights) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  weights.resize(Size(i) + 1);
  for (int j = 0; j <= i; ++j) weights[Size(j)] = Dot(q, keys + j * stride, size) * scale;
  const float most = *std::max_element(weights.begin(), weights.end());
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - most);
  for (float& weight : weights) weight /= sum;
}

}  // namespace

void GemmBody(float* c, const float* a, const float* b, int rows, int columns, int inner,
              int form) {
  std::vector<float> sum(Size(columns));
  for (int i = 0; i < rows; ++i) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int k = 0; k < inner; ++k) {
      const float left = (form & kTransposeA) != 0 ? a[Size(k) * Size(rows) + Size(i)]
                                                   : a[Size(i) * Size(inner) + Size(k)];
      if ((form & kTransposeB) != 0) {
        for (size_t j = 0; j < sum.size(); ++j) sum[j] += left * b[j * Size(inner) + Size(k)];
      } else {
        for (size_t j = 0; j < sum.size(); ++j) sum[j] += left * b[Size(k) * sum.size() + j];
      }
    }
    float* out = c + Size(i) * Size(columns);
    for (size_t j = 0; j < sum.size(); ++j)
      out[j] = (form & kAccumulate) != 0 ? out[j] + sum[j] : sum[j];
  }
}

void EmbedBody(float* out, const float* table, const int* tokens, int rows, int hidden) {
  for (int i = 0; i < rows; ++i)
    std::copy_n(table + Size(tokens[i]) * Size(hidden), hidden, out + Size(i) * Size(hidden));
}

void EmbedGradientBody(float* table_gradient, const float* gradient, const int* tokens, int rows,
                       int hidden) {
  for (int i = 0; i < rows; ++i)
    for (int d = 0; d < hidden; ++d)
      table_gradient[Size(tokens[i]) * Size(hidden) + Size(d)] +=
          gradient[Size(i) * Size(hidden) + Size(d)];
}

void AttentionBody(float* out, const float* qkv, int sequence, int heads, int size) {
  const int64_t stride = int64_t{3} * heads * size;
  std::vector<float> weights;
  for (int head = 0; head < heads; ++head) {
    const float* q = qkv + int64_t{3} * head * size;
    const float *keys = q + size, *values = keys + size;
    for (int i = 0; i < sequence; ++i) {
      AttentionWeights(q + i * stride, keys, stride, i, size, weights);
      float* row = out + (int64_t{i} * heads + head) * size;
      std::fill_n(row, size, 0.0f);
      for (int j = 0; j <= i; ++j)
        for (int d = 0; d < size; ++d) row[d] += weights[Size(j)] * values[j * stride + d];
    }
  }
}

void AttentionGradientBody(float* qkv_gradient, const float* out_gradient, const float* qkv,
                           int sequence, int heads, int size) {
  const int64_t stride = int64_t{3} * heads * size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  std::fill_n(qkv_gradient, sequence * stride, 0.0f);
  std::vector<float> weights, weight_gradients;
  for (int head = 0; head < heads; ++head) {
    const float* q = qkv + int64_t{3} * head * size;
    const float *keys = q + size, *values = keys + size;
    float* dq = qkv_gradient + int64_t{3} * head * size;
    float *dkeys = dq + size, *dvalues = dkeys + size;
    for (int i = 0; i < sequence; ++i) {
      const float* row = out_gradient + (int64_t{i} * heads + head) * size;
      AttentionWeights(q + i * stride, keys, stride, i, size, weights);
      weight_gradients.resize(weights.size());
      float mean = 0;
      for (int j = 0; j <= i; ++j) {
        weight_gradients[Size(j)] = Dot(row, values + j * stride, size);
        mean += weights[Size(j)] * weight_gradients[Size(j)];
      }
      for (int j = 0; j <= i; ++j) {
        const float score = weights[Size(j)] * (weight_gradients[Size(j)] - mean) * scale;
        for (int d = 0; d < size; ++d) {
          dq[i * stride + d] += score * keys[j * stride + d];
          dkeys[j * stride + d] += score * q[i * stride + d];
          dvalues[j * stride + d] += weights[Size(j)] * row[d];
        }
      }
    }
  }
}

void AddBody(float* out, const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

void SiluBody(float* out, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] * Sigmoid(x[i]);
}

void SiluGradientBody(float* gradient, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float s = Sigmoid(x[i]);
    gradient[i] *= s * (1.0f + x[i] * (1.0f - s));
  }
}

void RouteBody(float* gates, int* experts_of, int* positions, int* counts, const float* logits,
               const float* popularity, int rows, int experts, int top_k) {
  std::fill_n(counts, experts, 0);
  std::vector<float> values(Size(experts));
  std::vector<int> order(Size(experts));
  for (int i = 0; i < rows; ++i) {
    for (int e = 0; e < experts; ++e)
      values[Size(e)] = logits[Size(i) * Size(experts) + Size(e)] + popularity[e];
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](int a, int b) {
      return values[Size(a)] != values[Size(b)] ? values[Size(a)] > values[Size(b)] : a < b;
    });
    float* gate = gates + Size(i) * Size(top_k);
    float sum = 0;
    for (int slot = 0; slot < top_k; ++slot) {
      const int expert = order[Size(slot)];
      experts_of[i * top_k + slot] = expert;
      ++counts[expert];
      gate[slot] = std::exp(values[Size(expert)] - values[Size(order[0])]);
      sum += gate[slot];
    }
    for (int slot = 0; slot < top_k; ++slot) gate[slot] /= sum;
  }
  std::vector<int> next(Size(experts), 0);
  for (int e = 1; e < experts; ++e) next[Size(e)] = next[Size(e) - 1] + counts[e - 1];
  for (int i = 0; i < rows * top_k; ++i) positions[i] = next[Size(experts_of[i])]++;
}

void RouteGradientBody(float* logit_gradients, const float* gate_gradients, const float* gates,
                       const int* experts_of, int rows, int experts, int top_k) {
  std::fill_n(logit_gradients, Size(rows) * Size(experts), 0.0f);
  for (int i = 0; i < rows; ++i) {
    const float* gate = gates + Size(i) * Size(top_k);
    const float* gradient = gate_gradients + Size(i) * Size(top_k);
    const float mean = Dot(gate, gradient, top_k);
    for (int slot = 0; slot < top_k; ++slot)
      logit_gradients[Size(i) * Size(experts) + Size(experts_of[i * top_k + slot])] =
          gate[slot] * (gradient[slot] - mean);
  }
}

void DispatchBody(float* out, const float* in, const int* positions, int rows, int top_k,
                  int width) {
  for (int i = 0; i < rows * top_k; ++i)
    std::copy_n(in + Size(i / top_k) * Size(width), width, out + Size(positions[i]) * Size(width));
}

void CombineBody(float* out, const float* in, const float* returned, const float* gates,
                 const int* positions, int rows, int top_k, int width) {
  std::copy_n(in, Size(rows) * Size(width), out);
  for (int i = 0; i < rows * top_k; ++i)
    for (int d = 0; d < width; ++d)
      out[Size(i / top_k) * Size(width) + Size(d)] +=
          gates[i] * returned[Size(positions[i]) * Size(width) + Size(d)];
}

void CombineGradientBody(float* returned_gradient, float* gate_gradients, const float* out_gradient,
                         const float* returned, const float* gates, const int* positions, int rows,
                         int top_k, int width) {
  for (int i = 0; i < rows * top_k; ++i) {
    const float* gradient = out_gradient + Size(i / top_k) * Size(width);
    gate_gradients[i] = Dot(gradient, returned + Size(positions[i]) * Size(width), width);
    for (int d = 0; d < width; ++d)
      returned_gradient[Size(positions[i]) * Size(width) + Size(d)] = gates[i] * gradient[d];
  }
}

void DispatchGradientBody(float* gradient, const float* base, const float* dispatched,
                          const int* positions, int rows, int top_k, int width) {
  std::copy_n(base, Size(rows) * Size(width), gradient);
  for (int i = 0; i < rows * top_k; ++i)
    for (int d = 0; d < width; ++d)
      gradient[Size(i / top_k) * Size(width) + Size(d)] +=
          dispatched[Size(positions[i]) * Size(width) + Size(d)];
}

void GroupRowsBody(float* out, const float* in, const int* counts, int sources, int experts,
                   int width, int inverse) {
  size_t grouped = 0;
  for (int expert = 0; expert < experts; ++expert) {
    for (int source = 0; source < sources; ++source) {
      const int segment = source * experts + expert;
      const auto before = static_cast<size_t>(std::accumulate(counts, counts + segment, 0));
      const size_t arrived = before * Size(width), values = Size(counts[segment]) * Size(width);
      if (inverse != 0) {
        std::copy_n(in + grouped, values, out + arrived);
      } else {
        std::copy_n(in + arrived, values, out + grouped);
      }
      grouped += values;
    }
  }
}

void ExpertGemmBody(float* c, const float* a, const float* weights, const int* counts, int sources,
                    int experts, int columns, int inner, int form) {
  for (int expert = 0; expert < experts; ++expert) {
    const int rows = RowsOfExpert(counts, sources, experts, expert);
    GemmBody(c, a, weights + Size(expert) * Size(columns) * Size(inner), rows, columns, inner,
             form);
    c += Size(rows) * Size(columns);
    a += Size(rows) * Size(inner);
  }
}

void ExpertWeightGradientBody(float* gradients, const float* a, const float* b, const int* counts,
                              int sources, int experts, int rows, int columns) {
  for (int expert = 0; expert < experts; ++expert) {
    const int inner = RowsOfExpert(counts, sources, experts, expert);
    GemmBody(gradients + Size(expert) * Size(rows) * Size(columns), a, b, rows, columns, inner,
             kTransposeA | kAccumulate);
    a += Size(inner) * Size(rows);
    b += Size(inner) * Size(columns);
  }
}

void CrossEntropyBody(float* loss, float* logits, const int* targets, int rows, int classes,
                      float scale) {
  for (int i = 0; i < rows; ++i) {
    float* row = logits + Size(i) * Size(classes);
    const float most = *std::max_element(row, row + classes);
    const float right = row[targets[i]] - most;
    float sum = 0;
    for (int c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - most);
      sum += row[c];
    }
    loss[0] += (std::log(sum) - right) * scale;
    for (int c = 0; c < classes; ++c)
      row[c] = (row[c] / sum - (c == targets[i] ? 1.0f : 0.0f)) * scale;
  }
}

void SgdBody(float* parameters, float* velocity, const float* gradients, int64_t count,
             float learning_rate, float momentum) {
  for (int64_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] + gradients[i];
    parameters[i] -= learning_rate * velocity[i];
  }
}

void DrawCountsBody(int* counts, uint64_t seed, int step, int layer, int micro_batch,
                    int token_rank, int rows, int experts, int top_k, double imbalance) {
  const std::vector<int> drawn =
      DrawCounts({.seed = seed,
                  .step = step,
                  .layer = layer,
                  .micro_batch = micro_batch,
                  .token_rank = token_rank},
                 {.rows = rows, .experts = experts, .top_k = top_k, .imbalance = imbalance});
  std::copy(drawn.begin(), drawn.end(), counts);
}

}  // namespace moe_trainer
