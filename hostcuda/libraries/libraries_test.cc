// Opens the built libraries as a program does, on a fake driver, and checks what they launch and
// answer. Expectations come from the public documentation of each call, not from the code under
// test.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>
#include <cufft.h>
#include <cupti.h>
#include <curand.h>
#include <cusolverDn.h>
#include <cusparse.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "hostcuda/libraries/testing/fake_driver.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void* g_driver = nullptr;

template <typename Function>
Function Driver(const char* name) {
  return reinterpret_cast<Function>(dlsym(g_driver, name));
}
std::vector<FakeLaunch>& Launches() { return *Driver<decltype(&fake_launches)>("fake_launches")(); }

// One library; call<decltype(&f)>("f")(...).
class Library {
 public:
  explicit Library(const char* soname)
      : handle_(
            dlopen((std::string(HOSTCUDA_LIB_DIR) + "/" + soname).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) ADD_FAILURE() << dlerror();
  }
  template <typename Function>
  Function Find(const char* name) const {
    void* p = dlsym(handle_, name);
    EXPECT_NE(p, nullptr) << name;
    return reinterpret_cast<Function>(p);
  }

 private:
  void* handle_;
};
#define CALL(library, function) library.Find<decltype(&function)>(#function)

class LibrariesTest : public ::testing::Test {
 protected:
  void SetUp() override { Launches().clear(); }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const FakeLaunch& launch : Launches()) names.push_back(launch.name);
    return names;
  }
};

CUstream FakeStream(int n) {
  return reinterpret_cast<CUstream>(static_cast<uintptr_t>(0x1000 + n));
}

TEST_F(LibrariesTest, GemmExIsOneLaunchOnTheHandlesStream) {
  Library blas("libcublas.so.13");
  cublasHandle_t handle;
  ASSERT_EQ(CALL(blas, cublasCreate_v2)(&handle), CUBLAS_STATUS_SUCCESS);
  CALL(blas, cublasSetStream_v2)(handle, FakeStream(3));
  float one = 1;
  int matrix;
  // Overloaded in C++ (an older signature takes cudaDataType), so spelled out.
  using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                    int, const void*, const void*, cudaDataType, int, const void*,
                                    cudaDataType, int, const void*, void*, cudaDataType, int,
                                    cublasComputeType_t, cublasGemmAlgo_t);
  EXPECT_EQ(blas.Find<GemmEx>("cublasGemmEx")(handle, CUBLAS_OP_T, CUBLAS_OP_N, 4096, 1024, 512,
                                              &one, &matrix, CUDA_R_16BF, 512, &matrix, CUDA_R_16BF,
                                              512, &one, &matrix, CUDA_R_16BF, 4096,
                                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(Names(), ElementsAre("hostcublas_gemm_bf16_bf16_f32_tn_m4096_n1024_k512_b1"));
  EXPECT_EQ(Launches()[0].stream, FakeStream(3));
  EXPECT_EQ(Launches()[0].grid[0], 32u * 8u);  // tiles of 128 x 128
  EXPECT_EQ(CALL(blas, cublasDestroy_v2)(handle), CUBLAS_STATUS_SUCCESS);
}

TEST_F(LibrariesTest, GemmChecksArgumentsLikeTheDocumentation) {
  Library blas("libcublas.so.13");
  cublasHandle_t handle;
  CALL(blas, cublasCreate_v2)(&handle);
  float one = 1, m[4];
  auto gemm = CALL(blas, cublasSgemm_v2);
  EXPECT_EQ(gemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, m, 2, m, 2, &one, m, 2),
            CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(gemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, -1, 2, 2, &one, m, 2, m, 2, &one, m, 2),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(gemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 2, 2, &one, m, 3, m, 2, &one, m, 4),
            CUBLAS_STATUS_INVALID_VALUE);  // lda < m
  EXPECT_EQ(gemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 0, 2, 2, &one, m, 1, m, 2, &one, m, 1),
            CUBLAS_STATUS_SUCCESS);  // empty
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(LibrariesTest, Tf32MathModeShowsInTheName) {
  Library blas("libcublas.so.13");
  cublasHandle_t handle;
  CALL(blas, cublasCreate_v2)(&handle);
  CALL(blas, cublasSetMathMode)(handle, CUBLAS_TF32_TENSOR_OP_MATH);
  float one = 1, m[4];
  CALL(blas, cublasSgemmStridedBatched)
  (handle, CUBLAS_OP_N, CUBLAS_OP_C, 2, 2, 2, &one, m, 2, 4, m, 2, 4, &one, m, 2, 4, 7);
  EXPECT_THAT(Names(), ElementsAre("hostcublas_gemm_f32_f32_tf32_nc_m2_n2_k2_b7"));
}

