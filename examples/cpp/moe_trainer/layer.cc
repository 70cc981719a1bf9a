#include "examples/cpp/moe_trainer/layer.h"

#include <numeric>

namespace moe_trainer {
namespace {

size_t Elements(int rows, int columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

}  // namespace

Layers::Layers(Gpu& gpu, Communication& communication, int rank)
    : gpu_(gpu),
      communication_(communication),
      model_(gpu.options().model),
      sizes_(gpu.options().sizes),
      place_(PlaceOf(sizes_, rank)),
      rows_(model_.sequence / sizes_.tensor),
      width_(model_.hidden / sizes_.tensor),
      heads_(model_.heads / sizes_.tensor),
      experts_(model_.experts / sizes_.expert) {
  const auto experts = static_cast<size_t>(model_.experts);
  void* pinned = nullptr;
  MOE_TRAINER_CHECK(cudaMallocHost(&pinned, 2 * experts * sizeof(int)));
  host_counts_ = static_cast<int*>(pinned);
  if (!gpu.options().real) return;
  for (int layer = 0; layer < model_.layers; ++layer) {
    std::vector<float> values;
    for (int e = 0; e < model_.experts; ++e) values.push_back(PopularityOf(model_, layer, e));
    popularity_.push_back(gpu.Elements(experts));
    MOE_TRAINER_CHECK(cudaMemcpy(popularity_.back().data(), values.data(), experts * sizeof(float),
                                 cudaMemcpyHostToDevice));
  }
}

Layers::~Layers() { cudaFreeHost(host_counts_); }

void Layers::Gemm(float* c, const float* a, const float* b, int rows, int columns, int inner,
                  int form) {
  const double m = rows, n = columns, k = inner;
  Work work = gpu_.Moved(m * k + k * n + ((form & kAccumulate) != 0 ? 2 : 1) * m * n);
  work.flops = 2 * m * n * k;
  gpu_.Launch(kGemm, m * n, work, c, a, b, rows, columns, inner, form);
}

Buffer Layers::Forward(const LayerWeights& weights, int layer, Buffer x, LayerState* state) {
  const Channel& tensor = communication_.Of(Group::kTensor);
  const int sequence = model_.sequence, hidden = model_.hidden;
  Buffer shard;  // the rank's own rows, where they are not the whole sequence
  if (tensor) {
    shard = std::move(x);
    state->input = gpu_.Elements(Elements(sequence, hidden));
    gpu_.Order(gpu_.compute(), tensor.stream);
    tensor.AllGather(gpu_, shard.data(), state->input.data(), Elements(rows_, hidden));
    gpu_.Order(tensor.stream, gpu_.compute());
  } else {
    state->input = std::move(x);
  }
  state->qkv = gpu_.Elements(Elements(sequence, 3 * width_));
  Gemm(state->qkv.data(), state->input.data(), weights.qkv, sequence, 3 * width_, hidden, 0);
  state->attention = gpu_.Elements(Elements(sequence, width_));
  Work work = gpu_.Moved(4.0 * sequence * width_);
  work.flops = 2.0 * sequence * sequence * width_;  // half of two products: causal
  gpu_.Launch(kAttention, 1.0 * sequence * width_, work, state->attention.data(), state->qkv.data(),
              sequence, heads_, model_.head_size());
  Buffer output = gpu_.Elements(Elements(sequence, hidden));
  Gemm(output.data(), state->attention.data(), weights.projection, sequence, hidden, width_, 0);
  if (tensor) {
    Buffer sum = gpu_.Elements(Elements(rows_, hidden));
    gpu_.Order(gpu_.compute(), tensor.stream);
    tensor.ReduceScatter(gpu_, output.data(), sum.data(), Elements(rows_, hidden));
    gpu_.Order(tensor.stream, gpu_.compute());
    output = std::move(sum);
  }
  const Buffer& input = tensor ? shard : state->input;
  state->middle = gpu_.Elements(Elements(rows_, hidden));
  gpu_.Launch(kAdd, 1.0 * rows_ * hidden, gpu_.Moved(3.0 * rows_ * hidden), state->middle.data(),
              output.data(), input.data(), int64_t{rows_} * hidden);
  output.Reset();
  shard.Reset();

  Route(weights, layer, state);
  state->returned = ExpertForward(weights, state);
  Buffer y = gpu_.Elements(Elements(rows_, hidden));
  gpu_.Launch(kCombine, 1.0 * rows_ * hidden, gpu_.Moved((2.0 + model_.top_k) * rows_ * hidden),
              y.data(), state->middle.data(), state->returned.data(), state->gates.data(),
              state->positions.integers(), rows_, model_.top_k, hidden);
  return y;
}

void Layers::Route(const LayerWeights& weights, int layer, LayerState* state) {
  const int experts = model_.experts, choices = rows_ * model_.top_k;
  const auto count = static_cast<size_t>(experts);
  Buffer logits = gpu_.Elements(Elements(rows_, experts));
  Gemm(logits.data(), state->middle.data(), weights.router, rows_, experts, model_.hidden, 0);
  state->gates = gpu_.Elements(static_cast<size_t>(choices));
  state->experts_of = gpu_.Allocate(static_cast<size_t>(choices) * sizeof(int));
  state->positions = gpu_.Allocate(static_cast<size_t>(choices) * sizeof(int));
  state->counts = gpu_.Allocate(count * sizeof(int));
  const Work work = gpu_.Moved(1.0 * rows_ * experts + 4.0 * choices);
  if (gpu_.options().real) {
    gpu_.Launch(kRoute, rows_, work, state->gates.data(), state->experts_of.integers(),
                state->positions.integers(), state->counts.integers(), logits.data(),
                popularity_[static_cast<size_t>(layer)].data(), rows_, experts, model_.top_k);
  } else {
    gpu_.Launch(kDrawCounts, rows_, work, state->counts.integers(), model_.seed, gpu_.occasion.step,
                layer, gpu_.occasion.micro_batch, place_.token_rank, rows_, experts, model_.top_k,
                model_.imbalance);
  }
  // Who gets how many rows: exchanged, then read by the host, which sizes what follows.
  const Channel& channel = communication_.Of(Group::kExpert);
  if (channel) {
    state->received_counts = gpu_.Allocate(count * sizeof(int));
    gpu_.Order(gpu_.compute(), channel.stream);
    channel.AllToAllCounts(gpu_, state->counts.integers(), state->received_counts.integers(),
                           static_cast<size_t>(experts_));
    gpu_.Order(channel.stream, gpu_.compute());
  }
  MOE_TRAINER_CHECK(cudaMemcpyAsync(host_counts_, state->counts.integers(), count * sizeof(int),
                                    cudaMemcpyDeviceToHost, gpu_.compute()));
  MOE_TRAINER_CHECK(cudaMemcpyAsync(host_counts_ + experts, state->counts_here(),
                                    count * sizeof(int), cudaMemcpyDeviceToHost, gpu_.compute()));
  MOE_TRAINER_CHECK(cudaStreamSynchronize(gpu_.compute()));
  gpu_.HostTime(HostCosts::kRouting);
  state->received = 0;
  for (int rank = 0; rank < sizes_.expert; ++rank) {
    const auto sum = [&](const int* counts) {
      const int* own = counts + ptrdiff_t{rank} * experts_;
      return std::accumulate(own, own + experts_, 0);
    };
    state->send_rows.push_back(sum(host_counts_));
    state->receive_rows.push_back(sum(host_counts_ + experts));
    state->received += state->receive_rows.back();
  }
}

Buffer Layers::Exchange(const Buffer& rows, const LayerState& state, bool back) {
  const Channel& channel = communication_.Of(Group::kExpert);
  const int received = back ? rows_ * model_.top_k : state.received;
  Buffer result = gpu_.Elements(Elements(received, model_.hidden));
  gpu_.Order(gpu_.compute(), channel.stream);
  channel.AllToAll(gpu_, rows.data(), back ? state.receive_rows : state.send_rows, result.data(),
                   back ? state.send_rows : state.receive_rows, static_cast<size_t>(model_.hidden));
  return result;
}

Buffer Layers::Regroup(Buffer rows, const LayerState& state, bool inverse) {
  // Of one source the rows lie by expert already.
  if (!communication_.Of(Group::kExpert)) return rows;
  const double elements = 1.0 * state.received * model_.hidden;
  Buffer result = gpu_.Elements(Elements(state.received, model_.hidden));
  gpu_.Launch(kGroupRows, elements, gpu_.Moved(2 * elements), result.data(), rows.data(),
              state.counts_here(), sizes_.expert, experts_, model_.hidden, inverse ? 1 : 0);
  return result;
}

void Layers::ExpertGemm(Buffer& c, const Buffer& a, const float* weights, const LayerState& state,
                        int columns, int inner, int form) {
  const double m = state.received, n = columns, k = inner;
  Work work = gpu_.Moved(m * k + experts_ * k * n + m * n);
  work.flops = 2 * m * n * k;
  gpu_.Launch(kExpertGemm, m * n, work, c.data(), a.data(), weights, state.counts_here(),
              sizes_.expert, experts_, columns, inner, form);
}

Buffer Layers::ExpertForward(const LayerWeights& weights, LayerState* state) {
  const Channel& channel = communication_.Of(Group::kExpert);
  const int hidden = model_.hidden, wide = model_.expert_hidden;
  const int choices = rows_ * model_.top_k;
  Buffer dispatched = gpu_.Elements(Elements(choices, hidden));
  gpu_.Launch(kDispatch, 1.0 * choices * hidden, gpu_.Moved(2.0 * choices * hidden),
              dispatched.data(), state->middle.data(), state->positions.integers(), rows_,
              model_.top_k, hidden);
  if (channel) {
    Buffer arrived = Exchange(dispatched, *state, false);
    gpu_.Order(channel.stream, gpu_.compute());
    dispatched = std::move(arrived);
  }
  state->grouped = Regroup(std::move(dispatched), *state, false);
  const double inner = 1.0 * state->received * wide;
  state->up = gpu_.Elements(Elements(state->received, wide));
  ExpertGemm(state->up, state->grouped, weights.expert_up, *state, wide, hidden, 0);
  state->active = gpu_.Elements(Elements(state->received, wide));
  gpu_.Launch(kSilu, inner, gpu_.Moved(2 * inner), state->active.data(), state->up.data(),
              int64_t{state->received} * wide);
  Buffer result = gpu_.Elements(Elements(state->received, hidden));
  ExpertGemm(result, state->active, weights.expert_down, *state, hidden, wide, 0);
  result = Regroup(std::move(result), *state, true);
  if (channel) {
    Buffer returned = Exchange(result, *state, true);
    gpu_.Order(channel.stream, gpu_.compute());
    result = std::move(returned);
  }
  return result;
}

Buffer Layers::ExpertBackward(const LayerWeights& weights, const Buffer& returned_gradient,
                              LayerState* state) {
  const Channel& channel = communication_.Of(Group::kExpert);
  const int hidden = model_.hidden, wide = model_.expert_hidden, rows = state->received;
  const double inner = 1.0 * rows * wide;
  Buffer gradient;
  if (channel) {
    gradient = Exchange(returned_gradient, *state, false);
    gpu_.Order(channel.stream, gpu_.compute());
    gradient = Regroup(std::move(gradient), *state, false);
  }
  const Buffer& out = channel ? gradient : returned_gradient;
  Buffer up_gradient = gpu_.Elements(Elements(rows, wide));
  ExpertGemm(up_gradient, out, weights.expert_down, *state, wide, hidden, kTransposeB);
  gpu_.Launch(kSiluGradient, inner, gpu_.Moved(3 * inner), up_gradient.data(), state->up.data(),
              int64_t{rows} * wide);
  Buffer input_gradient = gpu_.Elements(Elements(rows, hidden));
  ExpertGemm(input_gradient, up_gradient, weights.expert_up, *state, hidden, wide, kTransposeB);
  input_gradient = Regroup(std::move(input_gradient), *state, true);
  // On its way home while the weights' gradients are computed.
  Buffer returned = channel ? Exchange(input_gradient, *state, true) : Buffer();
  const auto weight_gradient = [&](float* to, const Buffer& a, const float* b, int m, int n) {
    const double size = 1.0 * m * n;
    Work work = gpu_.Moved(1.0 * rows * (m + n) + 2.0 * experts_ * size);
    work.flops = 2.0 * rows * size;
    gpu_.Launch(kExpertWeightGradient, experts_ * size, work, to, a.data(), b, state->counts_here(),
                sizes_.expert, experts_, m, n);
  };
  weight_gradient(weights.expert_up_gradient, state->grouped, up_gradient.data(), hidden, wide);
  weight_gradient(weights.expert_down_gradient, state->active, out.data(), wide, hidden);
  if (!channel) return input_gradient;
  gpu_.Order(channel.stream, gpu_.compute());
  return returned;
}

Buffer Layers::Backward(const LayerWeights& weights, Buffer gradient, LayerState* state) {
  const Channel& tensor = communication_.Of(Group::kTensor);
  const int sequence = model_.sequence, hidden = model_.hidden, experts = model_.experts;
  const int choices = rows_ * model_.top_k;
  // The mixture of experts.
  Buffer returned_gradient = gpu_.Elements(Elements(choices, hidden));
  Buffer gate_gradients = gpu_.Elements(static_cast<size_t>(choices));
  gpu_.Launch(kCombineGradient, 1.0 * choices * hidden,
              gpu_.Moved((2.0 * model_.top_k + 1) * rows_ * hidden), returned_gradient.data(),
              gate_gradients.data(), gradient.data(), state->returned.data(), state->gates.data(),
              state->positions.integers(), rows_, model_.top_k, hidden);
  Buffer dispatched = ExpertBackward(weights, returned_gradient, state);
  Buffer middle = gpu_.Elements(Elements(rows_, hidden));
  gpu_.Launch(kDispatchGradient, 1.0 * rows_ * hidden,
              gpu_.Moved((2.0 + model_.top_k) * rows_ * hidden), middle.data(), gradient.data(),
              dispatched.data(), state->positions.integers(), rows_, model_.top_k, hidden);
  dispatched.Reset();
  gradient.Reset();
  Buffer logits = gpu_.Elements(Elements(rows_, experts));
  gpu_.Launch(kRouteGradient, 1.0 * rows_ * experts,
              gpu_.Moved(1.0 * rows_ * experts + 3.0 * choices), logits.data(),
              gate_gradients.data(), state->gates.data(), state->experts_of.integers(), rows_,
              experts, model_.top_k);
  Gemm(weights.router_gradient, state->middle.data(), logits.data(), hidden, experts, rows_,
       kTransposeA | kAccumulate);
  Gemm(middle.data(), logits.data(), weights.router, rows_, hidden, experts,
       kTransposeB | kAccumulate);

  // Attention.
  Buffer gathered;
  if (tensor) {
    gathered = gpu_.Elements(Elements(sequence, hidden));
    gpu_.Order(gpu_.compute(), tensor.stream);
    tensor.AllGather(gpu_, middle.data(), gathered.data(), Elements(rows_, hidden));
    gpu_.Order(tensor.stream, gpu_.compute());
  }
  const float* whole = tensor ? gathered.data() : middle.data();
  Buffer attention = gpu_.Elements(Elements(sequence, width_));
  Gemm(attention.data(), whole, weights.projection, sequence, width_, hidden, kTransposeB);
  Buffer qkv = gpu_.Elements(Elements(sequence, 3 * width_));
  Work work = gpu_.Moved(8.0 * sequence * width_);
  work.flops = 5.0 * sequence * sequence * width_;
  gpu_.Launch(kAttentionGradient, 1.0 * sequence * width_, work, qkv.data(), attention.data(),
              state->qkv.data(), sequence, heads_, model_.head_size());
  Buffer input = gpu_.Elements(Elements(sequence, hidden));
  Gemm(input.data(), qkv.data(), weights.qkv, sequence, hidden, 3 * width_, kTransposeB);
  // Reduced while the weights' gradients are computed.
  Buffer shard;
  if (tensor) {
    shard = gpu_.Elements(Elements(rows_, hidden));
    gpu_.Order(gpu_.compute(), tensor.stream);
    tensor.ReduceScatter(gpu_, input.data(), shard.data(), Elements(rows_, hidden));
  }
  Gemm(weights.projection_gradient, state->attention.data(), whole, width_, hidden, sequence,
       kTransposeA | kAccumulate);
  Gemm(weights.qkv_gradient, state->input.data(), qkv.data(), hidden, 3 * width_, sequence,
       kTransposeA | kAccumulate);
  if (tensor) gpu_.Order(tensor.stream, gpu_.compute());
  Buffer result = gpu_.Elements(Elements(rows_, hidden));
  gpu_.Launch(kAdd, 1.0 * rows_ * hidden, gpu_.Moved(3.0 * rows_ * hidden), result.data(),
              middle.data(), tensor ? shard.data() : input.data(), int64_t{rows_} * hidden);
  *state = {};
  return result;
}

}  // namespace moe_trainer
