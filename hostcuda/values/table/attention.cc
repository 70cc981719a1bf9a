// Fused attention, forward and backward. Where PyTorch's CPU attention kernel takes the inputs it
// is used, so that a program gives the same bits as on the CPU; else attention is computed in fp32
// (fp64 for fp64) from its definition.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {
namespace {

enum class Causal { kNo, kTopLeft, kBottomRight };

// One attention over (batch, heads, length, width); key and value may have fewer heads.
struct Attention {
  at::Tensor query, key, value;
  at::Tensor bias;  // undefined, or broadcastable to (batch, heads, length, key length)
  Causal causal = Causal::kNo;
  std::optional<int64_t> window_left, window_right;  // aligned to the end of the sequences
  double dropout = 0;
  double scale = 0;
  RandomState random;
};

double ScaleOf(const Invocation& call, const at::Tensor& query) {
  const std::optional<double> scale = call.OptionalDouble("scale");
  return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(-1)));
}

at::ScalarType Accumulator(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void ShareHeads(Attention* attention) {
  const int64_t heads = attention->query.size(1);
  for (at::Tensor* tensor : {&attention->key, &attention->value}) {
    if (tensor->size(1) != heads) *tensor = tensor->repeat_interleave(heads / tensor->size(1), 1);
  }
}

// Gradients of shared heads are summed over the queries that share them.
at::Tensor UnshareHeads(const at::Tensor& gradient, int64_t heads) {
  if (gradient.size(1) == heads) return gradient;
  return gradient
      .reshape(
          {gradient.size(0), heads, gradient.size(1) / heads, gradient.size(2), gradient.size(3)})
      .sum(2);
}

// The cases of PyTorch's own choice of its CPU kernel (sdp::use_flash_attention_cpp).
bool CpuKernelTakes(const Attention& attention) {
  const at::Tensor &q = attention.query, &k = attention.key, &v = attention.value,
                   &bias = attention.bias;
  const bool equal_lengths = q.size(2) == k.size(2);
  if (attention.dropout != 0 || attention.window_left || attention.window_right) return false;
  if (attention.causal == Causal::kBottomRight && !equal_lengths) return false;
  if (q.size(3) != k.size(3) || q.size(3) != v.size(3) || q.numel() == 0 || k.numel() == 0)
    return false;
  if (q.stride(-1) != 1 || k.stride(-1) != 1 || v.stride(-1) != 1) return false;
  if (!bias.defined()) return true;
  if (bias.scalar_type() != at::kFloat && bias.scalar_type() != q.scalar_type()) return false;
  return bias.dim() == 2 || bias.dim() == 4;
}

struct Scores {
  at::Tensor probabilities;  // before dropout
  at::Tensor keep;           // dropout's factor: 0 or 1 / (1 - p); undefined without
  at::Tensor logsumexp;
};

Scores ComputeScores(const Attention& attention) {
  const at::ScalarType type = Accumulator(attention.query);
  at::Tensor scores = at::matmul(attention.query.to(type).mul(attention.scale),
                                 attention.key.to(type).transpose(-1, -2));
  if (attention.bias.defined()) {
    scores = attention.bias.scalar_type() == at::kBool
                 ? scores.masked_fill(attention.bias.logical_not(),
                                      -std::numeric_limits<double>::infinity())
                 : scores.add(attention.bias.to(type));
  }
  const int64_t rows = scores.size(-2), columns = scores.size(-1);
  if (attention.causal != Causal::kNo || attention.window_left || attention.window_right) {
    const bool from_end = attention.causal != Causal::kTopLeft;
    const at::Tensor row =
        at::arange(rows, at::kLong).unsqueeze(1).add(from_end ? columns - rows : 0);
    const at::Tensor column = at::arange(columns, at::kLong).unsqueeze(0);
    at::Tensor hidden = at::zeros({rows, columns}, at::kBool);
    if (attention.causal != Causal::kNo) hidden.logical_or_(column.gt(row));
    if (attention.window_left) hidden.logical_or_(column.lt(row.sub(*attention.window_left)));
    if (attention.window_right) hidden.logical_or_(column.gt(row.add(*attention.window_right)));
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  Scores result;
  result.logsumexp = at::logsumexp(scores, {-1});
  // A row that sees nothing attends to nothing.
  result.probabilities = at::nan_to_num(at::exp(scores.sub(result.logsumexp.unsqueeze(-1))), 0.0);
  if (attention.dropout > 0) {
    result.keep = at::empty_like(result.probabilities)
                      .bernoulli_(1 - attention.dropout, CpuGenerator(attention.random))
                      .div_(1 - attention.dropout);
  }
  return result;
}

struct ForwardResult {
  at::Tensor output;
  at::Tensor logsumexp;  // (batch, heads, length)
};

ForwardResult Forward(Attention attention) {
  ShareHeads(&attention);
  if (CpuKernelTakes(attention)) {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        attention.query, attention.key, attention.value, 0.0, attention.causal != Causal::kNo,
        attention.bias.defined() ? std::optional(attention.bias) : std::nullopt, attention.scale);
    return {output, logsumexp};
  }
  const Scores scores = ComputeScores(attention);
  const at::Tensor weights =
      scores.keep.defined() ? scores.probabilities.mul(scores.keep) : scores.probabilities;
  return {at::matmul(weights, attention.value.to(weights.scalar_type())), scores.logsumexp};
}

struct BackwardResult {
  at::Tensor query, key, value, bias;
};

BackwardResult Backward(Attention attention, const at::Tensor& gradient, const at::Tensor& output,
                        const at::Tensor& logsumexp, bool bias_gradient) {
  const int64_t key_heads = attention.key.size(1), value_heads = attention.value.size(1);
  ShareHeads(&attention);
  BackwardResult result;
  if (CpuKernelTakes(attention) && !bias_gradient) {
    std::tie(result.query, result.key, result.value) =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, attention.query, attention.key, attention.value, output,
            logsumexp.contiguous(), 0.0, attention.causal != Causal::kNo,
            attention.bias.defined() ? std::optional(attention.bias) : std::nullopt,
            attention.scale);
  } else {
    const Scores scores = ComputeScores(attention);
    const at::ScalarType type = scores.probabilities.scalar_type();
    const at::Tensor weights =
        scores.keep.defined() ? scores.probabilities.mul(scores.keep) : scores.probabilities;
    const at::Tensor grad = gradient.to(type);
    at::Tensor grad_weights = at::matmul(grad, attention.value.to(type).transpose(-1, -2));
    if (scores.keep.defined()) grad_weights = grad_weights.mul(scores.keep);
    const at::Tensor delta = grad.mul(output.to(type)).sum(-1, true);
    const at::Tensor grad_scores = scores.probabilities.mul(grad_weights.sub(delta));
    result.query = at::matmul(grad_scores, attention.key.to(type)).mul(attention.scale);
    result.key =
        at::matmul(grad_scores.transpose(-1, -2), attention.query.to(type)).mul(attention.scale);
    result.value = at::matmul(weights.transpose(-1, -2), grad);
    result.bias = grad_scores;
  }
  result.key = UnshareHeads(result.key, key_heads);
  result.value = UnshareHeads(result.value, value_heads);
  return result;
}

