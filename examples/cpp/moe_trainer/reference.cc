#include "examples/cpp/moe_trainer/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moe_trainer {
namespace {

template <class T>
using Rows = std::vector<std::vector<T>>;

size_t Size(int n) { return static_cast<size_t>(n); }

template <class T>
Rows<T> Zeros(size_t rows, size_t columns) {
  return Rows<T>(rows, std::vector<T>(columns, T(0)));
}

// x w for the inner indices [begin, end).
template <class T>
std::vector<T> Times(const std::vector<T>& x, const Rows<T>& w, size_t begin, size_t end) {
  std::vector<T> y(w[0].size(), T(0));
  for (size_t j = 0; j < y.size(); ++j)
    for (size_t i = begin; i < end; ++i) y[j] += x[i] * w[i][j];
  return y;
}

template <class T>
std::vector<T> Times(const std::vector<T>& x, const Rows<T>& w) {
  return Times(x, w, 0, w.size());
}

// w x (the gradient with respect to the left factor), inner indices [begin, end).
template <class T>
std::vector<T> TimesTransposed(const std::vector<T>& x, const Rows<T>& w, size_t begin,
                               size_t end) {
  std::vector<T> y(w.size(), T(0));
  for (size_t i = 0; i < y.size(); ++i)
    for (size_t j = begin; j < end; ++j) y[i] += x[j] * w[i][j];
  return y;
}

template <class T>
std::vector<T> TimesTransposed(const std::vector<T>& x, const Rows<T>& w) {
  return TimesTransposed(x, w, 0, w[0].size());
}

template <class T>
void Add(std::vector<T>& to, const std::vector<T>& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

template <class T>
void Add(Rows<T>& to, const Rows<T>& from) {
  for (size_t i = 0; i < to.size(); ++i) Add(to[i], from[i]);
}

// Sum over rows r of left_r^T right_r: a gradient's contribution of one micro-batch.
template <class T>
Rows<T> Outer(const std::vector<const std::vector<T>*>& left,
              const std::vector<const std::vector<T>*>& right, size_t rows, size_t columns) {
  Rows<T> sum = Zeros<T>(rows, columns);
  for (size_t r = 0; r < left.size(); ++r)
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) sum[i][j] += (*left[r])[i] * (*right[r])[j];
  return sum;
}

template <class T>
std::vector<const std::vector<T>*> Slice(const Rows<T>& rows, size_t begin, size_t end) {
  std::vector<const std::vector<T>*> slice;
  for (size_t i = begin; i < end; ++i) slice.push_back(&rows[i]);
  return slice;
}

template <class T>
T Sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

}  // namespace

template <class T>
struct Reference<T>::LayerValues {
  // A token's visit to an expert.
  struct Visit {
    int expert = 0;
    T gate = 0;
    std::vector<T> up, active, output;  // before silu, after it, of the expert
    std::vector<T> up_gradient, output_gradient;
  };
  Rows<T> input, qkv, attention, middle;   // middle: after attention, the experts' input
  std::vector<std::vector<Visit>> visits;  // of a token, in the order of its choices
};

template <class T>
struct Reference<T>::Sequence {
  std::vector<int> tokens;
  std::vector<LayerValues> layers;
  Rows<T> output, logit_gradients;  // of the last layer; of the head
  std::vector<T> losses;            // of each token
  T scale = 0;                      // of a token's loss
  int data_rank = 0;
};

// By name: for each data rank (attention), token rank (router, embedding, head) or block of token
// ranks (experts), what it has summed so far.
template <class T>
struct Reference<T>::Sums {
  std::map<std::string, std::vector<Values>> parts;
};

template <class T>
Reference<T>::Reference(const Model& model, const SummationOrder& order)
    : model_(model), order_(order) {
  const auto add = [&](const Matrix& matrix) {
    Values values = Zeros<T>(Size(RowsOf(model, matrix.role)), Size(ColumnsOf(model, matrix.role)));
    velocity_[NameOf(matrix)] = values;
    for (size_t i = 0; i < values.size(); ++i)
      for (size_t j = 0; j < values[i].size(); ++j)
        values[i][j] = T(InitialValue(model, matrix, static_cast<int>(i), static_cast<int>(j)));
    parameters_[NameOf(matrix)] = std::move(values);
  };
  add({Role::kEmbedding});
  add({Role::kHead});
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const Role role : {Role::kQkv, Role::kProjection, Role::kRouter}) add({role, layer});
    for (int expert = 0; expert < model.experts; ++expert)
      for (const Role role : {Role::kExpertUp, Role::kExpertDown}) add({role, layer, expert});
  }
}

