// ncclComm: what an ncclComm_t points to, and the registry that tells a communicator from a stale
// or wild pointer.
//
// Threading: `mutex` guards everything that is not const or atomic. A handle lives as long as
// somebody holds it: the registry (until destroy or abort), calls in progress, initialization
// threads.
#ifndef HOSTCUDA_NCCL_HANDLE_H_
#define HOSTCUDA_NCCL_HANDLE_H_

#include <cuda.h>
#include <nccl.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "hostcuda/nccl/communicator.h"
#include "hostcuda/nccl/driver.h"
#include "hostcuda/nccl/status.h"

struct ncclComm {
  struct PreMulSum {
    bool alive = false;
    hostnccl::DataType type = hostnccl::DataType::kInt8;
    uint64_t bits = 0;
    const void* address = nullptr;  // read when the operation runs; null: `bits` count
  };

  ~ncclComm();

  const hostnccl::DriverFunctions* driver = nullptr;
  int rank = 0;
  int ranks = 0;
  int device = 0;
  CUcontext context = nullptr;  // the device's primary context, retained
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  std::atomic<bool> cancelled{false};
  std::atomic<int> jobs{0};  // initialization, splits, finalization in progress

  std::mutex mutex;
  std::shared_ptr<hostnccl::Communicator> core;  // null until initialized
  hostnccl::Status error;
  bool finalized = false;
  bool revoked = false;
  std::vector<PreMulSum> reductions;
  std::map<void*, size_t> registrations;

  bool blocking() const { return config.blocking != 0; }
};

namespace hostnccl {

using Handle = std::shared_ptr<ncclComm>;

/// Makes the handle known as an ncclComm_t.
ncclComm_t Register(const Handle& handle);
void Unregister(ncclComm_t comm);
/// Finds the handle; fails for null and for pointers that are not, or no longer, communicators.
/// `call` is named in the message.
Status Find(ncclComm_t comm, const char* call, Handle* out);
/// Find, and checks that the communicator is initialized and has not failed.
Status FindReady(ncclComm_t comm, const char* call, Handle* out);
/// Returns kInProgress, the communicator's failure, or success.
Status AsyncState(ncclComm& comm);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_HANDLE_H_
