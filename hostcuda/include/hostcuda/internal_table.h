// The seam between hostcuda's driver and hostcuda's own libraries (NCCL, cuBLAS, CUPTI, the value
// layer).
//
// Owner: the driver (libcuda.so.1). A library gets the table by
// cuGetExportTable(&kHostcudaTableUuid), exactly as NVIDIA's libraries reach their driver's private
// tables, so a forwarding shim in between passes it through. Programs must not use it; what
// programs may use is in hostcuda.h.
//
// Threading: every function may be called from any thread. Callbacks run on whichever thread makes
// progress (the enqueuing thread when the stream is idle, a thread inside a synchronizing call, or
// the driver's progress thread) and must not block, throw, or call CUDA functions that wait.
//
//   const HostcudaTable* t = nullptr;
//   cuGetExportTable((const void**)&t, &kHostcudaTableUuid);
//   t->stream_enqueue(stream, "ncclDevKernel_AllReduce", Poll, Release, op);
#ifndef HOSTCUDA_INTERNAL_TABLE_H_
#define HOSTCUDA_INTERNAL_TABLE_H_

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#define HOSTCUDA_TABLE_VERSION 2

static const CUuuid kHostcudaTableUuid = {
    {'h', 'o', 's', 't', 'c', 'u', 'd', 'a', '-', 't', 'a', 'b', 'l', 'e', '-', '1'}};

enum HostcudaTaskState { HOSTCUDA_TASK_DONE = 0, HOSTCUDA_TASK_PENDING = 1 };

// Returns HOSTCUDA_TASK_DONE, HOSTCUDA_TASK_PENDING, or a negated CUresult, which becomes the
// sticky error of the context. A pending task is polled again when the process's doorbell rings,
// when another stream of the process makes progress, or at *wake_at_ns (job clock, preset to
// UINT64_MAX), whichever is first.
typedef int (*HostcudaTaskPoll)(void* context, uint64_t now_ns, uint64_t* wake_at_ns);
// Called exactly once, after the task is done, failed, dropped with its stream, or refused by
// stream_enqueue.
typedef void (*HostcudaTaskRelease)(void* context);

enum HostcudaValues {
  HOSTCUDA_VALUES_NONE = 0,
  HOSTCUDA_VALUES_CONTROL = 1,
  HOSTCUDA_VALUES_CPU = 2
};

enum HostcudaActivityKind {
  HOSTCUDA_ACTIVITY_KERNEL = 0,
  HOSTCUDA_ACTIVITY_MEMCPY = 1,
  HOSTCUDA_ACTIVITY_MEMSET = 2,
  HOSTCUDA_ACTIVITY_SYNC = 3,
};

// One completed activity, for CUPTI. Times are nanoseconds of the job clock.
struct HostcudaActivity {
  enum HostcudaActivityKind kind;
  uint64_t start_ns, end_ns;
  uint64_t enqueue_start_ns, enqueue_end_ns;  // the API call that caused it, on the calling thread
  uint32_t device, context, stream;  // stream: small integer, 7 is the default stream as with CUPTI
  uint32_t correlation;              // unique per API call
  uint32_t thread;                   // gettid() of the caller
  const char* name;  // kernel name (mangled) or the copy's direction; static lifetime
  uint32_t grid[3], block[3], shared_bytes;  // kernels
  uint64_t bytes;                            // copies and sets
  int copy_kind;                             // CUpti_ActivityMemcpyKind
  int host_pinned;                           // copies: 1 where the host's memory is page-locked
};
typedef void (*HostcudaActivityObserver)(const struct HostcudaActivity*);

// What NVML answers about a device.
struct HostcudaDeviceInfo {
  char name[96];        // as cuDeviceGetName
  CUuuid uuid;          // as cuDeviceGetUuid
  char pci_bus_id[16];  // as cuDeviceGetPCIBusId
  int major, minor, multiprocessors, clock_khz, memory_clock_khz;
  uint64_t total_bytes;
};
struct HostcudaDeviceProcess {
  uint32_t pid;
  uint64_t used_bytes;  // contexts included
};

struct HostcudaTable {
  size_t size;       // sizeof(HostcudaTable) of the driver
  uint32_t version;  // HOSTCUDA_TABLE_VERSION

  // Appends a task to `stream`; in stream order `poll` is called until it is no longer pending.
  // `name` is shown to profilers as a kernel's name when not null and must have static lifetime.
  // During stream capture the task becomes a graph node: then `clone` (may be null: capture is
  // refused with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) makes a fresh context for every replay.
  CUresult (*stream_enqueue)(CUstream stream, const char* name, HostcudaTaskPoll poll,
                             HostcudaTaskRelease release, void* (*clone)(void*), void* context);
  // *idle is 1 when every earlier operation of `stream` has completed: the caller may then do the
  // work itself.
  CUresult (*stream_idle)(CUstream stream, int* idle);

  // Doorbells: one 32-bit futex word a process, in memory shared by all processes of this user. A
  // library hands its index to its peers; a peer that made something come true rings it.
  uint32_t (*doorbell_self)(void);
  void (*doorbell_ring)(uint32_t index);

  // Launches a kernel that exists only by name (libraries: operation, shapes and types are in the
  // name). It travels the public path (cuModuleLoadData, cuModuleGetFunction, cuLaunchKernel of
  // whatever libcuda.so.1 the process has), so that a shim sees it. `name` need not outlive the
  // call.
  CUresult (*launch_named)(CUstream stream, const char* name, const uint32_t grid[3],
                           const uint32_t block[3], uint32_t shared_bytes);

  enum HostcudaValues (*values)(void);
  uint64_t (*now_ns)(void);
  // Null observer: none. Returns the previous one.
  HostcudaActivityObserver (*set_activity_observer)(HostcudaActivityObserver observer);
  // Ends the process with exit code 125 after one line on stderr that names the call and the
  // library: for calls that hostcuda does not implement and that have no error code a caller would
  // look at.
  void (*unimplemented)(const char* library, const char* function);

  // For NVML, which may be used in a process that never initializes CUDA and forks afterwards:
  // these work before cuInit and do not initialize. Added after version 1; null, or beyond `size`,
  // in a driver without them.
  int (*device_count)(void);
  CUresult (*device_info)(int device, struct HostcudaDeviceInfo* info);
  // Fills at most `capacity` entries with the processes that hold memory on `device`; returns how
  // many there are.
  int (*device_processes)(int device, struct HostcudaDeviceProcess* processes, int capacity);

  // A clock on which work takes time (hostcuda/clock/clock.h, docs/design/0009-virtual-clock.md).
  // Added later than the above; the rest may only be called where the first answers 1.
  int (*clock_takes_time)(void);
  // The calling thread takes the time of a query.
  void (*charge_query)(void);
  // Sleeps while *word == seen, in a way that lets the clock move; returns early about once a
  // second of wall time. The word may be stored to by any process of the session.
  void (*await_word)(const uint32_t* word, uint32_t seen);
  // Shared events: a time at which the process of a doorbell is woken and polls its tasks. Any
  // process may set the time, again to move it, UINT64_MAX to cancel; the word counts how often the
  // event has fired. event_new answers UINT32_MAX where there are too many. Events of a process
  // that ends are freed.
  uint32_t (*event_new)(uint32_t doorbell);
  void (*event_set)(uint32_t event, uint64_t at_ns);
  const uint32_t* (*event_word)(uint32_t event);
  void (*event_free)(uint32_t event);
};

#endif  // HOSTCUDA_INTERNAL_TABLE_H_