template <class T>
const typename Reference<T>::Values& Reference<T>::Parameter(Role role, int layer,
                                                             int expert) const {
  return parameters_.at(NameOf({role, layer, expert}));
}

template <class T>
void Reference<T>::Forward(Sequence& sequence) const {
  const size_t hidden = Size(model_.hidden), size = Size(model_.head_size());
  const size_t part = hidden / Size(order_.tensor);  // of the projection's inner index
  const T scale = T(1) / std::sqrt(T(model_.head_size()));
  Rows<T> x;
  for (const int token : sequence.tokens) x.push_back(Parameter(Role::kEmbedding)[Size(token)]);
  for (int layer = 0; layer < model_.layers; ++layer) {
    LayerValues& values = sequence.layers.emplace_back();
    values.input = x;
    for (const auto& row : x) values.qkv.push_back(Times(row, Parameter(Role::kQkv, layer)));
    for (size_t i = 0; i < x.size(); ++i) {
      std::vector<T> mixed(hidden, T(0));
      for (size_t head = 0; head < Size(model_.heads); ++head) {
        const size_t q = head * 3 * size, k = q + size, v = k + size;
        std::vector<T> weight(i + 1, T(0));
        for (size_t j = 0; j <= i; ++j) {
          for (size_t d = 0; d < size; ++d)
            weight[j] += values.qkv[i][q + d] * values.qkv[j][k + d];
          weight[j] *= scale;
        }
        const T most = *std::max_element(weight.begin(), weight.end());
        T sum = 0;
        for (T& w : weight) sum += w = std::exp(w - most);
        for (size_t j = 0; j <= i; ++j)
          for (size_t d = 0; d < size; ++d)
            mixed[head * size + d] += weight[j] / sum * values.qkv[j][v + d];
      }
      values.attention.push_back(mixed);
      std::vector<T> y = Times(mixed, Parameter(Role::kProjection, layer), 0, part);
      for (size_t begin = part; begin < hidden; begin += part)
        Add(y, Times(mixed, Parameter(Role::kProjection, layer), begin, begin + part));
      Add(y, x[i]);
      values.middle.push_back(y);
    }
    values.visits.resize(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      std::vector<T> logits = Times(values.middle[i], Parameter(Role::kRouter, layer));
      for (size_t e = 0; e < logits.size(); ++e)
        logits[e] += T(PopularityOf(model_, layer, static_cast<int>(e)));
      std::vector<int> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return logits[Size(a)] > logits[Size(b)]; });
      order.resize(Size(model_.top_k));
      T sum = 0;
      std::vector<T> share;
      for (const int e : order) share.push_back(std::exp(logits[Size(e)] - logits[Size(order[0])]));
      for (const T s : share) sum += s;
      x[i] = values.middle[i];
      for (size_t slot = 0; slot < order.size(); ++slot) {
        typename LayerValues::Visit visit;
        visit.expert = order[slot];
        visit.gate = share[slot] / sum;
        visit.up = Times(values.middle[i], Parameter(Role::kExpertUp, layer, visit.expert));
        for (const T u : visit.up) visit.active.push_back(u * Sigmoid(u));
        visit.output = Times(visit.active, Parameter(Role::kExpertDown, layer, visit.expert));
        for (size_t d = 0; d < hidden; ++d) x[i][d] += visit.gate * visit.output[d];
        values.visits[i].push_back(std::move(visit));
      }
    }
  }
  sequence.output = x;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<T> logits = Times(x[i], Parameter(Role::kHead));
    const auto target = Size(TargetOf(model_, sequence.tokens[i]));
    const T most = *std::max_element(logits.begin(), logits.end());
    T sum = 0;
    std::vector<T> gradient;
    for (const T logit : logits) {
      gradient.push_back(std::exp(logit - most));
      sum += gradient.back();
    }
    sequence.losses.push_back((std::log(sum) - (logits[target] - most)) * sequence.scale);
    for (size_t c = 0; c < gradient.size(); ++c)
      gradient[c] = (gradient[c] / sum - (c == target ? T(1) : T(0))) * sequence.scale;
    sequence.logit_gradients.push_back(gradient);
  }
}

