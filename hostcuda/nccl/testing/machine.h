// What a test program needs of a machine: NCCL's functions, memory, streams. Two machines implement
// it: one plays the driver inside the test (fake_machine.cc, sanitizer-clean), one is hostcuda's
// real libraries (hostcuda_machine.cc).
//
// RunRanks forks, so nothing of CUDA or NCCL may be used in the parent but ncclGetUniqueId.
//
//   RunRanks(2, [&](int rank) { ... EXPECT_EQ(nccl().AllReduce(...), ncclSuccess); ... });
#ifndef HOSTCUDA_NCCL_TESTING_MACHINE_H_
#define HOSTCUDA_NCCL_TESTING_MACHINE_H_

#include <cuda.h>
#include <nccl.h>

#include <functional>
#include <vector>

namespace hostnccl::testing {

// One a line; version 14 never settles on the list.
// clang-format off
#define HOSTNCCL_TESTED_FUNCTIONS(X) \
  X(GetUniqueId) \
  X(GetVersion) \
  X(GetErrorString) \
  X(GetLastError) \
  X(CommInitRank) \
  X(CommInitRankConfig) \
  X(CommInitRankScalable) \
  X(CommInitAll) \
  X(CommSplit) \
  X(CommShrink) \
  X(CommFinalize) \
  X(CommDestroy) \
  X(CommAbort) \
  X(CommRevoke) \
  X(CommGetAsyncError) \
  X(CommCount) \
  X(CommCuDevice) \
  X(CommUserRank) \
  X(MemAlloc) \
  X(MemFree) \
  X(CommRegister) \
  X(CommDeregister) \
  X(CommWindowRegister) \
  X(CommWindowDeregister) \
  X(RedOpCreatePreMulSum) \
  X(RedOpDestroy) \
  X(AllReduce) \
  X(Reduce) \
  X(Broadcast) \
  X(Bcast) \
  X(AllGather) \
  X(ReduceScatter) \
  X(AlltoAll) \
  X(Gather) \
  X(Scatter) \
  X(Send) \
  X(Recv) \
  X(GroupStart) \
  X(GroupEnd) \
  X(GroupSimulateEnd)
// clang-format on

struct NcclFunctions {
#define HOSTNCCL_MEMBER(name) decltype(&nccl##name) name;
  HOSTNCCL_TESTED_FUNCTIONS(HOSTNCCL_MEMBER)
#undef HOSTNCCL_MEMBER
};

/// NCCL of this machine.
const NcclFunctions& nccl();

/// Makes the machine usable in this process, with `device` current. Called by RunRanks in every
/// child.
void StartMachine(int device);
void UseDevice(int device);
cudaStream_t NewStream();
void DestroyStream(cudaStream_t stream);
/// Waits until the stream is empty; returns 0 or the CUresult that its operations ended with.
int Synchronize(cudaStream_t stream);
/// Returns 0 when the stream is empty, CUDA_ERROR_NOT_READY, or its error; does not wait.
int Query(cudaStream_t stream);
/// Appends a task that is done once `*flag` is not 0 (set it, then call Poke).
void HoldUntil(cudaStream_t stream, volatile uint32_t* flag);
void Poke();
/// Device memory, which is host memory on both machines.
void* DeviceAlloc(size_t bytes);
/// Captures what `body` enqueues on the stream into a graph; null where the driver has no graphs.
struct Graph;
Graph* Capture(cudaStream_t stream, const std::function<void()>& body);
void Replay(Graph* graph, cudaStream_t stream);

/// Forks `ranks` processes that run `body`; expects all to end well within 100 s, but for those in
/// `expect_killed`.
void RunRanks(int ranks, const std::function<void(int rank)>& body,
              const std::vector<int>& expect_killed = {});

}  // namespace hostnccl::testing

#endif  // HOSTCUDA_NCCL_TESTING_MACHINE_H_
