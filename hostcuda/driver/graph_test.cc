// Stream capture and graphs through the public API.
#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "hostcuda/driver/testing/roles.h"
#include "hostcuda/hostcuda.h"
#include "hostcuda/internal_table.h"

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 scale_param_0, .param .f32 scale_param_1, .param .u32 scale_param_2) { ret; }
.visible .entry add_one(.param .u64 add_one_param_0) { ret; }
)";

void Scale(const hostcudaLaunch* launch) {
  auto* x = *static_cast<float**>(launch->args[0]);
  const float factor = *static_cast<float*>(launch->args[1]);
  const unsigned n = *static_cast<unsigned*>(launch->args[2]);
  for (unsigned i = 0; i < n; ++i) x[i] *= factor;
}

void AddOne(const hostcudaLaunch* launch) { **static_cast<float**>(launch->args[0]) += 1; }

class GraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&a_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&b_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&device_, 4096), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleLoadData(&module_, kPtx), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&scale_, module_, "scale"), CUDA_SUCCESS);
    ASSERT_EQ(cuModuleGetFunction(&add_one_, module_, "add_one"), CUDA_SUCCESS);
    ASSERT_EQ(hostcudaRegisterKernel("scale", Scale), 0);
    ASSERT_EQ(hostcudaRegisterKernel("add_one", AddOne), 0);
  }
  void TearDown() override {
    cuMemFree(device_);
    cuEventDestroy(event_);
    cuStreamDestroy(a_);
    cuStreamDestroy(b_);
    ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }
  void LaunchScale(CUstream stream, float factor, unsigned n = 4) {
    void* args[] = {&device_, &factor, &n};
    ASSERT_EQ(cuLaunchKernel(scale_, 1, 1, 1, 32, 1, 1, 0, stream, args, nullptr), CUDA_SUCCESS);
  }
  void LaunchAddOne(CUstream stream) {
    void* args[] = {&device_};
    ASSERT_EQ(cuLaunchKernel(add_one_, 1, 1, 1, 1, 1, 1, 0, stream, args, nullptr), CUDA_SUCCESS);
  }
  void Set(std::vector<float> values) {
    ASSERT_EQ(cuMemcpyHtoD(device_, values.data(), values.size() * 4), CUDA_SUCCESS);
  }
  std::vector<float> Get(size_t n = 4) {
    std::vector<float> values(n);
    EXPECT_EQ(cuMemcpyDtoH(values.data(), device_, n * 4), CUDA_SUCCESS);
    return values;
  }
  CUgraphExec Instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  size_t Nodes(CUgraph graph) {
    size_t count = 0;
    EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
    return count;
  }

  CUcontext context_ = nullptr;
  CUstream a_ = nullptr, b_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr device_ = 0;
  CUmodule module_ = nullptr;
  CUfunction scale_ = nullptr, add_one_ = nullptr;
};

