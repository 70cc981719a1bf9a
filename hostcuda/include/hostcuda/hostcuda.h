// What a program may use of hostcuda beyond CUDA's own API.
//
// A C++ program whose kernels should compute on the CPU registers a body for each of them; the
// launch then runs the body in stream order. Without a body a launch takes its time and leaves
// memory untouched (structure only). On the virtual clock (HOSTCUDA_CLOCK=virtual) a kernel takes
// the time that is registered for it, and so does host work that is told.
//
//   static void Axpy(const hostcudaLaunch* l) {
//     float a = *(float*)l->args[0]; float *x = *(float**)l->args[1], *y = *(float**)l->args[2];
//     int n = *(int*)l->args[3];
//     for (int i = 0; i < n; ++i) y[i] += a * x[i];
//   }
//   static unsigned long long AxpyTime(const hostcudaLaunch* l) { return 2000 + *(int*)l->args[3] /
//   300; } hostcudaRegisterKernel("axpy", Axpy); hostcudaRegisterKernelTime("axpy", 0, AxpyTime);
//   hostcudaHostTime(50000);  // the program's own work between two calls
//
// A program that is also to run on a GPU defines HOSTCUDA_OPTIONAL before it includes this header:
// then the functions are looked up in the process's libcuda.so.1, and where that is not hostcuda's
// they do nothing and return CUDA_ERROR_NOT_SUPPORTED (hostcudaNow: 0). Needs -ldl with old C
// libraries. Where <cuda_runtime.h> was included before, C++ programs may give a kernel by its
// function: hostcudaRegisterKernel(Axpy<float>, body, ns).
#ifndef HOSTCUDA_HOSTCUDA_H_
#define HOSTCUDA_HOSTCUDA_H_

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hostcudaLaunch {
  const char* name;  // as registered with CUDA (mangled)
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void**
      args;  // the launch's kernelParams: args[i] points to parameter i; valid during the call only
} hostcudaLaunch;

typedef void (*hostcudaKernelBody)(const hostcudaLaunch* launch);
// The time of a launch in nanoseconds. Called when it is launched; `args` is null where the program
// gave no kernelParams.
typedef unsigned long long (*hostcudaKernelTime)(const hostcudaLaunch* launch);

#ifndef HOSTCUDA_OPTIONAL

// Registers `body` for every kernel called `name` of this process. Returns 0, or a CUresult.
int hostcudaRegisterKernel(const char* name, hostcudaKernelBody body);

// Registers the time of every kernel called `name`, whether it has a body or not: `time`, or `ns`
// where that is null. Has no effect on the clock `free`. Returns 0, or a CUresult.
int hostcudaRegisterKernelTime(const char* name, unsigned long long ns, hostcudaKernelTime time);

// Tells the sizes in bytes of the parameters of kernels called `name`. Needed only where a kernel
// takes structures by value (or is a template), its image is compressed, and it is launched on a
// busy or capturing stream, or on the virtual clock: then nothing else tells how much of
// kernelParams to copy. Returns 0, or a CUresult.
int hostcudaRegisterKernelParameters(const char* name, int count, const unsigned* sizes);

// The calling thread works for so long: on the virtual clock it returns when that time has passed,
// on the clock `free` at once. Returns 0, or a CUresult.
int hostcudaHostTime(unsigned long long ns);

// Nanoseconds of the job's clock.
unsigned long long hostcudaNow(void);

// ---- For tools that take part in a job: interposed libraries, and processes that steer others.
// ---- After cuInit.

// 1 on the virtual clock, else 0.
int hostcudaClockIsVirtual(void);

// Sets *ns to the nanoseconds that kernels, copies and graphs took between two events (CUevent) of
// one stream, both reached: less than what cudaEventElapsedTime says by the time in which the
// stream had nothing to do; a graph counts as a whole. CUDA_ERROR_NOT_SUPPORTED on the clock
// `free`.
int hostcudaBusyTime(void* start, void* end, unsigned long long* ns);

