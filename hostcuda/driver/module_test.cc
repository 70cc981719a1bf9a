// Images, kernels, entry points and errors through the public API.
#include "hostcuda/driver/module.h"

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "hostcuda/driver/gpu.h"
#include "hostcuda/driver/testing/roles.h"
#include "hostcuda/internal_table.h"

namespace {

constexpr char kPtx[] = R"(// a comment
.version 8.0
.target sm_90
.address_size 64
.visible .entry _Z4axpyfPKfPfi(
	.param .f32 _Z4axpyfPKfPfi_param_0,
	.param .u64 _Z4axpyfPKfPfi_param_1,
	.param .u64 _Z4axpyfPKfPfi_param_2,
	.param .u32 _Z4axpyfPKfPfi_param_3
)
{ ret; }
.visible .entry with_struct(.param .align 4 .b8 with_struct_param_0[12], .param .u64 with_struct_param_1) { ret; }
.entry none() { ret; }
)";

class ModuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  void TearDown() override { ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS); }
  CUcontext context_ = nullptr;
};

TEST_F(ModuleTest, PtxTellsItsKernelsAndTheirParameters) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&function, module, "absent"), CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  ASSERT_EQ(cuModuleGetFunctionCount(&count, module), CUDA_SUCCESS);
  EXPECT_EQ(count, 3u);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "with_struct"), CUDA_SUCCESS);
  size_t offset = 0, size = 0;
  ASSERT_EQ(cuFuncGetParamInfo(function, 0, &offset, &size), CUDA_SUCCESS);
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(size, 12u);
  ASSERT_EQ(cuFuncGetParamInfo(function, 1, &offset, &size), CUDA_SUCCESS);
  EXPECT_EQ(offset, 16u);
  EXPECT_EQ(size, 8u);
  EXPECT_EQ(cuFuncGetParamInfo(function, 2, &offset, &size), CUDA_ERROR_INVALID_VALUE);
  const char* name = nullptr;
  ASSERT_EQ(cuFuncGetName(&name, function), CUDA_SUCCESS);
  EXPECT_STREQ(name, "with_struct");
}

TEST_F(ModuleTest, HostcudasOwnImageHasEveryName) {
  CUlibrary library = nullptr;
  ASSERT_EQ(
      cuLibraryLoadData(&library, hostcuda::kImageMagic, nullptr, nullptr, 0, nullptr, nullptr, 0),
      CUDA_SUCCESS);
  CUkernel kernel = nullptr, again = nullptr;
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "gemm bf16 128x128x64"), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryGetKernel(&again, library, "gemm bf16 128x128x64"), CUDA_SUCCESS);
  EXPECT_EQ(kernel, again);
}

TEST_F(ModuleTest, WhatIsNoImageIsRefused) {
  CUmodule module = nullptr;
  char garbage[256];
  memset(garbage, 'x', sizeof garbage);
  EXPECT_EQ(cuModuleLoadData(&module, garbage), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoad(&module, "/nonexistent.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_F(ModuleTest, LaunchChecksItsShape) {
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&f, module, "none"), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1024, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 65, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448),
            CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449),
            CUDA_ERROR_INVALID_VALUE);
  int blocks = 0;
  ASSERT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 8);
  ASSERT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 128, 100 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(blocks, 2);
  EXPECT_EQ(cuLaunchCooperativeKernel(f, 132 * 2, 1, 1, 1024, 1, 1, 0, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchCooperativeKernel(f, 132 * 2 + 1, 1, 1, 1024, 1, 1, 0, nullptr, nullptr),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

TEST_F(ModuleTest, BodyComputesWithParametersAsTheyWereAtTheLaunch) {
  CUmodule module = nullptr;
  CUfunction axpy = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&axpy, module, "_Z4axpyfPKfPfi"), CUDA_SUCCESS);
  ASSERT_EQ(hostcudaRegisterKernel("_Z4axpyfPKfPfi",
                                   [](const hostcudaLaunch* launch) {
                                     const float a = *static_cast<float*>(launch->args[0]);
                                     const float* x = *static_cast<float**>(launch->args[1]);
                                     float* y = *static_cast<float**>(launch->args[2]);
                                     for (int i = 0; i < *static_cast<int*>(launch->args[3]); ++i)
                                       y[i] += a * x[i];
                                   }),
            0);
  CUdeviceptr x = 0, y = 0;
  ASSERT_EQ(cuMemAlloc(&x, 32), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&y, 32), CUDA_SUCCESS);
  const float xs[3] = {1, 2, 3}, ys[3] = {10, 20, 30};
  ASSERT_EQ(cuMemcpyHtoD(x, xs, 12), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoD(y, ys, 12), CUDA_SUCCESS);
  CUstream stream = nullptr;
  uint32_t* word = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word), 64, 0), CUDA_SUCCESS);
  *word = 0;
  ASSERT_EQ(
      cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_EQ),
      CUDA_SUCCESS);
  {
    float a = 2;
    int n = 3;
    void* args[] = {&a, &x, &y, &n};
    ASSERT_EQ(cuLaunchKernel(axpy, 1, 1, 1, 32, 1, 1, 0, stream, args, nullptr), CUDA_SUCCESS);
    a = 1000;  // the launch has its own copy
    n = 0;
  }
  // The packed form of parameters.
  struct {
    float a = 1;
    CUdeviceptr x, y;
    int n = 3;
  } packed;
  packed.x = x;
  packed.y = y;
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  ASSERT_EQ(cuLaunchKernel(axpy, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra), CUDA_SUCCESS);
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
  float out[3] = {};
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH(out, y, 12), CUDA_SUCCESS);
  EXPECT_EQ(out[0], 13);
  EXPECT_EQ(out[1], 26);
  EXPECT_EQ(out[2], 39);
  cuMemFree(x);
  cuMemFree(y);
  cuMemFreeHost(word);
  cuStreamDestroy(stream);
}