TEST_F(LibrariesTest, GroupedGemmSumsWork) {
  Library blas("libcublas.so.13");
  cublasHandle_t handle;
  CALL(blas, cublasCreate_v2)(&handle);
  const cublasOperation_t ops[] = {CUBLAS_OP_N, CUBLAS_OP_N};
  const int m[] = {4, 8}, n[] = {2, 2}, k[] = {3, 5}, lda[] = {4, 8}, ldb[] = {3, 5},
            ldc[] = {4, 8}, sizes[] = {1, 10};
  EXPECT_EQ(CALL(blas, cublasGemmGroupedBatchedEx)(
                handle, ops, ops, m, n, k, m, nullptr, CUDA_R_16BF, lda, nullptr, CUDA_R_16BF, ldb,
                m, nullptr, CUDA_R_16BF, ldc, 2, sizes, CUBLAS_COMPUTE_32F),
            CUBLAS_STATUS_SUCCESS);
  const int flops = 2 * 4 * 2 * 3 + 10 * 2 * 8 * 2 * 5,
            bytes = 2 * (4 * 3 + 3 * 2 + 4 * 2) + 10 * 2 * (8 * 5 + 5 * 2 + 8 * 2);
  EXPECT_THAT(Names(), ElementsAre("hostcublas_gemmgrouped_bf16_bf16_f32_g2_flops" +
                                   std::to_string(flops) + "_bytes" + std::to_string(bytes)));
}