template <class T>
void Reference<T>::Backward(Sequence& sequence, Sums& sums) const {
  const size_t hidden = Size(model_.hidden), size = Size(model_.head_size());
  const size_t length = Size(model_.sequence), slice = length / Size(order_.tensor);
  const T scale = T(1) / std::sqrt(T(model_.head_size()));
  const auto first = Size(sequence.data_rank * order_.tensor);  // token rank
  Rows<T> dx;
  for (const auto& row : sequence.logit_gradients)
    dx.push_back(TimesTransposed(row, Parameter(Role::kHead)));
  for (size_t t = 0; t < Size(order_.tensor); ++t)
    Add(sums.parts["head"][first + t],
        Outer(Slice(sequence.output, t * slice, (t + 1) * slice),
              Slice(sequence.logit_gradients, t * slice, (t + 1) * slice), hidden,
              Size(model_.vocabulary)));
  for (int layer = model_.layers - 1; layer >= 0; --layer) {
    LayerValues& values = sequence.layers[Size(layer)];
    Rows<T> logit_gradients = Zeros<T>(length, Size(model_.experts));
    for (size_t i = 0; i < length; ++i) {
      const std::vector<T> dy = dx[i];
      std::vector<T> gate_gradients;
      T mean = 0;
      for (auto& visit : values.visits[i]) {
        T dot = 0;
        for (size_t d = 0; d < hidden; ++d) dot += dy[d] * visit.output[d];
        gate_gradients.push_back(dot);
        mean += visit.gate * dot;
        for (size_t d = 0; d < hidden; ++d) visit.output_gradient.push_back(visit.gate * dy[d]);
        visit.up_gradient = TimesTransposed(visit.output_gradient,
                                            Parameter(Role::kExpertDown, layer, visit.expert));
        for (size_t f = 0; f < visit.up.size(); ++f) {
          const T s = Sigmoid(visit.up[f]);
          visit.up_gradient[f] *= s * (T(1) + visit.up[f] * (T(1) - s));
        }
        Add(dx[i],
            TimesTransposed(visit.up_gradient, Parameter(Role::kExpertUp, layer, visit.expert)));
      }
      for (size_t slot = 0; slot < gate_gradients.size(); ++slot) {
        const auto& visit = values.visits[i][slot];
        logit_gradients[i][Size(visit.expert)] = visit.gate * (gate_gradients[slot] - mean);
      }
      Add(dx[i], TimesTransposed(logit_gradients[i], Parameter(Role::kRouter, layer)));
    }
    for (size_t t = 0; t < Size(order_.tensor); ++t)
      Add(sums.parts[NameOf({Role::kRouter, layer})][first + t],
          Outer(Slice(values.middle, t * slice, (t + 1) * slice),
                Slice(logit_gradients, t * slice, (t + 1) * slice), hidden, Size(model_.experts)));

    Rows<T> dqkv = Zeros<T>(length, 3 * hidden);
    for (size_t head = 0; head < Size(model_.heads); ++head) {
      const size_t q = head * 3 * size, k = q + size, v = k + size;
      for (size_t i = 0; i < length; ++i) {
        std::vector<T> dmixed(size, T(0));
        for (size_t d = 0; d < size; ++d)
          for (size_t j = 0; j < hidden; ++j)
            dmixed[d] += dx[i][j] * Parameter(Role::kProjection, layer)[head * size + d][j];
        std::vector<T> weight(i + 1, T(0)), dweight(i + 1, T(0));
        for (size_t j = 0; j <= i; ++j) {
          for (size_t d = 0; d < size; ++d)
            weight[j] += values.qkv[i][q + d] * values.qkv[j][k + d];
          weight[j] *= scale;
        }
        const T most = *std::max_element(weight.begin(), weight.end());
        T sum = 0, mean = 0;
        for (T& w : weight) sum += w = std::exp(w - most);
        for (T& w : weight) w /= sum;
        for (size_t j = 0; j <= i; ++j) {
          for (size_t d = 0; d < size; ++d) dweight[j] += dmixed[d] * values.qkv[j][v + d];
          mean += weight[j] * dweight[j];
        }
        for (size_t j = 0; j <= i; ++j) {
          const T dscore = weight[j] * (dweight[j] - mean) * scale;
          for (size_t d = 0; d < size; ++d) {
            dqkv[i][q + d] += dscore * values.qkv[j][k + d];
            dqkv[j][k + d] += dscore * values.qkv[i][q + d];
            dqkv[j][v + d] += weight[j] * dmixed[d];
          }
        }
      }
    }
    Add(sums.parts[NameOf({Role::kProjection, layer})][Size(sequence.data_rank)],
        Outer(Slice(values.attention, 0, length), Slice(dx, 0, length), hidden, hidden));
    Add(sums.parts[NameOf({Role::kQkv, layer})][Size(sequence.data_rank)],
        Outer(Slice(values.input, 0, length), Slice(dqkv, 0, length), hidden, 3 * hidden));
    const size_t part = 3 * hidden / Size(order_.tensor);
    for (size_t i = 0; i < length; ++i) {
      std::vector<T> y = TimesTransposed(dqkv[i], Parameter(Role::kQkv, layer), 0, part);
      for (size_t begin = part; begin < 3 * hidden; begin += part)
        Add(y, TimesTransposed(dqkv[i], Parameter(Role::kQkv, layer), begin, begin + part));
      Add(dx[i], y);
    }
  }
  for (size_t i = 0; i < length; ++i)
    Add(sums.parts["embedding"][first + i / slice][Size(sequence.tokens[i])], dx[i]);
}

