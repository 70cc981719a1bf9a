// Nanoseconds of common driver calls through whatever libcuda.so.1 the process has: run it with and
// without the shim.
//
//   passthrough_calls [repetitions]      one JSON object on stdout: call -> median ns over 9 rounds
//
// The driver is found as CUDA's own libraries find it: dlopen, then cuGetProcAddress.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

constexpr char kPtx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing(.param .u32 p) { ret; "
    "}\n";

decltype(&cuGetProcAddress) get_proc_address = nullptr;

template <class F>
F Find(const char* name) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found{};
  if (get_proc_address(name, &address, 13000, 0, &found) != CUDA_SUCCESS || address == nullptr) {
    std::fprintf(stderr, "passthrough_calls: the driver has no %s\n", name);
    std::exit(1);
  }
  return reinterpret_cast<F>(address);
}

void Check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "passthrough_calls: %s returned %d\n", what, static_cast<int>(result));
    std::exit(1);
  }
}

struct Case {
  const char* name;
  int divisor;  // of the repetitions: for calls that are slow
  std::function<void()> call;
};

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 20000;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) {
    std::fprintf(stderr, "passthrough_calls: %s\n", dlerror());
    return 1;
  }
  get_proc_address =
      reinterpret_cast<decltype(get_proc_address)>(dlsym(driver, "cuGetProcAddress_v2"));
  Check(Find<decltype(&cuInit)>("cuInit")(0), "cuInit");
  CUdevice device = 0;
  CUcontext context = nullptr;
  Check(Find<decltype(&cuDeviceGet)>("cuDeviceGet")(&device, 0), "cuDeviceGet");
  Check(Find<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, device),
        "cuDevicePrimaryCtxRetain");
  Check(Find<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  Check(Find<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, kPtx), "cuModuleLoadData");
  Check(Find<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&function, module, "nothing"),
        "cuModuleGetFunction");
  CUstream stream = nullptr;
  CUevent event = nullptr;
  Check(Find<decltype(&cuStreamCreate)>("cuStreamCreate")(&stream, CU_STREAM_NON_BLOCKING),
        "cuStreamCreate");
  Check(Find<decltype(&cuEventCreate)>("cuEventCreate")(&event, CU_EVENT_DISABLE_TIMING),
        "cuEventCreate");
  const auto launch = Find<decltype(&cuLaunchKernel)>("cuLaunchKernel");
  const auto record = Find<decltype(&cuEventRecord)>("cuEventRecord");
  const auto wait = Find<decltype(&cuStreamWaitEvent)>("cuStreamWaitEvent");
  const auto query = Find<decltype(&cuStreamQuery)>("cuStreamQuery");
  const auto current = Find<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
  const auto synchronize = Find<decltype(&cuStreamSynchronize)>("cuStreamSynchronize");
  const auto allocate = Find<decltype(&cuMemAlloc)>("cuMemAlloc");
  const auto release = Find<decltype(&cuMemFree)>("cuMemFree");
  unsigned parameter = 0;
  void* parameters[] = {&parameter};

  const std::vector<Case> cases = {
      {"cuCtxGetCurrent", 1, [&] { current(&context); }},
      {"cuStreamQuery", 1, [&] { query(stream); }},
      {"cuEventRecord", 1, [&] { record(event, stream); }},
      {"cuStreamWaitEvent", 1, [&] { wait(stream, event, 0); }},
      {"cuLaunchKernel", 1,
       [&] { launch(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr); }},
      {"cuMemAlloc+cuMemFree", 50,
       [&] {
         CUdeviceptr p = 0;
         if (allocate(&p, 4 << 20) == CUDA_SUCCESS) release(p);
       }},
  };
  std::printf("{");
  for (size_t i = 0; i < cases.size(); ++i) {
    const int count = std::max(1, repetitions / cases[i].divisor);
    std::vector<double> rounds;
    for (int round = 0; round < 9; ++round) {
      synchronize(stream);
      const auto start = std::chrono::steady_clock::now();
      for (int k = 0; k < count; ++k) {
        cases[i].call();
        if (k % 512 == 511) synchronize(stream);  // never wait for a full launch queue
      }
      const auto end = std::chrono::steady_clock::now();
      rounds.push_back(std::chrono::duration<double, std::nano>(end - start).count() / count);
    }
    std::sort(rounds.begin(), rounds.end());
    std::printf("%s\"%s\": %.1f", i == 0 ? "" : ", ", cases[i].name, rounds[rounds.size() / 2]);
  }
  std::printf("}\n");
  return 0;
}