TEST_F(GraphTest, ReplayRunsKernelsCopiesAndSetsWithTheirCapturedParameters) {
  CUdeviceptr other = 0;
  ASSERT_EQ(cuMemAlloc(&other, 4096), CUDA_SUCCESS);
  Set({1, 2, 3, 4});
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  LaunchScale(a_, 3);  // the factor is copied: the variable is gone at the replay
  ASSERT_EQ(cuMemcpyDtoDAsync(other, device_, 16, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD32Async(device_ + 12, 0x3f800000, 1, a_), CUDA_SUCCESS);  // 1.0f
  ASSERT_EQ(cuStreamEndCapture(a_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(Nodes(graph), 3u);
  EXPECT_EQ(Get(), (std::vector<float>{1, 2, 3, 4}));  // capturing runs nothing
  const CUgraphExec exec = Instantiate(graph);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);  // the executable is a copy
  ASSERT_EQ(cuGraphLaunch(exec, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(Get(), (std::vector<float>{9, 18, 27, 1}));
  std::vector<float> copied(4);
  ASSERT_EQ(cuMemcpyDtoH(copied.data(), other, 16), CUDA_SUCCESS);
  EXPECT_EQ(copied, (std::vector<float>{9, 18, 27, 3}));
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  cuMemFree(other);
}

TEST_F(GraphTest, CaptureSpreadsOverStreamsThroughEventsAndMustBeJoined) {
  CUgraph graph = nullptr;
  Set({0, 0, 0, 0});
  CUevent back = nullptr;
  ASSERT_EQ(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  LaunchAddOne(a_);
  ASSERT_EQ(cuEventRecord(event_, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b_, event_, 0), CUDA_SUCCESS);
  CUstreamCaptureStatus status;
  ASSERT_EQ(cuStreamIsCapturing(b_, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  LaunchScale(b_, 5);
  ASSERT_EQ(cuEventRecord(back, b_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(a_, back, 0), CUDA_SUCCESS);
  LaunchAddOne(a_);
  ASSERT_EQ(cuStreamEndCapture(a_, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamIsCapturing(b_, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_EQ(Nodes(graph), 3u);
  // A chain: add, scale, add.
  size_t roots = 0, edges = 0;
  ASSERT_EQ(cuGraphGetRootNodes(graph, nullptr, &roots), CUDA_SUCCESS);
  EXPECT_EQ(roots, 1u);
  CUgraphNode from[3], to[3];
  edges = 3;
  ASSERT_EQ(cuGraphGetEdges(graph, from, to, nullptr, &edges), CUDA_SUCCESS);
  EXPECT_EQ(edges, 3u);  // add->scale, scale->add, and add->add of the origin stream
  CUgraphNodeType type;
  ASSERT_EQ(cuGraphNodeGetType(from[0], &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  const CUgraphExec exec = Instantiate(graph);
  ASSERT_EQ(cuGraphLaunch(exec, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(Get(1), std::vector<float>{6});
  EXPECT_EQ(cuEventQuery(back), CUDA_ERROR_CAPTURED_EVENT);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  cuEventDestroy(back);

  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  LaunchAddOne(a_);
  ASSERT_EQ(cuEventRecord(event_, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b_, event_, 0), CUDA_SUCCESS);
  LaunchAddOne(b_);
  EXPECT_EQ(cuStreamEndCapture(a_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(GraphTest, ForbiddenCallsInvalidateTheCapture) {
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status;
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ASSERT_EQ(cuStreamIsCapturing(a_, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(a_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  // Allocation is forbidden by the global mode, allowed in a thread that relaxed itself.
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(cuMemAlloc(&memory, 1 << 22), CUDA_SUCCESS);
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuMemAlloc(&memory, 1 << 22), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(a_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  cuMemFree(memory);

  ASSERT_EQ(cuEventRecord(event_, b_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(a_, event_, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(cuStreamEndCapture(a_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  EXPECT_EQ(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(a_, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(GraphTest, TaskIsClonedForEveryReplayAndWithoutCloneRefused) {
  const void* address = nullptr;
  ASSERT_EQ(cuGetExportTable(&address, &kHostcudaTableUuid), CUDA_SUCCESS);
  const auto* table = static_cast<const HostcudaTable*>(address);
  struct Task {
    static std::atomic<int>& Alive() {
      static std::atomic<int> alive{0};
      return alive;
    }
    static std::atomic<int>& Done() {
      static std::atomic<int> done{0};
      return done;
    }
    int polls = 0;
    Task() { Alive()++; }
    static int Poll(void* context, uint64_t now, uint64_t* wake_at) {
      auto* task = static_cast<Task*>(context);
      if (task->polls++ == 0) {
        *wake_at = now + 1'000'000;
        return HOSTCUDA_TASK_PENDING;  // state of its own: every replay waits once
      }
      Done()++;
      return HOSTCUDA_TASK_DONE;
    }
    static void Release(void* context) {
      Alive()--;
      delete static_cast<Task*>(context);
    }
    static void* Clone(void*) { return new Task; }
  };
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(
      table->stream_enqueue(a_, "collective", Task::Poll, Task::Release, Task::Clone, new Task),
      CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(a_, &graph), CUDA_SUCCESS);
  EXPECT_EQ(Task::Done().load(), 0);
  const CUgraphExec exec = Instantiate(graph);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cuGraphLaunch(exec, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(Task::Done().load(), 3);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  EXPECT_EQ(Task::Alive().load(), 0);

  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(table->stream_enqueue(a_, "collective", Task::Poll, Task::Release, nullptr, new Task),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(Task::Alive().load(), 0);  // released although refused
  EXPECT_EQ(cuStreamEndCapture(a_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(GraphTest, ParallelBranchReleasesAWaitInTheOther) {
  uint32_t* word = nullptr;
  ASSERT_EQ(cuMemHostAlloc(reinterpret_cast<void**>(&word), 4096, 0), CUDA_SUCCESS);
  *word = 0;
  CUevent back = nullptr;
  ASSERT_EQ(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamBeginCapture(a_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event_, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b_, event_, 0), CUDA_SUCCESS);
  ASSERT_EQ(
      cuStreamWaitValue32(a_, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ),
      CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWriteValue32(b_, reinterpret_cast<CUdeviceptr>(word), 1, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(back, b_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(a_, back, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(a_, &graph), CUDA_SUCCESS);
  const CUgraphExec exec = Instantiate(graph);
  ASSERT_EQ(cuGraphLaunch(exec, a_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(*word, 1u);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  cuEventDestroy(back);
  cuMemFreeHost(word);
}

TEST_F(GraphTest, ChildGraphsRunInTheirPlaceAndCyclesAreRefused) {
  CUgraph child = nullptr, graph = nullptr;
  CUgraphNode first = nullptr, middle = nullptr, last = nullptr;
  unsigned n = 1;
  float factor = 10;
  void* scale_args[] = {&device_, &factor, &n};
  void* add_args[] = {&device_};
  CUDA_KERNEL_NODE_PARAMS scale = {}, add = {};
  scale.func = scale_;
  scale.gridDimX = scale.gridDimY = scale.gridDimZ = scale.blockDimX = scale.blockDimY =
      scale.blockDimZ = 1;
  scale.kernelParams = scale_args;
  add = scale;
  add.func = add_one_;
  add.kernelParams = add_args;
  ASSERT_EQ(cuGraphCreate(&child, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddKernelNode(&middle, child, nullptr, 0, &scale), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddKernelNode(&first, graph, nullptr, 0, &add), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddChildGraphNode(&middle, graph, &first, 1, child), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddKernelNode(&last, graph, &middle, 1, &add), CUDA_SUCCESS);
  Set({2});
  const CUgraphExec exec = Instantiate(graph);
  ASSERT_EQ(cuGraphLaunch(exec, a_), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(a_), CUDA_SUCCESS);
  EXPECT_EQ(Get(1), std::vector<float>{31});  // (2 + 1) * 10 + 1
  CUgraph clone = nullptr;
  ASSERT_EQ(cuGraphClone(&clone, graph), CUDA_SUCCESS);
  EXPECT_EQ(Nodes(clone), 3u);
  ASSERT_EQ(cuGraphAddDependencies(graph, &last, &first, nullptr, 1), CUDA_SUCCESS);
  CUgraphExec cyclic = nullptr;
  EXPECT_EQ(cuGraphInstantiate(&cyclic, graph, 0), CUDA_ERROR_INVALID_VALUE);
  cuGraphExecDestroy(exec);
  for (CUgraph g : {child, graph, clone}) cuGraphDestroy(g);
}

TEST_F(GraphTest, UpdateIsRefusedSoThatTheCallerInstantiatesAgain) {
  CUgraph graph = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  const CUgraphExec exec = Instantiate(graph);
  CUgraphExecUpdateResultInfo info = {};
  EXPECT_EQ(cuGraphExecUpdate(exec, graph, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
}

}  // namespace

int main(int argc, char** argv) {
  hostcuda::testing::RunRole(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
