#include "hostcuda/libraries/gemm_name.h"

#include <algorithm>

namespace hostcuda {

const char* TypeName(cudaDataType_t type) noexcept {
  switch (type) {
    case CUDA_R_16F:
      return "f16";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_32F:
      return "f32";
    case CUDA_R_64F:
      return "f64";
    case CUDA_C_16F:
      return "c32";
    case CUDA_C_16BF:
      return "cbf32";
    case CUDA_C_32F:
      return "c64";
    case CUDA_C_64F:
      return "c128";
    case CUDA_R_4I:
      return "i4";
    case CUDA_R_4U:
      return "u4";
    case CUDA_R_8I:
      return "i8";
    case CUDA_R_8U:
      return "u8";
    case CUDA_R_16I:
      return "i16";
    case CUDA_R_16U:
      return "u16";
    case CUDA_R_32I:
      return "i32";
    case CUDA_R_32U:
      return "u32";
    case CUDA_R_64I:
      return "i64";
    case CUDA_R_64U:
      return "u64";
    case CUDA_C_8I:
      return "ci8";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    case CUDA_R_8F_UE8M0:
      return "e8m0";
    case CUDA_R_6F_E2M3:
      return "e2m3";
    case CUDA_R_6F_E3M2:
      return "e3m2";
    case CUDA_R_4F_E2M1:
      return "e2m1";
    default:
      return nullptr;
  }
}

int HalfBytes(cudaDataType_t type) noexcept {
  switch (type) {
    case CUDA_R_4I:
    case CUDA_R_4U:
    case CUDA_R_4F_E2M1:
      return 1;
    case CUDA_R_8I:
    case CUDA_R_8U:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
    case CUDA_R_8F_UE8M0:
    case CUDA_R_6F_E2M3:
    case CUDA_R_6F_E3M2:
      return 2;
    case CUDA_R_16F:
    case CUDA_R_16BF:
    case CUDA_R_16I:
    case CUDA_R_16U:
    case CUDA_C_8I:
      return 4;
    case CUDA_R_32F:
    case CUDA_R_32I:
    case CUDA_R_32U:
    case CUDA_C_16F:
    case CUDA_C_16BF:
      return 8;
    case CUDA_R_64F:
    case CUDA_R_64I:
    case CUDA_R_64U:
    case CUDA_C_32F:
      return 16;
    case CUDA_C_64F:
      return 32;
    default:
      return 0;
  }
}

char TransposeLetter(int operation) noexcept {
  switch (operation) {
    case CUBLAS_OP_N:
      return 'n';
    case CUBLAS_OP_T:
      return 't';
    case CUBLAS_OP_C:
      return 'c';
    default:
      return 0;
  }
}

const char* AccumulateName(cublasComputeType_t compute, cudaDataType_t input, bool tf32) noexcept {
  const bool single = input == CUDA_R_32F || input == CUDA_C_32F;
  switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      return "f16";
    case CUBLAS_COMPUTE_32F:
      return single && tf32 ? "tf32" : "f32";
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return "f32";
    case CUBLAS_COMPUTE_32F_FAST_16F:
      return "f32by16f";
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return "f32by16bf";
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return "tf32";
    case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
      return "f32by16bfx9";
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return "f64";
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      return "f64byfixed";
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      return "i32";
    default:
      return nullptr;
  }
}

std::string GemmName(const char* kind, const GemmShape& s) {
  std::string name(kind);
  name.append("_").append(TypeName(s.a));
  if (s.b != s.a) name.append("x").append(TypeName(s.b));
  name.append("_").append(TypeName(s.d)).append("_").append(s.accumulate).append("_");
  name.push_back(s.transpose_a);
  name.push_back(s.transpose_b);
  name.append("_m")
      .append(std::to_string(s.m))
      .append("_n")
      .append(std::to_string(s.n))
      .append("_k")
      .append(std::to_string(s.k));
  name.append("_b").append(std::to_string(s.batch));
  return name;
}

Grid GemmGrid(const GemmShape& s) noexcept {
  Grid grid;
  auto tiles = [](int64_t extent) { return std::max<int64_t>((extent + 127) / 128, 1); };
  grid.grid[0] = static_cast<uint32_t>(std::min<int64_t>(tiles(s.m) * tiles(s.n), 0x7fffffff));
  grid.grid[2] = static_cast<uint32_t>(std::clamp<int64_t>(s.batch, 1, 65535));
  grid.block[0] = 384;
  return grid;
}

}  // namespace hostcuda
