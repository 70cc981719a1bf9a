// cuDNN's convolutions and samplers by the names that PyTorch calls them under.
#include <ATen/ATen.h>

#include "hostcuda/values/table/forms.h"

namespace hostcuda::values::forms {
namespace {

at::Tensor Convolve(const Invocation& call, const std::optional<at::Tensor>& bias, int64_t groups) {
  return at::convolution(call.Tensor("self"), call.Tensor("weight"), bias, call.Ints("stride"),
                         call.Ints("padding"), call.Ints("dilation"), false,
                         std::vector<int64_t>(call.Ints("padding").size(), 0), groups);
}

// The names of at::grid_sampler's modes that cuDNN implements.
constexpr int64_t kBilinear = 0, kZeros = 0;

}  // namespace

void CudnnConvolution(Invocation& call) {
  call.Store(0, Convolve(call, std::nullopt, call.Int("groups")));
}

void CudnnConvolutionTranspose(Invocation& call) {
  call.Store(0, at::convolution(call.Tensor("self"), call.Tensor("weight"), {}, call.Ints("stride"),
                                call.Ints("padding"), call.Ints("dilation"), true,
                                call.Ints("output_padding"), call.Int("groups")));
}

void CudnnConvolutionRelu(Invocation& call) {
  call.Store(0, Convolve(call, call.OptionalTensor("bias"), call.Int("groups")).relu_());
}

void CudnnConvolutionAddRelu(Invocation& call) {
  const c10::IValue& alpha = call.Argument("alpha");
  const at::Scalar factor = alpha.isNone() ? at::Scalar(1) : alpha.toScalar();
  call.Store(0, Convolve(call, call.OptionalTensor("bias"), call.Int("groups"))
                    .add_(call.Tensor("z"), factor)
                    .relu_());
}

void DepthwiseConvolution(Invocation& call) {
  call.Store(0, Convolve(call, call.OptionalTensor("bias"), call.Tensor("self").size(1)));
}

void GridSampler(Invocation& call) {
  call.Store(
      0, at::grid_sampler_2d(call.Tensor("self"), call.Tensor("grid"), kBilinear, kZeros, true));
}

void GridSamplerBackward(Invocation& call) {
  const auto [self, grid] =
      at::grid_sampler_2d_backward(call.Tensor("grad_output"), call.Tensor("self"),
                                   call.Tensor("grid"), kBilinear, kZeros, true, {true, true});
  call.Store(0, self);
  call.Store(1, grid);
}

void AffineGrid(Invocation& call) {
  call.Store(0, at::affine_grid_generator(
                    call.Tensor("theta"),
                    {call.Int("N"), call.Int("C"), call.Int("H"), call.Int("W")}, true));
}

void AffineGridBackward(Invocation& call) {
  call.Store(0, at::affine_grid_generator_backward(
                    call.Tensor("grad"),
                    {call.Int("N"), call.Int("C"), call.Int("H"), call.Int("W")}, true));
}

}  // namespace hostcuda::values::forms