// Kernels pad the log-sum-exp to their tile, or give it a last dimension of 1, or leave it out.
void StoreLogsumexp(const at::Tensor& result, const at::Tensor& logsumexp) {
  if (!result.defined() || result.numel() == 0) return;
  const at::Tensor rows = result.dim() == 4 ? result.squeeze(-1) : result;
  if (rows.size(2) > logsumexp.size(2)) rows.fill_(std::numeric_limits<double>::infinity());
  rows.narrow(2, 0, logsumexp.size(2)).copy_(logsumexp);
}

at::Tensor LoadLogsumexp(const at::Tensor& stored, int64_t length) {
  return (stored.dim() == 4 ? stored.squeeze(-1) : stored).narrow(2, 0, length);
}

// The state of the generator travels from forward to backward in one tensor of two words or two of
// one.
void StoreWord(const at::Tensor& tensor, int64_t index, uint64_t word) {
  if (tensor.defined() && tensor.numel() > index)
    static_cast<uint64_t*>(tensor.data_ptr())[index] = word;
}

void StoreRandomState(const Invocation& call, size_t first, size_t second) {
  const at::Tensor seed = call.Result(first), offset = call.Result(second);
  StoreWord(seed, 0, call.random.seed);
  if (seed.defined() && seed.numel() >= 2) {
    StoreWord(seed, 1, call.random.offset);
  } else {
    StoreWord(offset, 0, call.random.offset);
  }
}

RandomState LoadRandomState(const at::Tensor& seed, const at::Tensor& offset) {
  const auto word = [](const at::Tensor& tensor, int64_t index) -> uint64_t {
    return tensor.defined() && tensor.numel() > index
               ? static_cast<const uint64_t*>(tensor.data_ptr())[index]
               : 0;
  };
  if (seed.defined() && seed.numel() >= 2) return {word(seed, 0), word(seed, 1)};
  return {word(seed, 0), word(offset, 0)};
}