TEST_F(LibrariesTest, GeneratedBlasCallTakesStreamAndShapesFromTheCall) {
  Library blas("libcublas.so.13");
  cublasHandle_t handle;
  CALL(blas, cublasCreate_v2)(&handle);
  CALL(blas, cublasSetStream_v2)(handle, FakeStream(1));
  float one = 1, m[4];
  EXPECT_EQ(
      CALL(blas, cublasStrsm_v2)(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N,
                                 CUBLAS_DIAG_NON_UNIT, 512, 8, &one, m, 512, m, 512),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(Names(), ElementsAre("hostcublas_cublasStrsm_v2_side0_uplo1_trans0_diag0_m512_n8"));
  EXPECT_EQ(Launches()[0].stream, FakeStream(1));
}

TEST_F(LibrariesTest, ScalarResultOnTheHostIsRefusedByName) {
  Library blas("libcublas.so.13");
  cublasHandle_t handle;
  CALL(blas, cublasCreate_v2)(&handle);
  float x[4], result = 42;
  testing::internal::CaptureStderr();
  EXPECT_EQ(CALL(blas, cublasSdot_v2)(handle, 4, x, 1, x, 1, &result), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(CALL(blas, cublasSdot_v2)(handle, 4, x, 1, x, 1, &result), CUBLAS_STATUS_NOT_SUPPORTED);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("libcublas.so.13: cublasSdot_v2"));
  EXPECT_EQ(said.find("cublasSdot_v2"), said.rfind("cublasSdot_v2"));  // once
  EXPECT_EQ(result, 42);
  CALL(blas, cublasSetPointerMode_v2)(handle, CUBLAS_POINTER_MODE_DEVICE);
  EXPECT_EQ(CALL(blas, cublasSdot_v2)(handle, 4, x, 1, x, 1, &result), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(Names(), ElementsAre("hostcublas_cublasSdot_v2_n4"));
}

TEST_F(LibrariesTest, LtMatmulNamesEpilogueAndAcceptsACublasHandle) {
  Library blas("libcublas.so.13"), lt("libcublasLt.so.13");
  cublasHandle_t handle;
  CALL(blas, cublasCreate_v2)(&handle);
  auto light = reinterpret_cast<cublasLtHandle_t>(handle);
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, d;
  CALL(lt, cublasLtMatmulDescCreate)(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t t = CUBLAS_OP_T;
  const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  CALL(lt, cublasLtMatmulDescSetAttribute)(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
  CALL(lt, cublasLtMatmulDescSetAttribute)
  (op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  CALL(lt, cublasLtMatrixLayoutCreate)(&a, CUDA_R_8F_E4M3, 64, 128, 64);
  CALL(lt, cublasLtMatrixLayoutCreate)(&b, CUDA_R_8F_E5M2, 64, 32, 64);
  CALL(lt, cublasLtMatrixLayoutCreate)(&d, CUDA_R_16BF, 128, 32, 128);
  cublasLtMatmulHeuristicResult_t found[3];
  int count = 0;
  ASSERT_EQ(
      CALL(lt, cublasLtMatmulAlgoGetHeuristic)(light, op, a, b, d, d, nullptr, 3, found, &count),
      CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(count, 1);
  float one = 1;
  EXPECT_EQ(CALL(lt, cublasLtMatmul)(light, op, &one, &one, a, &one, b, &one, &one, d, &one, d,
                                     &found[0].algo, nullptr, 0, FakeStream(2)),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(
      Names(),
      ElementsAre("hostcublasLt_matmul_e4m3xe5m2_bf16_f32_tn_m128_n32_k64_b1_epigeluauxbias"));
  // Extents that do not fit are found before anything runs.
  EXPECT_EQ(
      CALL(lt, cublasLtMatmulAlgoGetHeuristic)(light, op, b, a, d, d, nullptr, 3, found, &count),
      CUBLAS_STATUS_INVALID_VALUE);
  size_t written = 0;
  EXPECT_EQ(CALL(lt, cublasLtMatrixLayoutGetAttribute)(a, CUBLASLT_MATRIX_LAYOUT_ROWS, nullptr, 0,
                                                       &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, 8u);
  int too_small;
  EXPECT_EQ(CALL(lt, cublasLtMatrixLayoutGetAttribute)(a, CUBLASLT_MATRIX_LAYOUT_ROWS, &too_small,
                                                       sizeof too_small, nullptr),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(LibrariesTest, SolverSizesAreZeroAndFactorizationsLaunch) {
  Library solver("libcusolver.so.12");
  cusolverDnHandle_t handle;
  ASSERT_EQ(CALL(solver, cusolverDnCreate)(&handle), CUSOLVER_STATUS_SUCCESS);
  CALL(solver, cusolverDnSetStream)(handle, FakeStream(5));
  int lwork = 77, info = 99;
  float a[4];
  EXPECT_EQ(CALL(solver, cusolverDnSpotrf_bufferSize)(handle, CUBLAS_FILL_MODE_LOWER, 4096, a, 4096,
                                                      &lwork),
            CUSOLVER_STATUS_SUCCESS);
  EXPECT_EQ(lwork, 0);
  EXPECT_EQ(CALL(solver, cusolverDnSpotrf)(handle, CUBLAS_FILL_MODE_UPPER, 4096, a, 4096, a, lwork,
                                           &info),
            CUSOLVER_STATUS_SUCCESS);
  EXPECT_THAT(Names(), ElementsAre("hostcusolver_cusolverDnSpotrf_uplo1_n4096"));
  EXPECT_EQ(info, 0);  // no numerical failure
  EXPECT_EQ(Launches()[0].stream, FakeStream(5));
  EXPECT_EQ(CALL(solver, cusolverDnSpotrf)(nullptr, CUBLAS_FILL_MODE_UPPER, 4, a, 4, a, 0, &info),
            CUSOLVER_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(CALL(solver, cusolverDnDestroy)(handle), CUSOLVER_STATUS_SUCCESS);
}

TEST_F(LibrariesTest, SparseDescriptorsAppearInTheNameAndAnswerTheirSize) {
  Library sparse("libcusparse.so.12");
  cusparseHandle_t handle;
  CALL(sparse, cusparseCreate)(&handle);
  cusparseSpMatDescr_t a;
  cusparseDnMatDescr_t b;
  int x;
  ASSERT_EQ(
      CALL(sparse, cusparseCreateCsr)(&a, 32, 16, 64, &x, &x, &x, CUSPARSE_INDEX_32I,
                                      CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F),
      CUSPARSE_STATUS_SUCCESS);
  ASSERT_EQ(CALL(sparse, cusparseCreateDnMat)(&b, 16, 4, 16, &x, CUDA_R_32F, CUSPARSE_ORDER_COL),
            CUSPARSE_STATUS_SUCCESS);
  int64_t rows = 0, cols = 0, nnz = 0;
  EXPECT_EQ(CALL(sparse, cusparseSpMatGetSize)(a, &rows, &cols, &nnz), CUSPARSE_STATUS_SUCCESS);
  EXPECT_THAT((std::vector<int64_t>{rows, cols, nnz}), ElementsAre(32, 16, 64));
  float one = 1;
  EXPECT_EQ(CALL(sparse, cusparseSpMM)(handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                       CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, b, &one, b,
                                       CUDA_R_32F, CUSPARSE_SPMM_ALG_DEFAULT, nullptr),
            CUSPARSE_STATUS_SUCCESS);
  ASSERT_EQ(Launches().size(), 1u);
  EXPECT_THAT(Launches()[0].name, StartsWith("hostcusparse_cusparseSpMM_opA0_opB0"));
  EXPECT_THAT(Launches()[0].name, HasSubstr("_matA_rows32_matA_cols16_matA_nnz64"));
  // How many non-zeros a product has cannot be known without values, so it is refused.
  testing::internal::CaptureStderr();
  EXPECT_EQ(CALL(sparse, cusparseSpGEMM_compute)(
                handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a,
                a, &one, a, CUDA_R_32F, CUSPARSE_SPGEMM_DEFAULT, nullptr, nullptr, nullptr),
            CUSPARSE_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cusparseSpGEMM_compute"));
  EXPECT_STREQ(CALL(sparse, cusparseGetErrorName)(CUSPARSE_STATUS_ZERO_PIVOT),
               "CUSPARSE_STATUS_ZERO_PIVOT");
}

TEST_F(LibrariesTest, FftNamesPlanAndDirection) {
  Library fft("libcufft.so.12");
  cufftHandle plan;
  int n[] = {64, 32};
  ASSERT_EQ(CALL(fft, cufftPlanMany)(&plan, 2, n, nullptr, 1, 0, nullptr, 1, 0, CUFFT_R2C, 8),
            CUFFT_SUCCESS);
  EXPECT_EQ(CALL(fft, cufftExecR2C)(plan, nullptr, nullptr), CUFFT_SUCCESS);
  EXPECT_THAT(Names(), ElementsAre("hostcufft_fft_f32_c64_c64_forward_n64x32_b8"));
  EXPECT_EQ(CALL(fft, cufftDestroy)(plan), CUFFT_SUCCESS);
  EXPECT_EQ(CALL(fft, cufftExecR2C)(plan, nullptr, nullptr), CUFFT_INVALID_PLAN);
}

TEST_F(LibrariesTest, RandomGeneratorRemembersItsStream) {
  Library random("libcurand.so.10");
  curandGenerator_t generator;
  ASSERT_EQ(CALL(random, curandCreateGenerator)(&generator, CURAND_RNG_PSEUDO_PHILOX4_32_10),
            CURAND_STATUS_SUCCESS);
  CALL(random, curandSetStream)(generator, FakeStream(9));
  EXPECT_EQ(CALL(random, curandGenerateUniform)(generator, nullptr, 1000), CURAND_STATUS_SUCCESS);
  ASSERT_EQ(Launches().size(), 1u);
  EXPECT_THAT(Launches()[0].name, StartsWith("hostcurand_curandGenerateUniform"));
  EXPECT_EQ(Launches()[0].stream, FakeStream(9));
}

TEST_F(LibrariesTest, ConvolutionChecksThatExtentsFit) {
  Library dnn("libcudnn.so.9");
  cudnnHandle_t handle;
  CALL(dnn, cudnnCreate)(&handle);
  cudnnTensorDescriptor_t x, y;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t c;
  CALL(dnn, cudnnCreateTensorDescriptor)(&x);
  CALL(dnn, cudnnCreateTensorDescriptor)(&y);
  CALL(dnn, cudnnCreateFilterDescriptor)(&w);
  CALL(dnn, cudnnCreateConvolutionDescriptor)(&c);
  CALL(dnn, cudnnSetTensor4dDescriptor)(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, 8, 64, 56, 56);
  CALL(dnn, cudnnSetFilter4dDescriptor)(w, CUDNN_DATA_HALF, CUDNN_TENSOR_NCHW, 128, 32, 3, 3);
  CALL(dnn, cudnnSetConvolution2dDescriptor)
  (c, 1, 1, 2, 2, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  CALL(dnn, cudnnSetConvolutionGroupCount)(c, 2);
  int n, k, h, wide;
  ASSERT_EQ(CALL(dnn, cudnnGetConvolution2dForwardOutputDim)(c, x, w, &n, &k, &h, &wide),
            CUDNN_STATUS_SUCCESS);
  EXPECT_THAT((std::vector<int>{n, k, h, wide}), ElementsAre(8, 128, 28, 28));
  CALL(dnn, cudnnSetTensor4dDescriptor)(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, n, k, h, wide);
  float one = 1;
  auto forward = CALL(dnn, cudnnConvolutionForward);
  EXPECT_EQ(forward(handle, &one, x, nullptr, w, nullptr, c,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &one, y, nullptr),
            CUDNN_STATUS_SUCCESS);
  EXPECT_THAT(Names(),
              ElementsAre("hostcudnn_convfwd_f16_f32_n8_c64_k128_in56x56_ker3x3_out28x28_g2"));
  CALL(dnn, cudnnSetTensor4dDescriptor)(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, n, k, h + 1, wide);
  EXPECT_EQ(forward(handle, &one, x, nullptr, w, nullptr, c,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &one, y, nullptr),
            CUDNN_STATUS_BAD_PARAM);
}

// Every parameter of an RNN has its own part of the weight space, and together they fill it.
TEST_F(LibrariesTest, RnnParametersPartitionTheWeightSpace) {
  Library dnn("libcudnn.so.9");
  cudnnHandle_t handle;
  CALL(dnn, cudnnCreate)(&handle);
  cudnnRNNDescriptor_t rnn;
  cudnnTensorDescriptor_t m, b;
  CALL(dnn, cudnnCreateRNNDescriptor)(&rnn);
  CALL(dnn, cudnnCreateTensorDescriptor)(&m);
  CALL(dnn, cudnnCreateTensorDescriptor)(&b);
  struct Case {
    cudnnRNNMode_t cell;
    cudnnDirectionMode_t direction;
    int projection, gates;
  };
  for (const Case& c :
       {Case{CUDNN_LSTM, CUDNN_UNIDIRECTIONAL, 24, 4}, Case{CUDNN_LSTM, CUDNN_BIDIRECTIONAL, 10, 4},
        Case{CUDNN_GRU, CUDNN_BIDIRECTIONAL, 24, 3}}) {
    ASSERT_EQ(CALL(dnn, cudnnSetRNNDescriptor_v8)(
                  rnn, CUDNN_RNN_ALGO_STANDARD, c.cell, CUDNN_RNN_DOUBLE_BIAS, c.direction,
                  CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_DEFAULT_MATH, 16,
                  24, c.projection, 3, nullptr, 0),
              CUDNN_STATUS_SUCCESS);
    size_t bytes = 0;
    ASSERT_EQ(CALL(dnn, cudnnGetRNNWeightSpaceSize)(handle, rnn, &bytes), CUDNN_STATUS_SUCCESS);
    std::vector<char> used(bytes, 0);
    const int directions = c.direction == CUDNN_BIDIRECTIONAL ? 2 : 1;
    const bool projects = c.projection != 24;
    for (int layer = 0; layer < 3 * directions; ++layer) {
      for (int linear = 0; linear < 2 * c.gates + (projects ? 1 : 0); ++linear) {
        void *matrix = nullptr, *bias = nullptr;
        ASSERT_EQ(CALL(dnn, cudnnGetRNNWeightParams)(handle, rnn, layer, bytes, used.data(), linear,
                                                     m, &matrix, b, &bias),
                  CUDNN_STATUS_SUCCESS);
        int dims[3], strides[3], rank;
        cudnnDataType_t type;
        CALL(dnn, cudnnGetTensorNdDescriptor)(m, 3, &type, &rank, dims, strides);
        ASSERT_EQ(rank, 3);
        auto mark = [&](void* address, int elements) {
          const size_t begin = static_cast<size_t>(static_cast<char*>(address) - used.data());
          ASSERT_LE(begin + static_cast<size_t>(elements) * 4, bytes);
          for (size_t i = begin; i < begin + static_cast<size_t>(elements) * 4; ++i)
            ASSERT_EQ(used[i]++, 0) << "byte " << i << " belongs to two parameters";
        };
        mark(matrix, dims[1] * dims[2]);
        if (linear < 2 * c.gates)
          mark(bias, 24);
        else
          EXPECT_EQ(bias, nullptr);
      }
    }
    EXPECT_EQ(std::accumulate(used.begin(), used.end(), size_t{0}), bytes);
  }
}

// ---- the backend interface, driven as cudnn-frontend drives it
class Graph {
 public:
  explicit Graph(const Library& dnn) : dnn_(dnn) {}
  cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d;
    EXPECT_EQ(CALL(dnn_, cudnnBackendCreateDescriptor)(type, &d), CUDNN_STATUS_SUCCESS);
    return d;
  }
  template <typename Value>
  void Set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, const std::vector<Value>& values) {
    EXPECT_EQ(CALL(dnn_, cudnnBackendSetAttribute)(
                  d, name, type, static_cast<int64_t>(values.size()), values.data()),
              CUDNN_STATUS_SUCCESS)
        << name;
  }
  void Finish(cudnnBackendDescriptor_t d) {
    EXPECT_EQ(CALL(dnn_, cudnnBackendFinalize)(d), CUDNN_STATUS_SUCCESS);
  }
  cudnnBackendDescriptor_t Tensor(int64_t id, std::vector<int64_t> dims) {
    auto t = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
    Set<int64_t>(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, {id});
    Set<cudnnDataType_t>(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE,
                         {CUDNN_DATA_BFLOAT16});
    Set(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims);
    Set(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
    Finish(t);
    return t;
  }
  cudnnBackendDescriptor_t Matmul(cudnnBackendDescriptor_t a, cudnnBackendDescriptor_t b,
                                  cudnnBackendDescriptor_t c) {
    auto op = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    Set<cudnnBackendDescriptor_t>(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, {a});
    Set<cudnnBackendDescriptor_t>(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, {b});
    Set<cudnnBackendDescriptor_t>(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, {c});
    Finish(op);
    return op;
  }
  cudnnBackendDescriptor_t PlanFor(cudnnHandle_t handle,
                                   const std::vector<cudnnBackendDescriptor_t>& ops) {
    auto graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ops);
    Set<cudnnHandle_t>(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, {handle});
    Finish(graph);
    for (auto op : ops) CALL(dnn_, cudnnBackendDestroyDescriptor)(op);  // as the front end does
    auto heuristic = Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    Set<cudnnBackendDescriptor_t>(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, {graph});
    Set<cudnnBackendHeurMode_t>(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                                {CUDNN_HEUR_MODE_A});
    Finish(heuristic);
    int64_t count = 0;
    auto get = CALL(dnn_, cudnnBackendGetAttribute);
    EXPECT_EQ(get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                  &count, nullptr),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(count, 1);
    auto config = Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    EXPECT_EQ(get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                  &count, &config),
              CUDNN_STATUS_SUCCESS);
    auto plan = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Set<cudnnHandle_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, {handle});
    Set<cudnnBackendDescriptor_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, {config});
    Finish(plan);
    int64_t workspace = -1;
    EXPECT_EQ(get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                  &workspace),
              CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(workspace, 256);  // attention, measured on an H200
    return plan;
  }

 private:
  const Library& dnn_;
};

TEST_F(LibrariesTest, AttentionGraphIsNamedByItsHeads) {
  Library dnn("libcudnn.so.9");
  cudnnHandle_t handle;
  CALL(dnn, cudnnCreate)(&handle);
  Graph g(dnn);
  // Grouped heads: 16 of queries, 4 of keys and values.
  auto q = g.Tensor(1, {2, 16, 512, 64}), kt = g.Tensor(2, {2, 4, 64, 1024}),
       s = g.Tensor(3, {2, 16, 512, 1024}), v = g.Tensor(4, {2, 4, 1024, 96}),
       o = g.Tensor(5, {2, 16, 512, 96});
  auto plan = g.PlanFor(handle, {g.Matmul(q, kt, s), g.Matmul(s, v, o)});
  auto pack = g.Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  g.Finish(pack);
  EXPECT_EQ(CALL(dnn, cudnnBackendExecute)(handle, plan, pack), CUDNN_STATUS_SUCCESS);
  EXPECT_THAT(Names(), ElementsAre("hostcudnn_sdpafwd_bf16_b2_h16_hkv4_sq512_skv1024_d64_dv96"));
}

TEST_F(LibrariesTest, UnknownBackendAttributeIsNamed) {
  Library dnn("libcudnn.so.9");
  Graph g(dnn);
  auto d = g.Make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  int64_t count, value;
  testing::internal::CaptureStderr();
  EXPECT_EQ(CALL(dnn, cudnnBackendGetAttribute)(d, CUDNN_ATTR_ENGINE_DEVICEPROP,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &value),
            CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("attribute " + std::to_string(CUDNN_ATTR_ENGINE_DEVICEPROP)));
}

// ---- CUPTI
std::vector<std::vector<uint8_t>> g_buffers;
void RequestBuffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *size = 1024;  // small, so that several are needed
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, *size));
  *max_records = 0;
}
void CompleteBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  g_buffers.emplace_back(buffer, buffer + valid);
  free(buffer);
}

TEST_F(LibrariesTest, ActivitiesCarryTheCorrelationOfTheirCall) {
  Library cupti("libcupti.so.13");
  auto set_now = Driver<decltype(&fake_set_now_ns)>("fake_set_now_ns");
  CALL(cupti, cuptiActivityRegisterCallbacks)(RequestBuffer, CompleteBuffer);
  CALL(cupti, cuptiActivityRegisterTimestampCallback)
  (+[]() -> uint64_t {
    // A clock that runs at twice the job clock's rate.
    static uint64_t calls = 0;
    return calls++ == 0 ? 2000 : 12000;
  });
  set_now(1000);
  for (auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
                    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION})
    ASSERT_EQ(CALL(cupti, cuptiActivityEnable)(kind), CUPTI_SUCCESS);
  HostcudaActivityObserver observe = Driver<decltype(&fake_observer)>("fake_observer")();
  ASSERT_NE(observe, nullptr);
  auto push = CALL(cupti, cuptiActivityPushExternalCorrelationId);
  auto pop = CALL(cupti, cuptiActivityPopExternalCorrelationId);
  uint64_t id = 0;
  push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 17);
  set_now(2000);
  pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id);
  EXPECT_EQ(id, 17u);
  push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 18);
  // Completed late: the call was made while 17 was on top.
  HostcudaActivity kernel{};
  kernel.kind = HOSTCUDA_ACTIVITY_KERNEL;
  kernel.enqueue_start_ns = 1500;
  kernel.enqueue_end_ns = 1600;
  kernel.start_ns = 3000;
  kernel.end_ns = 4000;
  kernel.stream = 7;
  kernel.correlation = 101;
  kernel.thread = static_cast<uint32_t>(syscall(SYS_gettid));
  kernel.name = "hostcublas_gemm";
  kernel.grid[0] = 5;
  observe(&kernel);
  HostcudaActivity copy = kernel;
  copy.kind = HOSTCUDA_ACTIVITY_MEMCPY;
  copy.enqueue_start_ns = 2500;
  copy.correlation = 102;
  copy.copy_kind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  copy.bytes = 4096;
  copy.host_pinned = 1;
  observe(&copy);
  set_now(6000);
  // As Kineto does: first off, then flush.
  CALL(cupti, cuptiActivityDisable)(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  CALL(cupti, cuptiActivityDisable)(CUPTI_ACTIVITY_KIND_RUNTIME);
  ASSERT_EQ(CALL(cupti, cuptiActivityFlushAll)(0), CUPTI_SUCCESS);
  std::map<uint32_t, uint64_t> external;
  int kernels = 0, copies = 0;
  std::vector<std::pair<CUpti_ActivityKind, uint32_t>> calls;
  for (auto& buffer : g_buffers) {
    CUpti_Activity* record = nullptr;
    while (CALL(cupti, cuptiActivityGetNextRecord)(buffer.data(), buffer.size(), &record) ==
           CUPTI_SUCCESS) {
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        auto* k = reinterpret_cast<CUpti_ActivityKernel10*>(record);
        ++kernels;
        EXPECT_STREQ(k->name, "hostcublas_gemm");
        EXPECT_EQ(k->gridX, 5);
        EXPECT_EQ(k->streamId, 7u);
        EXPECT_EQ(k->start,
                  2000u + 2 * (3000 - 1000));  // the line through (1000, 2000) and (6000, 12000)
        EXPECT_EQ(k->end, 2000u + 2 * (4000 - 1000));
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        auto* m = reinterpret_cast<CUpti_ActivityMemcpy6*>(record);
        ++copies;
        EXPECT_EQ(m->bytes, 4096u);
        EXPECT_EQ(m->copyKind, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD);
        EXPECT_EQ(m->srcKind, CUPTI_ACTIVITY_MEMORY_KIND_PINNED);
        EXPECT_EQ(m->dstKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
      } else if (record->kind == CUPTI_ACTIVITY_KIND_RUNTIME ||
                 record->kind == CUPTI_ACTIVITY_KIND_DRIVER) {
        // Copies: the records are packed, so their fields cannot be referenced.
        const CUpti_ActivityKind kind = record->kind;
        const uint32_t call = reinterpret_cast<CUpti_ActivityAPI*>(record)->cbid;
        calls.emplace_back(kind, call);
      } else if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        auto* e = reinterpret_cast<CUpti_ActivityExternalCorrelation*>(record);
        external[e->correlationId] = e->externalId;
      }
    }
  }
  EXPECT_EQ(kernels, 1);
  EXPECT_EQ(copies, 1);
  // A library launches through the driver; the copy came through the runtime.
  EXPECT_THAT(calls,
              ElementsAre(std::pair(CUPTI_ACTIVITY_KIND_DRIVER,
                                    uint32_t{CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx}),
                          std::pair(CUPTI_ACTIVITY_KIND_RUNTIME,
                                    uint32_t{CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020})));
  EXPECT_EQ(external, (std::map<uint32_t, uint64_t>{{101, 17}, {102, 18}}));
  EXPECT_EQ(CALL(cupti, cuptiFinalize)(), CUPTI_SUCCESS);
  EXPECT_EQ(Driver<decltype(&fake_observer)>("fake_observer")(), nullptr);
}

