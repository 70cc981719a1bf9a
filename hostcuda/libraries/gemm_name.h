// Names and grids of matrix products, shared by cuBLAS and cuBLASLt (docs/reference/kernel-names.md
// is their grammar).
//
// Pure functions; any thread.
//
//   GemmShape shape{.a = CUDA_R_16BF, .b = CUDA_R_16BF, .d = CUDA_R_16BF, .accumulate = "f32",
//   .transpose_a = 't',
//                   .transpose_b = 'n', .m = 4096, .n = 1024, .k = 512, .batch = 1};
//   GemmName("hostcublas_gemm", shape)  // hostcublas_gemm_bf16_bf16_f32_tn_m4096_n1024_k512_b1
#ifndef HOSTCUDA_LIBRARIES_GEMM_NAME_H_
#define HOSTCUDA_LIBRARIES_GEMM_NAME_H_

#include <library_types.h>

#include <cstdint>
#include <string>

#include "hostcuda/libraries/driver_link.h"

#pragma GCC visibility push(default)
#include <cublas_api.h>
#pragma GCC visibility pop

namespace hostcuda {

struct GemmShape {
  cudaDataType_t a, b, d;
  const char* accumulate;         // "f32", "tf32", ...: type of products and sums
  char transpose_a, transpose_b;  // n, t or c
  int64_t m, n, k, batch;
};

/// Returns the short name of an element type ("bf16"), or null if there is none.
const char* TypeName(cudaDataType_t type) noexcept;
/// Returns the bytes of one element times two (a 4-bit element is 1), or 0 for unknown types.
int HalfBytes(cudaDataType_t type) noexcept;
/// Returns n, t or c, or 0 for an invalid operation.
char TransposeLetter(int operation) noexcept;
/// Returns the accumulation's name for a compute type; `tf32` says that the handle allows it for
/// 32-bit inputs. Null if unknown.
const char* AccumulateName(cublasComputeType_t compute, cudaDataType_t input, bool tf32) noexcept;

std::string GemmName(const char* kind, const GemmShape& shape);
/// Returns a grid of 128 x 128 tiles, one block each.
Grid GemmGrid(const GemmShape& shape) noexcept;

}  // namespace hostcuda

#endif  // HOSTCUDA_LIBRARIES_GEMM_NAME_H_
