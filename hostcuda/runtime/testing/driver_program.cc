// A program of the driver API, linked against libcuda.so.1 as any such program is.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "hostcuda/hostcuda.h"

#define CHECK(call)                                           \
  do {                                                        \
    const CUresult error = (call);                            \
    if (error != CUDA_SUCCESS) {                              \
      printf("%s:%d: error %d\n", __FILE__, __LINE__, error); \
      return 1;                                               \
    }                                                         \
  } while (0)

static const char kPtx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry square(.param .u64 square_param_0, .param .u32 square_param_1) { ret; }\n";

int main() {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction square;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuCtxCreate(&context, nullptr, 0, device));
  CHECK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&square, module, "square"));
  hostcudaRegisterKernel("square", [](const hostcudaLaunch* launch) {
    int* x = *static_cast<int**>(launch->args[0]);
    for (unsigned i = 0; i < *static_cast<unsigned*>(launch->args[1]); ++i) x[i] *= x[i];
  });
  std::vector<int> values = {1, 2, 3, 4};
  CUdeviceptr memory;
  CHECK(cuMemAlloc(&memory, 16));
  CHECK(cuMemcpyHtoD(memory, values.data(), 16));
  unsigned n = 4;
  void* arguments[] = {&memory, &n};
  CHECK(cuLaunchKernel(square, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr));
  CHECK(cuMemcpyDtoH(values.data(), memory, 16));
  CHECK(cuMemFree(memory));
  CHECK(cuCtxDestroy(context));
  printf("%d %d %d %d\n", values[0], values[1], values[2], values[3]);
  return 0;
}