TEST_F(ModuleTest, UnknownSizesRunOnAnIdleStreamAndAreRefusedOnABusyOne) {
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, hostcuda::kImageMagic), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&f, module, "opaque"), CUDA_SUCCESS);
  static int sum;
  sum = 0;
  ASSERT_EQ(hostcudaRegisterKernel(
                "opaque",
                [](const hostcudaLaunch* launch) { sum += *static_cast<int*>(launch->args[0]); }),
            0);
  int value = 5;
  void* args[] = {&value};
  ASSERT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(sum, 5);
  CUstream stream = nullptr;
  uint32_t* word = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word), 64, 0), CUDA_SUCCESS);
  *word = 0;
  ASSERT_EQ(
      cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_EQ),
      CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, args, nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
  const unsigned sizes[] = {4};
  ASSERT_EQ(hostcudaRegisterKernelParameters("opaque", 1, sizes), 0);
  EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, args, nullptr), CUDA_SUCCESS);
  value = 100;
  __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(sum, 10);
  cuMemFreeHost(word);
  cuStreamDestroy(stream);
}

TEST(ParameterSizesTest, AreReadFromPlainMangledNames) {
  const struct {
    const char* name;
    bool known;
    std::vector<uint32_t> sizes;
  } cases[] = {{"_Z4axpyfPKfPfi", true, {4, 8, 8, 4}},
               {"_Z4nonev", true, {}},
               {"_ZN2ns3fooEPfS0_d", true, {8, 8, 8}},
               {"_Z3barPfS_cs", true, {8, 8, 1, 2}},
               {"_Z3baz5Shape", false, {}},     // a structure by value
               {"_Z3bazP5ShapeS_", false, {}},  // perhaps one
               {"_Z3tmpIfEvPT_", false, {}},    // a template
               {"plain_c_name", false, {}}};
  for (const auto& c : cases) {
    std::vector<uint32_t> sizes;
    EXPECT_EQ(hostcuda::ParameterSizesFromName(c.name, &sizes), c.known) << c.name;
    if (c.known) {
      EXPECT_EQ(sizes, c.sizes) << c.name;
    }
  }
}