Attention SdpaArguments(const Invocation& call) {
  Attention attention;
  attention.query = call.Tensor("query");
  attention.key = call.Tensor("key");
  attention.value = call.Tensor("value");
  if (const auto bias = call.OptionalTensor("attn_bias")) attention.bias = *bias;
  attention.causal = call.Bool("is_causal") ? Causal::kTopLeft : Causal::kNo;
  attention.dropout = call.Double("dropout_p");
  attention.scale = ScaleOf(call, attention.query);
  attention.random = call.random;
  return attention;
}

at::Tensor Reduced(const at::Tensor& gradient, const at::Tensor& like) {
  return at::sum_to(gradient, like.sizes());
}

// The attentions of packed sequences, one by one: rows [begin, end) of (rows, heads, width).
struct Sequence {
  int64_t query_begin, query_end, key_begin, key_end;
};

std::vector<Sequence> Sequences(const at::Tensor& query_starts, const at::Tensor& key_starts,
                                const std::optional<at::Tensor>& used_keys) {
  const at::Tensor q = query_starts.to(at::kLong).contiguous(),
                   k = key_starts.to(at::kLong).contiguous();
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i + 1 < q.numel(); ++i) {
    const int64_t key_begin = k.const_data_ptr<int64_t>()[i];
    int64_t key_end = k.const_data_ptr<int64_t>()[i + 1];
    if (used_keys) key_end = std::min(key_end, key_begin + used_keys->select(0, i).item<int64_t>());
    sequences.push_back(
        {q.const_data_ptr<int64_t>()[i], q.const_data_ptr<int64_t>()[i + 1], key_begin, key_end});
  }
  return sequences;
}

at::Tensor HeadsFirst(const at::Tensor& rows, int64_t begin, int64_t end) {
  return rows.narrow(0, begin, end - begin).transpose(0, 1).unsqueeze(0);
}

at::Tensor RowsFirst(const at::Tensor& heads) { return heads.squeeze(0).transpose(0, 1); }

std::optional<int64_t> Window(const Invocation& call, const char* name) {
  if (!call.HasArgument(name) || call.Argument(name).isNone() || call.Int(name) < 0)
    return std::nullopt;
  return call.Int(name);
}

Attention FlashArguments(const Invocation& call) {
  Attention attention;
  attention.causal = call.Bool("is_causal") ? Causal::kBottomRight : Causal::kNo;
  attention.window_left = Window(call, "window_size_left");
  attention.window_right = Window(call, "window_size_right");
  attention.dropout = call.Double("dropout_p");
  attention.scale = ScaleOf(call, call.Tensor("query"));
  attention.random = call.random;
  TORCH_CHECK(!call.HasArgument("alibi_slopes") || !call.OptionalTensor("alibi_slopes"),
              "hostcuda values: ", call.schema().name(), " with alibi_slopes has no CPU form");
  return attention;
}

Attention EfficientArguments(const Invocation& call) {
  Attention attention;
  const int64_t mask = call.Int("custom_mask_type");
  attention.causal = mask == 0 ? Causal::kNo : mask == 1 ? Causal::kTopLeft : Causal::kBottomRight;
  if (const auto bias = call.OptionalTensor("bias")) attention.bias = *bias;
  attention.dropout = call.Double("dropout_p");
  attention.scale = ScaleOf(call, call.Tensor("query"));
  attention.random = call.random;
  TORCH_CHECK(call.Argument("window_size").isNone() || call.Int("window_size") <= 0,
              "hostcuda values: ", call.schema().name(), " with window_size has no CPU form");
  return attention;
}

void RequireUnmixedDropout(const Invocation& call, const Attention& attention) {
  TORCH_CHECK(attention.dropout == 0, "hostcuda values: ", call.schema().name(),
              " with dropout over packed sequences has no CPU form");
}

