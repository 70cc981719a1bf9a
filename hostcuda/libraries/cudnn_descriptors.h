// The descriptors of cuDNN's classic interface that hand-written code looks into. All are
// GenericObjects, because generated calls (pooling, softmax, ...) take them too and put their
// `summary` into kernel names.
//
// Threading: as cuDNN: one thread at a time for each descriptor.
#ifndef HOSTCUDA_LIBRARIES_CUDNN_DESCRIPTORS_H_
#define HOSTCUDA_LIBRARIES_CUDNN_DESCRIPTORS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "hostcuda/libraries/driver_link.h"
#include "hostcuda/libraries/generic_object.h"

#pragma GCC visibility push(default)
#include <cudnn.h>
#pragma GCC visibility pop

struct cudnnContext : hostcuda::GenericObject {};

struct cudnnTensorStruct : hostcuda::GenericObject {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int rank = 0;
  std::array<int, CUDNN_DIM_MAX> dims{}, strides{};
};

struct cudnnFilterStruct : hostcuda::GenericObject {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  int rank = 0;
  std::array<int, CUDNN_DIM_MAX> dims{};
};

struct cudnnConvolutionStruct : hostcuda::GenericObject {
  int spatial = 0;
  std::array<int, CUDNN_DIM_MAX> padding{}, stride{}, dilation{};
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  cudnnReorderType_t reorder = CUDNN_DEFAULT_REORDER;
  int groups = 1;
};

struct cudnnRNNStruct : hostcuda::GenericObject {
  cudnnRNNAlgo_t algorithm = CUDNN_RNN_ALGO_STANDARD;
  cudnnRNNMode_t cell = CUDNN_LSTM;
  cudnnRNNBiasMode_t bias = CUDNN_RNN_DOUBLE_BIAS;
  cudnnDirectionMode_t direction = CUDNN_UNIDIRECTIONAL;
  cudnnRNNInputMode_t input = CUDNN_LINEAR_INPUT;
  cudnnDataType_t type = CUDNN_DATA_FLOAT, math = CUDNN_DATA_FLOAT;
  cudnnMathType_t math_type = CUDNN_DEFAULT_MATH;
  int input_size = 0, hidden_size = 0, projection_size = 0, layers = 0;
  cudnnDropoutDescriptor_t dropout = nullptr;
  uint32_t flags = 0;
};

namespace hostcuda {

/// Returns "f32", "bf16", ...; "unknown" for a type that is none.
const char* CudnnTypeName(cudnnDataType_t type) noexcept;
/// Returns the bytes of an element (vectorised types: of one vector), 0 for unknown types.
size_t CudnnTypeBytes(cudnnDataType_t type) noexcept;
/// Returns "8x64x56x56".
std::string Extents(std::span<const int64_t> dims);

/// One convolution, whichever interface described it. Spatial extents without batch and channels.
struct ConvolutionShape {
  const char* kind;  // fwd, dgrad, wgrad
  cudnnDataType_t type, compute;
  int64_t n, c, k, groups;
  std::span<const int64_t> in, kernel, out;
};
std::string ConvolutionName(const ConvolutionShape& shape);

cudnnStatus_t CudnnStatus(CUresult result) noexcept;

template <typename Descriptor>
bool Valid(const Descriptor* descriptor) noexcept {
  return descriptor && descriptor->magic == GenericObject::kMagic;
}

}  // namespace hostcuda

#endif  // HOSTCUDA_LIBRARIES_CUDNN_DESCRIPTORS_H_
