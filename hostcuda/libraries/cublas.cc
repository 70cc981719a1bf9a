// cuBLAS by hand: handles, modes, host transfers and every matrix product. The other BLAS calls are
// generated; they take the same handle, which therefore is a GenericObject.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hostcuda/api/tail_runtime.h"
#include "hostcuda/libraries/driver_link.h"
#include "hostcuda/libraries/gemm_name.h"
#include "hostcuda/libraries/generic_object.h"

// Declarations of the public headers are what makes the definitions below visible.
#pragma GCC visibility push(default)
#include <cublas_v2.h>
#include <cuda_fp16.h>
#pragma GCC visibility pop

struct cublasContext : hostcuda::GenericObject {
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
  int sm_count_target = 0;
  cublasEmulationStrategy_t emulation_strategy = CUBLAS_EMULATION_STRATEGY_DEFAULT;
  cublasLogCallback logger = nullptr;
};

namespace hostcuda {
namespace {

HostcudaLibrary kLibrary = {"libcublas.so.13",
                            "hostcublas",
                            CUBLAS_STATUS_NOT_SUPPORTED,
                            CUBLAS_STATUS_NOT_INITIALIZED,
                            CUBLAS_STATUS_INVALID_VALUE,
                            CUBLAS_STATUS_EXECUTION_FAILED,
                            "CUBLAS_STATUS_NOT_SUPPORTED",
                            {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH}};

bool Valid(cublasHandle_t handle) { return handle && handle->magic == GenericObject::kMagic; }

cublasStatus_t FromDriver(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return CUBLAS_STATUS_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return CUBLAS_STATUS_ALLOC_FAILED;
    case CUDA_ERROR_INVALID_VALUE:
      return CUBLAS_STATUS_INVALID_VALUE;
    default:
      return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

bool Tf32(cublasHandle_t handle) { return handle->math_mode == CUBLAS_TF32_TENSOR_OP_MATH; }

// Types of one product as cuBLAS's calls state them.
struct Types {
  cudaDataType_t a, b, c;
  cublasComputeType_t compute;
};

constexpr Types kHalf = {CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F};
constexpr Types kSingle = {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
constexpr Types kDouble = {CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
constexpr Types kComplex = {CUDA_C_32F, CUDA_C_32F, CUDA_C_32F, CUBLAS_COMPUTE_32F};
constexpr Types kDoubleComplex = {CUDA_C_64F, CUDA_C_64F, CUDA_C_64F, CUBLAS_COMPUTE_64F};

cublasStatus_t Check(cublasHandle_t handle, const Types& types, cublasOperation_t ta,
                     cublasOperation_t tb, int64_t m, int64_t n, int64_t k, int64_t lda,
                     int64_t ldb, int64_t ldc, int64_t batch) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!TransposeLetter(ta) || !TransposeLetter(tb) || m < 0 || n < 0 || k < 0 || batch < 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (lda < std::max<int64_t>(1, ta == CUBLAS_OP_N ? m : k) ||
      ldb < std::max<int64_t>(1, tb == CUBLAS_OP_N ? k : n) || ldc < std::max<int64_t>(1, m))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!TypeName(types.a) || !TypeName(types.b) || !TypeName(types.c) ||
      !AccumulateName(types.compute, types.a, false))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Gemm(cublasHandle_t handle, const Types& types, cublasOperation_t ta,
                    cublasOperation_t tb, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                    int64_t ldc, int64_t batch = 1) noexcept {
  if (cublasStatus_t status = Check(handle, types, ta, tb, m, n, k, lda, ldb, ldc, batch);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (m == 0 || n == 0 || batch == 0)
    return CUBLAS_STATUS_SUCCESS;  // no kernel runs on a GPU either
  const GemmShape shape{types.a,
                        types.b,
                        types.c,
                        AccumulateName(types.compute, types.a, Tf32(handle)),
                        TransposeLetter(ta),
                        TransposeLetter(tb),
                        m,
                        n,
                        k,
                        batch};
  return FromDriver(
      LaunchNamed(handle->stream, GemmName("hostcublas_gemm", shape), GemmGrid(shape)));
}

// Groups of products in one launch; group i holds sizes[i] products of one shape.
template <typename Index>
cublasStatus_t GroupedGemm(cublasHandle_t handle, const Types& types, const cublasOperation_t* ta,
                           const cublasOperation_t* tb, const Index* m, const Index* n,
                           const Index* k, const Index* lda, const Index* ldb, const Index* ldc,
                           Index groups, const Index* sizes) noexcept {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (groups < 0 || (groups > 0 && (!ta || !tb || !m || !n || !k || !sizes)))
    return CUBLAS_STATUS_INVALID_VALUE;
  double flops = 0, bytes = 0;
  Grid grid;
  uint64_t blocks = 0;
  for (Index i = 0; i < groups; ++i) {
    if (cublasStatus_t status =
            Check(handle, types, ta[i], tb[i], m[i], n[i], k[i], lda[i], ldb[i], ldc[i], sizes[i]);
        status != CUBLAS_STATUS_SUCCESS)
      return status;
    const double dm = static_cast<double>(m[i]), dn = static_cast<double>(n[i]),
                 dk = static_cast<double>(k[i]), count = static_cast<double>(sizes[i]);
    flops += 2 * dm * dn * dk * count;
    bytes += count *
             (dm * dk * HalfBytes(types.a) + dk * dn * HalfBytes(types.b) +
              dm * dn * HalfBytes(types.c)) /
             2;
    const GemmShape shape{types.a, types.b, types.c, "", 'n', 'n', m[i], n[i], k[i], sizes[i]};
    blocks += uint64_t{GemmGrid(shape).grid[0]} * static_cast<uint64_t>(sizes[i]);
  }
  if (blocks == 0) return CUBLAS_STATUS_SUCCESS;
  grid.grid[0] = static_cast<uint32_t>(std::min<uint64_t>(blocks, 0x7fffffff));
  grid.block[0] = 384;
  char name[200];
  snprintf(name, sizeof name, "hostcublas_gemmgrouped_%s_%s_%s_g%lld_flops%.0f_bytes%.0f",
           TypeName(types.a), TypeName(types.c),
           AccumulateName(types.compute, types.a, Tf32(handle)), static_cast<long long>(groups),
           flops, bytes);
  return FromDriver(LaunchNamed(handle->stream, name, grid));
}

// Copies a rows x cols matrix (bytes, column-major) between host and device; on `stream`, or
// synchronously.
cublasStatus_t Transfer(bool to_device, int64_t rows, int64_t cols, int64_t element,
                        const void* from, int64_t from_ld, void* to, int64_t to_ld, CUstream stream,
                        bool synchronous) noexcept {
  if (rows < 0 || cols < 0 || element <= 0 || from_ld <= 0 || to_ld <= 0)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (rows == 0 || cols == 0) return CUBLAS_STATUS_SUCCESS;
  if (CUresult context = EnsureContext(); context != CUDA_SUCCESS) return FromDriver(context);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  copy.srcHost = from;
  copy.srcDevice = reinterpret_cast<CUdeviceptr>(from);
  copy.dstHost = to;
  copy.dstDevice = reinterpret_cast<CUdeviceptr>(to);
  copy.srcPitch = static_cast<size_t>(from_ld * element);
  copy.dstPitch = static_cast<size_t>(to_ld * element);
  copy.WidthInBytes = static_cast<size_t>(rows * element);
  copy.Height = static_cast<size_t>(cols);
  using Copy2D = CUresult (*)(const CUDA_MEMCPY2D*, CUstream);
  auto function = reinterpret_cast<Copy2D>(DriverSymbol("cuMemcpy2DAsync"));
  if (!function) return CUBLAS_STATUS_EXECUTION_FAILED;
  CUresult result = function(&copy, stream);
  if (result == CUDA_SUCCESS && synchronous) result = HOSTCUDA_DRIVER(cuStreamSynchronize, stream);
  return FromDriver(result);
}

// A vector of stride inc is a matrix of one row.
cublasStatus_t TransferVector(bool to_device, int64_t n, int64_t element, const void* from,
                              int64_t from_inc, void* to, int64_t to_inc, CUstream stream,
                              bool synchronous) noexcept {
  return Transfer(to_device, 1, n, element, from, from_inc, to, to_inc, stream, synchronous);
}

}  // namespace
}  // namespace hostcuda

using namespace hostcuda;  // NOLINT: the rest of this file is the C interface

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  if (EnsureContext() != CUDA_SUCCESS) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

// NOLINTBEGIN(bugprone-macro-parentheses): the macros' arguments are names and types.

// Modes of the handle: a setter and a getter each.
#define HOSTCUDA_MODE(Setter, Getter, Type, member)           \
  cublasStatus_t Setter(cublasHandle_t handle, Type value) {  \
    if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED; \
    handle->member = value;                                   \
    return CUBLAS_STATUS_SUCCESS;                             \
  }                                                           \
  cublasStatus_t Getter(cublasHandle_t handle, Type* value) { \
    if (!Valid(handle)) return CUBLAS_STATUS_NOT_INITIALIZED; \
    if (!value) return CUBLAS_STATUS_INVALID_VALUE;           \
    *value = static_cast<Type>(handle->member);               \
    return CUBLAS_STATUS_SUCCESS;                             \
  }
HOSTCUDA_MODE(cublasSetStream_v2, cublasGetStream_v2, cudaStream_t, stream)
HOSTCUDA_MODE(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointer_mode)
HOSTCUDA_MODE(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math_mode)
HOSTCUDA_MODE(cublasSetAtomicsMode, cublasGetAtomicsMode, cublasAtomicsMode_t, atomics_mode)
HOSTCUDA_MODE(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count_target)
HOSTCUDA_MODE(cublasSetEmulationStrategy, cublasGetEmulationStrategy, cublasEmulationStrategy_t,
              emulation_strategy)
#undef HOSTCUDA_MODE

// The workspace is the caller's; nothing is computed in it.
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void*, size_t) {
  return Valid(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  if (!version) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
  *value = kLibrary.version[type];
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasGetCudartVersion(void) { return CUDA_VERSION; }

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "unknown cublasStatus_t";
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value was given";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "an absent device architectural feature is required";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "an access to GPU memory space failed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU program failed to execute";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "a license error was detected";
  }
  return "unknown cublasStatus_t";
}

// ---- products, in the 32-bit and the 64-bit form of each call
#define HOSTCUDA_GEMM(Name, T, types, I)                                                           \
  cublasStatus_t Name(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, \
                      I k, const T*, const T*, I lda, const T*, I ldb, const T*, T*, I ldc) {      \
    return Gemm(handle, types, ta, tb, m, n, k, lda, ldb, ldc);                                    \
  }
#define HOSTCUDA_GEMM_STRIDED(Name, T, S, types, Out, I)                                           \
  cublasStatus_t Name(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, \
                      I k, const S*, const T*, I lda, long long, const T*, I ldb, long long,       \
                      const S*, Out*, I ldc, long long, I batch) {                                 \
    return Gemm(handle, types, ta, tb, m, n, k, lda, ldb, ldc, batch);                             \
  }
#define HOSTCUDA_GEMM_BATCHED(Name, T, S, types, Out, I)                                           \
  cublasStatus_t Name(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, \
                      I k, const S*, const T* const*, I lda, const T* const*, I ldb, const S*,     \
                      Out* const*, I ldc, I batch) {                                               \
    return Gemm(handle, types, ta, tb, m, n, k, lda, ldb, ldc, batch);                             \
  }
#define HOSTCUDA_GEMM_FAMILY(X, T, types)                                          \
  HOSTCUDA_GEMM_STRIDED(cublas##X##gemmStridedBatched, T, T, types, T, int)        \
  HOSTCUDA_GEMM_STRIDED(cublas##X##gemmStridedBatched_64, T, T, types, T, int64_t) \
  HOSTCUDA_GEMM_BATCHED(cublas##X##gemmBatched, T, T, types, T, int)               \
  HOSTCUDA_GEMM_BATCHED(cublas##X##gemmBatched_64, T, T, types, T, int64_t)
HOSTCUDA_GEMM_FAMILY(S, float, kSingle)
HOSTCUDA_GEMM_FAMILY(D, double, kDouble)
HOSTCUDA_GEMM_FAMILY(C, cuComplex, kComplex)
HOSTCUDA_GEMM_FAMILY(Z, cuDoubleComplex, kDoubleComplex)
HOSTCUDA_GEMM_FAMILY(H, __half, kHalf)
HOSTCUDA_GEMM(cublasSgemm_v2, float, kSingle, int)
HOSTCUDA_GEMM(cublasSgemm_v2_64, float, kSingle, int64_t)
HOSTCUDA_GEMM(cublasDgemm_v2, double, kDouble, int)
HOSTCUDA_GEMM(cublasDgemm_v2_64, double, kDouble, int64_t)
HOSTCUDA_GEMM(cublasCgemm_v2, cuComplex, kComplex, int)
HOSTCUDA_GEMM(cublasCgemm_v2_64, cuComplex, kComplex, int64_t)
HOSTCUDA_GEMM(cublasZgemm_v2, cuDoubleComplex, kDoubleComplex, int)
HOSTCUDA_GEMM(cublasZgemm_v2_64, cuDoubleComplex, kDoubleComplex, int64_t)
HOSTCUDA_GEMM(cublasCgemm3m, cuComplex, kComplex, int)
HOSTCUDA_GEMM(cublasCgemm3m_64, cuComplex, kComplex, int64_t)
HOSTCUDA_GEMM(cublasZgemm3m, cuDoubleComplex, kDoubleComplex, int)
HOSTCUDA_GEMM(cublasZgemm3m_64, cuDoubleComplex, kDoubleComplex, int64_t)
HOSTCUDA_GEMM(cublasHgemm, __half, kHalf, int)
HOSTCUDA_GEMM(cublasHgemm_64, __half, kHalf, int64_t)
HOSTCUDA_GEMM_BATCHED(cublasCgemm3mBatched, cuComplex, cuComplex, kComplex, cuComplex, int)
HOSTCUDA_GEMM_BATCHED(cublasCgemm3mBatched_64, cuComplex, cuComplex, kComplex, cuComplex, int64_t)
HOSTCUDA_GEMM_STRIDED(cublasCgemm3mStridedBatched, cuComplex, cuComplex, kComplex, cuComplex, int)
HOSTCUDA_GEMM_STRIDED(cublasCgemm3mStridedBatched_64, cuComplex, cuComplex, kComplex, cuComplex,
                      int64_t)

#define HOSTCUDA_GEMM_EX(I, suffix)                                                                \
  cublasStatus_t cublasGemmEx##suffix(                                                             \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, I k,            \
      const void*, const void*, cudaDataType a, I lda, const void*, cudaDataType b, I ldb,         \
      const void*, void*, cudaDataType c, I ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {  \
    return Gemm(handle, {a, b, c, compute}, ta, tb, m, n, k, lda, ldb, ldc);                       \
  }                                                                                                \
  cublasStatus_t cublasGemmBatchedEx##suffix(                                                      \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, I k,            \
      const void*, const void* const*, cudaDataType a, I lda, const void* const*, cudaDataType b,  \
      I ldb, const void*, void* const*, cudaDataType c, I ldc, I batch,                            \
      cublasComputeType_t compute, cublasGemmAlgo_t) {                                             \
    return Gemm(handle, {a, b, c, compute}, ta, tb, m, n, k, lda, ldb, ldc, batch);                \
  }                                                                                                \
  cublasStatus_t cublasGemmStridedBatchedEx##suffix(                                               \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, I k,            \
      const void*, const void*, cudaDataType a, I lda, long long, const void*, cudaDataType b,     \
      I ldb, long long, const void*, void*, cudaDataType c, I ldc, long long, I batch,             \
      cublasComputeType_t compute, cublasGemmAlgo_t) {                                             \
    return Gemm(handle, {a, b, c, compute}, ta, tb, m, n, k, lda, ldb, ldc, batch);                \
  }                                                                                                \
  cublasStatus_t cublasSgemmEx##suffix(                                                            \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, I k,            \
      const float*, const void*, cudaDataType a, I lda, const void*, cudaDataType b, I ldb,        \
      const float*, void*, cudaDataType c, I ldc) {                                                \
    return Gemm(handle, {a, b, c, CUBLAS_COMPUTE_32F}, ta, tb, m, n, k, lda, ldb, ldc);            \
  }                                                                                                \
  cublasStatus_t cublasCgemmEx##suffix(                                                            \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, I k,            \
      const cuComplex*, const void*, cudaDataType a, I lda, const void*, cudaDataType b, I ldb,    \
      const cuComplex*, void*, cudaDataType c, I ldc) {                                            \
    return Gemm(handle, {a, b, c, CUBLAS_COMPUTE_32F}, ta, tb, m, n, k, lda, ldb, ldc);            \
  }                                                                                                \
  cublasStatus_t cublasCgemm3mEx##suffix(                                                          \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, I m, I n, I k,            \
      const cuComplex*, const void*, cudaDataType a, I lda, const void*, cudaDataType b, I ldb,    \
      const cuComplex*, void*, cudaDataType c, I ldc) {                                            \
    return Gemm(handle, {a, b, c, CUBLAS_COMPUTE_32F}, ta, tb, m, n, k, lda, ldb, ldc);            \
  }                                                                                                \
  cublasStatus_t cublasGemmGroupedBatchedEx##suffix(                                               \
      cublasHandle_t handle, const cublasOperation_t* ta, const cublasOperation_t* tb, const I* m, \
      const I* n, const I* k, const void*, const void* const*, cudaDataType_t a, const I* lda,     \
      const void* const*, cudaDataType_t b, const I* ldb, const void*, void* const*,               \
      cudaDataType_t c, const I* ldc, I groups, const I* sizes, cublasComputeType_t compute) {     \
    return GroupedGemm<I>(handle, {a, b, c, compute}, ta, tb, m, n, k, lda, ldb, ldc, groups,      \
                          sizes);                                                                  \
  }                                                                                                \
  cublasStatus_t cublasSgemmGroupedBatched##suffix(                                                \
      cublasHandle_t handle, const cublasOperation_t* ta, const cublasOperation_t* tb, const I* m, \
      const I* n, const I* k, const float*, const float* const*, const I* lda,                     \
      const float* const*, const I* ldb, const float*, float* const*, const I* ldc, I groups,      \
      const I* sizes) {                                                                            \
    return GroupedGemm<I>(handle, kSingle, ta, tb, m, n, k, lda, ldb, ldc, groups, sizes);         \
  }                                                                                                \
  cublasStatus_t cublasDgemmGroupedBatched##suffix(                                                \
      cublasHandle_t handle, const cublasOperation_t* ta, const cublasOperation_t* tb, const I* m, \
      const I* n, const I* k, const double*, const double* const*, const I* lda,                   \
      const double* const*, const I* ldb, const double*, double* const*, const I* ldc, I groups,   \
      const I* sizes) {                                                                            \
    return GroupedGemm<I>(handle, kDouble, ta, tb, m, n, k, lda, ldb, ldc, groups, sizes);         \
  }
