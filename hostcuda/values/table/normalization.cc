// Norms. CUDA kernels keep statistics in fp32 for bf16 and fp16 inputs; the CPU kernels of the same
// names keep them in the input's type, refuse fp32 ones, or read them as if they were the input's
// type. The output itself is the CPU kernel's.
#include <ATen/ATen.h>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {
namespace {

at::ScalarType Accumulator(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool Reduced(const at::Tensor& tensor) { return at::isReducedFloatingType(tensor.scalar_type()); }

// The invocation's arguments with every floating tensor in fp32.
std::vector<c10::IValue> Widened(const Invocation& call) {
  std::vector<c10::IValue> arguments = call.arguments;
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined() && Reduced(argument.toTensor())) {
      argument = argument.toTensor().to(at::kFloat);
    }
  }
  return arguments;
}

at::Tensor ResultOf(const std::vector<c10::IValue>& results, size_t index) {
  return results[index].isTensor() ? results[index].toTensor() : at::Tensor();
}

void StoreAll(const Invocation& call, const std::vector<c10::IValue>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (call.Result(i).defined()) call.Store(i, ResultOf(results, i).view(call.Result(i).sizes()));
  }
}

void WidenedBackward(Invocation& call) {
  if (Reduced(call.Tensor("input"))) {
    StoreAll(call, CallCpuKernel(*call.operation, Widened(call), call.random));
  } else {
    CpuKernel(call);
  }
}

// A statistic of one value a channel, shaped to broadcast over (batch, channel, ...).
at::Tensor PerChannel(const at::Tensor& statistic, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return statistic.to(Accumulator(input)).view(shape);
}

std::vector<int64_t> AllButChannel(const at::Tensor& input) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < input.dim(); ++i) {
    if (i != 1) dims.push_back(i);
  }
  return dims;
}

std::optional<at::Tensor> Widened(const std::optional<at::Tensor>& tensor) {
  return tensor && Reduced(*tensor) ? tensor->to(at::kFloat) : tensor;
}

void StoreBatchNormGradients(const Invocation& call, const char* gradient, bool training,
                             const char* epsilon) {
  const auto widened = [&](const char* name) { return Widened(call.OptionalTensor(name)); };
  const auto [input, weight, bias] = at::native_batch_norm_backward(
      *widened(gradient), *widened("input"), widened("weight"), widened("running_mean"),
      widened("running_var"), widened("save_mean"), widened("save_var"), training,
      call.Double(epsilon),
      {call.Result(0).defined(), call.Result(1).defined(), call.Result(2).defined()});
  if (call.Result(0).defined()) call.Store(0, input);
  if (call.Result(1).defined()) call.Store(1, weight);
  if (call.Result(2).defined()) call.Store(2, bias);
}

}  // namespace

void NormForward(Invocation& call) {
  const std::vector<c10::IValue> results =
      CallCpuKernel(*call.operation, call.arguments, call.random);
  call.Store(0, ResultOf(results, 0));
  const bool same_type = ResultOf(results, 1).scalar_type() == call.Result(1).scalar_type();
  const std::vector<c10::IValue> statistics =
      same_type ? results : CallCpuKernel(*call.operation, Widened(call), call.random);
  for (const size_t i : {1, 2}) call.Store(i, ResultOf(statistics, i).view(call.Result(i).sizes()));
}

void NormBackward(Invocation& call) { WidenedBackward(call); }

void RmsNorm(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  const at::ScalarType type = Accumulator(input);
  const std::vector<c10::IValue> results =
      CallCpuKernel(*call.operation, call.arguments, call.random);
  call.Store(0, ResultOf(results, 0));
  std::vector<int64_t> dims;
  const int64_t normalized = static_cast<int64_t>(call.Ints("normalized_shape").size());
  for (int64_t i = input.dim() - normalized; i < input.dim(); ++i) dims.push_back(i);
  const double eps = call.OptionalDouble("eps").value_or(
      type == at::kDouble ? std::numeric_limits<double>::epsilon()
                          : std::numeric_limits<float>::epsilon());
  const at::Tensor rstd = input.to(type).pow(2).mean(dims, true).add(eps).rsqrt();
  if (call.Result(1).defined()) call.Store(1, rstd.view(call.Result(1).sizes()));
}

