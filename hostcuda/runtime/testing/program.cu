// An ordinary CUDA program: constant and managed memory, streams, events, a template, a structure
// by value, occupancy, error handling. Only RegisterBodies knows of hostcuda; on a GPU the kernels
// themselves compute.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "hostcuda/hostcuda.h"

struct Shape {
  int rows, columns;
  float bias;
};

__constant__ float factors[4] = {1, 2, 3, 4};
__device__ int launches;

__global__ void Scale(float* x, int n, int which) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factors[which];
  if (i == 0) ++launches;
}

template <class T>
__global__ void AddShape(T* x, Shape shape) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < shape.rows * shape.columns) x[i] += static_cast<T>(shape.bias);
}

#define CHECK(call)                                                          \
  do {                                                                       \
    const cudaError_t error = (call);                                        \
    if (error != cudaSuccess) {                                              \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, cudaGetErrorName(error), \
             cudaGetErrorString(error));                                     \
      exit(1);                                                               \
    }                                                                        \
  } while (0)
#define EXPECT(condition)                                        \
  do {                                                           \
    if (!(condition)) {                                          \
      printf("%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                   \
    }                                                            \
  } while (0)

static float* factors_address;
static int* launches_address;

static void RegisterBodies() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto register_kernel = reinterpret_cast<int (*)(const char*, hostcudaKernelBody)>(
      dlsym(driver, "hostcudaRegisterKernel"));
  if (register_kernel == nullptr) return;  // a GPU
  CHECK(cudaGetSymbolAddress(reinterpret_cast<void**>(&factors_address), factors));
  CHECK(cudaGetSymbolAddress(reinterpret_cast<void**>(&launches_address), launches));
  const char* name = nullptr;
  CHECK(cudaFuncGetName(&name, reinterpret_cast<const void*>(&Scale)));
  register_kernel(name, [](const hostcudaLaunch* launch) {
    float* x = *static_cast<float**>(launch->args[0]);
    const int n = *static_cast<int*>(launch->args[1]), which = *static_cast<int*>(launch->args[2]);
    for (int i = 0; i < n; ++i) x[i] *= factors_address[which];
    ++*launches_address;
  });
  CHECK(cudaFuncGetName(&name, reinterpret_cast<const void*>(&AddShape<double>)));
  register_kernel(name, [](const hostcudaLaunch* launch) {
    double* x = *static_cast<double**>(launch->args[0]);
    const Shape& shape = *static_cast<Shape*>(launch->args[1]);
    for (int i = 0; i < shape.rows * shape.columns; ++i) x[i] += shape.bias;
  });
}

int main() {
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  RegisterBodies();

  constexpr int n = 1 << 20;
  std::vector<float> host(n, 1.5f), back(n);
  float* x = nullptr;
  CHECK(cudaMalloc(&x, n * sizeof(float)));
  CHECK(cudaMemcpy(x, host.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  const float changed[2] = {10, 20};
  CHECK(cudaMemcpyToSymbol(factors, changed, sizeof changed, 2 * sizeof(float)));  // 1, 2, 10, 20

  cudaStream_t stream;
  cudaEvent_t start, stop;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  CHECK(cudaEventRecord(start, stream));
  Scale<<<(n + 255) / 256, 256, 0, stream>>>(x, n, 1);
  CHECK(cudaGetLastError());
  Scale<<<(n + 255) / 256, 256, 0, stream>>>(x, n, 3);
  CHECK(cudaEventRecord(stop, stream));
  CHECK(cudaMemcpyAsync(back.data(), x, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
  EXPECT(milliseconds >= 0);
  for (float value : back) EXPECT(value == 60.f);
  int count = 0;
  CHECK(cudaMemcpyFromSymbol(&count, launches, sizeof count));
  EXPECT(count == 2);

  double* managed = nullptr;
  CHECK(cudaMallocManaged(&managed, 64 * sizeof(double)));
  for (int i = 0; i < 64; ++i) managed[i] = i;
  AddShape<double><<<1, 64>>>(managed, Shape{8, 8, 0.5f});
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 64; ++i) EXPECT(managed[i] == i + 0.5);
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, managed));
  EXPECT(attributes.type == cudaMemoryTypeManaged);

  // Errors: reported once by cudaGetLastError, and nothing is broken afterwards.
  Scale<<<1, 2048>>>(x, n, 0);
  EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaErrorInvalidConfiguration);
  EXPECT(cudaGetLastError() == cudaSuccess);
  void* too_much = nullptr;
  EXPECT(cudaMalloc(&too_much, size_t{1} << 40) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation);
  EXPECT(cudaSetDevice(devices) == cudaErrorInvalidDevice);
  cudaGetLastError();
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, Scale, 256, 0));
  EXPECT(blocks > 0);

  // The same work as a graph.
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  Scale<<<(n + 255) / 256, 256, 0, stream>>>(x, n, 1);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaMemcpyAsync(back.data(), x, sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  EXPECT(back[0] == 240.f);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));

  CHECK(cudaFree(managed));
  CHECK(cudaFree(x));
  CHECK(cudaDeviceReset());
  printf("ok %d x %s\n", devices, properties.name);
  return 0;
}
