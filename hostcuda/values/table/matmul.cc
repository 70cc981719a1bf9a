// Matrix products whose result has another type than their inputs, and scaled 8-bit ones.
#include <ATen/ATen.h>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {
namespace {

// Multiplies rows (of the left matrix) or columns (of the right one) by their scale: one for all,
// or one each.
at::Tensor Scaled(const Invocation& call, const at::Tensor& matrix, const at::Tensor& scale,
                  int64_t dim) {
  const at::Tensor wide = matrix.to(at::kFloat);
  if (scale.numel() == 1) return wide.mul(scale.to(at::kFloat).squeeze());
  TORCH_CHECK(scale.numel() == wide.size(dim) && scale.scalar_type() == at::kFloat,
              "hostcuda values: ", call.schema().name(), " with scales of shape ", scale.sizes(),
              " and type ", scale.scalar_type(), " for a matrix of ", matrix.sizes(),
              " has no CPU form; scale by tensor or by row");
  std::vector<int64_t> shape(static_cast<size_t>(wide.dim()), 1);
  shape[static_cast<size_t>(dim)] = wide.size(dim);
  return wide.mul(scale.reshape(shape));
}

}  // namespace

void MmWithDtype(Invocation& call) {
  const at::ScalarType type = call.Dtype("out_dtype");
  call.Store(0, at::matmul(call.Tensor("self").to(type), call.Tensor("mat2").to(type)));
}

void AddmmWithDtype(Invocation& call) {
  const at::ScalarType type = call.Dtype("out_dtype");
  const at::Scalar beta = call.Argument("beta").toScalar(),
                   alpha = call.Argument("alpha").toScalar();
  const at::Tensor self = call.Tensor("self").to(type);
  if (call.HasArgument("mat1")) {
    call.Store(0, at::addmm(self, call.Tensor("mat1").to(type), call.Tensor("mat2").to(type), beta,
                            alpha));
  } else {
    call.Store(0, at::baddbmm(self, call.Tensor("batch1").to(type), call.Tensor("batch2").to(type),
                              beta, alpha));
  }
}

void ScaledMm(Invocation& call) {
  const at::Tensor left = Scaled(call, call.Tensor("self"), call.Tensor("scale_a"), 0);
  const at::Tensor right = Scaled(call, call.Tensor("mat2"), call.Tensor("scale_b"), 1);
  at::Tensor result = at::mm(left, right);
  if (const auto bias = call.OptionalTensor("bias")) result = result.add(bias->to(at::kFloat));
  if (const auto scale = call.OptionalTensor("scale_result")) {
    if (call.Result(0).itemsize() == 1) result = result.mul(scale->to(at::kFloat));
  }
  call.Store(0, result);
}

void ScaledGroupedMm(Invocation& call) {
  const at::Tensor self = call.Tensor("self"), mat2 = call.Tensor("mat2");
  const at::Tensor scale_a = call.Tensor("scale_a"), scale_b = call.Tensor("scale_b");
  const auto offsets = call.OptionalTensor("offs");
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 3 && offsets,
              "hostcuda values: ", call.schema().name(),
              " has a CPU form for (rows, k) x (groups, k, columns) with offsets only, not for ",
              self.sizes(), " x ", mat2.sizes());
  const at::Tensor output = call.Result(0);
  const at::Tensor ends = offsets->to(at::kLong).contiguous();
  int64_t begin = 0;
  for (int64_t group = 0; group < mat2.size(0); ++group) {
    const int64_t end = ends.const_data_ptr<int64_t>()[group];
    if (end > begin) {
      const at::Tensor left = Scaled(call, self.narrow(0, begin, end - begin),
                                     scale_a.narrow(0, begin, end - begin), 0);
      const at::Tensor right = Scaled(call, mat2.select(0, group), scale_b.select(0, group), 1);
      output.narrow(0, begin, end - begin).copy_(at::mm(left, right));
    }
    begin = end;
  }
}

}  // namespace hostcuda::values::forms
