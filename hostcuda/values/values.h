// The C surface of libhostcuda_values.so: what hostcuda's driver, and nobody else, calls.
//
// The library makes an unmodified CUDA build of PyTorch compute true values on hostcuda. It
// overrides the kernel of every ATen operation at dispatch key CUDA by a wrapper that launches as
// before (allocations, launches and their order are the CUDA kernel's) and then runs the
// operation's CPU form over the same bytes, in stream order.
//
// Owner: this library, for the life of the process. The driver opens it beside itself at the first
// context creation if libtorch_cuda is in the process and HOSTCUDA_VALUES is not `none`:
//
//   auto install = (int (*)(void))dlsym(handle, "hostcuda_values_install");
//   if (install() != 0) return CUDA_ERROR_SYSTEM_NOT_READY;   // the reason is on stderr already
//
// Threading: install once, from any thread; hostcuda_values_in_operation may be called from any
// thread at any time.
//
// Environment (read at installation): HOSTCUDA_VALUES (through the driver's table),
// HOSTCUDA_CONTROL_BYTES (1 MiB), HOSTCUDA_THREADS (1), HOSTCUDA_VALUES_REPORT (a path; %p becomes
// the process id).
#ifndef HOSTCUDA_VALUES_VALUES_H_
#define HOSTCUDA_VALUES_VALUES_H_

#ifdef __cplusplus
extern "C" {
#endif

// Overrides the CUDA kernels of every registered ATen operation. Returns 0, or 1 after one line on
// stderr: another PyTorch than the one this library was built against, or a driver without
// hostcuda's table. A second call does nothing.
int hostcuda_values_install(void);

// Returns 1 while the calling thread is inside the CUDA kernel of an operation whose values this
// library supplies. A kernel launched while it returns 0 has no CPU form: under `values cpu` its
// outputs are unknown and the driver must report it by name.
int hostcuda_values_in_operation(void);

// Returns the number of operations overridden; 0 before installation.
int hostcuda_values_operations(void);

#ifdef __cplusplus
}
#endif

#endif  // HOSTCUDA_VALUES_VALUES_H_
