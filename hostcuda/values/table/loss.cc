// Counting and bags.
#include <ATen/ATen.h>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {

// The CPU kernel takes floating types only, the CUDA kernel integers too.
std::vector<c10::IValue> Histogram(const c10::OperatorHandle& operation,
                                   std::vector<c10::IValue> arguments, RandomState random) {
  const at::Tensor self = arguments[0].toTensor();
  if (self.is_floating_point()) return CallCpuKernel(operation, std::move(arguments), random);
  const at::Tensor counts = at::histc(self.to(at::kDouble), arguments[1].toInt(),
                                      arguments[2].toScalar(), arguments[3].toScalar())
                                .to(self.scalar_type());
  if (arguments.size() == 5) {
    at::Tensor out = arguments[4].toTensor();
    out.resize_(counts.sizes()).copy_(counts);
    return {out};
  }
  return {counts};
}

void LogSigmoid(Invocation& call) {
  call.Store(0, std::get<0>(at::log_sigmoid_forward(call.Tensor("self"))));
}

void LogSigmoidBackward(Invocation& call) {
  const at::Tensor self = call.Tensor("self");
  const at::Tensor buffer = std::get<1>(at::log_sigmoid_forward(self));
  call.Store(0, at::log_sigmoid_backward(call.Tensor("grad_output"), self, buffer));
}

// The CPU kernel leaves out what only the CUDA backward needs: which bag an index belongs to, and
// how many each has.
void EmbeddingBag(Invocation& call) {
  const std::vector<c10::IValue> results =
      CallCpuKernel(*call.operation, call.arguments, call.random);
  call.Store(0, results[0].toTensor());
  const at::Tensor indices = call.Tensor("indices");
  at::Tensor offsets = call.Tensor("offsets").to(at::kLong);
  const int64_t bags = call.Result(0).size(0);
  const at::Tensor ends =
      at::cat({offsets, at::full({1}, indices.numel(), at::kLong)}).narrow(0, 0, bags + 1);
  const at::Tensor sizes = ends.slice(0, 1).sub(ends.slice(0, 0, bags));
  const at::Tensor bag_of = at::arange(bags, at::kLong).repeat_interleave(sizes);
  if (call.Result(1).numel() == bag_of.numel()) call.Store(1, bag_of.view(call.Result(1).sizes()));
  for (const size_t i : {2, 3}) {
    const at::Tensor result = call.Result(i), computed = results[i].toTensor();
    if (!result.defined() || result.numel() == 0) continue;
    if (computed.sizes() == result.sizes()) {
      result.copy_(computed);
    } else if (i == 2 && result.numel() == bags) {
      result.copy_(sizes);
    }
  }
}

}  // namespace hostcuda::values::forms