// While the sum of a thread's changes (+1, -1) is positive, its CUDA calls and the work that they
// enqueue take no time on the virtual clock: a tool's own calls inside a program's.
int hostcudaUncharged(int change);

// While the sum of a thread's changes is positive, the virtual clock stands even where the thread
// sleeps outside of CUDA: for what another process of the job is about to answer. On the clock
// `free` it does nothing.
int hostcudaHold(int change);

// This process's number in the session; UINT_MAX where there is no session.
unsigned hostcudaNumber(void);

// Process `number` of the session looks again at what it waits for. From here on until it waits
// again the virtual clock stands.
int hostcudaRing(unsigned number);

// Sleeps on the virtual clock until this process is rung (*rings, what was seen last, is no longer
// its bell's count), or until `until_ns` (ULLONG_MAX: not at a time). Sets *rings; returns early
// about twice a second of wall time. A process that only steers others takes part in the clock from
// its first call of this or hostcudaHold on. CUDA_ERROR_NOT_SUPPORTED on the clock `free`.
int hostcudaWait(unsigned* rings, unsigned long long until_ns);

#else

#include <dlfcn.h>
#include <stddef.h>

static inline void* hostcudaSymbol(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == NULL ? NULL : dlsym(library, name);
}
// Declares `found`: hostcuda's function of that type, a null symbol where there is none.
#define HOSTCUDA_FIND(type, name) \
  union {                         \
    void* symbol;                 \
    type function;                \
  } found;                        \
  found.symbol = hostcudaSymbol(name)
typedef int (*hostcudaRegisterKernelType)(const char*, hostcudaKernelBody);
typedef int (*hostcudaRegisterKernelTimeType)(const char*, unsigned long long, hostcudaKernelTime);
typedef int (*hostcudaRegisterKernelParametersType)(const char*, int, const unsigned*);
typedef int (*hostcudaHostTimeType)(unsigned long long);
typedef unsigned long long (*hostcudaNowType)(void);

static inline int hostcudaRegisterKernel(const char* name, hostcudaKernelBody body) {
  HOSTCUDA_FIND(hostcudaRegisterKernelType, "hostcudaRegisterKernel");
  return found.symbol == NULL ? 801 : found.function(name, body);
}
static inline int hostcudaRegisterKernelTime(const char* name, unsigned long long ns,
                                             hostcudaKernelTime time) {
  HOSTCUDA_FIND(hostcudaRegisterKernelTimeType, "hostcudaRegisterKernelTime");
  return found.symbol == NULL ? 801 : found.function(name, ns, time);
}
static inline int hostcudaRegisterKernelParameters(const char* name, int count,
                                                   const unsigned* sizes) {
  HOSTCUDA_FIND(hostcudaRegisterKernelParametersType, "hostcudaRegisterKernelParameters");
  return found.symbol == NULL ? 801 : found.function(name, count, sizes);
}
static inline int hostcudaHostTime(unsigned long long ns) {
  HOSTCUDA_FIND(hostcudaHostTimeType, "hostcudaHostTime");
  return found.symbol == NULL ? 801 : found.function(ns);
}
static inline unsigned long long hostcudaNow(void) {
  HOSTCUDA_FIND(hostcudaNowType, "hostcudaNow");
  return found.symbol == NULL ? 0 : found.function();
}
#undef HOSTCUDA_FIND

#endif

#ifdef __cplusplus
}

#ifdef __CUDA_RUNTIME_API_H__
// By the kernel's function, with its time. Returns 0, or an error of the runtime or a CUresult.
template <class... Parameters>
int hostcudaRegisterKernel(void (*kernel)(Parameters...), hostcudaKernelBody body,
                           unsigned long long ns, hostcudaKernelTime time = nullptr) {
  const char* name = nullptr;
  const int found = cudaFuncGetName(&name, reinterpret_cast<const void*>(kernel));
  if (found != 0) return found;
  const int registered = body == nullptr ? 0 : hostcudaRegisterKernel(name, body);
  return registered != 0 ? registered : hostcudaRegisterKernelTime(name, ns, time);
}
#endif
#endif

#endif  // HOSTCUDA_HOSTCUDA_H_
