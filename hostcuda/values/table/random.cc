// Dropout: the mask depends on the CUDA generator's seed and offset only, and the CPU kernels draw
// from the CPU's.
#include <ATen/ATen.h>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {
namespace {

at::Tensor KeepMask(const Invocation& call, const at::Tensor& input, double keep) {
  return at::empty(input.sizes(), at::kFloat).bernoulli_(keep, CpuGenerator(call.random));
}

}  // namespace

void NativeDropout(Invocation& call) {
  const at::Tensor input = call.Tensor("input");
  const c10::IValue& train = call.Argument("train");
  if (!train.isNone() && !train.toBool()) {
    call.Store(0, input);
    call.Store(1, at::ones(input.sizes(), at::kBool));
    return;
  }
  const double keep = 1 - call.Double("p");
  const at::Tensor mask = KeepMask(call, input, keep);
  call.Store(0, input.mul(mask.to(input.scalar_type())).mul(keep == 0 ? 0.0 : 1 / keep));
  call.Store(1, mask);
}

void FusedDropout(Invocation& call) {
  const at::Tensor self = call.Tensor("self");
  const double keep = call.Double("p");
  const at::Tensor mask = KeepMask(call, self, keep);
  call.Store(0, self.mul(mask.to(self.scalar_type())).mul(keep == 0 ? 0.0 : 1 / keep));
  call.Store(1, mask);
}

void MaskedScale(Invocation& call) {
  const at::Tensor self = call.Tensor("self");
  call.Store(0, self.mul(call.Tensor("mask").to(self.scalar_type())).mul(call.Double("scale")));
}

}  // namespace hostcuda::values::forms