TEST(EntryPointTest, VersionChoosesTheSymbol) {
  void *old_form = nullptr, *new_form = nullptr, *exact = nullptr;
  CUdriverProcAddressQueryResult status;
  ASSERT_EQ(cuGetProcAddress("cuMemAlloc", &old_form, 2000, 0, &status), CUDA_SUCCESS);
  ASSERT_EQ(cuGetProcAddress("cuMemAlloc", &new_form, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  EXPECT_NE(old_form, new_form);
  EXPECT_EQ(new_form,
            reinterpret_cast<void*>(&cuMemAlloc));  // cuda.h's cuMemAlloc is cuMemAlloc_v2
  ASSERT_EQ(cuGetProcAddress("cuMemAlloc_v2", &exact, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(exact, new_form);
  EXPECT_EQ(cuGetProcAddress("cuLaunchKernelEx", &exact, 11000, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(exact, nullptr);
  EXPECT_EQ(cuGetProcAddress("cuNoSuchCall", &exact, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST(EntryPointTest, WhatIsNotImplementedSaysItsName) {
  ::testing::internal::CaptureStderr();
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR descriptor = {};
  EXPECT_EQ(cuArrayCreate(&array, &descriptor), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuArrayCreate(&array, &descriptor), CUDA_ERROR_NOT_SUPPORTED);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("cuArrayCreate_v2 is not implemented"), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;  // once
}

TEST(ErrorTest, NamesAndTextsOfAllErrors) {
  const char* text = nullptr;
  ASSERT_EQ(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  ASSERT_EQ(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "out of memory");
  EXPECT_EQ(cuGetErrorName(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

TEST(DeviceTest, EightH200s) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int count = 0, value = 0;
  ASSERT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(count, 8);
  char name[64];
  ASSERT_EQ(cuDeviceGetName(name, sizeof name, 7), CUDA_SUCCESS);
  EXPECT_STREQ(name, "NVIDIA H200");
  EXPECT_EQ(cuDeviceGetName(name, sizeof name, 8), CUDA_ERROR_INVALID_DEVICE);
  ASSERT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 132);
  char bus[32];
  CUdevice device = -1;
  ASSERT_EQ(cuDeviceGetPCIBusId(bus, sizeof bus, 5), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetByPCIBusId(&device, bus), CUDA_SUCCESS);
  EXPECT_EQ(device, 5);
  for (const char* key : {"h200", "h100", "a100", "b200"})
    EXPECT_NE(hostcuda::FindGpu(key), nullptr);
  EXPECT_EQ(hostcuda::FindGpu("t4"), nullptr);
}

TEST(DeviceTest, VisibleDevicesAreChosenAsByTheRealDriver) {
  using hostcuda::ParseVisibleDevices;
  using Devices = std::vector<int>;
  EXPECT_EQ(ParseVisibleDevices(nullptr, 3), (Devices{0, 1, 2}));
  EXPECT_EQ(ParseVisibleDevices("2,0", 3), (Devices{2, 0}));
  EXPECT_EQ(ParseVisibleDevices("", 3), Devices{});
  EXPECT_EQ(ParseVisibleDevices("-1", 3), Devices{});
  EXPECT_EQ(ParseVisibleDevices("1,7,2", 3), Devices{1});  // what names no device ends the list
  EXPECT_EQ(ParseVisibleDevices("1,1", 3), Devices{});
  EXPECT_EQ(ParseVisibleDevices("GPU-686f7374-6375-6461-2d64-657669636502", 3), Devices{2});
  EXPECT_EQ(ParseVisibleDevices("GPU-686f", 3), Devices{});  // not unique
}

int SeeTwoDevices(int, int) {
  setenv("CUDA_VISIBLE_DEVICES", "5,3", 1);
  int count = 0;
  char bus[32];
  CUdevice device = -1;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS || count != 2) return 1;
  if (cuDeviceGetPCIBusId(bus, sizeof bus, 1) != CUDA_SUCCESS || strcmp(bus, "0000:13:00.0") != 0)
    return 2;
  if (cuDeviceGetByPCIBusId(&device, "0000:15:00.0") != CUDA_SUCCESS || device != 0) return 3;
  CUcontext context = nullptr;
  if (cuDevicePrimaryCtxRetain(&context, 1) != CUDA_SUCCESS) return 4;
  const void* address = nullptr;
  cuGetExportTable(&address, &kHostcudaTableUuid);
  HostcudaDeviceProcess process;  // NVML counts the machine's devices
  if (static_cast<const HostcudaTable*>(address)->device_processes(3, &process, 1) != 1) return 5;
  return process.used_bytes == 550u << 20 ? 0 : 6;
}
const hostcuda::testing::RegisterRole see_two_devices("see_two_devices", SeeTwoDevices);

TEST(DeviceTest, OrdinalsMeanTheVisibleDevicesAndMemoryTheMachines) {
  hostcuda::testing::Role role("see_two_devices");
  EXPECT_EQ(role.Wait(), 0);
}

TEST(DeviceTest, TableAnswersBeforeInitialization) {
  const void* address = nullptr;
  ASSERT_EQ(cuGetExportTable(&address, &kHostcudaTableUuid), CUDA_SUCCESS);
  const auto* table = static_cast<const HostcudaTable*>(address);
  EXPECT_EQ(table->size, sizeof(HostcudaTable));
  EXPECT_EQ(table->device_count(), 8);
  HostcudaDeviceInfo info;
  ASSERT_EQ(table->device_info(1, &info), CUDA_SUCCESS);
  EXPECT_STREQ(info.name, "NVIDIA H200");
  const CUuuid other = {{1, 2, 3}};
  EXPECT_EQ(cuGetExportTable(&address, &other), CUDA_ERROR_NOT_FOUND);
}

}  // namespace

int main(int argc, char** argv) {
  hostcuda::testing::RunRole(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
