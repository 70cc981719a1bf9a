#include "hostcuda/values/noise.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include <string>

namespace hostcuda::values {
namespace {

bool Contains(const std::string& name, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

// The number of legal values of an index result: the size of the dimension that the operation
// searched.
int64_t IndexRange(const Invocation& call) {
  at::Tensor searched;
  for (const c10::IValue& argument : call.arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      searched = argument.toTensor();
      break;
    }
  }
  if (!searched.defined() || searched.numel() == 0) return 1;
  if (!call.HasArgument("dim") || !call.Argument("dim").isInt()) {
    return call.HasArgument("dim") ? searched.numel() : 1;
  }
  const int64_t dim = call.Int("dim");
  return searched.dim() == 0 ? 1 : searched.size(dim < 0 ? dim + searched.dim() : dim);
}

// Nothing is wrong: all finite (composed of x == x and |x| != inf), none infinite, no padding or
// ignored label, everything attended to.
bool TruthValue(const Invocation& call) {
  const std::string& name = call.schema().name();
  if (name != "aten::eq" && name != "aten::ne")
    return Contains(name, {"::all", "isfinite", "::ge", "::le"});
  const c10::IValue &self = call.arguments[0], &other = call.arguments[1];
  const bool with_itself =
      other.isTensor() && self.toTensor().data_ptr() == other.toTensor().data_ptr();
  return with_itself == (name == "aten::eq");
}

void Fill(const Invocation& call, const at::Tensor& out, const at::Generator& generator) {
  const std::string& name = call.schema().name();
  if (out.numel() == 0) return;
  if (out.scalar_type() == at::kBool) {
    out.fill_(TruthValue(call));
  } else if (out.is_floating_point() || out.is_complex()) {
    if (out.itemsize() == 1) {
      out.fill_(1);  // 8-bit floats have no random kernel
      return;
    }
    out.normal_(0, 1, generator);
    if (Contains(name, {"norm", "var", "std", "loss", "softmax", "sigmoid", "exp", "sqrt", "abs",
                        "topk"}) &&
        !out.is_complex()) {
      out.copy_(at::abs(out));
    }
  } else if (Contains(name, {"topk", "sort"}) && call.HasArgument("dim") && out.dim() > 0) {
    // Distinct indices along the dimension, as an expert is chosen once by a token.
    const int64_t dim = call.Int("dim") < 0 ? call.Int("dim") + out.dim() : call.Int("dim");
    std::vector<int64_t> sizes = out.sizes().vec();
    sizes[dim] = IndexRange(call);
    out.copy_(at::rand(sizes, generator).argsort(dim).narrow(dim, 0, out.size(dim)));
  } else if (Contains(name, {"argmax", "argmin", "max", "min", "topk", "sort", "kthvalue", "median",
                             "mode", "multinomial"})) {
    out.copy_(at::randint(IndexRange(call), out.sizes(), generator));
  } else {
    out.zero_();
  }
}

constexpr int64_t kIntegerFactor = 16;

}  // namespace

bool IsSmall(const at::Tensor& tensor, int64_t limit_bytes) {
  const bool floating = tensor.is_floating_point() || tensor.is_complex();
  return static_cast<int64_t>(tensor.nbytes()) <= limit_bytes * (floating ? 1 : kIntegerFactor);
}

int FillWithNoise(Invocation& call, int64_t limit_bytes, uint64_t seed) {
  const at::Generator generator = CpuGenerator({seed, 0});
  int filled = 0;
  const auto fill = [&](const c10::IValue& value) {
    const auto one = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !IsSmall(tensor, limit_bytes)) return;
      Fill(call, tensor, generator);
      ++filled;
    };
    if (value.isTensor()) one(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) one(tensor);
    }
  };
  const auto& declared = call.schema().arguments();
  for (size_t i = 0; i < declared.size(); ++i) {
    if (declared[i].is_out()) fill(call.arguments[i]);
  }
  const auto& returns = call.schema().returns();
  for (size_t i = 0; i < returns.size(); ++i) {
    if (returns[i].alias_info() == nullptr) fill(call.results[i]);
  }
  return filled;
}

}  // namespace hostcuda::values
