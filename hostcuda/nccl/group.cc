#include "hostcuda/nccl/group.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "hostcuda/nccl/kernel_name.h"
#include "hostcuda/nccl/last_error.h"

namespace hostnccl {
namespace {

struct Call {
  Handle handle;
  Operation operation;
  CUstream stream;
};

struct Group {
  int depth = 0;
  Status failure;
  std::vector<Job> jobs;
  std::vector<Call> calls;
};

Group& Current() {
  static thread_local Group group;
  return group;
}

// A launch on one of its streams: the context of the driver's task.
struct Task {
  std::shared_ptr<Communicator> communicator;
  std::vector<Operation> operations;  // kept only where it may be replayed
  std::shared_ptr<Launch> launch;     // null in a graph node: every replay makes its own
  int stream = 0;
};

int PollTask(void* context, uint64_t now_ns, uint64_t* wake_at_ns) {
  auto* task = static_cast<Task*>(context);
  if (task->launch == nullptr) task->launch = task->communicator->NewLaunch(task->operations, 1);
  switch (task->launch->Advance(task->stream, now_ns, wake_at_ns)) {
    case Launch::Poll::kDone:
      return HOSTCUDA_TASK_DONE;
    case Launch::Poll::kPending:
      return HOSTCUDA_TASK_PENDING;
    case Launch::Poll::kFailed:
      break;
  }
  return -static_cast<int>(CUDA_ERROR_LAUNCH_FAILED);
}

void ReleaseTask(void* context) {
  auto* task = static_cast<Task*>(context);
  if (task->launch != nullptr) task->launch->Release(task->stream);
  delete task;
}

// A replay takes its turn among the communicator's launches when it is launched, not when it was
// captured.
void* CloneTask(void* context) {
  const auto* node = static_cast<const Task*>(context);
  return new Task{node->communicator, {}, node->communicator->NewLaunch(node->operations, 1), 0};
}

class ContextScope {
 public:
  explicit ContextScope(const ncclComm& comm) : driver_(*comm.driver) {
    CUcontext current = nullptr;
    driver_.ctx_get_current(&current);
    if (current != comm.context) pushed_ = driver_.ctx_push_current(comm.context) == CUDA_SUCCESS;
  }
  ~ContextScope() {
    CUcontext ignored = nullptr;
    if (pushed_) driver_.ctx_pop_current(&ignored);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const DriverFunctions& driver_;
  bool pushed_ = false;
};

Status EnqueueLaunch(ncclComm& comm, const std::vector<Operation>& operations,
                     const std::vector<CUstream>& streams) {
  const ContextScope scope(comm);
  std::shared_ptr<Communicator> core;
  {
    std::lock_guard lock(comm.mutex);
    core = comm.core;
  }
  bool capturing = false;
  for (CUstream stream : streams) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (const CUresult result = comm.driver->stream_is_capturing(stream, &status);
        result != CUDA_SUCCESS) {
      return Error(Code::kCudaError, "cuStreamIsCapturing failed with CUDA error %d for stream %p",
                   static_cast<int>(result), static_cast<void*>(stream));
    }
    capturing |= status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  if (capturing && streams.size() > 1) {
    return Error(Code::kInvalidUsage,
                 "a group whose operations of one communicator are on %zu streams cannot be "
                 "captured into a CUDA graph; use one "
                 "stream for each communicator",
                 streams.size());
  }
  const char* name = MangledKernelName(operations);
  std::shared_ptr<Launch> launch;
  if (!capturing) launch = core->NewLaunch(operations, static_cast<int>(streams.size()));
  Status status;
  for (size_t i = 0; i < streams.size(); ++i) {
    auto* task = new Task{core, capturing ? operations : std::vector<Operation>{}, launch,
                          static_cast<int>(i)};
    const CUresult result = comm.driver->table->stream_enqueue(
        streams[i], name, PollTask, ReleaseTask, capturing ? CloneTask : nullptr, task);
    if (result == CUDA_SUCCESS) continue;
    // The driver has released the task.
    status = Error(
        Code::kCudaError, "cannot enqueue %s: CUDA error %d%s", Name(operations.front().kind),
        static_cast<int>(result),
        result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? " (stream capture unsupported)" : "");
    // The launch has its place in the communicator's order and will never run: nothing after it
    // can.
    if (launch != nullptr) core->Stop(Departure::kAborted);
    break;
  }
  return status;
}

Status RunJob(Job& job) {
  Status status;
  try {
    status = job.run();
  } catch (const std::exception& exception) {
    status = Error(Code::kSystemError, "%s", exception.what());
  }
  for (const Handle& handle : job.handles) --handle->jobs;
  return status;
}

Status RunJobs(std::vector<Job>& jobs) {
  if (jobs.size() == 1) return RunJob(jobs.front());
  std::vector<Status> results(jobs.size());
  std::vector<std::thread> threads;
  threads.reserve(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    threads.emplace_back([&jobs, &results, i] { results[i] = RunJob(jobs[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) {
    if (!result.ok()) return result;
  }
  return {};
}

Status RunCalls(const std::vector<Call>& calls) {
  std::vector<ncclComm*> order;
  for (const Call& call : calls) {
    if (std::find(order.begin(), order.end(), call.handle.get()) == order.end())
      order.push_back(call.handle.get());
  }
  Status status;
  for (ncclComm* comm : order) {
    std::vector<Operation> operations;
    std::vector<CUstream> streams;
    for (const Call& call : calls) {
      if (call.handle.get() != comm) continue;
      operations.push_back(call.operation);
      if (std::find(streams.begin(), streams.end(), call.stream) == streams.end())
        streams.push_back(call.stream);
    }
    const Status result = EnqueueLaunch(*comm, operations, streams);
    if (status.ok()) status = result;
  }
  return status;
}

Status Run(std::vector<Job> jobs, const std::vector<Call>& calls) {
  for (Job& job : jobs) {
    for (const Handle& handle : job.handles) ++handle->jobs;
  }
  const bool blocking =
      std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.blocking; });
  if (blocking) {
    if (!jobs.empty()) {
      if (Status status = RunJobs(jobs); !status.ok()) return status;
    }
    return RunCalls(calls);
  }
  if (!calls.empty()) {
    for (Job& job : jobs) {
      for (const Handle& handle : job.handles) --handle->jobs;
    }
    return Error(Code::kInvalidUsage,
                 "a group must not hold both communications and the initialization of a "
                 "non-blocking communicator");
  }
  std::thread([jobs = std::move(jobs)]() mutable { Report(RunJobs(jobs)); }).detach();
  return Status{Code::kInProgress, "the communicator is being initialized"};
}

}  // namespace

void GroupStart() { ++Current().depth; }

Status GroupEnd() {
  Group& group = Current();
  if (group.depth == 0) return Error(Code::kInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--group.depth > 0) return {};
  Status failure = std::move(group.failure);
  std::vector<Job> jobs = std::move(group.jobs);
  std::vector<Call> calls = std::move(group.calls);
  group = Group{};
  if (!failure.ok()) return failure;
  return Run(std::move(jobs), calls);
}

Status GroupDrop() {
  Group& group = Current();
  if (group.depth == 0)
    return Error(Code::kInvalidUsage, "ncclGroupSimulateEnd: not in a group call.");
  if (--group.depth > 0) return {};
  Status failure = std::move(group.failure);
  const bool jobs = !group.jobs.empty();
  group = Group{};
  if (failure.ok() && jobs) {
    return Error(
        Code::kInvalidUsage,
        "ncclGroupSimulateEnd needs fully initialized communicators, the group initializes some");
  }
  return failure;
}

Status Submit(Job job) {
  Group& group = Current();
  if (group.depth > 0) {
    group.jobs.push_back(std::move(job));
    return {};
  }
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  return Run(std::move(jobs), {});
}

Status Submit(const Handle& handle, const Operation& operation, CUstream stream) {
  Group& group = Current();
  if (group.depth > 0) {
    group.calls.push_back({handle, operation, stream});
    return {};
  }
  return EnqueueLaunch(*handle, {operation}, {stream});
}

Status Spoil(const Status& status) {
  Group& group = Current();
  if (group.depth > 0 && group.failure.ok() && !status.ok() && status.code != Code::kInProgress)
    group.failure = status;
  return status;
}

}  // namespace hostnccl