void PackedForward(Invocation& call, const Attention& shape, const at::Tensor& query,
                   const at::Tensor& key, const at::Tensor& value,
                   const std::vector<Sequence>& sequences, const at::Tensor& output,
                   const at::Tensor& logsumexp, bool logsumexp_by_sequence) {
  RequireUnmixedDropout(call, shape);
  output.zero_();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    if (s.query_end == s.query_begin || s.key_end == s.key_begin) continue;
    Attention attention = shape;
    attention.query = HeadsFirst(query, s.query_begin, s.query_end);
    attention.key = HeadsFirst(key, s.key_begin, s.key_end);
    attention.value = HeadsFirst(value, s.key_begin, s.key_end);
    const ForwardResult result = Forward(attention);
    output.narrow(0, s.query_begin, s.query_end - s.query_begin).copy_(RowsFirst(result.output));
    if (!logsumexp.defined() || logsumexp.numel() == 0) continue;
    if (logsumexp_by_sequence) {
      logsumexp.select(0, static_cast<int64_t>(i))
          .narrow(1, 0, s.query_end - s.query_begin)
          .copy_(result.logsumexp[0]);
    } else {
      logsumexp.narrow(1, s.query_begin, s.query_end - s.query_begin).copy_(result.logsumexp[0]);
    }
  }
}

void PackedBackward(Invocation& call, const Attention& shape, const at::Tensor& gradient,
                    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const at::Tensor& output, const std::vector<Sequence>& sequences,
                    const at::Tensor& logsumexp, bool logsumexp_by_sequence,
                    const at::Tensor& grad_query, const at::Tensor& grad_key,
                    const at::Tensor& grad_value) {
  RequireUnmixedDropout(call, shape);
  for (const at::Tensor& out : {grad_query, grad_key, grad_value}) out.zero_();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    const int64_t rows = s.query_end - s.query_begin;
    if (rows == 0 || s.key_end == s.key_begin) continue;
    Attention attention = shape;
    attention.query = HeadsFirst(query, s.query_begin, s.query_end);
    attention.key = HeadsFirst(key, s.key_begin, s.key_end);
    attention.value = HeadsFirst(value, s.key_begin, s.key_end);
    const at::Tensor stored = logsumexp_by_sequence
                                  ? logsumexp.select(0, static_cast<int64_t>(i)).narrow(1, 0, rows)
                                  : logsumexp.narrow(1, s.query_begin, rows);
    const BackwardResult result =
        Backward(attention, HeadsFirst(gradient, s.query_begin, s.query_end),
                 HeadsFirst(output, s.query_begin, s.query_end), stored.unsqueeze(0), false);
    grad_query.narrow(0, s.query_begin, rows).copy_(RowsFirst(result.query));
    grad_key.narrow(0, s.key_begin, s.key_end - s.key_begin).copy_(RowsFirst(result.key));
    grad_value.narrow(0, s.key_begin, s.key_end - s.key_begin).copy_(RowsFirst(result.value));
  }
}

void StoreDense(Invocation& call, const ForwardResult& result) {
  call.Store(0, result.output.transpose(1, 2));
  StoreLogsumexp(call.Result(1), result.logsumexp);
}

}  // namespace

void SdpaForward(Invocation& call) {
  const ForwardResult result = Forward(SdpaArguments(call));
  call.Store(0, result.output);
  StoreLogsumexp(call.Result(1), result.logsumexp);
  const bool efficient = call.schema().name() == "aten::_scaled_dot_product_efficient_attention";
  StoreRandomState(call, efficient ? 2 : 6, efficient ? 3 : 7);
}

void SdpaFlashBackward(Invocation& call) {
  Attention attention = SdpaArguments(call);
  attention.random = LoadRandomState(call.Tensor("philox_seed"), call.Tensor("philox_offset"));
  const BackwardResult result =
      Backward(attention, call.Tensor("grad_out"), call.Tensor("out"),
               LoadLogsumexp(call.Tensor("logsumexp"), attention.query.size(2)), false);
  call.Store(0, result.query);
  call.Store(1, result.key);
  call.Store(2, result.value);
}

void SdpaEfficientBackward(Invocation& call) {
  const at::Tensor gradient = call.Tensor("grad_out_");
  if (!gradient.defined()) return;
  Attention attention = SdpaArguments(call);
  attention.random = LoadRandomState(call.Tensor("philox_seed"), call.Tensor("philox_offset"));
  const at::Tensor bias_result = call.Result(3);
  const BackwardResult result = Backward(
      attention, gradient, call.Tensor("out"),
      LoadLogsumexp(call.Tensor("logsumexp"), attention.query.size(2)), bias_result.defined());
  call.Store(0, result.query);
  call.Store(1, result.key);
  call.Store(2, result.value);
  if (bias_result.defined()) call.Store(3, Reduced(result.bias, bias_result));
}

