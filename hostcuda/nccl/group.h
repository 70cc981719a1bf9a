// Groups: what ncclGroupStart..End collects on a thread, and how it runs.
//
// Every call is a group of its own unless it stands in one. At the end of the outermost group first
// the jobs run (initialization, splits: they wait for other ranks, each on its own thread when
// there are several), then one launch is made for each communicator and enqueued on its streams. A
// failed call fails its whole group. When a job belongs to a non-blocking communicator, everything
// runs on a thread and the group's end returns ncclInProgress.
//
// Threading: a group belongs to its thread.
#ifndef HOSTCUDA_NCCL_GROUP_H_
#define HOSTCUDA_NCCL_GROUP_H_

#include <functional>
#include <vector>

#include "hostcuda/nccl/handle.h"
#include "hostcuda/nccl/operation.h"
#include "hostcuda/nccl/status.h"

namespace hostnccl {

/// Work of a communicator that may wait for other ranks.
struct Job {
  std::vector<Handle> handles;  // in progress while it runs
  std::function<Status()> run;
  bool blocking = true;
};

void GroupStart();
/// Ends the innermost group; runs it if it was the outermost.
Status GroupEnd();
/// Ends the innermost group; if it was the outermost, drops what it holds.
Status GroupDrop();

/// Adds to the current group, which runs at once if there is none.
Status Submit(Job job);
Status Submit(const Handle& handle, const Operation& operation, CUstream stream);
/// Notes a failed call: the current group, if there is one, fails as a whole. Returns `status`.
Status Spoil(const Status& status);

}  // namespace hostnccl

#endif  // HOSTCUDA_NCCL_GROUP_H_
