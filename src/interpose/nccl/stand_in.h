// StandIn: launches the kernels that stand for NCCL's where the peers are played (stand_in.cu).
//
// Owns, for each CUDA context, the module and a pool of synchronisation words in device memory.
// Thread-safe. Everything is loaded before the first kernel runs: a module that is loaded while one
// waits would wait for it.
//
//   StandIn& stand_in = StandIn::Get();
//   if (CUresult error = stand_in.Prepare(driver)) ...            // when a communicator is made
//   stand_in.Launch(driver, stream, operation, arguments, &sync);   // sync.Give() when it has
//   ended
#ifndef PRISM_INTERPOSE_NCCL_STAND_IN_H_
#define PRISM_INTERPOSE_NCCL_STAND_IN_H_

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "src/interpose/nccl/driver_calls.h"
#include "src/interpose/nccl/stand_in_arguments.h"
#include "src/wire/protocol.h"

namespace prism::interpose::nccl {

class StandIn {
 public:
  /// A kernel's words in device memory; 0: none.
  using Sync = CUdeviceptr;

  static StandIn& Get();

  /// Loads the kernels into the current context, once.
  CUresult Prepare(const DriverCalls& driver);
  /// Launches the kernel of NCCL's name for `record` in the current context, with
  /// `arguments.sync` filled in; `*sync` is the launch's until GiveBack.
  CUresult Launch(const DriverCalls& driver, CUstream stream, const wire::OpRecord& record,
                  StandInArguments* arguments, Sync* sync);
  /// When the kernel has said that it is done.
  void GiveBack(Sync sync);

  /// "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" and so on.
  static const char* KernelName(const wire::OpRecord& record);
  /// Blocks for a communication that moves `bytes`: as many channels as NCCL would take.
  static unsigned Channels(uint64_t bytes);

 private:
  struct Context {
    CUmodule module = nullptr;
    std::map<const void*, CUfunction> functions;  // by the name's address
    std::vector<Sync> free;
  };
  CUresult Load(const DriverCalls& driver, CUcontext context, Context* made);

  std::mutex mutex_;
  std::map<CUcontext, Context> contexts_;
  std::map<Sync, CUcontext> owner_;
};

}  // namespace prism::interpose::nccl

#endif  // PRISM_INTERPOSE_NCCL_STAND_IN_H_