void RmsNormBackward(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  const at::ScalarType type = Accumulator(input);
  const int64_t normalized = static_cast<int64_t>(call.Ints("normalized_shape").size());
  std::vector<int64_t> inner, outer, broadcast;
  for (int64_t i = 0; i < input.dim(); ++i) {
    (i < input.dim() - normalized ? outer : inner).push_back(i);
    broadcast.push_back(i < input.dim() - normalized ? input.size(i) : 1);
  }
  const at::Tensor rstd = call.Tensor("rstd").to(type).view(broadcast);
  const at::Tensor normalized_input = input.to(type).mul(rstd);
  const at::Tensor gradient = call.Tensor("grad_out").to(type);
  const auto weight = call.OptionalTensor("weight");
  const at::Tensor scaled = weight ? gradient.mul(weight->to(type)) : gradient;
  if (call.Result(0).defined()) {
    const at::Tensor mean = scaled.mul(normalized_input).mean(inner, true);
    call.Store(0, scaled.sub(normalized_input.mul(mean)).mul(rstd));
  }
  if (call.Result(1).defined()) {
    const at::Tensor product = gradient.mul(normalized_input);
    call.Store(1, outer.empty() ? product : product.sum(outer));
  }
}

// The output and the running statistics are the CPU kernel's; saved statistics are fp32. The fourth
// result (a workspace) has no meaning outside the CUDA kernel.
void BatchNorm(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  const std::vector<c10::IValue> results =
      CallCpuKernel(*call.operation, call.arguments, call.random);
  call.Store(0, ResultOf(results, 0));
  at::Tensor mean = ResultOf(results, 1), invstd = ResultOf(results, 2);
  if (mean.numel() == 0 || call.Result(1).numel() == 0) return;  // evaluation: nothing is saved
  if (mean.scalar_type() != call.Result(1).scalar_type()) {
    std::tie(std::ignore, mean, invstd) =
        at::native_batch_norm(input.to(at::kFloat), {}, {}, {}, {}, true, 0.0, call.Double("eps"));
  }
  call.Store(1, mean);
  call.Store(2, invstd);
}

void CudnnBatchNorm(Invocation& call) {
  const auto [output, mean, invstd] = at::native_batch_norm(
      call.Tensor("input"), call.OptionalTensor("weight"), call.OptionalTensor("bias"),
      call.OptionalTensor("running_mean"), call.OptionalTensor("running_var"),
      call.Bool("training"), call.Double("exponential_average_factor"), call.Double("epsilon"));
  call.Store(0, output);
  if (mean.numel() > 0 && call.Result(1).numel() > 0) {
    call.Store(1, mean);
    call.Store(2, invstd);
  }
}

void CudnnBatchNormBackward(Invocation& call) {
  StoreBatchNormGradients(call, "grad_output", true, "epsilon");
}

void BatchNormBackward(Invocation& call) {
  StoreBatchNormGradients(call, "grad_out", call.Bool("update"), "eps");
}

void BatchNormStats(Invocation& call) {
  const at::Tensor input = call.Tensor("input").to(Accumulator(call.Tensor("input")));
  const auto [variance, mean] = at::var_mean(input, AllButChannel(input), 0, false);
  call.Store(0, mean);
  call.Store(1, variance.add(call.Double("eps")).rsqrt());
}

void BatchNormElementwise(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  at::Tensor output = input.to(Accumulator(input))
                          .sub(PerChannel(call.Tensor("mean"), input))
                          .mul(PerChannel(call.Tensor("invstd"), input));
  if (const auto weight = call.OptionalTensor("weight"))
    output = output.mul(PerChannel(*weight, input));
  if (const auto bias = call.OptionalTensor("bias")) output = output.add(PerChannel(*bias, input));
  call.Store(0, output);
}

