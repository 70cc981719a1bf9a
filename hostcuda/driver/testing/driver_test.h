// What tests of streams and clocks through the public API begin with: device 0's context, a module,
// and what they make on them.
//
//   class StreamTest : public hostcuda::testing::DriverTest {};
//   TEST_F(StreamTest, ...) { Launch("k", NewStream()); }
#ifndef HOSTCUDA_DRIVER_TESTING_DRIVER_TEST_H_
#define HOSTCUDA_DRIVER_TESTING_DRIVER_TEST_H_

#include <cuda.h>
#include <gtest/gtest.h>

#include "hostcuda/internal_table.h"

namespace hostcuda::testing {

inline const HostcudaTable* Table() {
  const void* table = nullptr;
  EXPECT_EQ(cuGetExportTable(&table, &kHostcudaTableUuid), CUDA_SUCCESS);
  return static_cast<const HostcudaTable*>(table);
}

class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleLoadData(&module_, "hostcuda-image-1"), CUDA_SUCCESS);
  }
  /// Streams and the module go with the context.
  void TearDown() override {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }
  static CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
    return stream;
  }
  static CUevent NewEvent(unsigned flags = 0) {
    CUevent event = nullptr;
    EXPECT_EQ(cuEventCreate(&event, flags), CUDA_SUCCESS);
    return event;
  }
  CUfunction Kernel(const char* name) {
    CUfunction kernel = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&kernel, module_, name), CUDA_SUCCESS);
    return kernel;
  }
  void Launch(const char* name, CUstream stream, unsigned grid = 1, unsigned block = 32) {
    EXPECT_EQ(cuLaunchKernel(Kernel(name), grid, 1, 1, block, 1, 1, 0, stream, nullptr, nullptr),
              CUDA_SUCCESS);
  }

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
};

}  // namespace hostcuda::testing

#endif  // HOSTCUDA_DRIVER_TESTING_DRIVER_TEST_H_