void FlashForward(Invocation& call) {
  Attention attention = FlashArguments(call);
  const at::Tensor query = call.Tensor("query"), key = call.Tensor("key"),
                   value = call.Tensor("value");
  if (const auto starts = call.OptionalTensor("cum_seq_q")) {
    PackedForward(call, attention, query, key, value,
                  Sequences(*starts, call.Tensor("cum_seq_k"), call.OptionalTensor("seqused_k")),
                  call.Result(0), call.Result(1), false);
  } else {
    attention.query = query.transpose(1, 2);
    attention.key = key.transpose(1, 2);
    attention.value = value.transpose(1, 2);
    StoreDense(call, Forward(attention));
  }
  StoreRandomState(call, 2, 3);
}

void FlashBackward(Invocation& call) {
  Attention attention = FlashArguments(call);
  attention.random = LoadRandomState(call.Tensor("rng_state"), call.Tensor("unused"));
  const at::Tensor query = call.Tensor("query"), key = call.Tensor("key"),
                   value = call.Tensor("value");
  if (const auto starts = call.OptionalTensor("cum_seq_q")) {
    PackedBackward(call, attention, call.Tensor("grad_out"), query, key, value, call.Tensor("out"),
                   Sequences(*starts, call.Tensor("cum_seq_k"), std::nullopt),
                   call.Tensor("logsumexp"), false, call.Result(0), call.Result(1), call.Result(2));
    return;
  }
  attention.query = query.transpose(1, 2);
  attention.key = key.transpose(1, 2);
  attention.value = value.transpose(1, 2);
  const BackwardResult result = Backward(
      attention, call.Tensor("grad_out").transpose(1, 2), call.Tensor("out").transpose(1, 2),
      LoadLogsumexp(call.Tensor("logsumexp"), attention.query.size(2)), false);
  call.Store(0, result.query.transpose(1, 2));
  call.Store(1, result.key.transpose(1, 2));
  call.Store(2, result.value.transpose(1, 2));
}

void EfficientForward(Invocation& call) {
  Attention attention = EfficientArguments(call);
  const at::Tensor query = call.Tensor("query"), key = call.Tensor("key"),
                   value = call.Tensor("value");
  if (const auto starts = call.OptionalTensor("cu_seqlens_q")) {
    TORCH_CHECK(!attention.bias.defined(), "hostcuda values: ", call.schema().name(),
                " with a bias over packed sequences has no CPU form");
    PackedForward(call, attention, query.squeeze(0), key.squeeze(0), value.squeeze(0),
                  Sequences(*starts, call.Tensor("cu_seqlens_k"), call.OptionalTensor("seqlen_k")),
                  call.Result(0).squeeze(0), call.Result(1), true);
  } else {
    attention.query = query.transpose(1, 2);
    attention.key = key.transpose(1, 2);
    attention.value = value.transpose(1, 2);
    StoreDense(call, Forward(attention));
  }
  StoreRandomState(call, 2, 3);
}

void EfficientBackward(Invocation& call) {
  const at::Tensor gradient = call.Tensor("grad_out_");
  if (!gradient.defined()) return;
  Attention attention = EfficientArguments(call);
  attention.random = LoadRandomState(call.Tensor("philox_seed"), call.Tensor("philox_offset"));
  const at::Tensor query = call.Tensor("query"), key = call.Tensor("key"),
                   value = call.Tensor("value");
  if (const auto starts = call.OptionalTensor("cu_seqlens_q")) {
    PackedBackward(call, attention, gradient.squeeze(0), query.squeeze(0), key.squeeze(0),
                   value.squeeze(0), call.Tensor("out").squeeze(0),
                   Sequences(*starts, call.Tensor("cu_seqlens_k"), std::nullopt),
                   call.Tensor("logsumexp"), true, call.Result(0).squeeze(0),
                   call.Result(1).squeeze(0), call.Result(2).squeeze(0));
    return;
  }
  attention.query = query.transpose(1, 2);
  attention.key = key.transpose(1, 2);
  attention.value = value.transpose(1, 2);
  const at::Tensor bias_result = call.Result(3);
  const BackwardResult result = Backward(
      attention, gradient.transpose(1, 2), call.Tensor("out").transpose(1, 2),
      LoadLogsumexp(call.Tensor("logsumexp"), attention.query.size(2)), bias_result.defined());
  call.Store(0, result.query.transpose(1, 2));
  call.Store(1, result.key.transpose(1, 2));
  call.Store(2, result.value.transpose(1, 2));
  if (bias_result.defined()) call.Store(3, Reduced(result.bias, bias_result));
}

}  // namespace hostcuda::values::forms
