// hostcuda's own libraries, opened as a program would open them: by dlopen, through the public
// driver API.
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hostcuda/nccl/testing/machine.h"

namespace hostnccl::testing {
namespace {

void* Open(const char* name) {
  // By path: the process then has its libcuda.so.1, and libnccl.so.2 finds it by that name.
  void* library =
      dlopen((std::string(HOSTCUDA_LIBRARY_DIRECTORY "/") + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  return library;
}

void* Driver() {
  static void* const library = Open("libcuda.so.1");
  return library;
}

template <typename Function>
Function* Find(void* library, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  return reinterpret_cast<Function*>(symbol);
}

void Check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s failed with CUDA error %d\n", call, static_cast<int>(result));
  abort();
}

#define CU_NAME_TEXT(name) #name
#define CU_TEXT(name) CU_NAME_TEXT(name)  // cuda.h renames functions to their current versions
#define CU(name) (*Find<decltype(name)>(Driver(), CU_TEXT(name)))
#define CHECKED(name, ...) Check(CU(name)(__VA_ARGS__), #name)

volatile uint32_t* held_word = nullptr;

}  // namespace

struct Graph {
  CUgraphExec executable;
};

const NcclFunctions& nccl() {
  static const NcclFunctions functions = [] {
    Driver();
    void* library = Open("libnccl.so.2");
    NcclFunctions found;
#define HOSTNCCL_FIND(name) found.name = Find<decltype(nccl##name)>(library, "nccl" #name);
    HOSTNCCL_TESTED_FUNCTIONS(HOSTNCCL_FIND)
#undef HOSTNCCL_FIND
    return found;
  }();
  return functions;
}

void StartMachine(int device) {
  setenv("HOSTCUDA_DEVICES", "64", 0);
  setenv("HOSTCUDA_VALUES", "cpu", 0);
  CHECKED(cuInit, 0);
  UseDevice(device);
}

void UseDevice(int device) {
  CUcontext context;
  CHECKED(cuDevicePrimaryCtxRetain, &context, device);
  CHECKED(cuCtxSetCurrent, context);
}

cudaStream_t NewStream() {
  CUstream stream;
  CHECKED(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  return reinterpret_cast<cudaStream_t>(stream);
}

void DestroyStream(cudaStream_t stream) { CU(cuStreamDestroy)(stream); }

int Synchronize(cudaStream_t stream) { return CU(cuStreamSynchronize)(stream); }

int Query(cudaStream_t stream) { return CU(cuStreamQuery)(stream); }

void HoldUntil(cudaStream_t stream, volatile uint32_t* flag) {
  held_word = flag;
  CHECKED(cuStreamWaitValue32, stream, reinterpret_cast<CUdeviceptr>(flag), 1,
          CU_STREAM_WAIT_VALUE_GEQ);
}

void Poke() { syscall(SYS_futex, held_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void* DeviceAlloc(size_t bytes) {
  CUdeviceptr address;
  CHECKED(cuMemAlloc, &address, bytes);
  memset(reinterpret_cast<void*>(address), 0, bytes);
  return reinterpret_cast<void*>(address);
}

Graph* Capture(cudaStream_t stream, const std::function<void()>& body) {
  CUgraph graph;
  const CUresult begun = CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  if (begun == CUDA_ERROR_NOT_SUPPORTED) return nullptr;
  Check(begun, "cuStreamBeginCapture");
  body();
  CHECKED(cuStreamEndCapture, stream, &graph);
  auto* captured = new Graph;
  CHECKED(cuGraphInstantiateWithFlags, &captured->executable, graph, 0);
  return captured;
}

void Replay(Graph* graph, cudaStream_t stream) {
  CHECKED(cuGraphLaunch, graph->executable, stream);
}

}  // namespace hostnccl::testing
