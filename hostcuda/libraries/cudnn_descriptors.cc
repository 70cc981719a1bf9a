#include "hostcuda/libraries/cudnn_descriptors.h"

namespace hostcuda {

const char* CudnnTypeName(cudnnDataType_t type) noexcept {
  switch (type) {
    case CUDNN_DATA_FLOAT:
      return "f32";
    case CUDNN_DATA_DOUBLE:
      return "f64";
    case CUDNN_DATA_HALF:
      return "f16";
    case CUDNN_DATA_BFLOAT16:
      return "bf16";
    case CUDNN_DATA_INT8:
      return "i8";
    case CUDNN_DATA_UINT8:
      return "u8";
    case CUDNN_DATA_INT32:
      return "i32";
    case CUDNN_DATA_INT64:
      return "i64";
    case CUDNN_DATA_BOOLEAN:
      return "bool";
    case CUDNN_DATA_INT8x4:
      return "i8x4";
    case CUDNN_DATA_UINT8x4:
      return "u8x4";
    case CUDNN_DATA_INT8x32:
      return "i8x32";
    case CUDNN_DATA_FP8_E4M3:
      return "e4m3";
    case CUDNN_DATA_FP8_E5M2:
      return "e5m2";
    case CUDNN_DATA_FAST_FLOAT_FOR_FP8:
      return "f32by8f";
    case CUDNN_DATA_FP8_E8M0:
      return "e8m0";
    case CUDNN_DATA_FP4_E2M1:
      return "e2m1";
    default:
      return "unknown";
  }
}

size_t CudnnTypeBytes(cudnnDataType_t type) noexcept {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
      return 8;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
    case CUDNN_DATA_INT8x4:
    case CUDNN_DATA_UINT8x4:
      return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8:
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2:
    case CUDNN_DATA_FP8_E8M0:
      return 1;
    case CUDNN_DATA_INT8x32:
      return 32;
    default:
      return 0;
  }
}

std::string Extents(std::span<const int64_t> dims) {
  std::string text;
  for (int64_t d : dims) text.append(text.empty() ? "" : "x").append(std::to_string(d));
  return text;
}

std::string ConvolutionName(const ConvolutionShape& s) {
  return std::string("hostcudnn_conv") + s.kind + "_" + CudnnTypeName(s.type) + "_" +
         CudnnTypeName(s.compute) + "_n" + std::to_string(s.n) + "_c" + std::to_string(s.c) + "_k" +
         std::to_string(s.k) + "_in" + Extents(s.in) + "_ker" + Extents(s.kernel) + "_out" +
         Extents(s.out) + "_g" + std::to_string(s.groups);
}

cudnnStatus_t CudnnStatus(CUresult result) noexcept {
  switch (result) {
    case CUDA_SUCCESS:
      return CUDNN_STATUS_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return CUDNN_STATUS_ALLOC_FAILED;
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return CUDNN_STATUS_NOT_INITIALIZED;
    default:
      return CUDNN_STATUS_EXECUTION_FAILED;
  }
}

}  // namespace hostcuda
