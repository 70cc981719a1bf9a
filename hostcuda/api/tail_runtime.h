// What the generated part of a library (its tail: every export that nobody wrote by hand) calls.
//
// Two users: the generated C file of every library, and hand-written code that meets a case it does
// not handle and wants to say so in the same words. C, no dependency but libc, so that the driver
// and the runtime can use it too.
//
// Threading: everything may be called from any thread; a message appears once a function and
// process (twice at worst).
//
//   static struct HostcudaTailCall call = {&kLibrary, "cusolverDnXgetrs", 0};
//   return HostcudaUnsupported(&call);
#ifndef HOSTCUDA_API_TAIL_RUNTIME_H_
#define HOSTCUDA_API_TAIL_RUNTIME_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A library's name and the status codes generic answers need (0 is success everywhere).
struct HostcudaLibrary {
  const char* soname;
  const char* prefix;  // of kernel names: "hostcusolver"
  int not_supported, not_initialized, invalid_value, execution_failed;
  const char* not_supported_name;
  int version[3];
};

struct HostcudaTailCall {
  const struct HostcudaLibrary* library;
  const char* function;
  int announced;
};

// Writes one line to stderr at the first call, that names function and library. Returns the
// library's not-supported status.
int HostcudaUnsupported(struct HostcudaTailCall* call);

// For functions without a status a caller would look at: says the same and ends the process with
// exit code 125.
#ifdef __cplusplus
[[noreturn]]
#else
_Noreturn
#endif
void HostcudaUnimplemented(struct HostcudaTailCall* call);

// Roles of parameters, as in the API description.
enum HostcudaRole {
  HOSTCUDA_INTEGER,     // scalar; args[i] is its value
  HOSTCUDA_FLOATING,    // scalar; args[i] holds the bits of a double
  HOSTCUDA_POINTER,     // not looked at
  HOSTCUDA_STREAM,      // cudaStream_t
  HOSTCUDA_STREAMS,     // cudaStream_t*
  HOSTCUDA_HANDLE,      // handle: pointer to a generic object
  HOSTCUDA_HANDLE_OUT,  // where a created handle goes
  HOSTCUDA_OBJECT,      // storage of the caller that holds a pointer to a generic object
  HOSTCUDA_OBJECT_OUT,
  HOSTCUDA_SIZE_OUT,       // integer of `width` bytes that a size goes to
  HOSTCUDA_ZERO_OUT,       // host integer that a successful call sets to 0
  HOSTCUDA_NAN_OUT,        // host doubles, one a batch entry, that are not computed
  HOSTCUDA_DEVICE_STATUS,  // device integers, one a batch entry, that say whether the computation
                           // failed
  HOSTCUDA_OUT,            // other scalar result of `width` bytes
};

struct HostcudaParameter {
  const char* name;
  const char* type;  // of handles
  uint8_t role;
  uint8_t width;  // bytes behind the pointer
};

// Generic answers (hostcuda/libraries/generic_calls.cc); the driver and the runtime use none of
// them. Each returns a status of the call's library.
int HostcudaSize(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                 int count);
int HostcudaCreate(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                   int count);
int HostcudaDestroy(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                    int count);
int HostcudaSet(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                int count);
int HostcudaGet(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                int count);
int HostcudaCompute(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                    int count);
int HostcudaResult(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                   int count);
int HostcudaVersion(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                    int count);
int HostcudaProperty(struct HostcudaTailCall*, const struct HostcudaParameter*, const int64_t* args,
                     int count);

#ifdef __cplusplus
}
#endif

#endif  // HOSTCUDA_API_TAIL_RUNTIME_H_
