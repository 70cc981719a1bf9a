// A program without PyTorch: runtime, cuBLAS, cuSOLVER and cuFFT, as a user's C++ code calls them.
// It makes no context by hand.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cufft.h>
#include <cusolverDn.h>
#include <stdio.h>

#include <vector>

#define CHECK(call)                                     \
  do {                                                  \
    if (int code = static_cast<int>(call); code != 0) { \
      fprintf(stderr, "%s returned %d\n", #call, code); \
      return 1;                                         \
    }                                                   \
  } while (0)

int main() {
  constexpr int n = 64;
  // cuBLAS before any call of the runtime: it makes the primary context current itself.
  cublasHandle_t blas;
  CHECK(cublasCreate(&blas));
  float *a, *b;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&a), n * n * sizeof(float)));
  CHECK(cudaMalloc(reinterpret_cast<void**>(&b), n * n * sizeof(float)));
  // A 2 x 3 matrix goes to the device with another leading dimension and comes back.
  std::vector<float> in = {1, 2, 3, 4, 5, 6}, out(6, 0);
  CHECK(cublasSetMatrix(2, 3, sizeof(float), in.data(), 2, a, 8));
  CHECK(cublasGetMatrix(2, 3, sizeof(float), a, 8, out.data(), 2));
  if (in != out) {
    fprintf(stderr, "the matrix did not come back\n");
    return 1;
  }
  std::vector<float> column(2);
  CHECK(cudaMemcpy(column.data(), a + 8, 2 * sizeof(float), cudaMemcpyDeviceToHost));
  if (column != std::vector<float>{3, 4}) {
    fprintf(stderr, "the second column is not where the leading dimension says\n");
    return 1;
  }
  const float one = 1, zero = 0;
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cublasSetStream(blas, stream));
  CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, b, n));
  cusolverDnHandle_t solver;
  CHECK(cusolverDnCreate(&solver));
  CHECK(cusolverDnSetStream(solver, stream));
  int lwork = -1, *info, status = -1;
  CHECK(cudaMalloc(reinterpret_cast<void**>(&info), sizeof(int)));
  CHECK(cudaMemset(info, 0xff, sizeof(int)));
  CHECK(cusolverDnSpotrf_bufferSize(solver, CUBLAS_FILL_MODE_LOWER, n, a, n, &lwork));
  CHECK(cusolverDnSpotrf(solver, CUBLAS_FILL_MODE_LOWER, n, a, n, b, lwork, info));
  CHECK(cudaMemcpyAsync(&status, info, sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  cufftHandle plan;
  CHECK(cufftPlan1d(&plan, n, CUFFT_C2C, 8));
  CHECK(cufftSetStream(plan, stream));
  CHECK(cufftExecC2C(plan, reinterpret_cast<cufftComplex*>(a), reinterpret_cast<cufftComplex*>(a),
                     CUFFT_FORWARD));
  CHECK(cudaDeviceSynchronize());
  CHECK(cufftDestroy(plan));
  CHECK(cusolverDnDestroy(solver));
  CHECK(cublasDestroy(blas));
  printf("lwork %d info %d\n", lwork, status);
  return 0;
}