template <class T>
T Reference<T>::Gradients(int step, std::map<std::string, Values>* gradients) const {
  Sums sums;
  const int token_ranks = order_.data * order_.tensor;
  for (const auto& [name, values] : parameters_) {
    const int parts =
        name.find("experts") != std::string::npos ? token_ranks / order_.expert
        : name.find("qkv") != std::string::npos || name.find("projection") != std::string::npos
            ? order_.data
            : token_ranks;
    sums.parts[name].assign(Size(parts), Zeros<T>(values.size(), values[0].size()));
  }
  const size_t slice = Size(model_.sequence / order_.tensor);
  std::vector<T> losses(Size(token_ranks), T(0));
  for (int m = 0; m < model_.micro_batches; ++m) {
    std::vector<Sequence> sequences(Size(order_.data));
    for (int rank = 0; rank < order_.data; ++rank) {
      Sequence& sequence = sequences[Size(rank)];
      sequence.data_rank = rank;
      sequence.scale = T(1) / T(order_.data * model_.micro_batches * model_.sequence);
      for (int i = 0; i < model_.sequence; ++i)
        sequence.tokens.push_back(TokenAt(model_, step, rank * model_.micro_batches + m, i));
      Forward(sequence);
      for (size_t i = 0; i < sequence.losses.size(); ++i)
        losses[Size(rank * order_.tensor) + i / slice] += sequence.losses[i];
      Backward(sequence, sums);
    }
    // Experts: the visits of a block's tokens, token rank by token rank.
    for (int layer = 0; layer < model_.layers; ++layer) {
      for (int expert = 0; expert < model_.experts; ++expert) {
        for (int block = 0; block < token_ranks / order_.expert; ++block) {
          std::vector<const std::vector<T>*> in, up, active, out;
          for (size_t i = Size(block * order_.expert) * slice;
               i < Size((block + 1) * order_.expert) * slice; ++i) {
            const auto& values = sequences[i / Size(model_.sequence)].layers[Size(layer)];
            const size_t token = i % Size(model_.sequence);
            for (const auto& visit : values.visits[token]) {
              if (visit.expert != expert) continue;
              in.push_back(&values.middle[token]);
              up.push_back(&visit.up_gradient);
              active.push_back(&visit.active);
              out.push_back(&visit.output_gradient);
            }
          }
          const size_t hidden = Size(model_.hidden), wide = Size(model_.expert_hidden);
          Add(sums.parts[NameOf({Role::kExpertUp, layer, expert})][Size(block)],
              Outer(in, up, hidden, wide));
          Add(sums.parts[NameOf({Role::kExpertDown, layer, expert})][Size(block)],
              Outer(active, out, wide, hidden));
        }
      }
    }
  }
  for (auto& [name, parts] : sums.parts) {
    for (size_t i = 1; i < parts.size(); ++i) Add(parts[0], parts[i]);
    (*gradients)[name] = std::move(parts[0]);
  }
  T loss = losses[0];
  for (size_t i = 1; i < losses.size(); ++i) loss += losses[i];
  return loss;
}

template <class T>
T Reference<T>::Step(int step) {
  std::map<std::string, Values> gradients;
  const T loss = Gradients(step, &gradients);
  for (auto& [name, values] : parameters_) {
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t j = 0; j < values[i].size(); ++j) {
        T& velocity = velocity_[name][i][j];
        velocity = T(model_.momentum) * velocity + gradients[name][i][j];
        values[i][j] -= T(model_.learning_rate) * velocity;
      }
    }
  }
  return loss;
}

template class Reference<float>;
template class Reference<double>;

}  // namespace moe_trainer
