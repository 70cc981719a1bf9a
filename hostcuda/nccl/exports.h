// How a function becomes an export: the strong pncclX, which tools call, and the weak alias ncclX,
// which they may replace.
#ifndef HOSTCUDA_NCCL_EXPORTS_H_
#define HOSTCUDA_NCCL_EXPORTS_H_

// Everything else is compiled with hidden symbols. Include this before anything that includes
// nccl.h.
#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#define HOSTNCCL_VISIBLE __attribute__((visibility("default")))

#define HOSTNCCL_EXPORT(name) \
  extern "C" decltype(pnccl##name) nccl##name __attribute__((weak, alias("pnccl" #name)));

#endif  // HOSTCUDA_NCCL_EXPORTS_H_