// ---- NVML: its ABI, without its header
TEST_F(LibrariesTest, NvmlAnswersLikePynvmlAsks) {
  Library nvml("libnvidia-ml.so.1");
  auto f = [&nvml](const char* name) { return nvml.Find<int (*)(...)>(name); };
  unsigned count = 0;
  EXPECT_EQ(f("nvmlDeviceGetCount_v2")(&count), 1);  // uninitialized
  ASSERT_EQ(f("nvmlInit_v2")(), 0);
  ASSERT_EQ(f("nvmlDeviceGetCount_v2")(&count), 0);
  EXPECT_EQ(count, 2u);
  void *first = nullptr, *second = nullptr;
  ASSERT_EQ(f("nvmlDeviceGetHandleByIndex_v2")(0, &first), 0);
  ASSERT_EQ(f("nvmlDeviceGetHandleByPciBusId_v2")("00000000:11:00.0", &second), 0);
  unsigned index = 9;
  f("nvmlDeviceGetIndex")(second, &index);
  EXPECT_EQ(index, 1u);
  char text[96];
  f("nvmlDeviceGetUUID")(second, text, 96);
  EXPECT_STREQ(text, "GPU-12000000-0000-0000-0000-000000000001");
  void* same = nullptr;
  ASSERT_EQ(f("nvmlDeviceGetHandleByUUID")(text, &same), 0);
  EXPECT_EQ(same, second);
  unsigned long long memory[3];
  ASSERT_EQ(f("nvmlDeviceGetMemoryInfo")(first, memory), 0);
  EXPECT_THAT(memory, ElementsAre(1000, 700, 300));
  struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
  } v2 = {static_cast<unsigned>(40 | 2 << 24), 0, 0, 0, 0};
  ASSERT_EQ(f("nvmlDeviceGetMemoryInfo_v2")(first, &v2), 0);
  EXPECT_EQ(v2.used, 300u);
  struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu, compute;
  } process;
  unsigned processes = 0;
  EXPECT_EQ(f("nvmlDeviceGetComputeRunningProcesses_v3")(first, &processes, nullptr),
            7);  // insufficient size
  EXPECT_EQ(processes, 1u);
  ASSERT_EQ(f("nvmlDeviceGetComputeRunningProcesses_v3")(first, &processes, &process), 0);
  EXPECT_EQ(process.pid, 4711u);
  EXPECT_EQ(f("nvmlDeviceGetName")(first, text, 4), 7);
  EXPECT_EQ(f("nvmlShutdown")(), 0);
  EXPECT_EQ(f("nvmlShutdown")(), 1);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  g_driver = dlopen(HOSTCUDA_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL);
  if (!g_driver) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  return RUN_ALL_TESTS();
}
