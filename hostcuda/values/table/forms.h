// The CPU forms named by operations.inc, by family. Each computes what PyTorch's CUDA kernel
// documents; where its result can differ from the CPU operation's by rounding,
// tests/values/tolerances.py states by how much and why.
//
// Threading: pure functions of the invocation.
#ifndef HOSTCUDA_VALUES_TABLE_FORMS_H_
#define HOSTCUDA_VALUES_TABLE_FORMS_H_

#include <vector>

#include "hostcuda/values/form.h"

namespace hostcuda::values::forms {

// attention.cc
void SdpaForward(Invocation& call);  // flash, efficient, cuDNN: (batch, heads, length, width)
void SdpaFlashBackward(Invocation& call);
void SdpaEfficientBackward(Invocation& call);
void FlashForward(Invocation& call);  // (batch, length, heads, width), or packed sequences
void FlashBackward(Invocation& call);
void EfficientForward(Invocation& call);
void EfficientBackward(Invocation& call);

// normalization.cc
void NormForward(Invocation& call);   // layer and group norm: statistics in the result's type
void NormBackward(Invocation& call);  // in fp32 for reduced types
void RmsNorm(Invocation& call);
void RmsNormBackward(Invocation& call);
void BatchNorm(Invocation& call);
void CudnnBatchNorm(Invocation& call);
void CudnnBatchNormBackward(Invocation& call);
void BatchNormBackward(Invocation& call);
void BatchNormStats(Invocation& call);
void BatchNormElementwise(Invocation& call);
void BatchNormGatherStats(Invocation& call);
void BatchNormBackwardReduce(Invocation& call);
void BatchNormBackwardElementwise(Invocation& call);
void Softmax(Invocation& call);
void SoftmaxBackward(Invocation& call);
void WeightNorm(Invocation& call);

// matmul.cc
void MmWithDtype(Invocation& call);
void AddmmWithDtype(Invocation& call);
void ScaledMm(Invocation& call);
void ScaledGroupedMm(Invocation& call);

// convolution.cc
void CudnnConvolution(Invocation& call);
void CudnnConvolutionTranspose(Invocation& call);
void CudnnConvolutionRelu(Invocation& call);
void CudnnConvolutionAddRelu(Invocation& call);
void DepthwiseConvolution(Invocation& call);
void GridSampler(Invocation& call);
void GridSamplerBackward(Invocation& call);
void AffineGrid(Invocation& call);
void AffineGridBackward(Invocation& call);

// recurrent.cc
void LstmCell(Invocation& call);
void LstmCellBackward(Invocation& call);
void GruCell(Invocation& call);
void GruCellBackward(Invocation& call);

// random.cc
void NativeDropout(Invocation& call);
void FusedDropout(Invocation& call);
void MaskedScale(Invocation& call);

// loss.cc
std::vector<c10::IValue> Histogram(const c10::OperatorHandle& operation,
                                   std::vector<c10::IValue> arguments, RandomState random);
void LogSigmoid(Invocation& call);
void LogSigmoidBackward(Invocation& call);
void EmbeddingBag(Invocation& call);

}  // namespace hostcuda::values::forms

#endif  // HOSTCUDA_VALUES_TABLE_FORMS_H_
