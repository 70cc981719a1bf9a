// What a program may use of hostcuda beyond CUDA's own API.
//
// A C++ program whose kernels should compute on the CPU registers a body for each of them; the
// launch then runs the body in stream order. Without a body a launch takes its time and leaves
// memory untouched (structure only).
//
//   static void Axpy(const hostcudaLaunch* l) {
//     float a = *(float*)l->args[0]; float *x = *(float**)l->args[1], *y = *(float**)l->args[2];
//     int n = *(int*)l->args[3];
//     for (int i = 0; i < n; ++i) y[i] += a * x[i];
//   }
//   hostcudaRegisterKernel("axpy", Axpy);
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

// Registers `body` for every kernel called `name` of this process. Returns 0, or a CUresult.
int hostcudaRegisterKernel(const char* name, hostcudaKernelBody body);

// Tells the sizes in bytes of the parameters of kernels called `name`. Needed only where a kernel
// takes structures by value (or is a template), its image is compressed, and it is launched on a
// busy or capturing stream: then nothing else tells how much of kernelParams to copy. Returns 0, or
// a CUresult.
int hostcudaRegisterKernelParameters(const char* name, int count, const unsigned* sizes);

#ifdef __cplusplus
}
#endif

#endif  // HOSTCUDA_HOSTCUDA_H_