void BatchNormGatherStats(Invocation& call) {
  const at::Tensor mean = call.Tensor("mean"), invstd = call.Tensor("invstd");
  const at::ScalarType type = Accumulator(mean);
  const double eps = call.Double("eps");
  const at::Tensor counts =
      call.HasArgument("counts")
          ? call.Tensor("counts").to(type).view({-1, 1})
          : at::full({mean.size(0), 1}, static_cast<double>(call.Int("count")), type);
  const at::Tensor total = counts.sum();
  const at::Tensor all_mean = mean.to(type).mul(counts).sum(0).div(total);
  const at::Tensor variance = invstd.to(type).pow(-2).sub(eps);
  const at::Tensor squares = variance.add(mean.to(type).sub(all_mean).pow(2)).mul(counts).sum(0);
  const double momentum = call.Double("momentum");
  if (const auto running = call.OptionalTensor("running_mean"))
    running->mul_(1 - momentum).add_(all_mean.mul(momentum));
  if (const auto running = call.OptionalTensor("running_var")) {
    running->mul_(1 - momentum).add_(squares.div(total.sub(1)).mul(momentum));
  }
  call.Store(0, all_mean);
  call.Store(1, squares.div(total).add(eps).rsqrt());
}

void BatchNormBackwardReduce(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  const at::ScalarType type = Accumulator(input);
  const at::Tensor gradient = call.Tensor("grad_out").to(type);
  const at::Tensor centred = input.to(type).sub(PerChannel(call.Tensor("mean"), input));
  const std::vector<int64_t> dims = AllButChannel(input);
  const at::Tensor sum = gradient.sum(dims), sum_centred = gradient.mul(centred).sum(dims);
  call.Store(0, sum);
  call.Store(1, sum_centred);
  call.Store(2, sum_centred.mul(call.Tensor("invstd")));
  call.Store(3, sum);
}

void BatchNormBackwardElementwise(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  const at::ScalarType type = Accumulator(input);
  const at::Tensor count = call.Tensor("count").sum().to(type);
  const at::Tensor invstd = PerChannel(call.Tensor("invstd"), input);
  const at::Tensor mean_gradient = PerChannel(call.Tensor("sum_dy").to(type).div(count), input);
  const at::Tensor projection =
      PerChannel(call.Tensor("sum_dy_xmu").to(type).div(count), input).mul(invstd).mul(invstd);
  const at::Tensor centred = input.to(type).sub(PerChannel(call.Tensor("mean"), input));
  at::Tensor result =
      call.Tensor("grad_out").to(type).sub(mean_gradient).sub(centred.mul(projection)).mul(invstd);
  if (const auto weight = call.OptionalTensor("weight"))
    result = result.mul(PerChannel(*weight, input));
  call.Store(0, result);
}

// half_to_float is a CUDA fusion of a conversion and the softmax.
void Softmax(Invocation& call) {
  const at::Tensor self = call.Tensor("self");
  const at::Tensor input = call.Bool("half_to_float") ? self.to(at::kFloat) : self;
  const bool log = call.schema().name() == "aten::_log_softmax";
  call.Store(0, log ? at::_log_softmax(input, call.Int("dim"), false)
                    : at::_softmax(input, call.Int("dim"), false));
}

void SoftmaxBackward(Invocation& call) {
  const at::Tensor gradient = call.Tensor("grad_output"), output = call.Tensor("output");
  const bool log = call.schema().name() == "aten::_log_softmax_backward_data";
  call.Store(0, log ? at::_log_softmax_backward_data(gradient, output, call.Int("dim"),
                                                     gradient.scalar_type())
                    : at::_softmax_backward_data(gradient, output, call.Int("dim"),
                                                 gradient.scalar_type()));
}

// The norm is kept in fp32 for bf16 weights.
void WeightNorm(Invocation& call) {
  const std::vector<c10::IValue> results =
      CallCpuKernel(*call.operation, call.arguments, call.random);
  for (size_t i = 0; i < results.size(); ++i) call.Store(i, ResultOf(results, i));
}

}  // namespace hostcuda::values::forms