HOSTCUDA_GEMM_EX(int, )
HOSTCUDA_GEMM_EX(int64_t, _64)

// ---- transfers
#define HOSTCUDA_TRANSFER(I, suffix)                                                               \
  cublasStatus_t cublasSetMatrix##suffix(I rows, I cols, I element, const void* a, I lda, void* b, \
                                         I ldb) {                                                  \
    return Transfer(true, rows, cols, element, a, lda, b, ldb, nullptr, true);                     \
  }                                                                                                \
  cublasStatus_t cublasGetMatrix##suffix(I rows, I cols, I element, const void* a, I lda, void* b, \
                                         I ldb) {                                                  \
    return Transfer(false, rows, cols, element, a, lda, b, ldb, nullptr, true);                    \
  }                                                                                                \
  cublasStatus_t cublasSetMatrixAsync##suffix(I rows, I cols, I element, const void* a, I lda,     \
                                              void* b, I ldb, cudaStream_t stream) {               \
    return Transfer(true, rows, cols, element, a, lda, b, ldb, stream, false);                     \
  }                                                                                                \
  cublasStatus_t cublasGetMatrixAsync##suffix(I rows, I cols, I element, const void* a, I lda,     \
                                              void* b, I ldb, cudaStream_t stream) {               \
    return Transfer(false, rows, cols, element, a, lda, b, ldb, stream, false);                    \
  }                                                                                                \
  cublasStatus_t cublasSetVector##suffix(I n, I element, const void* x, I incx, void* y, I incy) { \
    return TransferVector(true, n, element, x, incx, y, incy, nullptr, true);                      \
  }                                                                                                \
  cublasStatus_t cublasGetVector##suffix(I n, I element, const void* x, I incx, void* y, I incy) { \
    return TransferVector(false, n, element, x, incx, y, incy, nullptr, true);                     \
  }                                                                                                \
  cublasStatus_t cublasSetVectorAsync##suffix(I n, I element, const void* x, I incx, void* y,      \
                                              I incy, cudaStream_t stream) {                       \
    return TransferVector(true, n, element, x, incx, y, incy, stream, false);                      \
  }                                                                                                \
  cublasStatus_t cublasGetVectorAsync##suffix(I n, I element, const void* x, I incx, void* y,      \
                                              I incy, cudaStream_t stream) {                       \
    return TransferVector(false, n, element, x, incx, y, incy, stream, false);                     \
  }
HOSTCUDA_TRANSFER(int, )
HOSTCUDA_TRANSFER(int64_t, _64)

// NOLINTEND(bugprone-macro-parentheses)

}  // extern "C"
